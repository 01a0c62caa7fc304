/** All kernels of a report: first what limits them, by their share of the time; then each in a row. */

import { has } from "./block.js";
import { choosing, each, h, section, switcher } from "./dom.js";
import { count, nano, number, percent } from "./format.js";
import { listing } from "./grid.js";
import { limiterSigns } from "./signs.js";
import { line } from "./spark.js";
import { chosenOf, go, href, keep } from "./state.js";
import { lacking } from "./view_files.js";

const FIRST = 8; // kernels whose limits are said in words above the table
const LIST = "Launches of one kernel are one row: time is that of the longest, the line shows all over time.";
const KINDS = 6; // verdicts that the legend of the bar has

export function kernels(main, params) {
  const asked = Math.min(Math.max(0, Number(params.get("r") ?? 0) || 0), main.reports.length - 1);
  const names = main.reports.map(({ file }, at) => [String(at), file, at ? file : `${file}, the baseline`]);
  const show = (r) => ofReport(main, Number(r), params);
  return choosing(switcher, "Report", names, String(asked), show, (r) => keep({ r }));
}

function ofReport(main, r, params) {
  const report = main.reports[r];
  const rows = rowsOf(report, r);
  const total = totalOf(rows);
  const signs = limiterSigns(rows.map((row) => row.limiter));
  return [
    section("What limits each kernel", answer(report, rows, total), shares(rows, total, signs), first(rows, total, signs)),
    section("Kernels", LIST, list(main, rows, total, signs, params)),
    lacking(report),
  ];
}

function totalOf(rows) {
  return d3.sum(rows, (row) => row.total);
}

/** The rows of the list; `total` is null where no launch has a time. */
export function rowsOf(report, r) {
  const of = report.kernels;
  return of.name.map((_, k) => {
    const row = Object.fromEntries(Object.entries(of).map(([key, values]) => [key, values[k]]));
    const { total = null, most = null, median = null } = row.duration ?? {};
    return { r, k, ...row, total, time: most, median };
  });
}

function answer(report, rows, total) {
  const launches = d3.sum(rows, (row) => row.n);
  const untimed = rows.filter((row) => row.total === null).length;
  const told = [
    `${count(rows.length, "kernel")} in ${count(launches, "launch")}, ${total ? nano(total) : "no time known"} under ncu`,
    untimed > 0 && `${count(untimed, "kernel")} without a time`,
    report.devices.join(", ") || "no device name",
    report.version && `ncu ${report.version}`,
  ];
  return told.filter(Boolean).join(" · ");
}

/** The time by what limits it, as one bar with a legend. */
function shares(rows, total, signs) {
  if (!total) return null;
  const timed = rows.filter((row) => row.total !== null);
  const kinds = [...d3.group(timed, (row) => row.kind ?? "not known")].map(([kind, found]) => {
    return { kind, share: totalOf(found) / total, limiter: found[0].limiter };
  });
  kinds.sort((a, b) => b.share - a.share);
  const said = kinds.map(({ kind, share }) => `${kind} ${percent(share)}`).join(", ");
  const parts = kinds.map(({ kind, share, limiter }) => {
    const style = `width:${100 * share}%;background:${signs.colour(limiter)}`;
    return h("span", { style, title: `${kind}: ${percent(share, 1)} of the time` });
  });
  return [
    h("div.stack", { role: "img", "aria-label": said }, parts),
    each("ul.kinds", kinds.slice(0, KINDS), ({ kind, share, limiter }) => h("li", signs.mark(limiter), h("b", percent(share)), ` ${kind}`)),
  ];
}

function first(rows, total, signs) {
  const said = (row) =>
    h(
      "li",
      h("a", { href: href("kernel", { r: row.r, k: row.k }) }, row.label),
      h("span.note", ` ${row.total === null ? "no time" : percent(row.total / total)}`),
      h("span", " ", limited(row, signs)),
    );
  const others = rows.slice(FIRST);
  return [
    each("ol.answers", rows.slice(0, FIRST), said),
    others.length > 0 && h("p.note", `${others.length} more below, ${percent(totalOf(others) / (total || 1))} of the time.`),
  ];
}

function limited(row, signs) {
  return [signs.mark(row.limiter), wordsOf(row)];
}

function wordsOf({ words, failed }) {
  return words ?? (failed ? "not known: profiling failed" : "not known: this report has no Speed of Light");
}

function spread({ duration: of }) {
  return of && of.n > 1 ? [of.least, of.median, of.most].map(nano).join(" · ") : "–";
}

/** The columns in which a kernel has something; how a kernel's launches differ, where one has several. */
function columnsOf(rows, total, signs) {
  const known = ({ key }) => rows.some((row) => (["median", "line"].includes(key) ? row.n > 1 : (row[key] ?? null) !== null));
  const percents = (label, key, of = (row) => row[key], digits = 0) => {
    return { key, label, unit: "%", number: true, text: (row) => (row[key] === null ? "–" : of(row).toFixed(digits)) };
  };
  return [
    {
      key: "name",
      label: "kernel",
      width: 32,
      text: (row) => row.label,
      node: (row) => h("a", { href: href("kernel", { r: row.r, k: row.k }), title: row.demangled }, row.label),
    },
    percents("of the time", "total", (row) => (100 * row.total) / (total || 1), 1),
    { key: "time", label: "time", number: true, text: (row) => nano(row.time) },
    { key: "n", label: "launches", number: true, text: (row) => number(row.n) },
    { key: "median", label: "min · median · max", width: 23, text: spread },
    { key: "line", label: "over time", fixed: true, width: 13, text: () => "", node: (row) => line(row.values) ?? "" },
    {
      key: "words",
      label: "what limits it",
      width: 34,
      text: wordsOf,
      node: (row) => h("span", { title: row.words }, limited(row, signs)),
    },
    { ...percents("headroom", "room"), title: "per cent of the time that ends with all waits, for the same work" },
    percents("SM", "sm_throughput_pct"),
    percents("memory", "memory_throughput_pct"),
    percents("DRAM", "dram_throughput_pct"),
    percents("issue", "issue_active", (row) => 100 * row.issue_active),
    percents("occupancy", "achieved_occupancy_pct"),
    { key: "registers", label: "registers", number: true, text: (row) => number(row.registers) },
    { key: "stall", label: "top stall", text: ({ stall }) => (stall ? `${stall[0]} ${percent(stall[1])}` : "–") },
  ].filter(known);
}

function list(main, rows, total, signs, params) {
  const here = rows.filter((row) => has(`kernels ${row.r} ${Math.floor(row.k / main.together)}`)).length;
  const left = here < rows.length ? `; ${here} have a panel here, the others were left out for the size of this file` : "";
  const { controls, grid } = listing({
    name: "Kernels",
    what: "kernels",
    rows: () => rows,
    columns: () => columnsOf(rows, total, signs),
    filter: "filter: gemm limiter=dram registers>128 -fill",
    words: (name) => (rows[0] && name in rows[0] ? (row) => row[name] : null),
    text: (row) => `${row.name} ${row.demangled ?? ""} ${row.words ?? ""} ${row.stall?.[0] ?? ""}`,
    told: (found) => `${found.length} of ${rows.length} kernels${left}`,
    chosen: chosenOf(params, { q: "", sort: "-total" }),
    value: (key) => (row) => row[key],
    open: (row) => go("kernel", { r: row.r, k: row.k }),
  });
  return [controls, grid.element];
}
