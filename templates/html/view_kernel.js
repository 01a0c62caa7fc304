/** A kernel: what limits it, and everything that its report holds of a launch. */

import { bars } from "./bars.js";
import { block } from "./block.js";
import { fill, h, picker, section, switcher, table } from "./dom.js";
import { micro, number, percent, quantity, si } from "./format.js";
import { icicle } from "./icicle.js";
import { advice, breakdown, launch, light } from "./profile.js";
import { href, keep } from "./state.js";
import { curves } from "./view_curves.js";
import { line } from "./view_kernels.js";
import { memory } from "./view_memory.js";
import { mix, series, spread } from "./view_mix.js";
import { roofline } from "./view_roofline.js";
import { source } from "./view_source.js";

const GONE = "Left out for the size of this file. `ncuflow view` of fewer files has it.";

export async function kernel(main, params) {
  const place = { r: Number(params.get("r") ?? 0), k: Number(params.get("k") ?? 0) };
  const report = main.reports[place.r];
  const name = report?.kernels.name[place.k];
  if (name === undefined) return h("p.empty", "No such kernel in this file.");
  const found = (await block(panelOf(main, place)))?.[place.k % main.together] ?? null;
  const body = h("div");
  const at = indexOf(found, params.get("i"));
  const parts = { profile: "Profile", source: "Source", counters: "Counters" };
  const show = async (part) => {
    fill(body, await PARTS[part]({ main, report, place, found, at }));
  };
  const chosen = params.get("part") in parts ? params.get("part") : "profile";
  const choice = switcher("Part", Object.entries(parts), chosen, (part) => {
    keep({ part });
    show(part);
  });
  await show(chosen);
  return [heading(report, place, found), h("div.controls", choice), body];
}

/** The block that has the panel of a kernel, with those of its neighbours. */
function panelOf(main, { r, k }) {
  return `kernels ${r} ${Math.floor(k / main.together)}`;
}

const PARTS = { profile, source: ofSource, counters };

/** The row of the launch that the address names by its index in the report, else of the one that is shown first. */
function indexOf(found, asked) {
  const row = found?.launches.kernel.indexOf(Number(asked ?? Number.NaN)) ?? -1;
  return row < 0 ? (found?.first ?? 0) : row;
}

function heading(report, { r, k }, found) {
  const of = (key) => report.kernels[key][k];
  const step = (by, text) =>
    k + by >= 0 && k + by < report.kernels.name.length && h("a.button", { href: href("kernel", { r, k: k + by }) }, text);
  return h(
    "header.point-head",
    h("h1.id", of("label")),
    h(
      "p.note",
      h("a", { href: href("kernels", { r: r || null }) }, `all kernels of ${report.file}`),
      " ",
      step(-1, "← longer"),
      " ",
      step(1, "shorter →"),
    ),
    of("demangled") && of("demangled") !== of("name") && h("details", h("summary", "Full name"), h("code.wrap", of("demangled"))),
    of("n") > 1 && distribution(of("duration"), of("values"), of("n"), found),
  );
}

function distribution(of, values, n, found) {
  if (!of) return null;
  const shown = found?.launches.kernel.length ?? 0;
  return h(
    "p.distribution",
    line(values),
    ` ${number(n)} launches: ${micro(of.least / 1e3)} to ${micro(of.most / 1e3)}, median ${micro(of.median / 1e3)}, half of them ${micro(of.q25 / 1e3)} to ${micro(of.q75 / 1e3)}`,
    shown && shown < n ? h("span.note", `; ${shown} of them have a panel here`) : "",
  );
}

function profile({ main, found, at: first }) {
  if (!found) return h("p.empty", GONE);
  const body = h("div");
  const of = found.launches;
  const show = (row) => fill(body, sections(main, found, row));
  show(first);
  const names = of.kernel.map((index, row) => [
    String(row),
    [
      `#${index}`,
      of.nvtx[row],
      of.grid[row] && `grid ${of.grid[row]}`,
      micro(of.duration_ns[row] === null ? null : of.duration_ns[row] / 1e3),
    ]
      .filter(Boolean)
      .join(" · "),
  ]);
  if (names.length === 1) return body;
  const choice = picker("Launch", names, String(first), (row) => {
    keep({ i: of.kernel[Number(row)] });
    show(Number(row));
  });
  return [h("div.controls", choice), body];
}

function sections(main, found, row) {
  const of = found.launches;
  const close = row === found.first ? found.close : null;
  const own = (key) => of.metrics[key]?.[row] ?? null;
  return [
    answer(main, found, row),
    beside(lightOf(main, of, row), launchOf(of, row, close)),
    close && memory(close.memory, close.tables),
    of.tree[row] && section("Stalls", scheduler(own), icicle(of.tree[row], main, of.stalls[row])),
    !of.tree[row] && of.stalls[row].length > 0 && section("Stalls", scheduler(own), stallTable(main, of.stalls[row])),
    close && mix(close),
    roofline(of.roofline[row], of.duration_ns[row]),
    close && spread(close),
    close && series(close),
    of.rules[row].length > 0 && section("NVIDIA's rules", roomWords(of.verdict[row]), advice(of, row)),
    row !== found.first &&
      found.close &&
      h("p.note", `Memory chart, instruction mix, spread, source and counters are here of launch #${of.kernel[found.first]}, the longest.`),
  ];
}

function launchOf(of, row, close) {
  if (of.grid[row] === null && !of.occupancy[row]) return null;
  return section("Launch and occupancy", null, launch(of, row), next(of.occupancy[row]), close && curves(close.curves, of, row));
}

/** Two panels beside each other, or the one that there is. */
function beside(left, right) {
  return left && right ? h("div.wide-two", left, right) : (left ?? right);
}

function answer(main, found, row) {
  const of = found.launches;
  const verdict = of.verdict[row];
  const explained = row === found.first && found.explained;
  return section(
    "What limits it",
    null,
    of.problems[row] && h("p.warning", of.problems[row]),
    h("p.said", verdict.words ?? "Not known: this launch has no breakdown of Speed of Light."),
    tiles(of, row),
    explained && h("pre.explained", explained),
    verdict.units.length > 0 && unitsAndWaits(main, verdict),
  );
}

function tiles(of, row) {
  const own = (key) => of.metrics[key]?.[row] ?? null;
  const all = [
    ["time under ncu", micro(of.duration_ns[row] === null ? null : of.duration_ns[row] / 1e3)],
    ["room", of.verdict[row].room === null ? "–" : percent(of.verdict[row].room / 100)],
    ["schedulers issue in", percent(own("issue_active"))],
    ["occupancy", quantity(own("achieved_occupancy_pct"), "%")],
    ["registers", number(of.registers[row])],
    [
      "DRAM",
      si(
        own("dram_bytes_read") === null || own("dram_bytes_write") === null ? null : own("dram_bytes_read") + own("dram_bytes_write"),
        "B",
      ),
    ],
    ["SM clock", si(own("sm_clock_hz"), "Hz")],
  ].filter(([, value]) => value !== "–");
  if (!all.length) return null;
  return h(
    "dl.tiles",
    all.map(([name, value]) => h("div", h("dt", name), h("dd", value))),
  );
}

function unitsAndWaits(main, { units, waits, room }) {
  const row = ({ name, label, pct, counter }) => ({
    label,
    value: pct,
    title: `${main.units[name] ?? ""}${counter ? `\n${counter}` : ""}`.trim(),
  });
  return h(
    "div.two",
    h("div", h("h3", "Units, per cent of their peaks"), bars("Units", units.slice(0, 8).map(row))),
    h("div", h("h3", `Waits: ${percent((room ?? 0) / 100)} of the time`), bars("Waits", waits.map(row))),
  );
}

function lightOf(main, of, row) {
  if (!of.breakdown[row].length && !Object.keys(of.metrics).some((key) => key.endsWith("throughput_pct") && of.metrics[key][row] !== null))
    return null;
  return section("Speed of Light", "Throughput of each unit in per cent of its peak.", light(main, of, row), breakdown(main, of, row));
}

/** What would let one block more onto an SM. */
function next(occupancy) {
  if (!occupancy) return null;
  const { blocks, resources, needs } = occupancy;
  const limits = `An SM holds ${number(blocks)} block${blocks === 1 ? "" : "s"} at once, limited by ${resources.join(" and ")}.`;
  const steps = needs.map(({ resource, now, most }) =>
    resource === "registers"
      ? `For one more: at most ${most} registers per thread (now ${now}).`
      : `For one more: at most ${number(most)} B of shared memory per block (now ${number(now)} B).`,
  );
  const several = !needs.length && resources.length > 1 && !resources.includes("warps");
  return h("p.note", [limits, ...steps, several && "They run out together: less of one alone brings no block."].filter(Boolean).join(" "));
}

function scheduler(own) {
  const known = [
    ["issue_active", "issued in", (value) => percent(value, 1)],
    ["warps_active_per_scheduler", "warps on a scheduler", number],
    ["warps_eligible", "of them eligible", number],
    ["warp_latency_per_issue", "cycles from issue to issue of a warp", number],
    ["threads_per_inst", "threads of an instruction", number],
  ].filter(([key]) => own(key) !== null);
  return known.map(([key, text, shown]) => `${text} ${shown(own(key))}`).join(" · ") || null;
}

function stallTable(main, stalls) {
  const rows = d3
    .sort(stalls, ([, , , share, samples]) => -(share ?? samples ?? 0))
    .map(([reason, kind, ratio, share, samples]) => [
      reason,
      kind,
      percent(share, 1),
      number(ratio),
      number(samples),
      main.stalls[reason] ?? "–",
    ]);
  return table(["reason", "kind", ["of stalls"], ["cycles per instruction"], ["samples"], "a warp waits for"], rows, "Warp states");
}

/** An estimate of a rule is of its own making; what the busiest unit leaves bounds it. */
function roomWords({ room }) {
  const bound =
    room === null
      ? ""
      : ` The room here is ${percent(room / 100)} of the time: no estimate of the whole kernel can bring more at the same work.`;
  return `As the report stores them, with NVIDIA's own estimates.${bound}`;
}

async function ofSource({ main, report, place }) {
  const found = await block(`code ${place.r} ${place.k}`);
  if (!found)
    return h(
      "p.empty",
      report.kernels.code[place.k] ? GONE : "Not in this report: instructions of this kernel. `ncu --section SourceCounters` brings them.",
    );
  return source(main, found);
}

async function counters({ report, place }) {
  const found = await block(`counters ${place.r} ${place.k}`);
  if (!found) return h("p.empty", report.kernels.counters[place.k] ? GONE : "Not in this file: all counters of this kernel.");
  const body = h("div");
  const rows = found.name.map((name, at) => [h("code", name), quantity(found.value[at], found.unit[at]), String(found.value[at])]);
  const search = h("input", {
    type: "search",
    "data-filter": true,
    placeholder: "filter: lts__t hit",
    "aria-label": "Filter counters",
    oninput: () => show(),
  });
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const holds = rows.filter((_, at) => words.every((word) => found.name[at].toLowerCase().includes(word)));
    fill(
      body,
      h("p.note", `${holds.length} of ${rows.length} counters`),
      table(["counter", ["value"], ["exactly, in its base unit"]], holds.slice(0, 400), "Counters"),
      holds.length > 400 && h("p.note", `${holds.length - 400} more: filter for them.`),
    );
  };
  show();
  return section("Counters", `All that the report holds of launch #${report.kernels.index[place.k]}.`, h("div.controls", search), body);
}
