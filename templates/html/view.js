/** The page of a view: reports and traces of any program. Its tabs, and which one the address asks for. */

import { block } from "./block.js";
import { fill, h } from "./dom.js";
import { help, listen } from "./keys.js";
import { libraries } from "./library.js";
import { go, href, read } from "./state.js";
import { compared } from "./view_compare.js";
import { files } from "./view_files.js";
import { kernel } from "./view_kernel.js";
import { kernels } from "./view_kernels.js";
import { ranges } from "./view_ranges.js";
import { trace } from "./view_trace.js";

// Name -> [title, what shows it, whether the files have something to show in it].
const VIEWS = {
  kernels: ["Kernels", kernels, (main) => main.reports.length > 0],
  compare: ["Compare", compared, (main) => main.reports.length > 1],
  trace: ["Trace", trace, (main) => main.traces.length > 0],
  ranges: ["NVTX", ranges, (main) => [...main.reports, ...main.traces].some((one) => one.nvtx.length > 0)],
  files: ["Files", files, () => true],
};
const WITHIN = { kernel: ["kernels", "Kernel", kernel] }; // shown under the tab that leads to it

async function start() {
  const [main] = await Promise.all([block("main"), libraries()]);
  const shown = Object.keys(VIEWS).filter((name) => VIEWS[name][2](main));
  const names = [...main.reports, ...main.traces].map((one) => one.file);
  const tabs = h(
    "nav",
    { "aria-label": "Views" },
    shown.map((name) => h("a", { href: href(name), "data-view": name }, VIEWS[name][0])),
  );
  const content = h("main", { id: "main", tabindex: "-1" });
  fill(document.getElementById("page"), header(main, names, tabs), content);
  let turn = 0;
  const show = async () => {
    const state = read();
    const name = location.hash && (state.view in WITHIN || shown.includes(state.view)) ? state.view : shown[0];
    const [tab, title, view] = WITHIN[name] ?? [name, ...VIEWS[name]];
    for (const link of tabs.children) link.ariaCurrent = link.dataset.view === tab ? "page" : null;
    tabs.scrollLeft = tabs.querySelector("[aria-current]").offsetLeft - tabs.offsetLeft - tabs.clientWidth / 2;
    document.title = `${title} · ${names.join(" → ")} · ncuflow`;
    turn += 1;
    const mine = turn;
    const nodes = await view(main, state.params);
    if (mine !== turn) return;
    fill(content, nodes);
    content.dataset.view = name;
    scrollTo(0, 0);
  };
  addEventListener("hashchange", show);
  listen(
    () => [...tabs.children],
    (by) => neighbour(main, by),
  );
  await show();
  document.documentElement.dataset.ready = "true";
}

function header(main, names, tabs) {
  const devices = [...new Set([...main.reports, ...main.traces].flatMap((one) => one.devices))];
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
    h("p.brand", h("b", "ncuflow"), h("span.wrap", names.join(" → ")), h("span.note", devices.join(", "))),
    tabs,
    h("button", { type: "button", class: "help", "aria-label": "Keys", onclick: help }, "?"),
  );
}

/** The kernel before or after the shown one, in the order of the list. */
function neighbour(main, by) {
  const { view, params } = read();
  if (view !== "kernel") return false;
  const [r, k] = [Number(params.get("r") ?? 0), Number(params.get("k") ?? 0) + by];
  if (k >= 0 && k < (main.reports[r]?.kernels.name.length ?? 0)) go("kernel", { r, k, part: params.get("part") });
  return true;
}

start();
