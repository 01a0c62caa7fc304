/** A dialog over the page: closed by Escape, its button, or a press beside it. */

import { h } from "./dom.js";

/** Show nodes under a title; gives the dialog. */
export function popup(title, ...nodes) {
  const close = h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "×");
  const dialog = h("dialog", { "aria-label": title }, h("header", h("h2", title), close), h("div.popup-body", nodes));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
