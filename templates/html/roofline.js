/** Rooflines: counted work over counted traffic under the ceilings of the machine, of all points or of one launch. */

import { base, chart, narrow } from "./chart.js";
import { countOf, facets, fill, h, picker, s, section, switcher } from "./dom.js";
import { micro, number, percent } from "./format.js";
import { limiterSigns, targetSigns } from "./signs.js";
import { chosenOf, go, update } from "./state.js";

const LEVELS = { dram: "DRAM", l2: "L2", l1: "L1" };
const WORKS = { all: "all FLOP", tensor: "tensor", fp32: "FP32", fp16: "FP16" };
const BYTES = { dram: "bytes_dram_counted", l2: "bytes_l2_counted", l1: "bytes_l1_counted" };
const DASHES = { datasheet: "1 4", measured: "7 4", counter: null };
const NAME = { fontSize: 10.5, fill: "var(--quiet)", stroke: "var(--panel)", strokeWidth: 4 };

/** A chart with both axes logarithmic. given: height, domains x and y, label of x, roofs {memory, flat} and marks over them. */
function plotOf(width, { height, x, y, label, memory, flat, marks }) {
  const tickFormat = (value) => number(value);
  return Plot.plot({
    ...base(width, "Roofline: counted TFLOPS over counted FLOP per byte"),
    height,
    marginLeft: 52,
    marginRight: 16,
    x: { type: "log", domain: x, label, grid: true, ticks: narrow(width) ? 4 : 8, tickFormat },
    y: { type: "log", domain: y, label: "↑ counted TFLOPS", grid: true, ticks: 6, tickFormat },
    marks: [linesOf(memory, flat, x), marks],
  });
}

/** Roofs as lines: a slanted one up to the highest flat one, a flat one from the steepest slanted one on. */
function linesOf(memory, flat, x) {
  const line = (source, ...ends) => {
    return Plot.line(ends, { stroke: "var(--roof)", strokeWidth: 1.4, strokeDasharray: DASHES[source], clip: true });
  };
  const [highest, steepest] = [d3.max(flat, ({ top }) => top) ?? Number.POSITIVE_INFINITY, d3.max(memory, ({ slope }) => slope)];
  const slanted = memory.map(({ source, slope }) => {
    const end = Math.min(x[1], highest / slope);
    return line(source, [x[0], x[0] * slope], [end, end * slope]);
  });
  const from = ({ top }) => Math.max(x[0], steepest ? top / steepest : 0);
  const seen = flat.filter((roof) => from(roof) < x[1]);
  return [...slanted, ...seen.map((roof) => line(roof.source, [from(roof), roof.top], [x[1], roof.top]))];
}

/** Counted FLOP per byte and TFLOPS of points; those that lack one are left out. */
export function marks(side, level, work) {
  const flops = (at) => (work === "all" ? side.value("flops_counted", at) : side.points.work[work][at]);
  const found = [];
  for (const at of side.good()) {
    const [done, bytes, time] = [flops(at), side.value(BYTES[level], at), side.value("time_ncu_us", at)];
    if (!done || !bytes || !time) continue;
    const mark = { at, x: done / bytes, y: done / time / 1e6, time: side.value("time_cold_us", at) };
    const over = [{ name: LEVELS[level], top: mark.x * slopeOf(side, at, level) }, ...topsOf(side, at, work)].filter(({ top }) => top > 0);
    mark.roof = d3.least(over, ({ top }) => top) ?? null;
    found.push(mark);
  }
  return found;
}

/** TFLOPS per FLOP/B of a point's own launch: what its counters say the level could move. */
function slopeOf(side, at, level) {
  return (side.points.roofs[`${level}_peak_bytes_per_second`][at] ?? 0) / 1e12;
}

/** The flat roofs over a point: of the instruction that ran, at the launch's clock, and the measured one of its data type. */
function topsOf(side, at, work) {
  const plain = (kind) => ({ name: kind.toUpperCase(), top: (side.points.roofs[`${kind}_flops_peak_per_second`][at] ?? 0) / 1e12 });
  if (work === "fp32" || work === "fp16") return [plain(work)];
  const type = side.value("flop_type", at);
  if (!side.value("flops_tensor_counted", at)) return work === "tensor" || type !== "fp32" ? [] : [plain("fp32")];
  return [
    { name: side.points.instruction[at] ?? "tensor", top: side.value("ceiling_tensor_tflops_counter", at) },
    { name: `measured ${type}`, top: side.value("ceiling_tensor_tflops_measured", at) },
  ];
}

/** Roofs over marks: [{source, label, slope}] of memory and [{source, label, top}] of arithmetic. */
export function roofs(side, found, level, work) {
  const highest = (value) => d3.max(found, ({ at }) => value(at) ?? undefined);
  const memory = [{ source: "counter", slope: highest((at) => slopeOf(side, at, level)) }];
  const flat = [];
  for (const source of level === "dram" ? ["datasheet", "measured"] : [])
    memory.push({ source, slope: (highest((at) => side.value(`ceiling_dram_gbs_${source}`, at)) ?? 0) / 1e3 });
  if (work === "all" || work === "tensor") {
    const ran = found.filter(({ at }) => side.points.instruction[at]);
    for (const [label, group] of d3.group(ran, ({ at }) => side.points.instruction[at])) {
      const tops = group.map(({ at }) => side.value("ceiling_tensor_tflops_counter", at) ?? undefined);
      flat.push({ source: "counter", label, top: d3.max(tops) });
    }
    // A mark's roof is that of the type that it computed with: one line for each.
    const types = new Set((work === "all" ? found : ran).map(({ at }) => side.value("flop_type", at)));
    for (const source of ["datasheet", "measured"])
      for (const [type, top] of Object.entries(side.flat_roofs[source]))
        if (types.has(type)) flat.push({ source, label: type === "fp32" ? "FP32" : `tensor ${type}`, top });
  }
  for (const kind of ["fp32", "fp16"])
    if (work === kind || (work === "all" && kind === "fp32")) {
      const top = (highest((at) => side.points.roofs[`${kind}_flops_peak_per_second`][at]) ?? 0) / 1e12;
      flat.push({ source: "counter", label: WORKS[kind], top });
    }
  return { memory: memory.filter((roof) => roof.slope > 0), flat: flat.filter((roof) => roof.top > 0) };
}

const SIGNS = [
  ["kernel", "by kernel"],
  ["limiter", "by limiter"],
];

/** The chart of all points with its switches; what they say is kept in the address. */
export function roofline(side, params) {
  const chosen = chosenOf(params, { level: "dram", work: "all", sign: "kernel", only: null, least: 0 });
  const times = d3.extent(side.good(), (place) => side.value("time_cold_us", place));
  const frame = chart("Roofline of all points", (width) => draw(side, chosen, width));
  const legend = h("div.legend", { role: "group", "aria-label": "Series: press one to see it alone" });
  const shown = h("output.note");
  const choose = (patch) => update(chosen, patch, show);
  const show = () => {
    fill(legend, legendOf(side, chosen, choose));
    fill(shown, chosen.least ? `≥ ${micro(chosen.least)}` : "all");
    frame.redraw();
  };
  show();
  // The slider is logarithmic over the run times; at its left end nothing is hidden.
  const position = d3.scaleLog(times, [0, 100]);
  const range = { type: "range", min: 0, max: 100, step: 1, value: chosen.least && Math.round(position(chosen.least)) };
  const least = () => (Number(slider.value) ? Number(position.invert(slider.value).toPrecision(3)) : null);
  const oninput = () => choose({ least: least() });
  const slider = h("input", { ...range, "aria-label": "Hide points that run shorter than", oninput });
  const controls = h(
    "div.controls",
    switcher("Memory level", Object.entries(LEVELS), chosen.level, (level) => choose({ level })),
    switcher("Work", Object.entries(WORKS), chosen.work, (work) => choose({ work })),
    picker("Signs", SIGNS, chosen.sign, (sign) => choose({ sign, only: null })),
    h("label.picker", h("span.label", "Run time"), slider, shown),
  );
  return h("div.roofline", controls, legend, frame);
}

function signsOf(side, chosen) {
  if (chosen.sign === "limiter") return { signs: limiterSigns(side.points.limiter), name: (at) => side.points.limiter[at] ?? "unknown" };
  return { signs: targetSigns(side), name: (at) => side.points.target[at] };
}

function legendOf(side, chosen, choose) {
  const { signs, name } = signsOf(side, chosen);
  const counts = countOf(marks(side, chosen.level, chosen.work), ({ at }) => name(at));
  const look = (one) => [signs.mark(one), chosen.sign === "limiter" ? (side.limiters[one] ?? one) : one];
  const names = signs.names.filter((one) => counts.has(one));
  return facets(counts, names, chosen.only, look, (only) => choose({ only }));
}

function draw(side, chosen, width) {
  const { signs, name } = signsOf(side, chosen);
  const all = marks(side, chosen.level, chosen.work);
  const found = all.filter((mark) => (!chosen.only || name(mark.at) === chosen.only) && (mark.time ?? 0) >= chosen.least);
  if (!all.length) return h("p.empty", "Not in this evidence: counted work and traffic.");
  const { memory, flat } = roofs(side, all, chosen.level, chosen.work);
  const [least, most] = d3.extent(all, (mark) => mark.x);
  const x = [least / 2, Math.max(most * 2, least * 100)];
  const y = [d3.min(all, (mark) => mark.y) / 2, d3.max([...flat.map((roof) => roof.top), ...all.map((mark) => mark.y)]) * 2];
  const own = flat.filter((roof) => roof.source === "counter" && !narrow(width));
  const highest = d3.greatest(own, (roof) => roof.top);
  // The highest has room above it, the others may have a roof there.
  const names = own.map((roof) =>
    Plot.text([roof], { ...NAME, x: x[1], y: "top", text: "label", textAnchor: "end", dx: -4, dy: roof === highest ? -7 : 8 }),
  );
  const label = `counted FLOP per ${LEVELS[chosen.level]} byte →`;
  const shown = [names, pointMarks(side, found, signs, name)];
  const plot = plotOf(width, { height: narrow(width) ? 340 : 460, x, y, label, memory, flat, marks: shown });
  for (const mark of plot.querySelectorAll("path[aria-label]")) mark.setAttribute("role", "img");
  plot.style.cursor = "crosshair";
  plot.addEventListener("click", () => {
    if (plot.value) go("point", { id: side.points.id[plot.value.at] });
  });
  return h("div", h("div.roofs.note", keyOf(memory, flat, side.roofless)), plot);
}

/** What the roofs are, a line of the key for each source: a chart has no room for names that stand so close. */
function keyOf(memory, flat, roofless) {
  const sourced = Object.entries(DASHES).map(([source, dash]) => {
    const of = (found) => found.filter((roof) => roof.source === source);
    const told = [
      ...of(memory).map((roof) => `${number(roof.slope * 1e3)} GB/s`),
      ...of(flat).map((roof) => `${roof.label} ${number(roof.top)} TFLOPS`),
    ];
    const path = s("path", { d: "M0 3H28", stroke: "var(--roof)", "stroke-width": 1.6, "stroke-dasharray": dash });
    const line = s("svg.dash", { viewBox: "0 0 28 6", "aria-hidden": "true" }, path);
    return told.length > 0 && h("span", line, h("b", source), ` ${told.join(", ")}`);
  });
  return [...sourced, ...roofless.map((type) => h("span", h("b", type), " no roofline known"))];
}

function pointMarks(side, found, signs, name) {
  const text = ({ at, x, y, roof }) => {
    const told = roof ? `${percent(y / roof.top)} of its roofline: ${roof.name}, ${number(roof.top)} TFLOPS` : "no roofline known";
    const [limit, time] = [side.points.limited_by[at], micro(side.value("time_cold_us", at))];
    return [side.short(at), `${number(y)} TFLOPS at ${number(x)} FLOP/B`, `limited by ${limit}`, told, `cold ${time}`].join("\n");
  };
  const [symbol, colour] = [({ at }) => signs.shape(name(at)), ({ at }) => signs.colour(name(at))];
  const look = { r: 4.5, symbol, stroke: colour, fill: colour, fillOpacity: 0.45, strokeWidth: 1.2 };
  return [
    Plot.dot(found, { x: "x", y: "y", ...look, ariaLabel: text }),
    Plot.tip(found, Plot.pointer({ x: "x", y: "y", title: text, maxRadius: 24 })),
  ];
}

/** The roofline of one launch over the traffic of each memory level. found: {flops, bytes, compute, memory}; ns: its duration. */
export function ofLaunch(found, ns) {
  if (!found || !ns) return null;
  const flops = d3.sum(Object.values(found.flops));
  const points = Object.entries(found.bytes).map(([level, bytes]) => {
    const slope = found.memory.find(([name]) => name === level)?.[1] ?? Number.POSITIVE_INFINITY;
    const [x, y] = [flops / bytes, flops / ns / 1e3];
    return { level, x, y, top: Math.min((x * slope) / 1e12, ceiling(found)) };
  });
  if (!points.length) return null;
  const told = points.map(({ level, x, y, top }) => {
    const part = Number.isFinite(top) ? `, ${percent(y / top, 1)} of its roofline` : "";
    return `${level}: ${number(x)} FLOP per byte, ${number(y)} TFLOPS${part}`;
  });
  const kinds = Object.entries(found.flops).map(([name, n]) => `${name} ${percent(n / flops)}`);
  const note = `Counted work (${kinds.join(", ")}) over counted traffic, under the ceilings of this launch at its clock.`;
  const drawn = chart("Roofline", (width) => drawLaunch(found, points, width));
  const items = told.map((text) => h("li", text));
  return section("Roofline", note, drawn, h("ul.kinds", items));
}

/** TFLOPS of this mix of work: no kind takes less time than it does at its own ceiling, so that the slowest is the roof. */
function ceiling({ flops, compute }) {
  const least = d3.max(compute, ([name, top]) => flops[name] / top);
  return least ? d3.sum(Object.values(flops)) / least / 1e12 : Number.POSITIVE_INFINITY;
}

function drawLaunch(found, points, width) {
  const flat = found.compute.map(([name, top]) => ({ name, top: top / 1e12, source: "measured" }));
  const memory = found.memory.map(([name, slope]) => ({ name, slope: slope / 1e12 }));
  const [tops, slopes] = [flat.map((roof) => roof.top), memory.map((roof) => roof.slope)];
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const knees = slopes.length && tops.length ? [(2 * d3.max(tops)) / d3.min(slopes)] : [];
  const x = [d3.min(xs) / 3, d3.max([...xs.map((one) => one * 3), ...knees])];
  const y = [d3.min([...ys.map((one) => one / 4), ...tops.map((one) => one / 2)]), d3.max([...tops, ...ys]) * 2];
  const slanted = memory.map(({ name, slope }) => {
    const at = Math.max(x[0], y[0] / slope);
    return { x: at * 1.15, y: at * slope * 1.5, text: `${name} ${number(slope * 1e3)} GB/s` };
  });
  const above = flat.map(({ name, top }) => ({ x: x[1], y: top * 1.25, text: `${name} ${number(top)} TFLOPS` }));
  const at = { x: "x", y: "y" };
  const marks = [
    Plot.text(slanted, { ...NAME, ...at, text: "text", textAnchor: "start", clip: true }),
    Plot.text(above, { ...NAME, ...at, text: "text", textAnchor: "end", dx: -4 }),
    Plot.dot(points, { ...at, r: 5, fill: "var(--c1)", fillOpacity: 0.6, stroke: "var(--c1)" }),
    Plot.text(points, { ...NAME, ...at, text: "level", dy: 14, fontSize: 11, fill: "var(--text)", strokeWidth: 3 }),
  ];
  const label = "counted FLOP per byte →";
  return plotOf(width, { height: narrow(width) ? 300 : 340, x, y, label, memory, flat, marks });
}
