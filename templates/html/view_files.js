/** The files: what made them, what is wrong with them, what they lack, and the NVTX ranges in them. */

import { each, h, section, table, tabled, warned } from "./dom.js";
import { count, nano, number, percent } from "./format.js";

export function files(main) {
  const reports = main.reports.map((report, at) => {
    const found = [
      ["kernels", number(report.kernels.name.length)],
      ["launches", number(d3.sum(report.kernels.n))],
      ["launches that failed or lack something", number(d3.sum(report.kernels.problems))],
    ];
    return [facts(report, report.tool, at === 0 && main.reports.length > 1 && "The baseline.", found), lacking(report)];
  });
  const traces = main.traces.map((trace) => {
    const found = [
      ["operations", number(trace.count)],
      ["from the first to the last", nano(trace.span_ns)],
    ];
    return facts(trace, "nsys", null, found);
  });
  return [reports, traces];
}

function facts({ file, version, devices, problems }, tool, note, found) {
  const rows = [["made by", [tool, version].filter(Boolean).join(" ")], ["GPU", devices.join(", ") || "–"], ...found];
  return section(file, note, table(["", "value"], rows, "Facts of the file"), warned(problems));
}

/** What a report lacks, said once. */
export function lacking(report) {
  const rows = report.lacks.map(([what, option]) => [what, h("code", option)]);
  const note = "Captured again with these options it has them; --set full has most.";
  return tabled("Not in this report", note, ["what", "brought by"], rows);
}

const OPEN = 2; // levels of ranges that are open at first

/** NVTX ranges as a tree: how much ran within each, and what. */
export function ranges(main) {
  const note = "Time on the GPU of what was launched within a range, as ncu or nsys measured it; ranges of one name together.";
  return [...main.reports, ...main.traces]
    .filter((one) => one.nvtx.length)
    .map(({ file, nvtx }) => {
      const total = d3.sum(nvtx, ([, , ns]) => ns);
      const tree = each("ul.tree", nvtx, (node) => range(node, total, 0));
      return section(file, note, tree);
    });
}

function range([name, launches, ns, kernels, children], total, level) {
  const head = h(
    "span.range",
    h("span.track", h("span.fill", { style: `width:${total ? (100 * ns) / total : 0}%` })),
    h("b.wrap", name),
    h("span.note", ` ${count(launches, "launch")} · ${nano(ns)} · ${total ? percent(ns / total, 1) : "–"}`),
  );
  const below = children.length
    ? each("ul.tree", children, (node) => range(node, total, level + 1))
    : each("ul.tree.note", kernels, ([kernel, time]) => h("li.wrap", `${kernel} ${nano(time)}`));
  return h("li", h("details", { open: level < OPEN && children.length > 0 }, h("summary", head), below));
}
