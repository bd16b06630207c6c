// Puts a button beside each block of text in .jobqueue-copy that copies the text.
"use strict";
(function () {
    const page = document.querySelector("[data-jobqueue-copy]");
    if (!page) {
        return;
    }
    const SHOWN_MS = 2000;

    function select(block) {
        const range = document.createRange();
        range.selectNodeContents(block);
        const selection = window.getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
    }

    async function copy(block) {
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(block.textContent);
            return true;
        }
        // Without HTTPS a browser has no clipboard for scripts: the text is selected, and can be copied by hand.
        select(block);
        return document.execCommand("copy");
    }

    page.querySelectorAll(".jobqueue-copy").forEach(function (part) {
        const block = part.querySelector("pre");
        if (!block) {
            return;
        }
        const bar = document.createElement("div");
        const button = document.createElement("button");
        const status = document.createElement("span");
        bar.className = "jobqueue-copy-bar";
        button.type = "button";
        button.textContent = page.dataset.jobqueueCopy;
        status.setAttribute("role", "status");
        button.addEventListener("click", async function () {
            let done = false;
            try {
                done = await copy(block);
            } catch (error) {
                select(block); // the browser has refused it
            }
            status.textContent = done ? page.dataset.jobqueueCopied : "";
            window.setTimeout(function () {
                status.textContent = "";
            }, SHOWN_MS);
        });
        bar.append(status, button);
        part.prepend(bar);
    });
})();
