"use strict";
/* Appends the output of a running job until the log has ended: as it is printed where the server streams events, else by
   polling every two seconds while the page is visible. On the page of a workflow run each step has a log of its own. */
{
    const PERIOD = 2000;
    const REFRESH_PERIOD = 5000;
    const MAX_LENGTH = 400000; // characters: a long log must not fill the browser's memory
    // As `plain_text` of orchestrator/admin/jobs/log.py.
    const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\\-_])/g;
    const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;
    const LEASE_ID = /rtl_[0-9A-Za-z]{26}/g;

    const plainText = (raw) => raw.replace(ESCAPES, "").split("\n")
        .map((line) => line.replace(/\r+$/, "").split("\r").pop())
        .join("\n").replace(CONTROL, "").replace(LEASE_ID, "(lease id)");

    const append = (log, text) => {
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
        log.textContent = (log.textContent + text).slice(-MAX_LENGTH);
        if (atEnd) {
            log.scrollTop = log.scrollHeight;
        }
    };

    const stream = (log) => {
        const source = new EventSource(log.dataset.stream); // reconnects by itself, after the last event
        source.addEventListener("chunk", (event) => append(log, plainText(JSON.parse(event.data).text)));
        source.addEventListener("end", () => {
            source.close();
            log.dataset.ended = "yes";
        });
        window.addEventListener("pagehide", () => source.close());
    };

    const TONES = {success: "good", neutral: "good", skipped: "quiet", cancelled: "quiet", running: "going", queued: "waiting"};

    // The page of a run: `chunk` and `step` events belong to the element of their step.
    const streamSteps = (steps) => {
        const source = new EventSource(steps.dataset.stepsStream);
        const element = (event) => steps.querySelector(`[data-step="${JSON.parse(event.data).step}"]`);
        source.addEventListener("chunk", (event) => {
            const step = element(event);
            if (step) {
                if (!step.dataset.printed) { // a reader who closes it later is not overruled
                    step.dataset.printed = "yes";
                    step.open = true;
                }
                append(step.querySelector("pre.log"), plainText(JSON.parse(event.data).text));
            }
        });
        source.addEventListener("step", (event) => {
            const step = element(event);
            if (step) {
                const change = JSON.parse(event.data);
                const result = step.querySelector("[data-result]");
                result.textContent = change.conclusion || change.status;
                result.className = `state ${TONES[result.textContent] || "bad"}`;
                step.open = step.open || change.status === "running" || result.classList.contains("bad");
            }
        });
        source.addEventListener("end", () => {
            source.close();
            steps.dataset.ended = "yes";
        });
        window.addEventListener("pagehide", () => source.close());
    };

    // Parts of a page that change while the run is open: replaced by those of a new response, which has no log.
    const refresh = async () => {
        const parts = document.querySelectorAll("[data-refresh]");
        if (!parts.length) {
            return;
        }
        if (!document.hidden) {
            const address = new URL(window.location.href);
            address.searchParams.set("log", "0");
            const chosen = document.querySelector("[data-job]"); // whatever the server would choose by now
            if (chosen) {
                address.searchParams.set("job", chosen.dataset.job);
            }
            const response = await fetch(address).catch(() => null);
            if (response && response.ok) {
                const page = new DOMParser().parseFromString(await response.text(), "text/html");
                parts.forEach((part) => {
                    const found = page.getElementById(part.id);
                    if (found) {
                        part.replaceWith(found);
                    }
                });
            } else if (response && response.status < 500) {
                return;
            }
        }
        window.setTimeout(refresh, REFRESH_PERIOD);
    };

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
            append(log, page.text);
            log.dataset.cursor = page.cursor;
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
            if (log.dataset.stream) {
                stream(log);
            } else if (log.dataset.poll) {
                follow(log);
            }
        }
        for (const steps of document.querySelectorAll("[data-steps-stream]")) {
            streamSteps(steps);
        }
        if (document.querySelector("[data-refresh]")) {
            window.setTimeout(refresh, REFRESH_PERIOD);
        }
    });
}
