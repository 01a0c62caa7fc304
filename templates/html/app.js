/** The page: its tabs, and which view the address asks for. */

import { has } from "./block.js";
import { choices } from "./choices.js";
import { claims } from "./claims.js";
import { compare } from "./compare.js";
import { fill, h } from "./dom.js";
import { environment } from "./environment.js";
import { evidence } from "./evidence.js";
import { guide } from "./guide.js";
import { help, listen } from "./keys.js";
import { libraries } from "./library.js";
import { overview } from "./overview.js";
import { point } from "./point.js";
import { listed, points } from "./points.js";
import { source } from "./source.js";
import { go, href, read } from "./state.js";

const VIEWS = {
  compare: ["Compare", compare],
  overview: ["Overview", overview],
  points: ["Points", points],
  source: ["Source", source],
  claims: ["Claims", claims],
  choices: ["Choices", choices],
  guide: ["Guide", guide],
  environment: ["Environment", environment],
};
// Views that are not a tab of their own, under the tab that leads to them.
const WITHIN = { point: ["points", "Point", point] };

async function start() {
  const [found] = await Promise.all([evidence(), libraries()]);
  const shown = Object.keys(VIEWS).filter((name) => name !== "compare" || has("compare"));
  const first = shown[0];
  const tabs = h(
    "nav",
    { "aria-label": "Views" },
    shown.map((name) => h("a", { href: href(name), "data-view": name }, VIEWS[name][0])),
  );
  const main = h("main", { id: "main", tabindex: "-1" });
  fill(document.getElementById("page"), header(found, tabs), main);
  let turn = 0;
  const show = async () => {
    const state = read();
    const name = location.hash ? state.view : first;
    const [tab, title, view] = WITHIN[name] ?? (name in VIEWS && shown.includes(name) ? [name, ...VIEWS[name]] : [first, ...VIEWS[first]]);
    for (const link of tabs.children) link.ariaCurrent = link.dataset.view === tab ? "page" : null;
    // Where the tabs have no room the one that is shown is scrolled to.
    tabs.scrollLeft = tabs.querySelector("[aria-current]").offsetLeft - tabs.offsetLeft - tabs.clientWidth / 2;
    document.title = `${title}${state.params.has("id") ? ` ${state.params.getAll("id").join(", ")}` : ""} · ${found.side.name} · ncuflow`;
    turn += 1;
    const mine = turn;
    const content = await view(found, state.params);
    if (mine !== turn) return;
    fill(main, content);
    main.dataset.view = name;
    scrollTo(0, 0);
  };
  addEventListener("hashchange", show);
  listen(
    () => [...tabs.children],
    (by) => neighbour(found, by),
  );
  await show();
  document.documentElement.dataset.ready = "true";
}

function header(found, tabs) {
  const of = found.side.provenance;
  const line = [
    of.gpu,
    of.flashinfer && `FlashInfer ${of.flashinfer}`,
    of.cuda && `CUDA ${of.cuda}`,
    of.date?.replace(/T\S*/g, ""),
    of.mixed.length > 0 && `not all with one ${of.mixed.join(", ")}`,
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "header.top",
    h(
      "a.skip",
      {
        href: "#main",
        onclick: (event) => {
          event.preventDefault();
          document.getElementById("main").focus();
        },
      },
      "Skip to the content",
    ),
    h(
      "p.brand",
      h("b", "ncuflow"),
      h("span", found.sides.map((side) => side.name).join(" → ")),
      h("span.note", line),
      h("span.tier", { title: "A: live counters, B: live without counters, C: recorded elsewhere" }, `tier ${of.tier}`),
    ),
    tabs,
    h("button", { type: "button", class: "help", "aria-label": "Keys", onclick: help }, "?"),
  );
}

/** The point before or after the shown one, of those that were listed last. */
function neighbour(found, by) {
  const { view, params } = read();
  const ids = params.getAll("id");
  if (view !== "point" || ids.length !== 1) return false;
  const all = listed.ids.length ? listed.ids : found.side.range().map((at) => found.reference(found.side, at));
  const at = all.indexOf(ids[0]);
  const next = all[at + by];
  if (at >= 0 && next) go("point", { id: next });
  return true;
}

start();
