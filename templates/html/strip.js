/** Times with every sample: a row for each way of measuring, a mark for each sample, the median and quartiles. */

import { base, chart, narrow } from "./chart.js";
import { h } from "./dom.js";
import { micro, number } from "./format.js";

// Series of times: name -> [what it is called, the measurement's own columns of it].
const SERIES = {
  cold_us: ["cold", ...columnsOf("cold")],
  hot_us: ["hot", ...columnsOf("hot")],
  sustained_us: ["sustained", ...columnsOf("sustained")],
  insitu: ["in application (nsys)", "time_insitu_us"],
  ncu: ["profiled (ncu)", "time_ncu_us"],
  host_us: ["host call", "host_launch_us"],
  plan_us: ["plan()", "plan_us"],
};
const HOST = ["host_us", "plan_us"];
const tickFormat = (value) => number(value, value < 1000 ? 4 : 3);

/** Median, lower and upper quartile. */
function columnsOf(view) {
  return ["us", "q25_us", "q75_us"].map((end) => `time_${view}_${end}`);
}

function called(name) {
  return SERIES[name]?.[0] ?? name;
}

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
  const rows = d3.range(timeline.point.length).filter((row) => timeline.point[row] === place);
  const ran = rows.filter((row) => ["kernel", "graph"].includes(timeline.kind[row]));
  return [...d3.group(ran, (row) => timeline.launch[row]).values()].map((of) => d3.sum(of, (row) => timeline.duration_ns[row]) / 1e3);
}

/** Why the clocks were held down while a sample's process timed its series, null where no reason was named. */
function throttle(timing, place) {
  return ({ name, run }) => {
    const row = timing.point.findLastIndex((point, at) => point === place && timing.run[at] === run);
    return timing[name.replace("_us", "_throttle")]?.[row] ?? null;
  };
}

/** The charts of a point's times: on the GPU, and of the host. */
export function strips(side, at, detail, place) {
  const reason = throttle(detail.timing, place);
  const samples = samplesOf(side, at, detail, place).map((one) => ({ ...one, throttled: reason(one) }));
  const [host, gpu] = [true, false].map((is) => samples.filter((one) => HOST.includes(one.name) === is));
  const marked = samples.some((one) => one.throttled || one.out) && " · × under a throttle reason or left out of the median";
  return [
    h("p.key", "○ a sample, by process from above · ", h("b", "|"), " median, — quartiles", marked),
    gpu.length ? strip("Times on the GPU", gpu, side, at) : h("p.empty", "Not in this evidence: times of this point."),
    host.length ? strip("Times of the host", host, side, at) : null,
  ];
}

function strip(name, samples, side, at) {
  const rows = Object.keys(SERIES).filter((row) => samples.some((one) => one.name === row));
  const runs = d3.max(samples, (one) => one.run) + 1;
  const boxes = rows
    .map((row) => {
      const [median, low = null, high = null] = SERIES[row].slice(1).map((column) => side.value(column, at));
      return { name: row, row: rows.indexOf(row), median, low, high };
    })
    .filter((one) => one.median !== null);
  const y = (one) => rows.indexOf(one.name) + (one.run + 0.5) / runs - 0.5;
  const title = ({ name: row, us, run, out, throttled }) => {
    const process = runs > 1 ? `, process ${run}` : "";
    return `${called(row)}: ${micro(us)}${process}${out ? ", left out of the median" : ""}${throttled ? `, under ${throttled}` : ""}`;
  };
  const [odd, even] = [true, false].map((is) => samples.filter((one) => Boolean(one.out || one.throttled) === is));
  const last = d3.max(samples, (one) => one.us);
  const text = { text: (one) => micro(one.median), textAnchor: "start", dx: 10, fill: "var(--text)", fontWeight: 600 };
  return chart(name, (width) =>
    Plot.plot({
      ...base(width, `${name}: ${boxes.map((one) => `${called(one.name)} ${micro(one.median)}`).join(", ")}`),
      height: 46 + rows.length * 34,
      marginLeft: narrow(width) ? 134 : 140,
      marginRight: 74,
      marginTop: 8,
      x: { label: "µs →", nice: true, grid: true, tickFormat, ticks: narrow(width) ? 3 : 7 },
      y: {
        domain: [-0.55, rows.length - 0.45],
        reverse: true,
        ticks: d3.range(rows.length),
        tickFormat: (row) => called(rows[row]),
        label: null,
        tickSize: 0,
      },
      marks: [
        Plot.ruleY(
          boxes.filter((one) => one.low !== null),
          { y: "row", x1: "low", x2: "high", stroke: "var(--c0)", strokeWidth: 9, strokeOpacity: 0.22 },
        ),
        Plot.dot(even, { x: "us", y, r: 2.6, stroke: "var(--c0)", strokeOpacity: 0.75, title }),
        Plot.dot(odd, { x: "us", y, r: 3.4, symbol: "times", stroke: "var(--c1)", title }),
        Plot.ruleX(boxes, { x: "median", y1: (one) => one.row - 0.36, y2: (one) => one.row + 0.36, stroke: "var(--text)", strokeWidth: 2 }),
        Plot.text(boxes, { x: () => last, y: "row", ...text }),
        Plot.tip(samples, Plot.pointer({ x: "us", y, title, maxRadius: 12 })),
      ],
    }),
  );
}
