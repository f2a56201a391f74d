"use strict";
/* Appends what a running job prints, asking every two seconds while somebody looks; stops when nothing more can come. */
{
    const PERIOD = 2000;
    const KEPT = 400000; // characters: a long log must not fill the browser

    const follow = (log) => {
        const ask = async () => {
            if (document.hidden) {
                return true;
            }
            const answer = await fetch(`${log.dataset.more}?after=${encodeURIComponent(log.dataset.place)}`);
            if (!answer.ok) {
                return answer.status >= 500;
            }
            const piece = await answer.json();
            const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
            if (piece.text) {
                log.textContent = (log.textContent + piece.text).slice(-KEPT);
            }
            log.dataset.place = piece.place;
            if (atEnd) {
                log.scrollTop = log.scrollHeight;
            }
            return !piece.ended;
        };
        const loop = () => ask().catch(() => true).then((more) => {
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
            if (log.dataset.more) {
                follow(log);
            }
        }
    });
}
