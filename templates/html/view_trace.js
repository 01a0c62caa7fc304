/** A trace of nsys: what ran as distributions, and the operations on their streams. */

import { block } from "./block.js";
import { chart } from "./chart.js";
import { button, choosing, cut, fill, h, LIVE, search, section, switcher, warned } from "./dom.js";
import { nano, number, percent } from "./format.js";
import { draw } from "./lanes.js";
import { line } from "./spark.js";
import { keep } from "./state.js";

const AT_ONCE = 120; // operations of one picture, before a reader zooms
const [CLOSEST, WIDEST] = [8, 960];
const MOST_ROWS = 200;

export function trace(main, params) {
  const asked = Math.min(Number(params.get("t") ?? 0) || 0, main.traces.length - 1);
  const names = main.traces.map((one, at) => [String(at), one.file]);
  const show = (t) => ofTrace(main.traces[t], t);
  return choosing(switcher, "Trace", names, String(asked), show, (t) => keep({ t }));
}

async function ofTrace(found, t) {
  const operations = await block(`trace ${t}`);
  const note = `${number(found.count)} operations over ${nano(found.span_ns)}; totals of overlapping work exceed wall time.`;
  return [
    warned(found.problems),
    section("What ran", note, summary(found)),
    operations
      ? section("Timeline", null, timeline(operations, found.count))
      : h("p.empty", "The operations one by one were left out for the size of this file."),
  ];
}

const TIMES = { min: "min_ns", "25 %": "q25_ns", median: "median_ns", "75 %": "q75_ns", max: "max_ns" };

function summary(found) {
  const total = d3.sum(found.summary, (row) => row.total_ns);
  const cells = (row) => {
    const what = [h("code.wrap", row.name), row.kind, number(row.count), nano(row.total_ns), percent(row.total_ns / total, 1)];
    return [...what, ...Object.values(TIMES).map((key) => nano(row[key])), line(row.durations_ns) ?? ""];
  };
  const heads = ["name", "kind", ["n"], ["total"], ["share"], ...Object.keys(TIMES).map((name) => [name]), "over time"];
  return cut(heads, found.summary, cells, "What ran", MOST_ROWS, " names, each of less time");
}

/** The operations in a window that moves, widens and goes to those of a name. */
function timeline(operations, count) {
  const here = operations.name.length;
  if (!here) return h("p.empty", "Nothing ran on a GPU in this trace.");
  const frame = h("div");
  const where = h("output.count", LIVE);
  let [first, most, asked] = [0, AT_ONCE, ""];
  const named = (row) => asked && `${operations.name[row] ?? operations.kind[row]}`.toLowerCase().includes(asked);
  const range = { type: "range", min: 0, max: Math.max(0, here - 1), value: 0, "aria-label": "Part of the trace" };
  const slider = h("input", { ...range, oninput: () => show(Number(slider.value)) });
  const show = (from) => {
    first = Math.max(0, Math.min(here - most, Math.round(from)));
    slider.value = first;
    const rows = d3.range(first, Math.min(here, first + most));
    const all = asked && `; ${number(d3.range(here).filter(named).length)} of that name`;
    fill(where, `operations ${first} to ${first + rows.length - 1} of ${count}`, all);
    const part = partOf(operations, rows);
    const drawn = (width) => draw(part, d3.range(rows.length), width, (at) => named(rows[at]));
    fill(frame, chart("Timeline", drawn));
  };
  const zoom = (by) => {
    const middle = first + most / 2;
    most = Math.max(CLOSEST, Math.min(WIDEST, most * by));
    show(middle - most / 2);
  };
  const go = (from) => {
    const next = d3.range(here).find((at) => named((from + at) % here));
    show(next === undefined ? first : ((from + next) % here) - 1);
  };
  const find = (text) => {
    asked = text.toLowerCase();
    go(first + 1);
  };
  const props = { placeholder: "find an operation, Enter: the next", "aria-label": "Find an operation" };
  const box = search({ ...props, onkeydown: (event) => event.key === "Enter" && go(first + 2) }, find);
  const closer = button("", { "aria-label": "Zoom in", onclick: () => zoom(0.5) }, "+");
  const wider = button("", { "aria-label": "Zoom out", onclick: () => zoom(2) }, "−");
  show(0);
  const left = here < count && `The first ${number(here)} of ${number(count)} operations are drawn; all are in the table above.`;
  return [h("div.controls", box, slider, closer, wider, where), frame, left && h("p.note", left)];
}

/** Some operations with their times from the first of them. */
function partOf(operations, rows) {
  const starts = rows.flatMap((row) => [operations.start_ns[row], operations.api_start_ns[row]]).filter((value) => value !== null);
  const start = d3.min(starts);
  const part = Object.fromEntries(Object.entries(operations).map(([name, values]) => [name, rows.map((row) => values[row])]));
  for (const name of ["start_ns", "api_start_ns"]) part[name] = part[name].map((value) => (value === null ? null : value - start));
  return part;
}
