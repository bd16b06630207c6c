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
    const ANSWER_SECONDS = 30;
    let timer = null;
    let running = false;
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

    function seconds() {
        return Number(choice.value);
    }

    function here() {
        return window.location.href.split("#")[0];
    }

    async function load(address) {
        const limit = new AbortController();
        const end = window.setTimeout(() => limit.abort(), 1000 * ANSWER_SECONDS);
        try {
            const answer = await fetch(address, {credentials: "same-origin", signal: limit.signal});
            if (!answer.ok || answer.redirected) {
                throw new Error(String(answer.status));
            }
            return await answer.text();
        } finally {
            window.clearTimeout(end);
        }
    }

    // One at a time: a slow server is not asked again before it has answered.
    async function refresh() {
        if (running) {
            return;
        }
        if (busy()) {
            say("paused");
            plan();
            return;
        }
        const address = here();
        running = true;
        try {
            const text = await load(address);
            if (here() === address && seconds() > 0 && !busy()) {
                replace(text);
                say("updated");
            }
            failures = 0;
        } catch (error) {
            failures += 1;
            say("failed");
        }
        running = false;
        if (here() !== address && seconds() > 0) {
            refresh(); // another range was chosen meanwhile
        } else {
            plan();
        }
    }

    // The next refresh, by the interval that is chosen now. While one is under way, its end calls this.
    function plan() {
        window.clearTimeout(timer);
        if (seconds() <= 0) {
            status.textContent = "";
        } else if (!running) {
            const pause = Math.min(SLOWEST_SECONDS, seconds() * Math.pow(2, Math.min(failures, 6)));
            timer = window.setTimeout(refresh, 1000 * pause);
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
        if (!document.hidden && seconds() > 0) {
            refresh();
        }
    });
    plan();
})();
