/** The memory chart: units as boxes, what moved between them as arrows, the busier the stronger. */

import { framed, h, s, section, table } from "./dom.js";
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

/** The chart of one launch with what moved in words, and what each kind of access did, as tables. */
export function memory(chart, tables) {
  if (!chart) return tables.length ? section("Memory", null, tables.map(ofAccesses)) : null;
  const moved = chart.flows.filter((flow) => flow.value > 0);
  const still = chart.flows.filter((flow) => !flow.value).map(said);
  return section(
    "Memory",
    "What moved between the units, and per cent of the peak of that way where the report says it.",
    framed(draw(chart, moved), "Memory chart"),
    still.length > 0 && h("details", h("summary", `${still.length} ways without traffic`), h("p.note", still.join(", "))),
    tables.map(ofAccesses),
  );
}

/** What each kind of access did at one level of memory. */
function ofAccesses({ name, columns, rows }) {
  const cell = (value, unit) =>
    unit === "%" ? percent(value === null ? null : value / 100, 1) : unit ? quantity(value, unit) : number(value);
  const cells = rows.map(([label, values]) => [label, ...values.map((value, at) => cell(value, columns[at][1]))]);
  return [h("h3", name), table(["", ...columns.map(([label]) => [label])], cells, `${name}, by kind of access`)];
}

function said({ source, target, label }) {
  return `${label} (${BOXES[source][0]} to ${BOXES[target][0]})`;
}

function draw(chart, flows) {
  const names = Object.keys(BOXES).filter(
    (name) => !["system", "peer"].includes(name) || flows.some(({ source, target }) => [source, target].includes(name)),
  );
  const told = flows.map((flow) => `${said(flow)} ${amount(flow)}`).join(", ");
  const pairs = d3.group(flows, ({ source, target }) => [source, target].sort((a, b) => BOXES[a][1] - BOXES[b][1]).join(" "));
  return s(
    "svg.memory",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Memory chart: ${told || "no traffic"}` },
    [...pairs].map(([pair, found]) => links(...pair.split(" "), found)),
    names.map((name) => box(name, chart.boxes[name] ?? [])),
  );
}

function box(name, facts) {
  const [title, x, y, width, height] = BOXES[name];
  return s(
    "g.unit",
    s("rect", { x, y, width, height, rx: 5 }),
    s("text", { x: x + width / 2, y: y + 22, "text-anchor": "middle", class: "name" }, title),
    facts.map(([fact, value, unit], at) =>
      s(
        "text",
        { x: x + width / 2, y: y + 44 + at * 18, "text-anchor": "middle" },
        `${fact} ${unit === "%" ? percent(value / 100, 1) : unit === "byte" ? si(value, "B") : si(value, "")}`,
      ),
    ),
  );
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
  const tip = rightwards ? `M${to} ${y}l-9 -5v10z` : `M${from} ${y}l9 -5v10z`;
  const hot = flow.pct !== null && flow.pct >= 60;
  return s(
    "g",
    { class: hot ? "way hot" : "way" },
    s("title", `${said(flow)}: ${amount(flow)}`),
    s("line", { x1: rightwards ? from : from + 8, x2: rightwards ? to - 8 : to, y1: y, y2: y, "stroke-width": strong }),
    s("path", { d: tip }),
    s("text", { x: (from + to) / 2, y: y - 7, "text-anchor": "middle" }, `${flow.label} ${amount(flow)}`),
  );
}

function amount({ value, unit, pct }) {
  const text = unit === "byte" ? si(value, "B") : `${si(value, "")}`.trim();
  const kind = { request: "\u00a0req.", inst: "\u00a0inst." }[unit] ?? "";
  return `${text}${kind}${pct === null ? "" : ` · ${number(pct, 2)}\u00a0%`}`;
}
