/** Instructions: which ran, and how busy the pipes were; the spread over SMs and slices; counters over the run. */

import { bars } from "./bars.js";
import { base, chart, narrow } from "./chart.js";
import { h, section, table } from "./dom.js";
import { micro, number, percent, quantity } from "./format.js";

const MOST_OPCODES = 16;
const MOST_SPREAD = 12;

/** Pipes and opcodes beside each other. */
export function mix(close) {
  if (!close.pipes.length && !close.opcodes.length) return null;
  const all = d3.sum(close.opcodes, ([, n]) => n);
  const rows = close.opcodes.map(([label, n]) => ({ label, value: (100 * n) / all, title: `${number(n)} instructions of warps` }));
  return h(
    "div.wide-two",
    rows.length > 0 &&
      section(
        "Instruction mix",
        `${number(all)} instructions that warps executed, by opcode.`,
        bars("Instruction mix", rows.slice(0, MOST_OPCODES)),
        rows.length > MOST_OPCODES &&
          h("details", h("summary", `${rows.length - MOST_OPCODES} more opcodes`), bars("More opcodes", rows.slice(MOST_OPCODES))),
      ),
    close.pipes.length > 0 &&
      section(
        "Pipes",
        "Per cent of each pipe's peak while SMs were active.",
        bars(
          "Pipes",
          close.pipes.map(([label, value]) => ({ label, value })),
        ),
      ),
  );
}

/** How differently loaded the instances of a unit were. */
export function spread(close) {
  if (!close.spread.length) return null;
  const row = ([counter, unit, mean, least, most]) => [
    unit,
    h("code", counter),
    strip(mean, least, most),
    number(least),
    number(mean),
    number(most),
    mean ? percent(most / mean - 1) : "–",
  ];
  const heads = ["over", "counter", "least to most, mean", ["least"], ["mean"], ["most"], ["most above mean"]];
  return section(
    "Spread over SMs and slices",
    "Where the most loaded instance is far above the mean, the others wait for it.",
    table(heads, close.spread.slice(0, MOST_SPREAD).map(row), "Spread"),
    close.spread.length > MOST_SPREAD &&
      h(
        "details",
        h("summary", `${close.spread.length - MOST_SPREAD} more counters`),
        table(heads, close.spread.slice(MOST_SPREAD).map(row), "More counters"),
      ),
  );
}

/** From the least loaded instance to the most loaded one, of which the whole strip is long, with a mark at the mean. */
function strip(mean, least, most) {
  const at = (value) => `${most > 0 ? Math.max(0, (100 * value) / most) : 0}%`;
  return h(
    "span.range",
    { "aria-hidden": "true" },
    h("span.between", { style: `left:${at(least)}` }),
    h("span.mean", { style: `left:${at(mean)}` }),
  );
}

/** Counters that were sampled while the kernel ran. */
export function series(close) {
  const known = close.series.filter(([, , values]) => values.some(([, value]) => value > 0));
  if (!known.length) return null;
  return section(
    "Over the run",
    "Counters that ncu sampled in passes of their own (PM sampling).",
    h(
      "div.multiples",
      known.map(([name, unit, values]) =>
        h(
          "div",
          h("code.note", name),
          chart(name, (width) =>
            Plot.plot({
              ...base(
                width,
                `${name} over the run, at most ${quantity(
                  d3.max(values, (one) => one[1]),
                  unit,
                )}`,
              ),
              height: 110,
              marginLeft: 44,
              marginBottom: 24,
              x: { label: null, tickFormat: (ns) => micro(ns / 1e3), ticks: narrow(width) ? 3 : 5 },
              y: { label: null, grid: true, ticks: 3, tickFormat: (value) => number(value), zero: true },
              marks: [
                Plot.areaY(values, { x: (one) => one[0], y: (one) => one[1], fill: "var(--c0)", fillOpacity: 0.18 }),
                Plot.lineY(values, { x: (one) => one[0], y: (one) => one[1], stroke: "var(--c0)", strokeWidth: 1.3 }),
              ],
            }),
          ),
        ),
      ),
    ),
  );
}
