"use strict";
/* Copies the text of the element that `data-copy` selects. Browsers offer the clipboard to secure contexts only, so over
   plain HTTP the text is selected and copied by the older command. */
{
    const copyBySelection = (element) => {
        window.getSelection().selectAllChildren(element);
        return document.execCommand("copy");
    };

    const copy = async (element) => {
        if (window.isSecureContext && navigator.clipboard) {
            try {
                await navigator.clipboard.writeText(element.textContent);
                return true;
            } catch {
                return copyBySelection(element);
            }
        }
        return copyBySelection(element);
    };

    document.addEventListener("DOMContentLoaded", () => {
        for (const button of document.querySelectorAll("[data-copy]")) {
            button.addEventListener("click", async () => {
                const copied = await copy(document.querySelector(button.dataset.copy));
                button.querySelector("[data-label]").textContent = copied ? "Copied" : "Press Ctrl+C to copy";
            });
        }
    });
}
