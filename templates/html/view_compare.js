/** Reports beside each other, kernel by kernel; the first is the baseline. */

import { button, fill, folded, h, section, table } from "./dom.js";
import { change, interval, micro, nano, number, percent, quantity, relative, si } from "./format.js";
import { href, keep } from "./state.js";
import { sources } from "./view_beside.js";
import { rowsOf } from "./view_kernels.js";

const pct = (value) => quantity(value, "%");
const text = (value) => value ?? "–";
const bytes = (value) => si(value, "B");
// Of the launch that stands for a kernel: [column, label, how it is printed].
const FACTS = [
  ["time", "time, the longest launch", nano],
  ["median", "time, the median", nano],
  ["n", "launches", number],
  ["words", "what limits it", text],
  ["room", "room", pct],
  ["sm_throughput_pct", "SM throughput", pct],
  ["memory_throughput_pct", "memory throughput", pct],
  ["dram_throughput_pct", "DRAM throughput", pct],
  ["l2_throughput_pct", "L2 throughput", pct],
  ["l1_throughput_pct", "L1 throughput", pct],
  ["issue_active", "schedulers issue in", (value) => percent(value, 1)],
  ["achieved_occupancy_pct", "achieved occupancy", pct],
  ["theoretical_occupancy_pct", "theoretical occupancy", pct],
  ["registers", "registers per thread", number],
  ["smem", "shared memory per block", bytes],
  ["grid", "grid", text],
  ["block", "block", text],
  ["waves", "waves", number],
  ["inst_executed", "instructions", (value) => quantity(value, "inst")],
  ["dram_bytes_read", "read from DRAM", bytes],
  ["dram_bytes_write", "written to DRAM", bytes],
  ["l2_hit_pct", "L2 hit rate", pct],
  ["l1_hit_pct", "L1 hit rate", pct],
  ["sm_clock_hz", "SM clock", (value) => si(value, "Hz")],
];
const MOST = 400; // kernels of a table
const OTHERS = "other launches"; // whose longest need not have done the same work

export function compared(main, params) {
  const all = main.reports.map(rowsOf);
  const kernels = all[0].filter((base) => all.slice(1).some((rows) => same(all[0], base, rows)));
  const beside = h("div");
  const show = (base) => {
    keep({ k: base.k });
    fill(beside, sideBySide(main, all, base));
  };
  const asked = kernels.find((base) => base.k === Number(params.get("k") ?? Number.NaN)) ?? kernels[0];
  if (asked) fill(beside, sideBySide(main, all, asked));
  return [
    section(
      "Kernels side by side",
      `Of each kernel its longest launch; the baseline is ${main.reports[0].file}.`,
      overview(main, all, kernels, show),
    ),
    beside,
    main.comparisons.map((one) => ofPair(main, one)),
  ];
}

/** The same kernel of another report: by its full name, else by a short name that is the only one of its kind in both. */
function same(ours, base, theirs) {
  const full = base.demangled && theirs.find((one) => one.demangled === base.demangled);
  if (full) return full;
  const named = theirs.filter((one) => one.name === base.name);
  return named.length === 1 && ours.filter((one) => one.name === base.name).length === 1 ? named[0] : null;
}

function overview(main, all, kernels, show) {
  if (!kernels.length) return h("p.empty", "No kernel of the baseline is in another report.");
  const others = main.reports.slice(1);
  const heads = ["kernel", ["baseline"], ...others.flatMap((report) => [[report.file], ["change"], ["registers"], ["occupancy"]])];
  const lines = kernels.slice(0, MOST).map((base) => {
    const pick = h("button", { type: "button", class: "place", onclick: () => show(base) }, base.label);
    const cells = others.flatMap((_, at) => {
      const head = same(all[0], base, all[at + 1]);
      if (!head) return ["–", "–", "–", "–"];
      return [
        nano(head.time),
        base.n === head.n ? changed(relative(base.time, head.time)) : OTHERS,
        base.registers === head.registers ? number(head.registers) : `${number(base.registers)} → ${number(head.registers)}`,
        `${quantity(base.achieved_occupancy_pct, "%")} → ${quantity(head.achieved_occupancy_pct, "%")}`,
      ];
    });
    return [pick, nano(base.time), ...cells];
  });
  return [table(heads, lines, "Kernels side by side"), kernels.length > MOST && h("p.note", `${kernels.length - MOST} more.`)];
}

function changed(value) {
  if (value === null) return "–";
  return h("span", { class: Math.abs(value) < 0.03 ? "note" : value > 0 ? "worse" : "better" }, change(value));
}

/** All figures of one kernel, a column for each report. */
function sideBySide(main, all, base) {
  const name = base.label;
  const found = all.map((rows, at) => (at ? same(all[0], base, rows) : base));
  // The baseline's cell, then two of each other report.
  const wide = (cells) => cells.flatMap(([own, change], at) => (at ? [own, change] : [own]));
  const lines = FACTS.map(([key, label, shown]) => {
    const values = found.map((one) => one?.[key] ?? null);
    const cells = values.map((value) => [shown(value), changedValue(values[0], value, shown === pct)]);
    return values.some((value) => value !== null) && [label, ...wide(cells)];
  }).filter(Boolean);
  const stalls = found.map((one) => (one?.stall ? `${one.stall[0]} ${percent(one.stall[1])}` : "–"));
  lines.push(["top stall", ...wide(stalls.map((stall) => [stall, stall === stalls[0] ? "same" : ""]))]);
  const heads = ["", ...wide(main.reports.map((report) => [[report.file], ["change"]]))];
  const others =
    found.some((one) => one && one.n !== base.n) &&
    "The reports have not as many launches of it: the longest of each need not have done the same work. Below they are matched, where ranges or their order tell.";
  const links = found.map((one, r) => one && [h("a", { href: href("kernel", { r, k: one.k }) }, main.reports[r].file), " "]);
  const panels = section(name, others, table(heads, lines, `${name} side by side`), h("p", "Panels: ", links));
  return [panels, source(main, found)];
}

/** The source of the baseline's kernel beside that of another report, once it is asked for. */
function source(main, found) {
  const places = found.flatMap((one, r) => (one?.code ? [{ r, k: one.k }] : []));
  const [base, ...heads] = places;
  if (base?.r !== 0 || !heads.length) return null;
  const body = h("div");
  const open = async (place) => fill(body, await sources(main, [base, place]));
  const buttons = heads.map((place) => {
    return button("", { "data-beside": place.r, onclick: () => open(place) }, `source beside ${main.reports[place.r].file}`);
  });
  return [h("p.controls", buttons), body];
}

/** The change of a value; of one that is per cent already, in points. */
function changedValue(base, head, points) {
  if (typeof base === "string" || typeof head === "string") return base === head ? "same" : "";
  if (points && base !== null && head !== null) return `${head < base ? "−" : "+"}${number(Math.abs(head - base))} points`;
  return change(relative(base, head));
}

/** What the comparison of two reports finds: kernels matched by range, or by name and order, with statistics and causes. */
function ofPair(main, one) {
  const title = `${main.reports[0].file} → ${main.reports[one.head].file}`;
  if (one.why) return section(title, null, h("p.warning", one.why));
  const differ = one.differences.map(({ axis, base, head }) => `${axis}: ${base} → ${head}`).join("; ");
  const rows = one.points.map(({ id, base, head, relative: by, interval: of, verdict, causes: found }) => {
    const range = of ? interval({ low: of[0], high: of[1] }) : "–";
    return [h("span.wrap", id), micro(base), micro(head), changed(by), range, verdict, causes(found)];
  });
  const more = one.all - one.points.length;
  return section(
    title,
    "Launches of one kernel in one range, on one grid, are samples of it; as ncuflow compare prints it.",
    differ && h("p", differ),
    one.notes.map((note) => h("p.note", note)),
    table(["kernel", ["baseline"], ["then"], ["change"], ["interval"], "verdict", "why"], rows, title),
    more > 0 && h("p.note", `${more} more that changed less.`),
    only("Only in the baseline", one.only_base),
    only("Only in the other", one.only_head),
  );
}

function causes(found) {
  if (!found.length) return "–";
  const told = found.map(({ what, base, head }) => `${what}: ${base} → ${head}`);
  const parts = (cause) =>
    cause.parts.map(([name, from, to, unit, us]) =>
      h("div.note", `${us > 0 ? "+" : ""}${number(us)} µs ${name} (${number(from)} → ${number(to)} ${unit})`),
    );
  const more = found.length > 1 && `, and ${found.length - 1} more`;
  return folded([told[0], more], ...found.map((cause, at) => [at > 0 && h("p", told[at]), parts(cause)]));
}

function only(title, names) {
  return names.length > 0 && folded(`${title}: ${names.length}`, h("p.wrap", names.slice(0, MOST).join(", ")));
}
