/** Sparklines: the shape of a series along its sweep, in the room of a word. */

import { each, h, s } from "./dom.js";

const WIDTH = 130;
const HEIGHT = 30;
const DRAWN = 3; // lines that an eye follows; the others are their ground
const DASHES = [null, "5 2", "2 2"];

/** The lines of `sweeps`: the first few in full and named below, the others faint; name: what they show. */
export function spark(name, lines) {
  const known = lines.map((one) => ({ ...one, line: one.line.filter(([, y]) => y !== null) })).filter(({ line }) => line.length > 1);
  if (!known.length) return null;
  const highest = ({ line }) => d3.max(line, ([, v]) => v);
  const ordered = d3.sort(known, (a, b) => b.line.length - a.line.length || highest(b) - highest(a));
  const [drawn, faint] = [ordered.slice(0, DRAWN), ordered.slice(DRAWN)];
  const all = known.flatMap(({ line }) => line);
  const xs = all.map(([x]) => x);
  const x = (xs.every((v) => typeof v === "number" && v > 0) ? d3.scaleLog() : d3.scalePoint())
    .domain(typeof xs[0] === "number" ? d3.extent(xs) : [...new Set(xs)])
    .range([3, WIDTH - 3]);
  const y = d3.scaleLinear([0, d3.max(all, ([, v]) => v)], [HEIGHT - 2, 3]);
  const path = (line) => d3.line()(line.map(([a, b]) => [x(a), y(b)]));
  const best = d3.greatest(all, ([, v]) => v);
  const names = namesOf(drawn);
  const label = names.length > 1 ? `${name}: ${names.join("; ")}` : name;
  const drawing = svg(
    [WIDTH, HEIGHT],
    { role: "img", "aria-label": label },
    s("title", faint.length ? `${label}; faint: ${faint.length} more` : label),
    faint.map(({ line }) => s("path.faint", { d: path(line) })),
    drawn.map(({ line }, at) => s("path", { d: path(line), ...stroke(at) })),
    s("circle", { cx: x(best[0]), cy: y(best[1]), r: 2.2 }),
  );
  const swatch = (at) => svg([18, 6], { "aria-hidden": "true" }, s("path", { d: "M0 3H18", ...stroke(at) }));
  const key = each("span.lines", names, (one, at) => h("span", swatch(at), one));
  return h("span.sparked", drawing, names.length > 1 && key);
}

function svg([width, height], props, ...marks) {
  return s("svg.spark", { viewBox: `0 0 ${width} ${height}`, width, height, ...props }, marks);
}

function stroke(at) {
  return { style: `stroke:var(--c${at})`, "stroke-dasharray": DASHES[at] };
}

/** What sets lines apart: the parameters that are not the same in all of them. */
function namesOf(lines) {
  const varied = Object.keys(lines[0].params).filter((name) => new Set(lines.map(({ params }) => params[name])).size > 1);
  return lines.map(({ params }) => varied.map((name) => told(name, params[name])).join(", "));
}

const VAGUE = ["auto", "none", "off", "on", "same"]; // values that say nothing without their parameter

function told(name, value) {
  return typeof value === "string" && !VAGUE.includes(value) ? value : `${name} ${value ?? "–"}`;
}

/** Values in their order, in the room of a number; null where fewer than two are known. */
export function line(values) {
  if (values.filter((value) => value !== null).length < 2) return null;
  const [width, height] = [90, 18];
  const x = d3.scaleLinear([0, values.length - 1], [1, width - 1]);
  const y = d3.scaleLinear([0, d3.max(values)], [height - 1, 1]);
  const path = d3.line().defined(([, value]) => value !== null);
  const d = path(values.map((value, at) => [x(at), value === null ? null : y(value)]));
  return svg([width, height], { "aria-hidden": "true" }, s("path", { d }));
}

/** Points of a side as series along a parameter, one per combination of the others: [{params, line: [[x, y]]}]. */
export function sweeps(side, places, axis, column) {
  const names = Object.keys(side.points.params).filter((name) => name !== axis);
  const known = places.filter((at) => side.value(axis, at) !== null);
  const lines = d3.group(known, (at) => names.map((name) => side.points.params[name][at]).join("\u0000"));
  return [...lines.values()].map((line) => {
    const params = Object.fromEntries(names.map((name) => [name, side.points.params[name][line[0]]]));
    const values = line.map((at) => [side.value(axis, at), side.value(column, at)]);
    return { params, line: d3.sort(values, ([x]) => x) };
  });
}
