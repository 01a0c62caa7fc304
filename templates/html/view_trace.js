/** A trace of nsys: what ran as distributions, and the operations on their streams. */

import { block } from "./block.js";
import { chart } from "./chart.js";
import { fill, h, section, switcher, table } from "./dom.js";
import { micro, number, percent } from "./format.js";
import { draw } from "./lanes.js";
import { keep } from "./state.js";
import { line } from "./view_kernels.js";

const AT_ONCE = 120; // operations of one picture
const MOST_ROWS = 200;

export async function trace(main, params) {
  const body = h("div");
  const show = async (t) => fill(body, await ofTrace(main.traces[t], t));
  const asked = Math.min(Number(params.get("t") ?? 0) || 0, main.traces.length - 1);
  await show(asked);
  if (main.traces.length === 1) return body;
  const choice = switcher(
    "Trace",
    main.traces.map((one, at) => [String(at), one.file]),
    String(asked),
    (t) => {
      keep({ t });
      show(Number(t));
    },
  );
  return [h("div.controls", choice), body];
}

async function ofTrace(found, t) {
  const operations = await block(`trace ${t}`);
  const total = d3.sum(found.summary, (row) => row.total_ns);
  return [
    found.problems.map((text) => h("p.warning", text)),
    section(
      "What ran",
      `${number(found.count)} operations over ${micro(found.span_ns === null ? null : found.span_ns / 1e3)}; totals of overlapping work exceed wall time.`,
      summary(found, total),
    ),
    operations
      ? section("Timeline", null, timeline(operations, found.count))
      : h("p.empty", "The operations one by one were left out for the size of this file."),
  ];
}

function summary(found, total) {
  const ns = (value) => micro(value / 1e3);
  const rows = found.summary
    .slice(0, MOST_ROWS)
    .map((row) => [
      h("code.wrap", row.name),
      row.kind,
      number(row.count),
      ns(row.total_ns),
      percent(row.total_ns / total, 1),
      ns(row.min_ns),
      ns(row.q25_ns),
      ns(row.median_ns),
      ns(row.q75_ns),
      ns(row.max_ns),
      line(row.durations_ns) ?? "",
    ]);
  return [
    table(
      ["name", "kind", ["n"], ["total"], ["share"], ["least"], ["25 %"], ["median"], ["75 %"], ["most"], "in their order"],
      rows,
      "What ran",
    ),
    found.summary.length > MOST_ROWS && h("p.note", `${found.summary.length - MOST_ROWS} more names, each of less time.`),
  ];
}

function timeline(operations, count) {
  const here = operations.name.length;
  const frame = h("div");
  const where = h("output.count");
  const last = Math.max(0, Math.ceil(here / AT_ONCE) - 1);
  const slider = h("input", {
    type: "range",
    min: 0,
    max: last,
    step: 1,
    value: 0,
    "aria-label": "Part of the trace",
    oninput: () => show(),
  });
  const show = () => {
    const first = Number(slider.value) * AT_ONCE;
    const rows = d3.range(first, Math.min(here, first + AT_ONCE));
    fill(where, `operations ${first} to ${first + rows.length - 1} of ${count}`);
    const part = window(operations, rows);
    fill(
      frame,
      chart("Timeline", (width) => draw(part, d3.range(rows.length), width)),
    );
  };
  if (!here) return h("p.empty", "Nothing ran on a GPU in this trace.");
  show();
  return [
    h("div.controls", last > 0 && slider, where),
    frame,
    here < count && h("p.note", `The first ${number(here)} of ${number(count)} operations are drawn; all are in the table above.`),
  ];
}

/** Some operations with their times from the first of them. */
function window(operations, rows) {
  const starts = rows.flatMap((row) => [operations.start_ns[row], operations.api_start_ns[row]]).filter((value) => value !== null);
  const start = d3.min(starts);
  const part = Object.fromEntries(Object.entries(operations).map(([name, values]) => [name, rows.map((row) => values[row])]));
  for (const name of ["start_ns", "api_start_ns"]) part[name] = part[name].map((value) => (value === null ? null : value - start));
  return part;
}
