/** A kernel: what limits it, and everything that its report holds of a launch. */

import { block } from "./block.js";
import { bars } from "./chart.js";
import { beside, choosing, cut, fill, folded, h, pairs, picker, search, section, switcher, table } from "./dom.js";
import { count, nano, number, percent, quantity, si } from "./format.js";
import { icicle } from "./icicle.js";
import { advice, breakdown, launch, light } from "./profile.js";
import { ofLaunch } from "./roofline.js";
import { line } from "./spark.js";
import { href, keep } from "./state.js";
import { curves, mix, series, spread } from "./view_charts.js";
import { memory } from "./view_memory.js";
import { source } from "./view_source.js";

const GONE = "Left out for the size of this file; ncuflow view of fewer files has it.";
const PARTS = { profile: ["Profile", profile], source: ["Source", ofSource], counters: ["Counters", counters] };

export async function kernel(main, params) {
  const place = { r: Number(params.get("r") ?? 0), k: Number(params.get("k") ?? 0) };
  const report = main.reports[place.r];
  if (report?.kernels.name[place.k] === undefined) return h("p.empty", "No such kernel in this file.");
  // A block has the panels of some neighbours together.
  const panels = await block(`kernels ${place.r} ${Math.floor(place.k / main.together)}`);
  const found = panels?.[place.k % main.together] ?? null;
  const at = indexOf(found, params.get("i"));
  const show = (part) => PARTS[part][1]({ main, report, place, found, at });
  const chosen = params.get("part") in PARTS ? params.get("part") : "profile";
  const names = Object.entries(PARTS).map(([part, [title]]) => [part, title]);
  return [heading(report, place, found), await choosing(switcher, "Part", names, chosen, show, (part) => keep({ part }))];
}

/** The row of the launch that the address names by its index in the report, else of the one that is shown first. */
function indexOf(found, asked) {
  const row = found?.launches.kernel.indexOf(Number(asked ?? Number.NaN)) ?? -1;
  return row < 0 ? (found?.first ?? 0) : row;
}

function heading(report, { r, k }, found) {
  const of = (key) => report.kernels[key][k];
  const step = (by, text) => k + by in report.kernels.name && h("a.button", { href: href("kernel", { r, k: k + by }) }, text);
  const all = h("a", { href: href("kernels", { r: r || null }) }, `all kernels of ${report.file}`);
  return h(
    "header.point-head",
    h("h1.id", of("label")),
    h("p.note", all, " ", step(-1, "← longer"), " ", step(1, "shorter →")),
    of("demangled") && of("demangled") !== of("name") && folded("Full name", h("code.wrap", of("demangled"))),
    of("n") > 1 && of("duration") && distribution(of("duration"), of("values"), of("n"), found?.launches.kernel.length ?? 0),
  );
}

function distribution({ least, q25, median, q75, most }, values, n, shown) {
  const [low, high, middle] = [least, most, median].map(nano);
  const told = low === high ? ` of ${low}` : `: ${low} to ${high}, median ${middle}, half of them ${nano(q25)} to ${nano(q75)}`;
  return h(
    "p.distribution",
    line(values),
    ` ${number(n)} launches${told}`,
    shown && shown < n ? h("span.note", `; ${shown} of them have a panel here`) : "",
  );
}

function profile({ main, found, at: first }) {
  if (!found) return h("p.empty", GONE);
  const of = found.launches;
  const names = of.kernel.map((index, row) => {
    const told = [`#${index}`, of.nvtx[row], of.grid[row] && `grid ${of.grid[row]}`, nano(of.duration_ns[row])];
    return [String(row), told.filter(Boolean).join(" · ")];
  });
  const show = (row) => sections(main, found, Number(row));
  return choosing(picker, "Launch", names, String(first), show, (row) => keep({ i: of.kernel[row] }));
}

function sections(main, found, row) {
  const of = found.launches;
  const close = row === found.first ? found.close : null;
  const own = (key) => of.metrics[key]?.[row] ?? null;
  const elsewhere = found.close && !close;
  return [
    answer(main, found, row, own),
    beside(lightOf(main, of, row), launchOf(of, row, close)),
    close && memory(close.memory, close.tables),
    stalls(main, of, row, own),
    close && mix(close),
    ofLaunch(of.roofline[row], of.duration_ns[row]),
    close && spread(close),
    close && series(close),
    of.rules[row].length > 0 && section("NVIDIA's rules", roomWords(of.verdict[row]), advice(of, row)),
    elsewhere &&
      h("p.note", `Memory chart, instruction mix, spread, source and counters are here of launch #${of.kernel[found.first]}, the longest.`),
  ];
}

function launchOf(of, row, close) {
  if (of.grid[row] === null && !of.occupancy[row]) return null;
  return section("Launch and occupancy", null, launch(of, row), next(of.occupancy[row]), close && curves(close.curves, of, row));
}

function answer(main, found, row, own) {
  const of = found.launches;
  const verdict = of.verdict[row];
  const explained = row === found.first && found.explained;
  return section(
    "What limits it",
    null,
    of.problems[row] && h("p.warning", of.problems[row]),
    h("p.said", verdict.words ?? "Not known: this launch has no breakdown of Speed of Light."),
    tiles(of, row, own),
    explained && h("pre.explained", explained),
    verdict.units.length > 0 && unitsAndWaits(main, verdict),
  );
}

function tiles(of, row, own) {
  const dram = [own("dram_bytes_read"), own("dram_bytes_write")];
  const found = [
    ["time under ncu", nano(of.duration_ns[row])],
    ["headroom", roomOf(of.verdict[row])],
    ["schedulers issue in", percent(own("issue_active"))],
    ["occupancy", quantity(own("achieved_occupancy_pct"), "%")],
    ["registers", number(of.registers[row])],
    ["DRAM", si(dram.includes(null) ? null : d3.sum(dram), "B")],
    ["SM clock", si(own("sm_clock_hz"), "Hz")],
  ].filter(([, value]) => value !== "–");
  return found.length > 0 && pairs("dl.tiles", found);
}

function roomOf({ room }) {
  return percent(room === null ? null : room / 100);
}

function unitsAndWaits(main, verdict) {
  const row = ([name, label, pct, counter]) => {
    const title = [main.units[name] ?? "", counter].filter((text) => text !== null).join("\n");
    return { label, value: pct, title: title.trim() };
  };
  const waits = `Waits: ${roomOf({ room: verdict.room ?? 0 })} of the time`;
  return h(
    "div.two",
    h("div", h("h3", "Units, per cent of their peaks"), bars("Units", verdict.units.slice(0, 8).map(row))),
    h("div", h("h3", waits), bars("Waits", verdict.waits.map(row))),
  );
}

function lightOf(main, of, row) {
  const driven = Object.keys(of.metrics).some((key) => key.endsWith("throughput_pct") && of.metrics[key][row] !== null);
  if (!of.breakdown[row].length && !driven) return null;
  return section("Speed of Light", "Throughput of each unit in per cent of its peak.", light(main, of, row), breakdown(main, of, row));
}

/** What would let one block more onto an SM. */
function next(occupancy) {
  if (!occupancy) return null;
  const { blocks, resources, needs } = occupancy;
  const limits = `An SM holds ${count(blocks, "block")} at once, limited by ${resources.join(" and ")}.`;
  const steps = needs.map(([resource, now, most]) =>
    resource === "registers"
      ? `For one more: at most ${most} registers per thread (now ${now}).`
      : `For one more: at most ${number(most)} B of shared memory per block (now ${number(now)} B).`,
  );
  const several = !needs.length && resources.length > 1 && !resources.includes("warps");
  if (several) steps.push("They run out together: less of one alone brings no block.");
  return h("p.note", [limits, ...steps].join(" "));
}

const SCHEDULER = [
  ["issue_active", "issued in", (value) => percent(value, 1)],
  ["warps_active_per_scheduler", "warps on a scheduler", number],
  ["warps_eligible", "of them eligible", number],
  ["warp_latency_per_issue", "cycles from issue to issue of a warp", number],
  ["threads_per_inst", "threads of an instruction", number],
];

function stalls(main, of, row, own) {
  const [tree, found] = [of.tree[row], of.stalls[row]];
  if (!tree && !found.length) return null;
  const known = SCHEDULER.filter(([key]) => own(key) !== null).map(([key, text, shown]) => `${text} ${shown(own(key))}`);
  return section("Stalls", known.join(" · "), tree ? icicle(tree, main, found) : stallTable(main, found));
}

function stallTable(main, stalls) {
  const ranked = d3.sort(stalls, ([, , , share, samples]) => -(share ?? samples ?? 0));
  const rows = ranked.map(([reason, kind, ratio, share, samples]) => {
    return [reason, kind, percent(share, 1), number(ratio), number(samples), main.stalls[reason] ?? "–"];
  });
  return table(["reason", "kind", ["of stalls"], ["cycles per instruction"], ["samples"], "a warp waits for"], rows, "Warp states");
}

/** An estimate of a rule is of its own making; what the busiest unit leaves bounds it. */
function roomWords(verdict) {
  const told = "As the report stores them, with NVIDIA's own estimates.";
  if (verdict.room === null) return told;
  return `${told} The headroom here is ${roomOf(verdict)} of the time: no estimate of the whole kernel can bring more at the same work.`;
}

async function ofSource({ main, report, place }) {
  const found = await block(`code ${place.r} ${place.k}`);
  if (found) return source(main, found);
  const none = ["Not in this report: instructions of this kernel; ", h("code", "ncu --section SourceCounters"), " brings them."];
  return h("p.empty", report.kernels.code[place.k] ? GONE : none);
}

const MOST_COUNTERS = 400;

async function counters({ report, place }) {
  const found = await block(`counters ${place.r} ${place.k}`);
  if (!found) return h("p.empty", report.kernels.counters[place.k] ? GONE : "Not in this file: all counters of this kernel.");
  const body = h("div");
  const row = (at) => [h("code", found.name[at]), quantity(found.value[at], found.unit[at]), String(found.value[at])];
  const show = (text) => {
    const words = text.toLowerCase().split(/\s+/);
    const holds = d3.range(found.name.length).filter((at) => words.every((word) => found.name[at].toLowerCase().includes(word)));
    const shown = cut(["counter", ["value"], ["exactly, in its base unit"]], holds, row, "Counters", MOST_COUNTERS, ": filter for them");
    fill(body, h("p.note", `${holds.length} of ${found.name.length} counters`), shown);
  };
  show("");
  const box = search({ placeholder: "filter: lts__t hit", "aria-label": "Filter counters" }, show);
  return section("Counters", `All that the report holds of launch #${report.kernels.index[place.k]}.`, h("div.controls", box), body);
}
