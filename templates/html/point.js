/** A point: everything that is known of it; two of them side by side. */

import { beside, choosing, each, folded, h, pairs, picker, section, table } from "./dom.js";
import { bare, change, headUnit, micro, nano, number, percent, quantity, relative, si } from "./format.js";
import { icicle } from "./icicle.js";
import { lanes } from "./lanes.js";
import { kernelsOf, numberOf } from "./origin.js";
import { advice, breakdown, launch, light } from "./profile.js";
import { limitedBy, limiterSigns } from "./signs.js";
import { href, keep } from "./state.js";
import { strips } from "./strip.js";

export async function point(evidence, params) {
  const found = params.getAll("id").map((id) => evidence.find(id));
  if (!found.length || found.includes(null))
    return h("p.empty", "No such point in this file: ", params.getAll("id").join(", ") || "none was named");
  const shown = await Promise.all(found.slice(0, 2).map(({ side, at }) => onePoint(evidence, side, at, params)));
  return shown.length === 1 ? shown[0] : [difference(evidence, found), each("div.beside", shown, (one) => h("div", one))];
}

async function onePoint(evidence, side, at, params) {
  const detail = await side.detail(at);
  const place = detail.id.indexOf(side.points.id[at]);
  const n = (name, print = quantity) => numberOf(evidence, side, at, name, print);
  const context = { evidence, side, at, detail, place, n };
  const kernels = kernelsOf(detail, place);
  const asked = params.has("kernel") && kernels.find(({ row }) => detail.kernels.kernel[row] === Number(params.get("kernel")));
  const main = asked || kernels.find((one) => one.main) || kernels[0];
  const analytic =
    "Analytic is what rates are quoted with; counted is what the hardware did. A ratio far from 1 says which of the two to distrust.";
  return [
    head(context),
    tiles(context),
    beside(
      section("Times", null, strips(side, at, detail, place), times(context)),
      section("Work: analytic and counted", analytic, work(context)),
    ),
    await kernelSections(context, kernels, main),
    section("Timeline", null, await lanes(detail.timeline, place)),
    section("All numbers", "Press a number to see where it comes from.", numbers(context)),
  ];
}

function head({ side, at, detail, place }) {
  const target = side.points.target[at];
  const params = Object.entries(side.points.params).filter(([, values]) => values[at] !== null);
  const status = side.points.status[at];
  const problems = detail.problems[place] ?? [];
  const all = h("a", { href: href("points", { q: `target=${target}` }) }, side.byTarget.get(target)?.title);
  return h(
    "header.point-head",
    h("h1.id", side.points.id[at]),
    h("p.note", side.name, " · ", all),
    each("ul.params", params, ([name, values]) => h("li", h("span", name), h("b", String(values[at])))),
    status !== "ok" && h("p.warning", `${status}: ${side.points.reason[at] ?? "no reason was recorded"}`),
    problems.length > 0 && (status === "ok" ? incomplete(problems) : h("p.warning", problems.join("; "))),
  );
}

/** Which tools have less of a point than of others: what it is stands once, in the Environment view. */
function incomplete(problems) {
  const tools = [...new Set(problems.map((text) => text.split(":")[0]))].join(", ");
  const link = { href: href("environment", { at: "incomplete" }), title: problems.join("; ") };
  return h("a.incomplete", link, `incomplete: ${tools}`);
}

function tiles({ side, at, n }) {
  const { rate, unit, fraction } = side.rateOf(side.points.target[at]);
  const share = percent(side.value("top_stall_share", at));
  return pairs("dl.tiles", [
    ["cold time", n("time_cold_us")],
    ["rate", n(rate, (value) => `${number(value)} ${unit}`)],
    ["of the measured peak", n(fraction, (value) => percent(value))],
    ["limited by", limitedBy(side, at, limiterSigns(side.points.limiter))],
    ["schedulers issue in", n("issue_active", (value) => percent(value))],
    ["occupancy", n("achieved_occupancy_pct", (value) => `${bare(value, "%")} %`)],
    ["top stall", n("top_stall", (value) => `${value ?? "–"} ${share}`)],
  ]);
}

function times(context) {
  const { timing } = context.detail;
  const rows = d3.range(timing.point.length).filter((row) => timing.point[row] === context.place);
  const cells = rows.map((row) => {
    const clocks = ["sm_mhz_before", "sm_mhz_after", "mem_mhz_after"].map((name) => quantity(timing[name][row], "MHz"));
    const throttled = timing.throttled[row] && (timing.throttle_reasons[row] ?? "yes");
    const held = timing.throttled[row] === null ? "–" : throttled || "no";
    return [timing.run[row], ...clocks, held, number(timing.retakes[row]), h("code", timing.report[row])];
  });
  const heads = ["process", ["SM before"], ["SM after"], ["memory"], "throttled", ["retakes"], "report"];
  return [views(context), cells.length > 0 && folded("Conditions of each process", table(heads, cells, "Conditions"))];
}

const VIEWS = { cold: "cold: in a burst", hot: "hot: L2 warm", sustained: "sustained: at settled clocks" };
const OTHERS = [
  ["in application: nsys", "time_insitu_us"],
  ["in application, with gaps", "time_span_us"],
  ["gap between kernels", "kernel_gap_us"],
  ["profiled: ncu", "time_ncu_us", "sm_clock_ghz"],
  ["profiled to in application", "replay_distortion"],
  ["the host's call", "host_launch_us"],
  ["plan() on the host", "plan_us"],
];

/** The views of a point's time, each with its quartiles, its rate, its clock, and what held that down. */
function views({ side, at, n }) {
  const { rate, unit } = side.rateOf(side.points.target[at]);
  const known = (name, print) => (side.columns.has(name) && side.value(name, at) !== null ? n(name, print) : "–");
  const timed = Object.entries(VIEWS).map(([view, name]) => {
    const [low, high] = ["q25", "q75"].map((quartile) => side.value(`time_${view}_${quartile}_us`, at));
    const quartiles = low === null ? "–" : `${micro(low)} to ${micro(high)}`;
    const own = known(view === "cold" ? rate : `${rate}_${view}`, (value) => `${number(value)} ${unit}`);
    return [name, n(`time_${view}_us`), quartiles, own, known(`clock_${view}_mhz`), side.value(`throttle_${view}`, at) ?? "–"];
  });
  const others = OTHERS.map(([view, name, clock]) => [view, n(name), "–", "–", clock ? n(clock) : "–", "–"]);
  return table(["time", [""], ["quartiles"], ["rate"], ["SM clock"], "held down by"], [...timed, ...others], "Times");
}

function work({ side, at, n }) {
  const [flop, bytes] = ["FLOP", "B"].map((unit) => (name) => n(name, (value) => si(value, unit)));
  const ratio = (name) => n(name, (value) => number(value));
  const rows = [
    ["arithmetic", flop("flops_analytic"), flop("flops_counted"), ratio("flops_ratio")],
    ["on tensor cores", "–", flop("flops_tensor_counted"), "–"],
    ["DRAM traffic", bytes("bytes_analytic"), bytes("bytes_dram_counted"), ratio("bytes_ratio")],
    ["L2 traffic", "–", bytes("bytes_l2_counted"), "–"],
    ["L1 traffic", "–", bytes("bytes_l1_counted"), "–"],
  ];
  const convention = h("p.note", `Convention: ${side.value("convention", at) ?? "–"}`);
  return [table(["", ["analytic"], ["counted"], ["ratio"]], rows, "Work"), convention];
}

function kernelSections(context, kernels, main) {
  if (!main) return section("Profile", null, h("p.empty", "Not in this evidence: a profile of this point by ncu."));
  const of = context.detail.kernels;
  const values = kernels.map(({ row, main: longest }) => {
    return [String(row), `${of.name[row]}, ${nano(of.duration_ns[row])}${longest ? ", the longest" : ""}`];
  });
  const show = (row) => sections(context, Number(row));
  return choosing(picker, "Kernel", values, String(main.row), show, (row) => keep({ kernel: of.kernel[row] }));
}

function sections({ evidence, detail }, row) {
  const kernels = detail.kernels;
  const told = `Of ${kernels.name[row]}: throughput of each unit in per cent of its peak.`;
  const where = `${kernels.report[row]}, kernel ${kernels.kernel[row]}: ${kernels.demangled[row]}`;
  const driven = [light(evidence.main, kernels, row), breakdown(evidence.main, kernels, row)];
  return [
    beside(section("Speed of Light", told, driven), section("Launch and occupancy", null, launch(kernels, row))),
    section("Stalls", null, icicle(kernels.tree[row], evidence.main, kernels.stalls[row])),
    section("NVIDIA's advice", null, advice(kernels, row)),
    section("Counters", where, registry(evidence, detail, row)),
  ];
}

function registry(evidence, { kernels, counters }, row) {
  const rows = Object.entries(kernels.metrics).map(([key, values]) => {
    const [label, unit, meaning] = evidence.main.metrics[key] ?? [key, "", ""];
    const counter = counters.names[counters.of[key]?.[row]];
    return [h("span", { title: meaning }, label), quantity(values[row], unit), h("code", counter ?? "–")];
  });
  const shown = table(["metric", ["value"], "ncu counter"], rows, "Counters");
  return folded(`${rows.length} values with the counter that each was read from`, shown);
}

function numbers({ evidence, n }) {
  const rows = [...evidence.declared.values()].map(({ name, unit, formula, source }) => {
    return [h("code", name), n(name, bare), headUnit(unit), source, formula];
  });
  const shown = table(["column", ["value"], "unit", "from", "formula"], rows, "All numbers");
  return folded(`${rows.length} columns of the measurement`, shown);
}

/** What sets two points apart: parameters that differ, then numbers with their ratio. */
function difference(evidence, [a, b]) {
  const names = [...new Set([a, b].flatMap(({ side }) => Object.keys(side.points.params)))];
  const apart = names.map((name) => [name, a.side.value(name, a.at), b.side.value(name, b.at)]).filter(([, x, y]) => x !== y);
  const rows = evidence.main.compared.map((name) => {
    const [x, y] = [a, b].map(({ side, at }) => side.value(name, at));
    const shown = [a, b].map(({ side, at }) => numberOf(evidence, side, at, name, quantity));
    const differs = typeof x === "string" ? (x === y ? "same" : "differs") : change(relative(x, y));
    return [a.side.columns.get(name).label, ...shown, differs];
  });
  const heads = [a, b].map(({ side, at }, place) => {
    return [`${"AB"[place]}: ${evidence.sides.length > 1 ? `${side.name} ` : ""}${side.points.id[at]}`];
  });
  const told = apart.map(([name, x, y]) => `${name} (${x ?? "–"}, ${y ?? "–"})`).join(", ");
  const note = told ? `They differ in ${told}.` : "Their parameters are the same.";
  return section("Side by side", note, table(["", ...heads, ["B to A"]], rows, "Two points"));
}
