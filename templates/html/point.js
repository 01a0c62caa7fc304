/** A point: everything that is known of it; two of them side by side. */

import { fill, h, picker, section, table } from "./dom.js";
import { bare, change, headUnit, micro, number, percent, quantity, si } from "./format.js";
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
  if (shown.length === 1) return shown[0];
  return [
    difference(evidence, found),
    h(
      "div.beside",
      shown.map((one) => h("div", one)),
    ),
  ];
}

async function onePoint(evidence, side, at, params) {
  const detail = await side.detail(at);
  const place = detail.id.indexOf(side.points.id[at]);
  const context = { evidence, side, at, detail, place, n: (name, text) => numberOf(evidence, side, at, name, text) };
  const kernels = kernelsOf(detail, place);
  const asked = Number(params.get("kernel"));
  const main =
    kernels.find(({ row }) => params.has("kernel") && detail.kernels.kernel[row] === asked) ??
    kernels.find((one) => one.main) ??
    kernels[0];
  const ofKernel = h("div");
  fill(ofKernel, kernelSections(context, main?.row));
  return [
    head(context),
    tiles(context),
    h(
      "div.wide-two",
      section("Times", null, strips(side, at, detail, place), times(context)),
      section(
        "Work: analytic and counted",
        "Analytic is what rates are quoted with; counted is what the hardware did. A ratio far from 1 says which of the two to distrust.",
        work(context),
      ),
    ),
    kernels.length > 1 && kernelPicker(context, kernels, main, (row) => fill(ofKernel, kernelSections(context, row))),
    ofKernel,
    section("Timeline", null, lanes(detail.timeline, place)),
    section("All numbers", "Press a number to see where it comes from.", numbers(context)),
  ];
}

function head({ side, at, detail, place }) {
  const id = side.points.id[at];
  const params = Object.entries(side.points.params).filter(([, values]) => values[at] !== null);
  const status = side.points.status[at];
  const problems = detail.problems[place] ?? [];
  return h(
    "header.point-head",
    h("h1.id", id),
    h(
      "p.note",
      side.name,
      " · ",
      h("a", { href: href("points", { q: `target=${side.points.target[at]}` }) }, side.byTarget.get(side.points.target[at])?.title),
    ),
    h(
      "ul.params",
      params.map(([name, values]) => h("li", h("span", name), h("b", String(values[at])))),
    ),
    status !== "ok" && h("p.warning", `${status}: ${side.points.reason[at] ?? "no reason was recorded"}`),
    problems.length > 0 && (status === "ok" ? incomplete(problems) : h("p.warning", problems.join("; "))),
  );
}

/** Which tools have less of a point than of others: what it is stands once, in the Environment view. */
function incomplete(problems) {
  const tools = [...new Set(problems.map((text) => text.split(":")[0]))].join(", ");
  return h("a.incomplete", { href: href("environment", { at: "incomplete" }), title: problems.join("; ") }, `incomplete: ${tools}`);
}

function tiles({ side, at, n }) {
  const { rate, unit, fraction } = side.rateOf(side.points.target[at]);
  const all = [
    ["cold time", n("time_cold_us", micro(side.value("time_cold_us", at)))],
    ["rate", n(rate, `${number(side.value(rate, at))} ${unit}`)],
    ["of the measured peak", n(fraction, percent(side.value(fraction, at)))],
    ["limited by", limitedBy(side, at, limiterSigns(side))],
    ["schedulers issue in", n("issue_active", percent(side.value("issue_active", at)))],
    ["occupancy", n("achieved_occupancy_pct", `${bare(side.value("achieved_occupancy_pct", at), "%")} %`)],
    ["top stall", n("top_stall", `${side.value("top_stall", at) ?? "–"} ${percent(side.value("top_stall_share", at))}`)],
  ];
  return h(
    "dl.tiles",
    all.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}

function times(context) {
  const { detail, place } = context;
  const timing = detail.timing;
  const rows = timing.point
    .map((p, row) => [p, row])
    .filter(([p]) => p === place)
    .map(([, row]) => row);
  return [
    views(context),
    rows.length > 0 &&
      h(
        "details",
        h("summary", "Conditions of each process"),
        table(
          ["process", ["SM before"], ["SM after"], ["memory"], "throttled", ["retakes"], "report"],
          rows.map((row) => [
            timing.run[row],
            quantity(timing.sm_mhz_before[row], "MHz"),
            quantity(timing.sm_mhz_after[row], "MHz"),
            quantity(timing.mem_mhz_after[row], "MHz"),
            timing.throttled[row] === null ? "–" : timing.throttled[row] ? (timing.throttle_reasons[row] ?? "yes") : "no",
            number(timing.retakes[row]),
            h("code", timing.report[row]),
          ]),
          "Conditions",
        ),
      ),
  ];
}

/** The views of a point's time, each with its quartiles, its rate, its clock, and what held that down. */
function views({ side, at, n }) {
  const { rate, unit } = side.rateOf(side.points.target[at]);
  const rates = { cold: rate, hot: `${rate}_hot`, sustained: `${rate}_sustained` };
  const known = (name) => side.columns.has(name) && side.value(name, at) !== null;
  const timed = ["cold", "hot", "sustained"].map((view) => {
    const [low, high] = ["q25", "q75"].map((quartile) => side.value(`time_${view}_${quartile}_us`, at));
    return [
      { cold: "cold: in a burst", hot: "hot: L2 warm", sustained: "sustained: at settled clocks" }[view],
      n(`time_${view}_us`),
      low === null ? "–" : `${micro(low)} to ${micro(high)}`,
      known(rates[view]) ? n(rates[view], `${number(side.value(rates[view], at))} ${unit}`) : "–",
      known(`clock_${view}_mhz`) ? n(`clock_${view}_mhz`) : "–",
      side.value(`throttle_${view}`, at) ?? "–",
    ];
  });
  const others = [
    ["in situ: nsys", "time_insitu_us"],
    ["in situ, with gaps", "time_span_us"],
    ["gap between kernels", "kernel_gap_us"],
    ["profiled: ncu", "time_ncu_us", "sm_clock_ghz"],
    ["profiled to in situ", "replay_distortion"],
    ["the host's call", "host_launch_us"],
    ["plan() on the host", "plan_us"],
  ].map(([view, name, clock]) => [view, n(name), "–", "–", clock ? n(clock) : "–", "–"]);
  return table(["time", [""], ["quartiles"], ["rate"], ["SM clock"], "held down by"], [...timed, ...others], "Times");
}

function work({ side, at, n }) {
  const flop = (name) => n(name, si(side.value(name, at), "FLOP"));
  const bytes = (name) => n(name, si(side.value(name, at), "B"));
  const ratio = (name) => n(name, number(side.value(name, at)));
  const rows = [
    ["arithmetic", flop("flops_analytic"), flop("flops_counted"), ratio("flops_ratio")],
    ["on tensor cores", "–", flop("flops_tensor_counted"), "–"],
    ["DRAM traffic", bytes("bytes_analytic"), bytes("bytes_dram_counted"), ratio("bytes_ratio")],
    ["L2 traffic", "–", bytes("bytes_l2_counted"), "–"],
    ["L1 traffic", "–", bytes("bytes_l1_counted"), "–"],
  ];
  return [
    table(["", ["analytic"], ["counted"], ["ratio"]], rows, "Work"),
    h("p.note", `Convention: ${side.value("convention", at) ?? "–"}`),
  ];
}

function kernelPicker({ detail }, kernels, main, show) {
  const values = kernels.map(({ row, main: longest }) => [
    String(row),
    `${detail.kernels.name[row]}, ${micro(detail.kernels.duration_ns[row] === null ? null : detail.kernels.duration_ns[row] / 1e3)}${longest ? ", the longest" : ""}`,
  ]);
  return h(
    "div.controls",
    picker("Kernel", values, String(main?.row), (row) => {
      keep({ kernel: detail.kernels.kernel[row] });
      show(Number(row));
    }),
  );
}

function kernelSections(context, row) {
  const { evidence, detail } = context;
  if (row === undefined) return section("Profile", null, h("p.empty", "Not in this evidence: a profile of this point by ncu."));
  const kernels = detail.kernels;
  return [
    h(
      "div.wide-two",
      section(
        "Speed of Light",
        `Of ${kernels.name[row]}: throughput of each unit in per cent of its peak.`,
        light(evidence.main, kernels, row),
        breakdown(evidence.main, kernels, row),
      ),
      section("Launch and occupancy", null, launch(kernels, row)),
    ),
    section("Stalls", null, icicle(kernels.tree[row], evidence.main, kernels.stalls[row])),
    section("NVIDIA's advice", null, advice(kernels, row)),
    section(
      "Counters",
      `${kernels.report[row]}, kernel ${kernels.kernel[row]}: ${kernels.demangled[row]}`,
      registry(evidence, detail, row),
    ),
  ];
}

function registry(evidence, detail, row) {
  const rows = Object.entries(detail.kernels.metrics).map(([key, values]) => {
    const [label, unit, meaning] = evidence.main.metrics[key] ?? [key, "", ""];
    const counter = detail.counters.names[detail.counters.of[key]?.[row]];
    return [h("span", { title: meaning }, label), quantity(values[row], unit), h("code", counter ?? "–")];
  });
  return h(
    "details",
    h("summary", `${rows.length} values with the counter that each was read from`),
    table(["metric", ["value"], "ncu counter"], rows, "Counters"),
  );
}

function numbers({ evidence, side, at, n }) {
  const rows = [...evidence.declared.values()].map(({ name, unit, formula, source }) => [
    h("code", name),
    n(name, bare(side.value(name, at), unit)),
    headUnit(unit ?? ""),
    source,
    formula,
  ]);
  return h(
    "details",
    h("summary", `${rows.length} columns of the measurement`),
    table(["column", ["value"], "unit", "from", "formula"], rows, "All numbers"),
  );
}

const COMPARED = [
  "time_cold_us",
  "time_hot_us",
  "time_insitu_us",
  "time_ncu_us",
  "tflops",
  "gbs",
  "flops_counted",
  "bytes_dram_counted",
  "sol_sm_pct",
  "sol_memory_pct",
  "sol_dram_pct",
  "sol_l2_pct",
  "tensor_pipe_pct",
  "issue_active",
  "achieved_occupancy_pct",
  "registers",
  "smem_bytes",
  "grid_size",
  "waves",
  "kernel_count",
  "main_kernel",
  "top_stall",
  "top_stall_share",
  "sm_clock_ghz",
];

/** What sets two points apart: parameters that differ, then numbers with their ratio. */
function difference(evidence, [a, b]) {
  const names = [...new Set([a, b].flatMap(({ side }) => Object.keys(side.points.params)))];
  const apart = names.map((name) => [name, a.side.value(name, a.at), b.side.value(name, b.at)]).filter(([, x, y]) => x !== y);
  const rows = COMPARED.filter((name) => evidence.declared.has(name)).map((name) => {
    const [x, y] = [a.side.value(name, a.at), b.side.value(name, b.at)];
    const { unit } = evidence.declared.get(name);
    const relative = typeof x === "number" && typeof y === "number" && x !== 0 ? y / x - 1 : null;
    return [
      a.side.columns.get(name).label,
      numberOf(evidence, a.side, a.at, name, quantity(x, unit)),
      numberOf(evidence, b.side, b.at, name, quantity(y, unit)),
      typeof x === "string" ? (x === y ? "same" : "differs") : change(relative),
    ];
  });
  const heads = [a, b].map(({ side, at }, place) => [
    `${"AB"[place]}: ${evidence.sides.length > 1 ? `${side.name} ` : ""}${side.points.id[at]}`,
  ]);
  return section(
    "Side by side",
    apart.length
      ? `They differ in ${apart.map(([name, x, y]) => `${name} (${x ?? "–"}, ${y ?? "–"})`).join(", ")}.`
      : "Their parameters are the same.",
    table(["", ...heads, ["B to A"]], rows, "Two points"),
  );
}
