/** The roofline: counted work over counted traffic of every point, under the ceilings of its machine. */

import { base, chart, narrow } from "./chart.js";
import { fill, h, picker, s, switcher } from "./dom.js";
import { micro, number, percent } from "./format.js";
import { limiterSigns, targetSigns } from "./signs.js";
import { go, keep } from "./state.js";

const LEVELS = { dram: "DRAM", l2: "L2", l1: "L1" };
const WORKS = { all: "all FLOP", tensor: "tensor", fp32: "FP32", fp16: "FP16" };
const BYTES = { dram: "bytes_dram_counted", l2: "bytes_l2_counted", l1: "bytes_l1_counted" };
const DASHES = { datasheet: "1 4", measured: "7 4", counter: null };

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
  if (level === "dram")
    for (const source of ["datasheet", "measured"])
      memory.push({ source, slope: (highest((at) => side.value(`ceiling_dram_gbs_${source}`, at)) ?? 0) / 1e3 });
  const flat = [];
  if (work === "all" || work === "tensor") {
    const ran = found.filter(({ at }) => side.points.instruction[at]);
    for (const [name, group] of d3.group(ran, ({ at }) => side.points.instruction[at]))
      flat.push({
        source: "counter",
        label: name,
        top: d3.max(group, ({ at }) => side.value("ceiling_tensor_tflops_counter", at) ?? undefined),
      });
    // A mark's roof is that of the type that it computed with: one line for each.
    const shown = work === "all" ? found : ran;
    for (const source of ["datasheet", "measured"])
      for (const [type, top] of Object.entries(side.flatRoofs[source]))
        if (shown.some(({ at }) => side.value("flop_type", at) === type))
          flat.push({ source, label: type === "fp32" ? "FP32" : `tensor ${type}`, top });
  }
  for (const [kind, label] of [
    ["fp32", "FP32"],
    ["fp16", "FP16"],
  ])
    if (work === kind || (work === "all" && kind === "fp32"))
      flat.push({ source: "counter", label, top: (highest((at) => side.points.roofs[`${kind}_flops_peak_per_second`][at]) ?? 0) / 1e12 });
  return { memory: memory.filter((roof) => roof.slope > 0), flat: flat.filter((roof) => roof.top > 0) };
}

/** The chart with its switches; what they say is kept in the address. */
export function roofline(side, params) {
  const at = (name, other) => params.get(name) ?? other;
  const chosen = {
    level: at("level", "dram"),
    work: at("work", "all"),
    sign: at("sign", "kernel"),
    only: at("only", null),
    least: Number(at("least", 0)),
  };
  const times = d3.extent(side.good(), (place) => side.value("time_cold_us", place));
  const frame = chart("Roofline of all points", (width) => draw(side, chosen, width));
  const legend = h("div.legend", { role: "group", "aria-label": "Series: press one to see it alone" });
  const shown = h("output.note");
  const update = (patch = {}) => {
    Object.assign(chosen, patch);
    keep({ ...patch, least: chosen.least || null });
    fill(
      legend,
      legendOf(side, chosen, (only) => update({ only })),
    );
    fill(shown, chosen.least ? `≥ ${micro(chosen.least)}` : "all");
    frame.redraw();
  };
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 100,
    step: 1,
    value: position(chosen.least, times),
    "aria-label": "Hide points that run shorter than",
    oninput: () => update({ least: timeAt(Number(slider.value), times) }),
  });
  const controls = h(
    "div.controls",
    switcher("Memory level", Object.entries(LEVELS), chosen.level, (level) => update({ level })),
    switcher("Work", Object.entries(WORKS), chosen.work, (work) => update({ work })),
    picker(
      "Signs",
      [
        ["kernel", "by kernel"],
        ["limiter", "by limiter"],
      ],
      chosen.sign,
      (sign) => update({ sign, only: null }),
    ),
    h("label.picker", h("span.label", "Run time"), slider, shown),
  );
  fill(
    legend,
    legendOf(side, chosen, (only) => update({ only })),
  );
  fill(shown, chosen.least ? `≥ ${micro(chosen.least)}` : "all");
  return h("div.roofline", controls, legend, frame);
}

// The slider is logarithmic over the run times; at its left end nothing is hidden.
function timeAt(position, [low, high]) {
  return position ? Number((low * (high / low) ** (position / 100)).toPrecision(3)) : 0;
}

function position(time, [low, high]) {
  return time ? Math.round((100 * Math.log(time / low)) / Math.log(high / low)) : 0;
}

function signsOf(side, chosen) {
  if (chosen.sign === "limiter") return { signs: limiterSigns(side), name: (at) => side.points.limiter[at] ?? "unknown" };
  return { signs: targetSigns(side), name: (at) => side.points.target[at] };
}

function legendOf(side, chosen, only) {
  const { signs, name } = signsOf(side, chosen);
  const counts = d3.rollup(
    marks(side, chosen.level, chosen.work),
    (found) => found.length,
    ({ at }) => name(at),
  );
  return signs.names
    .filter((one) => counts.has(one))
    .map((one) =>
      h(
        "button",
        { type: "button", "aria-pressed": String(chosen.only === one), onclick: () => only(chosen.only === one ? null : one) },
        signs.mark(one),
        chosen.sign === "limiter" ? side.limiterName(one) : one,
        h("span.count", counts.get(one)),
      ),
    );
}

function draw(side, chosen, width) {
  const { signs, name } = signsOf(side, chosen);
  const all = marks(side, chosen.level, chosen.work);
  const found = all.filter((mark) => (!chosen.only || name(mark.at) === chosen.only) && (mark.time ?? 0) >= chosen.least);
  if (!all.length) return h("p.empty", "Not in this evidence: counted work and traffic.");
  const { memory, flat } = roofs(side, all, chosen.level, chosen.work);
  const xs = d3.extent(all, (mark) => mark.x);
  const x = [xs[0] / 2, Math.max(xs[1] * 2, xs[0] * 100)];
  const highest = d3.max([...flat.map((roof) => roof.top), ...all.map((mark) => mark.y)]);
  const y = [d3.min(all, (mark) => mark.y) / 2, highest * 2];
  const plot = Plot.plot({
    ...base(width, "Roofline: counted TFLOPS over counted FLOP per byte"),
    height: narrow(width) ? 340 : 460,
    marginLeft: 52,
    marginRight: narrow(width) ? 12 : 24,
    x: {
      type: "log",
      domain: x,
      label: `counted FLOP per ${LEVELS[chosen.level]} byte →`,
      grid: true,
      ticks: narrow(width) ? 4 : 8,
      tickFormat: plain,
    },
    y: { type: "log", domain: y, label: "↑ counted TFLOPS", grid: true, ticks: 6, tickFormat: plain },
    marks: [roofMarks(memory, flat, x, narrow(width)), pointMarks(side, found, signs, name)],
  });
  for (const mark of plot.querySelectorAll("path[aria-label]")) mark.setAttribute("role", "img");
  plot.style.cursor = "crosshair";
  plot.addEventListener("click", () => {
    if (plot.value) go("point", { id: side.points.id[plot.value.at] });
  });
  return h("div", h("div.roofs.note", keyOf(memory, flat, side.roofless)), plot);
}

function plain(value) {
  return number(value, 4);
}

function roofMarks(memory, flat, x, small) {
  const out = [];
  const top = d3.max(flat, (roof) => roof.top) ?? Number.POSITIVE_INFINITY;
  for (const roof of memory) {
    const end = Math.min(x[1], top / roof.slope);
    const line = [
      [x[0], x[0] * roof.slope],
      [end, end * roof.slope],
    ];
    out.push(Plot.line(line, { stroke: "var(--roof)", strokeWidth: 1.4, strokeDasharray: DASHES[roof.source], clip: true }));
  }
  for (const roof of flat) {
    const from = Math.max(x[0], roof.top / d3.max(memory, (m) => m.slope));
    if (from >= x[1]) continue;
    out.push(
      Plot.line(
        [
          [from, roof.top],
          [x[1], roof.top],
        ],
        { stroke: "var(--roof)", strokeWidth: 1.4, strokeDasharray: DASHES[roof.source], clip: true },
      ),
    );
  }
  const own = flat.filter((roof) => roof.source === "counter" && !small);
  for (const roof of own) // the highest has room above it, the others may have a roof there
    out.push(
      Plot.text([roof], {
        x: x[1],
        y: "top",
        text: "label",
        textAnchor: "end",
        dx: -4,
        dy: roof === d3.greatest(own, (one) => one.top) ? -7 : 8,
        fontSize: 10.5,
        fill: "var(--quiet)",
        stroke: "var(--panel)",
        strokeWidth: 4,
      }),
    );
  return out;
}

/** What the roofs are, a line of the key for each source: a chart has no room for names that stand so close. */
function keyOf(memory, flat, roofless) {
  const without = roofless.map((type) => h("span", h("b", type), " no roof known"));
  const sources = Object.keys(DASHES).filter((source) => [...memory, ...flat].some((roof) => roof.source === source));
  const sourced = sources.map((source) => {
    const of = (found) => found.filter((roof) => roof.source === source);
    const told = [
      ...of(memory).map((roof) => `${number(roof.slope * 1e3)} GB/s`),
      ...of(flat).map((roof) => `${roof.label} ${number(roof.top)} TFLOPS`),
    ];
    const line = s(
      "svg.dash",
      { viewBox: "0 0 28 6", "aria-hidden": "true" },
      s("path", { d: "M0 3H28", stroke: "var(--roof)", "stroke-width": 1.6, "stroke-dasharray": DASHES[source] }),
    );
    return h("span", line, h("b", source), ` ${told.join(", ")}`);
  });
  return [...sourced, ...without];
}

function pointMarks(side, found, signs, name) {
  const text = ({ at, x, y, roof }) =>
    [
      side.short(at),
      `${number(y)} TFLOPS at ${number(x)} FLOP/B`,
      `limited by ${side.points.limited_by[at]}`,
      roof ? `${percent(y / roof.top)} of its roof: ${roof.name}, ${number(roof.top)} TFLOPS` : "no roof known",
      `cold ${micro(side.value("time_cold_us", at))}`,
    ].join("\n");
  return [
    Plot.dot(found, {
      x: "x",
      y: "y",
      r: 4.5,
      symbol: (mark) => signs.shape(name(mark.at)),
      stroke: (mark) => signs.colour(name(mark.at)),
      fill: (mark) => signs.colour(name(mark.at)),
      fillOpacity: 0.45,
      strokeWidth: 1.2,
      ariaLabel: text,
    }),
    Plot.tip(found, Plot.pointer({ x: "x", y: "y", title: text, maxRadius: 24 })),
  ];
}
