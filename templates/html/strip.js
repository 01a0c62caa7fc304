/** Times with every sample: a row for each way of measuring, a mark for each sample, the median and quartiles. */

import { base, chart, narrow } from "./chart.js";
import { h } from "./dom.js";
import { micro, number } from "./format.js";

const NAMES = {
  cold_us: "cold",
  hot_us: "hot",
  sustained_us: "sustained",
  insitu: "in situ (nsys)",
  ncu: "profiled (ncu)",
  host_us: "host call",
  plan_us: "plan()",
};
// The measurement's own columns: median, lower and upper quartile.
const COLUMNS = {
  cold_us: ["time_cold_us", "time_cold_q25_us", "time_cold_q75_us"],
  hot_us: ["time_hot_us", "time_hot_q25_us", "time_hot_q75_us"],
  sustained_us: ["time_sustained_us", "time_sustained_q25_us", "time_sustained_q75_us"],
  insitu: ["time_insitu_us"],
  ncu: ["time_ncu_us"],
  host_us: ["host_launch_us"],
  plan_us: ["plan_us"],
};
const GPU = ["cold_us", "hot_us", "sustained_us", "insitu", "ncu"];

/** [{name, us, run, out}] of a point: each sample with its process; out where it does not count. */
export function samplesOf(side, at, detail, place) {
  const found = [];
  const add = (name, values, more) => {
    for (const us of values ?? []) if (us !== null) found.push({ name, us, run: 0, ...more });
  };
  const series = { ...detail.samples[place] };
  for (const [name, runs] of Object.entries(detail.runs[place] ?? {}))
    runs.forEach((values, run) => {
      if (run || !series[name]) add(name, values, { run });
    });
  for (const [name, values] of Object.entries(series)) add(name, values);
  for (const [name, rows] of Object.entries(detail.timing))
    if (name.endsWith("left_out_us"))
      rows.forEach((values, row) => {
        if (detail.timing.point[row] === place)
          add(name.replace(/_?(samples_)?left_out/, ""), values, { run: detail.timing.run[row], out: true });
      });
  add("insitu", launches(detail.timeline, place));
  add("ncu", [side.value("time_ncu_us", at)]);
  return found;
}

/** Kernel time of each traced launch of a point, µs. */
function launches(timeline, place) {
  const sums = new Map();
  timeline.point.forEach((point, row) => {
    if (point !== place || !["kernel", "graph"].includes(timeline.kind[row])) return;
    const launch = timeline.launch[row];
    sums.set(launch, (sums.get(launch) ?? 0) + timeline.duration_ns[row] / 1e3);
  });
  return [...sums.values()];
}

/** Why the clocks were held down while a sample's process timed its series, null where no reason was named. */
function throttle(timing, place) {
  const rows = new Map(
    timing.point.map((point, row) => [point, row]).flatMap(([point, row]) => (point === place ? [[timing.run[row], row]] : [])),
  );
  return ({ name, run }) => timing[name.replace("_us", "_throttle")]?.[rows.get(run)] ?? null;
}

/** The charts of a point's times: on the GPU, and of the host. */
export function strips(side, at, detail, place) {
  const reason = throttle(detail.timing, place);
  const samples = samplesOf(side, at, detail, place).map((one) => ({ ...one, throttled: reason(one) }));
  const gpu = samples.filter((one) => GPU.includes(one.name));
  const host = samples.filter((one) => !GPU.includes(one.name));
  const marked = samples.some((one) => one.throttled || one.out);
  return [
    h(
      "p.key",
      "○ a sample, by process from above · ",
      h("b", "|"),
      " median, — quartiles",
      marked && " · × under a throttle reason or left out of the median",
    ),
    gpu.length ? strip("Times on the GPU", gpu, side, at) : h("p.empty", "Not in this evidence: times of this point."),
    host.length ? strip("Times of the host", host, side, at) : null,
  ];
}

function strip(name, samples, side, at) {
  const rows = d3.sort(new Set(samples.map((one) => one.name)), (one) => Object.keys(NAMES).indexOf(one));
  const runs = d3.max(samples, (one) => one.run) + 1;
  const boxes = rows
    .map((row) => ({ name: row, values: (COLUMNS[row] ?? []).map((column) => side.value(column, at)) }))
    .map(({ name, values: [median = null, low = null, high = null] }) => ({ name, median, low, high }))
    .filter((box) => box.median !== null);
  const y = (one) => rows.indexOf(one.name) + (one.run + 0.5) / runs - 0.5;
  const title = (one) =>
    `${NAMES[one.name] ?? one.name}: ${micro(one.us)}${runs > 1 ? `, process ${one.run}` : ""}${one.out ? ", left out of the median" : ""}${one.throttled ? `, under ${one.throttled}` : ""}`;
  const odd = (one) => one.out || one.throttled;
  return chart(name, (width) =>
    Plot.plot({
      ...base(width, `${name}: ${boxes.map((box) => `${NAMES[box.name] ?? box.name} ${micro(box.median)}`).join(", ")}`),
      height: 46 + rows.length * 34,
      marginLeft: narrow(width) ? 82 : 104,
      marginRight: 74,
      marginTop: 8,
      x: { label: "µs →", nice: true, grid: true, tickFormat: (value) => number(value, 4), ticks: narrow(width) ? 3 : 7 },
      y: {
        domain: [-0.55, rows.length - 0.45],
        reverse: true,
        ticks: d3.range(rows.length),
        tickFormat: (row) => NAMES[rows[row]] ?? rows[row],
        label: null,
        tickSize: 0,
      },
      marks: [
        Plot.ruleY(
          boxes.filter((box) => box.low !== null),
          { y: (box) => rows.indexOf(box.name), x1: "low", x2: "high", stroke: "var(--c0)", strokeWidth: 9, strokeOpacity: 0.22 },
        ),
        Plot.dot(
          samples.filter((one) => !odd(one)),
          { x: "us", y, r: 2.6, stroke: "var(--c0)", strokeOpacity: 0.75, title },
        ),
        Plot.dot(samples.filter(odd), { x: "us", y, r: 3.4, symbol: "times", stroke: "var(--c1)", title }),
        Plot.ruleX(boxes, {
          x: "median",
          y1: (box) => rows.indexOf(box.name) - 0.36,
          y2: (box) => rows.indexOf(box.name) + 0.36,
          stroke: "var(--text)",
          strokeWidth: 2,
        }),
        Plot.text(boxes, {
          x: () => d3.max(samples, (one) => one.us),
          y: (box) => rows.indexOf(box.name),
          text: (box) => micro(box.median),
          textAnchor: "start",
          dx: 10,
          fill: "var(--text)",
          fontWeight: 600,
        }),
        Plot.tip(samples, Plot.pointer({ x: "us", y, title, maxRadius: 12 })),
      ],
    }),
  );
}
