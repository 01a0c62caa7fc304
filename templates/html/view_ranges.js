/** NVTX ranges as a tree: how much ran within each, and what. */

import { h, section } from "./dom.js";
import { micro, number, percent } from "./format.js";

const OPEN = 2; // levels that are open at first

export function ranges(main) {
  return [...main.reports, ...main.traces]
    .filter((one) => one.nvtx.length)
    .map((one) => {
      const total = d3.sum(one.nvtx, ([, , ns]) => ns);
      return section(
        one.file,
        "Time on the GPU of what was launched within a range, as ncu or nsys measured it; ranges of one name together.",
        h(
          "ul.tree",
          one.nvtx.map((node) => item(node, total, 0)),
        ),
      );
    });
}

function item([name, count, ns, kernels, children], total, level) {
  const head = h(
    "span.range",
    h("span.track", h("span.fill", { style: `width:${total ? (100 * ns) / total : 0}%` })),
    h("b.wrap", name),
    h("span.note", ` ${number(count)} launch${count === 1 ? "" : "es"} · ${micro(ns / 1e3)} · ${total ? percent(ns / total, 1) : "–"}`),
  );
  const own = h(
    "ul.tree.note",
    kernels.map(([kernel, time]) => h("li.wrap", `${kernel} ${micro(time / 1e3)}`)),
  );
  const below = children.length
    ? h(
        "ul.tree",
        children.map((node) => item(node, total, level + 1)),
      )
    : own;
  return h("li", h("details", { open: level < OPEN && children.length > 0 }, h("summary", head), below));
}
