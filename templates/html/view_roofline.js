/** The roofline of one launch: its counted work over the traffic of each memory level, under its own ceilings. */

import { base, chart, narrow } from "./chart.js";
import { h, section } from "./dom.js";
import { number, percent } from "./format.js";

/** roofline: {flops, bytes, compute, memory} of a launch; ns: its duration. */
export function roofline(found, ns) {
  if (!found || !ns) return null;
  const flops = d3.sum(Object.values(found.flops));
  const points = Object.entries(found.bytes).map(([level, bytes]) => {
    const slope = found.memory.find(([name]) => name === level)?.[1] ?? null;
    const [x, y] = [flops / bytes, flops / ns / 1e3];
    const top = Math.min(slope === null ? Number.POSITIVE_INFINITY : (x * slope) / 1e12, ceiling(found));
    return { level, x, y, top };
  });
  if (!points.length) return null;
  const told = points.map(
    ({ level, x, y, top }) =>
      `${level}: ${number(x)} FLOP per byte, ${number(y)} TFLOPS${Number.isFinite(top) ? `, ${percent(y / top, 1)} of its roof` : ""}`,
  );
  const kinds = Object.entries(found.flops).map(([name, n]) => `${name} ${percent(n / flops)}`);
  return section(
    "Roofline",
    `Counted work (${kinds.join(", ")}) over counted traffic, under the ceilings of this launch at its clock.`,
    chart("Roofline", (width) => draw(found, points, width)),
    h(
      "ul.kinds",
      told.map((text) => h("li", text)),
    ),
  );
}

/** TFLOPS of this mix of work: no kind takes less time than it does at its own ceiling, so that the slowest is the roof. */
function ceiling({ flops, compute }) {
  const least = d3.max(compute, ([name, top]) => flops[name] / top);
  return least ? d3.sum(Object.values(flops)) / least / 1e12 : Number.POSITIVE_INFINITY;
}

function draw(found, points, width) {
  const tops = found.compute.map(([name, top]) => ({ name, top: top / 1e12 }));
  const slopes = found.memory.map(([name, slope]) => ({ name, slope: slope / 1e12 }));
  const xs = points.map((point) => point.x);
  const knees = slopes.length && tops.length ? [(2 * d3.max(tops, (roof) => roof.top)) / d3.min(slopes, (roof) => roof.slope)] : [];
  const x = [d3.min(xs) / 3, d3.max([...xs.map((one) => one * 3), ...knees])];
  const high = d3.max([...tops.map((roof) => roof.top), ...points.map((point) => point.y)]) * 2;
  const y = [d3.min([...points.map((point) => point.y / 4), ...tops.map((roof) => roof.top / 2)]), high];
  const top = tops.length ? d3.max(tops, (roof) => roof.top) : high;
  const marks = slopes.map(({ slope }) => {
    const end = Math.min(x[1], top / slope);
    return Plot.line(
      [
        [x[0], x[0] * slope],
        [end, end * slope],
      ],
      { stroke: "var(--roof)", strokeWidth: 1.4, clip: true },
    );
  });
  const names = [
    ...slopes.map(({ name, slope }) => {
      const at = Math.max(x[0], y[0] / slope);
      return { x: at * 1.15, y: at * slope * 1.5, text: `${name} ${number(slope * 1e3)} GB/s` };
    }),
    ...tops.map(({ name, top: of }) => ({ x: x[1], y: of * 1.25, text: `${name} ${number(of)} TFLOPS`, end: true })),
  ];
  return Plot.plot({
    ...base(width, "Roofline: counted TFLOPS over counted FLOP per byte"),
    height: narrow(width) ? 300 : 340,
    marginLeft: 52,
    marginRight: 16,
    x: { type: "log", domain: x, label: "counted FLOP per byte →", grid: true, ticks: narrow(width) ? 4 : 8, tickFormat: plain },
    y: { type: "log", domain: y, label: "↑ counted TFLOPS", grid: true, ticks: 5, tickFormat: plain },
    marks: [
      marks,
      tops.map(({ top: of }) => Plot.ruleY([of], { stroke: "var(--roof)", strokeDasharray: "7 4", strokeWidth: 1.2 })),
      Plot.text(
        names.filter((one) => !one.end),
        {
          x: "x",
          y: "y",
          text: "text",
          textAnchor: "start",
          fontSize: 10.5,
          fill: "var(--quiet)",
          stroke: "var(--panel)",
          strokeWidth: 4,
          clip: true,
        },
      ),
      Plot.text(
        names.filter((one) => one.end),
        {
          x: "x",
          y: "y",
          text: "text",
          textAnchor: "end",
          dx: -4,
          fontSize: 10.5,
          fill: "var(--quiet)",
          stroke: "var(--panel)",
          strokeWidth: 4,
        },
      ),
      Plot.dot(points, { x: "x", y: "y", r: 5, fill: "var(--c1)", fillOpacity: 0.6, stroke: "var(--c1)" }),
      Plot.text(points, {
        x: "x",
        y: "y",
        text: "level",
        dy: 14,
        fontSize: 11,
        fill: "var(--text)",
        stroke: "var(--panel)",
        strokeWidth: 3,
      }),
    ],
  });
}

function plain(value) {
  return number(value, 4);
}
