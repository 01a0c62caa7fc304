/** Keys: what each does, and the list of them. */

import { h, table } from "./dom.js";
import { popup } from "./popup.js";

const KEYS = [
  ["/", "go to the filter of this view"],
  ["↑ ↓, j k", "move in a table; Page Up, Page Down, Home, End too"],
  ["Enter", "open the current row"],
  ["m", "mark the current point, or take its mark away; two marked points open side by side"],
  ["← →", "previous and next point, of those that were listed"],
  ["1 … 9", "go to a view, in the order of the tabs"],
  ["Escape", "leave a filter, close a dialog"],
  ["?", "this list"],
];

/** Listen. tabs(): the links of the views in their order; step(n): to a neighbouring point. */
export function listen(tabs, step) {
  addEventListener("keydown", (event) => {
    const writing = event.target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && writing) writing.blur();
    if (writing) return;
    if (event.key === "/") document.querySelector("main [data-filter]")?.focus();
    else if (event.key === "?") help();
    else if (/^[1-9]$/.test(event.key)) tabs()[Number(event.key) - 1]?.click();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (event.target.closest?.("input, [role=region], .grid")) return;
      if (!step(event.key === "ArrowLeft" ? -1 : 1)) return;
    } else if (/^(ArrowDown|ArrowUp|j|k)$/.test(event.key) && event.target === document.body) document.querySelector("main .grid")?.focus();
    else return;
    event.preventDefault();
  });
}

export function help() {
  popup(
    "Keys",
    table(
      ["key", "what it does"],
      KEYS.map(([key, what]) => [h("kbd", key), what]),
      "Keys",
    ),
  );
}
