/** Occupancy over what it depends on: the calculator's curves in the report, and where this launch stands on them. */

import { base, chart } from "./chart.js";
import { h } from "./dom.js";
import { number } from "./format.js";

/** curves: name -> [[x, warps of an SM]] at the places where they change; of and row: the launch. */
export function curves(found, of, row) {
  const [fixed, dynamic] = [of.smem_static_bytes[row], of.smem_dynamic_bytes[row]];
  const now = {
    registers: of.registers[row],
    "shared memory": fixed === null || dynamic === null ? null : fixed + dynamic,
    "block size": of.block_size[row],
  };
  const names = Object.keys(found).filter((name) => found[name].length > 1 && now[name] !== null);
  if (!names.length) return null;
  return h(
    "div.multiples",
    names.map((name) =>
      h(
        "div",
        h("span.note", `warps of an SM over ${name}`),
        chart(`Occupancy over ${name}`, (width) => draw(name, found[name], now[name], width)),
      ),
    ),
  );
}

function draw(name, curve, now, width) {
  const bytes = name === "shared memory";
  return Plot.plot({
    ...base(width, `Warps of an SM over ${name}; this launch has ${number(now)}`),
    height: 120,
    marginLeft: 30,
    marginBottom: 24,
    x: { label: null, ticks: 4, tickFormat: (value) => (bytes ? `${number(value / 1024)}k` : number(value)) },
    y: { label: null, grid: true, ticks: 3, zero: true },
    marks: [
      Plot.lineY(curve, { x: (one) => one[0], y: (one) => one[1], curve: "step-after", stroke: "var(--c0)", strokeWidth: 1.4 }),
      Plot.ruleX([now], { stroke: "var(--c1)", strokeWidth: 1.6 }),
      Plot.text([now], {
        x: (value) => value,
        text: () => (bytes ? `${number(now / 1024)}k` : number(now)),
        frameAnchor: "top",
        textAnchor: "start",
        dx: 4,
        fill: "var(--text)",
      }),
    ],
  });
}
