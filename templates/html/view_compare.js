/** Reports beside each other, kernel by kernel; the first is the baseline. */

import { fill, h, section, table } from "./dom.js";
import { change, interval, micro, number, percent, quantity, si } from "./format.js";
import { href, keep } from "./state.js";
import { sources } from "./view_beside.js";
import { rowsOf } from "./view_kernels.js";

// Of the launch that stands for a kernel: [column, label, how it is printed, whether it is per cent].
const FACTS = [
  ["time", "time, the longest launch", (value) => micro(value === null ? null : value / 1e3)],
  ["median", "time, the median", (value) => micro(value === null ? null : value / 1e3)],
  ["n", "launches", number],
  ["words", "what limits it", (value) => value ?? "–"],
  ["room", "room", (value) => quantity(value, "%"), true],
  ["sm_throughput_pct", "SM throughput", (value) => quantity(value, "%"), true],
  ["memory_throughput_pct", "memory throughput", (value) => quantity(value, "%"), true],
  ["dram_throughput_pct", "DRAM throughput", (value) => quantity(value, "%"), true],
  ["l2_throughput_pct", "L2 throughput", (value) => quantity(value, "%"), true],
  ["l1_throughput_pct", "L1 throughput", (value) => quantity(value, "%"), true],
  ["issue_active", "schedulers issue in", (value) => percent(value, 1)],
  ["achieved_occupancy_pct", "achieved occupancy", (value) => quantity(value, "%"), true],
  ["theoretical_occupancy_pct", "theoretical occupancy", (value) => quantity(value, "%"), true],
  ["registers", "registers per thread", number],
  ["smem", "shared memory per block", (value) => si(value, "B")],
  ["grid", "grid", (value) => value ?? "–"],
  ["block", "block", (value) => value ?? "–"],
  ["waves", "waves", number],
  ["inst_executed", "instructions", (value) => quantity(value, "inst")],
  ["dram_bytes_read", "read from DRAM", (value) => si(value, "B")],
  ["dram_bytes_write", "written to DRAM", (value) => si(value, "B")],
  ["l2_hit_pct", "L2 hit rate", (value) => quantity(value, "%"), true],
  ["l1_hit_pct", "L1 hit rate", (value) => quantity(value, "%"), true],
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

function relative(base, head) {
  return typeof base === "number" && typeof head === "number" && base !== 0 ? head / base - 1 : null;
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
        time(head),
        base.n === head.n ? changed(relative(base.time, head.time)) : OTHERS,
        base.registers === head.registers ? number(head.registers) : `${number(base.registers)} → ${number(head.registers)}`,
        `${quantity(base.achieved_occupancy_pct, "%")} → ${quantity(head.achieved_occupancy_pct, "%")}`,
      ];
    });
    return [pick, time(base), ...cells];
  });
  return [table(heads, lines, "Kernels side by side"), kernels.length > MOST && h("p.note", `${kernels.length - MOST} more.`)];
}

function time(row) {
  return micro(row.time === null ? null : row.time / 1e3);
}

function changed(value) {
  if (value === null) return "–";
  return h("span", { class: Math.abs(value) < 0.03 ? "note" : value > 0 ? "worse" : "better" }, change(value));
}

/** All figures of one kernel, a column for each report. */
function sideBySide(main, all, base) {
  const name = base.label;
  const found = all.map((rows, at) => (at ? same(all[0], base, rows) : base));
  const heads = ["", ...main.reports.flatMap((report, at) => (at ? [[report.file], ["change"]] : [[report.file]]))];
  const lines = FACTS.map(([key, label, shown, points]) => {
    const values = found.map((one) => (one ? (one[key] ?? null) : null));
    if (values.every((value) => value === null)) return null;
    return [label, ...values.flatMap((value, at) => (at ? [shown(value), changedValue(values[0], value, points)] : [shown(value)]))];
  }).filter(Boolean);
  const stalls = found.map((one) => (one?.stall ? `${one.stall[0]} ${percent(one.stall[1])}` : "–"));
  lines.push(["top stall", ...stalls.flatMap((text, at) => (at ? [text, text === stalls[0] ? "same" : ""] : [text]))]);
  const others = found.some((one) => one && one.n !== base.n);
  const panels = section(
    name,
    others &&
      "The reports have not as many launches of it: the longest of each need not have done the same work. Below they are matched, where ranges or their order tell.",
    table(heads, lines, `${name} side by side`),
    h(
      "p",
      "Panels: ",
      found.flatMap((one, at) => (one ? [h("a", { href: href("kernel", { r: at, k: one.k }) }, main.reports[at].file), " "] : [])),
    ),
  );
  return [panels, source(main, found)];
}

/** The source of the baseline's kernel beside that of another report, once it is asked for. */
function source(main, found) {
  const places = found.flatMap((one, r) => (one?.code ? [{ r, k: one.k }] : []));
  const [base, ...heads] = places;
  if (base?.r !== 0 || !heads.length) return null;
  const body = h("div");
  const open = async (place) => fill(body, await sources(main, [base, place]));
  const buttons = heads.map((place) =>
    h("button", { type: "button", "data-beside": place.r, onclick: () => open(place) }, `source beside ${main.reports[place.r].file}`),
  );
  return [h("p.controls", buttons), body];
}

/** The change of a value; of one that is per cent already, in points. */
function changedValue(base, head, points) {
  if (typeof base === "string" || typeof head === "string") return base === head ? "same" : "";
  const value = relative(base, head);
  if (points && base !== null && head !== null) return `${head < base ? "−" : "+"}${number(Math.abs(head - base))} points`;
  return value === null ? "–" : change(value);
}

/** What the comparison of two reports finds: kernels matched by range, or by name and order, with statistics and causes. */
function ofPair(main, one) {
  const title = `${main.reports[0].file} → ${main.reports[one.head].file}`;
  if (one.why) return section(title, null, h("p.warning", one.why));
  return section(
    title,
    "Launches of one kernel in one range, on one grid, are samples of it; as ncuflow compare prints it.",
    one.differences.length > 0 && h("p", one.differences.map(({ axis, base, head }) => `${axis}: ${base} → ${head}`).join("; ")),
    one.notes.map((note) => h("p.note", note)),
    table(
      ["kernel", ["baseline"], ["then"], ["change"], ["interval"], "verdict", "why"],
      one.points.map((point) => [
        h("span.wrap", point.id),
        micro(point.base),
        micro(point.head),
        changed(point.relative),
        point.interval ? interval({ low: point.interval[0], high: point.interval[1] }) : "–",
        point.verdict,
        causes(point.causes),
      ]),
      title,
    ),
    one.all > one.points.length && h("p.note", `${one.all - one.points.length} more that changed less.`),
    only("Only in the baseline", one.only_base),
    only("Only in the other", one.only_head),
  );
}

function causes(found) {
  if (!found.length) return "–";
  const [{ what, base, head }] = found;
  return h(
    "details",
    h("summary", `${what}: ${base} → ${head}`, found.length > 1 && `, and ${found.length - 1} more`),
    found.map((cause, at) => [
      at > 0 && h("p", `${cause.what}: ${cause.base} → ${cause.head}`),
      cause.parts.map(([name, from, to, unit, us]) =>
        h("div.note", `${us > 0 ? "+" : ""}${number(us)} µs ${name} (${number(from)} → ${number(to)} ${unit})`),
      ),
    ]),
  );
}

function only(title, names) {
  if (!names.length) return null;
  return h("details", h("summary", `${title}: ${names.length}`), h("p.wrap", names.slice(0, MOST).join(", ")));
}
