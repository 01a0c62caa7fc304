/** The shell of a page: its head, its tabs, which view the address asks for, and what keys do. */

import { withSavers } from "./csv.js";
import { button, each, fill, h, popup, table } from "./dom.js";
import { href, read } from "./state.js";

/**
 * Show a page. given: what its views are made of; views: name -> [title, view(given, params)] of the tabs in their order;
 * within: name -> [tab, title, view] of those that a tab leads to; name: of the page; brand: what its head says;
 * step(by): go to a neighbour of what is shown, false where it has none.
 */
export async function show({ given, views, within, name, brand, step }) {
  const tabs = each("nav", Object.entries(views), ([view, [title]]) => h("a", { href: href(view), "data-view": view }, title));
  tabs.ariaLabel = "Views";
  const main = h("main", { id: "main", tabindex: "-1" });
  fill(document.getElementById("page"), header(brand, tabs), main);
  let turn = 0;
  const turned = async () => {
    const { view: asked, params } = read();
    const shown = location.hash && (asked in within || asked in views) ? asked : Object.keys(views)[0];
    const [tab, title, view] = within[shown] ?? [shown, ...views[shown]];
    for (const link of tabs.children) link.ariaCurrent = link.dataset.view === tab ? "page" : null;
    // Where the tabs have no room the one that is shown is scrolled to.
    tabs.scrollLeft = tabs.querySelector("[aria-current]").offsetLeft - tabs.offsetLeft - tabs.clientWidth / 2;
    document.title = `${[title, read().params.getAll("id").join(", ")].filter(Boolean).join(" ")} · ${name} · ncuflow`;
    const mine = ++turn;
    const content = await view(given, params);
    if (mine !== turn) return;
    const strange = [...new Set(params.keys())].filter((name) => !params.asked.has(name));
    if (location.hash.length > 2 && shown !== asked) strange.unshift(asked);
    fill(main, strange.length > 0 && h("p.warning", `Unknown in the address: ${strange.join(", ")}.`), content);
    main.dataset.view = shown;
    scrollTo(0, 0);
  };
  withSavers(main);
  addEventListener("hashchange", turned);
  listen([...tabs.children], step);
  await turned();
  document.documentElement.dataset.ready = "true";
}

function header(brand, tabs) {
  const skip = (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  };
  return h(
    "header.top",
    h("a.skip", { href: "#main", onclick: skip }, "Skip to the content"),
    h("p.brand", h("b", "ncuflow"), brand),
    tabs,
    index(),
    button(".help", { "aria-label": "Keys", onclick: help }, "?"),
  );
}

/** The sections of what is shown, listed when asked for. */
function index() {
  const list = h("ul.panel");
  const go = (head) => h("li", button("", { onclick: () => head.scrollIntoView() }, head.textContent));
  const ontoggle = () => fill(list, ...[...document.querySelectorAll("main h2")].map(go));
  return h("details.index", { ontoggle }, h("summary.button", "Sections"), list);
}

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

function listen(tabs, step) {
  addEventListener("keydown", (event) => {
    const writing = event.target.closest?.("input:not([type=range]):not([type=checkbox]), select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && writing) writing.blur();
    if (writing) return;
    if (event.key === "/") document.querySelector("main [data-filter]")?.focus();
    else if (event.key === "?") help();
    else if (/^[1-9]$/.test(event.key)) tabs[Number(event.key) - 1]?.click();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      if (event.target.closest?.("input, [role=region], .grid")) return;
      if (!step(event.key === "ArrowLeft" ? -1 : 1)) return;
    } else if (/^(ArrowDown|ArrowUp|j|k)$/.test(event.key) && event.target === document.body) document.querySelector("main .grid")?.focus();
    else return;
    event.preventDefault();
  });
}

function help() {
  const rows = KEYS.map(([key, what]) => [h("kbd", key), what]);
  popup("Keys", table(["key", "what it does"], rows, "Keys"));
}
