/** The memory chart: units as boxes, what moved between them as arrows, the busier the stronger. */

import { folded, framed, h, s, section, table } from "./dom.js";
import { number, percent, quantity, si } from "./format.js";

const [WIDTH, HEIGHT] = [1164, 424];
// Name -> [title, x, y, width, height]
const BOXES = {
  kernel: ["Kernel", 10, 12, 96, 400],
  l1: ["L1TEX", 352, 12, 150, 248],
  shared: ["Shared memory", 352, 284, 150, 128],
  l2: ["L2", 692, 12, 170, 400],
  system: ["System memory", 1030, 12, 124, 84],
  dram: ["DRAM", 1030, 124, 124, 168],
  peer: ["Peer GPU", 1030, 328, 124, 84],
};

const NOTE = "What moved between the units, and per cent of the peak of that way where the report says it.";

/** The chart of one launch with what moved in words, and what each kind of access did, as tables. */
export function memory(chart, tables) {
  const accesses = tables.map(ofAccesses);
  if (!chart) return tables.length ? section("Memory", null, accesses) : null;
  const flows = chart.flows.map(([source, target, label, value, unit, pct]) => ({ source, target, label, value, unit, pct }));
  const [moved, still] = [true, false].map((is) => flows.filter(({ value }) => value > 0 === is));
  const others = still.length > 0 && folded(`${still.length} ways without traffic`, h("p.note", still.map(said).join(", ")));
  return section("Memory", NOTE, framed(draw(chart, moved), "Memory chart"), others, accesses);
}

/** What each kind of access did at one level of memory. */
function ofAccesses([name, columns, rows]) {
  const cell = (value, unit) =>
    unit === "%" ? percent(value === null ? null : value / 100, 1) : unit ? quantity(value, unit) : number(value);
  const cells = rows.map(([label, values]) => [label, ...values.map((value, at) => cell(value, columns[at][1]))]);
  return [h("h3", name), table(["", ...columns.map(([label]) => [label])], cells, `${name}, by kind of access`)];
}

function said({ source, target, label }) {
  return `${label} (${BOXES[source][0]} to ${BOXES[target][0]})`;
}

function draw(chart, flows) {
  const touched = flows.flatMap(({ source, target }) => [source, target]);
  const names = Object.keys(BOXES).filter((name) => !["system", "peer"].includes(name) || touched.includes(name));
  const told = flows.map((flow) => `${said(flow)} ${amount(flow)}`).join(", ");
  const between = d3.group(flows, ({ source, target }) => d3.sort([source, target], (name) => BOXES[name][1]).join(" "));
  const ways = [...between].map(([pair, found]) => links(...pair.split(" "), found));
  const boxes = names.map((name) => unit(name, chart.boxes[name] ?? []));
  const props = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Memory chart: ${told || "no traffic"}` };
  return s("svg.memory", props, ways, boxes);
}

function unit(name, facts) {
  const [title, x, y, width, height] = BOXES[name];
  const middle = { x: x + width / 2, "text-anchor": "middle" };
  const said = facts.map(([fact, value, of], at) => {
    const shown = of === "%" ? percent(value / 100, 1) : si(value, of === "byte" ? "B" : "");
    return s("text", { ...middle, y: y + 44 + at * 18 }, `${fact} ${shown}`);
  });
  return s("g.unit", s("rect", { x, y, width, height, rx: 5 }), s("text.name", { ...middle, y: y + 22 }, title), said);
}

/** The ways between two boxes, one below the other over the height that both have. */
function links(left, right, flows) {
  const [, x1, y1, width, h1] = BOXES[left];
  const [, x2, y2, , h2] = BOXES[right];
  const [top, bottom] = [Math.max(y1, y2), Math.min(y1 + h1, y2 + h2)];
  const step = (bottom - top) / flows.length;
  return flows.map((flow, at) => link(flow, x1 + width + 3, x2 - 3, top + step * (at + 0.62), flow.source === left));
}

function link(flow, from, to, y, rightwards) {
  const strong = 1.2 + 5 * Math.min(1, (flow.pct ?? 0) / 100);
  const [x1, x2] = rightwards ? [from, to - 8] : [from + 8, to];
  const tip = rightwards ? `M${to} ${y}l-9 -5v10z` : `M${from} ${y}l9 -5v10z`;
  return s(
    flow.pct >= 60 ? "g.way.hot" : "g.way",
    s("title", `${said(flow)}: ${amount(flow)}`),
    s("line", { x1, x2, y1: y, y2: y, "stroke-width": strong }),
    s("path", { d: tip }),
    s("text", { x: (from + to) / 2, y: y - 7, "text-anchor": "middle" }, `${flow.label} ${amount(flow)}`),
  );
}

function amount({ value, unit, pct }) {
  const text = unit === "byte" ? si(value, "B") : `${si(value, "")}`.trim();
  const kind = { request: "\u00a0req.", inst: "\u00a0inst." }[unit] ?? "";
  return `${text}${kind}${pct === null ? "" : ` · ${number(pct, 2)}\u00a0%`}`;
}
