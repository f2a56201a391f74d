"use strict";
/* Appends the output of a running job. Polls every two seconds while the page is visible, until the log has ended. */
{
    const PERIOD = 2000;
    const MAX_LENGTH = 400000; // characters: a long log must not fill the browser's memory

    const follow = (log) => {
        const poll = async () => {
            if (document.hidden) {
                return true;
            }
            const response = await fetch(`${log.dataset.poll}?after=${encodeURIComponent(log.dataset.cursor)}`);
            if (!response.ok) {
                return response.status >= 500;
            }
            const page = await response.json();
            const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
            if (page.text) {
                log.textContent = (log.textContent + page.text).slice(-MAX_LENGTH);
            }
            log.dataset.cursor = page.cursor;
            if (atEnd) {
                log.scrollTop = log.scrollHeight;
            }
            return !page.ended;
        };
        const loop = () => poll().catch(() => true).then((more) => {
            if (more) {
                window.setTimeout(loop, PERIOD);
            } else {
                log.dataset.ended = "yes";
            }
        });
        loop();
    };

    document.addEventListener("DOMContentLoaded", () => {
        for (const log of document.querySelectorAll("pre.log")) {
            log.scrollTop = log.scrollHeight;
            if (log.dataset.poll) {
                follow(log);
            }
        }
    });
}
