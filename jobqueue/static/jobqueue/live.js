// Replaces the parts of a page that are marked with data-jobqueue-live by those of a fresh copy, while somebody looks.
"use strict";
(function () {
    const choice = document.querySelector("[data-jobqueue-refresh]");
    const status = document.querySelector("[data-jobqueue-status]");
    if (!choice || !status) {
        return;
    }
    const KEY = "jobqueue-refresh-seconds";
    const SLOWEST_SECONDS = 120;
    let timer = null;
    let failures = 0;

    function stored() {
        try {
            return window.localStorage.getItem(KEY);
        } catch (error) {
            return null; // a browser may forbid it
        }
    }

    function say(word) {
        const time = new Date().toLocaleTimeString(document.documentElement.lang || undefined);
        status.textContent = status.dataset[word] + (word === "updated" ? " " + time : "");
    }

    function busy() {
        const active = document.activeElement;
        const inside = active && active.closest("[data-jobqueue-live]");
        const selection = window.getSelection();
        return document.hidden || (selection && !selection.isCollapsed) || Boolean(inside);
    }

    function replace(text) {
        const fresh = new DOMParser().parseFromString(text, "text/html");
        document.querySelectorAll("[data-jobqueue-live]").forEach(function (part) {
            const name = part.dataset.jobqueueLive;
            const other = fresh.querySelector('[data-jobqueue-live="' + CSS.escape(name) + '"]');
            if (other) {
                const open = Array.from(part.querySelectorAll("details"), (each) => each.open);
                part.replaceChildren(...other.childNodes);
                part.querySelectorAll("details").forEach(function (each, place) {
                    each.open = Boolean(open[place]);
                });
            }
        });
    }

    async function refresh() {
        if (busy()) {
            say("paused");
            return plan();
        }
        try {
            const answer = await fetch(window.location.href, {credentials: "same-origin"});
            if (!answer.ok || answer.redirected) {
                throw new Error(String(answer.status));
            }
            const text = await answer.text();
            if (!busy()) {
                replace(text);
                say("updated");
            }
            failures = 0;
        } catch (error) {
            failures += 1;
            say("failed");
        }
        plan();
    }

    function plan() {
        window.clearTimeout(timer);
        const seconds = Number(choice.value);
        if (seconds > 0) {
            const pause = Math.min(SLOWEST_SECONDS, seconds * Math.pow(2, Math.min(failures, 6)));
            timer = window.setTimeout(refresh, 1000 * pause);
        } else {
            status.textContent = "";
        }
    }

    choice.value = stored() || "5";
    if (choice.selectedIndex < 0) {
        choice.value = "5";
    }
    choice.addEventListener("change", function () {
        try {
            window.localStorage.setItem(KEY, choice.value);
        } catch (error) {
            // The choice then lasts as long as the page.
        }
        failures = 0;
        plan();
    });
    document.addEventListener("visibilitychange", function () {
        if (!document.hidden && Number(choice.value) > 0) {
            refresh();
        }
    });
    plan();
})();
