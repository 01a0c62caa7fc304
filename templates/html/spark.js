/** Sparklines: the shape of a series along its sweep, in the room of a word. */

import { s } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 20;

/** One line per series of [x, y] with known y, x by order or logarithm; name: what it shows. */
export function spark(name, series) {
  const known = series.map((line) => line.filter(([, y]) => y !== null)).filter((line) => line.length > 1);
  if (!known.length) return null;
  const xs = known.flat().map(([x]) => x);
  const x = (xs.every((v) => typeof v === "number" && v > 0) ? d3.scaleLog() : d3.scalePoint())
    .domain(typeof xs[0] === "number" ? d3.extent(xs) : [...new Set(xs)])
    .range([3, WIDTH - 3]);
  const y = d3.scaleLinear([0, d3.max(known.flat(), ([, v]) => v)], [HEIGHT - 2, 3]);
  const line = d3.line(
    ([a]) => x(a),
    ([, b]) => y(b),
  );
  const best = d3.greatest(known.flat(), ([, v]) => v);
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": name },
    s("title", null, name),
    known.map((points) => s("path", { d: line(points) })),
    s("circle", { cx: x(best[0]), cy: y(best[1]), r: 2.2 }),
  );
}

/** Points of a side as series along a parameter: one per combination of the other parameters. */
export function sweeps(side, places, axis, column) {
  const names = Object.keys(side.points.params).filter((name) => name !== axis);
  const lines = d3.group(places, (at) => names.map((name) => side.points.params[name][at]).join("\u0000"));
  const along = (at) => side.value(axis, at);
  return [...lines.values()].map((line) =>
    d3
      .sort(
        line.filter((at) => along(at) !== null),
        along,
      )
      .map((at) => [along(at), side.value(column, at)]),
  );
}
