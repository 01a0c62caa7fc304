/** All kernels of a report: first what limits them, by their share of the time; then each in a row. */

import { has } from "./block.js";
import { fill, h, s, section, switcher } from "./dom.js";
import { micro, number, percent } from "./format.js";
import { Grid } from "./grid.js";
import { matcher } from "./query.js";
import { signsOfLimiters } from "./signs.js";
import { go, href, keep } from "./state.js";
import { lacking } from "./view_files.js";

const FIRST = 8; // kernels whose limits are said in words above the table

export function kernels(main, params) {
  const body = h("div");
  const show = (r) => fill(body, ofReport(main, Math.min(Math.max(0, r), main.reports.length - 1), params));
  const asked = Number(params.get("r") ?? 0) || 0;
  show(asked);
  if (main.reports.length === 1) return body;
  return [h("div.controls", reportSwitch(main, asked, show)), body];
}

/** A choice of the report. */
export function reportSwitch(main, chosen, show) {
  return switcher(
    "Report",
    main.reports.map((report, at) => [String(at), report.file, at ? report.file : `${report.file}, the baseline`]),
    String(chosen),
    (r) => {
      keep({ r });
      show(Number(r));
    },
  );
}

function ofReport(main, r, params) {
  const report = main.reports[r];
  const rows = rowsOf(report, r);
  const total = d3.sum(rows, (row) => row.total);
  const signs = signsOfLimiters(rows.map((row) => row.limiter));
  return [
    section("What limits each kernel", answer(report, rows, total), shares(rows, total, signs), first(rows, total, signs)),
    section(
      "Kernels",
      "Launches of one kernel are one row: time is that of the longest, the line shows all in their order.",
      list(main, rows, total, signs, params),
    ),
    lacking(report),
  ];
}

/** The rows of the list; `total` is null where no launch has a time. */
export function rowsOf(report, r) {
  const of = report.kernels;
  return of.name.map((name, k) => ({
    r,
    k,
    name,
    ...Object.fromEntries(Object.entries(of).map(([key, values]) => [key, values[k]])),
    total: of.duration[k]?.total ?? null,
    time: of.duration[k]?.most ?? null,
    median: of.duration[k]?.median ?? null,
  }));
}

function answer(report, rows, total) {
  const launches = d3.sum(rows, (row) => row.n);
  const untimed = rows.filter((row) => row.total === null).length;
  const told = [
    `${number(rows.length)} kernel${rows.length === 1 ? "" : "s"} in ${number(launches)} launch${launches === 1 ? "" : "es"}, ${total ? micro(total / 1e3) : "no time known"} under ncu`,
    untimed > 0 && `${number(untimed)} kernel${untimed === 1 ? "" : "s"} without a time`,
    report.devices.join(", ") || "no device name",
    report.version && `ncu ${report.version}`,
  ];
  return told.filter(Boolean).join(" · ");
}

/** The time by what limits it, as one bar with a legend. */
function shares(rows, total, signs) {
  if (!total) return null;
  const kinds = d3.sort(
    d3.rollup(
      rows.filter((row) => row.total !== null),
      (found) => [d3.sum(found, (row) => row.total), found[0].limiter],
      (row) => row.kind ?? "not known",
    ),
    ([, [sum]]) => -sum,
  );
  return [
    h(
      "div.stack",
      { role: "img", "aria-label": kinds.map(([kind, [sum]]) => `${kind} ${percent(sum / total)}`).join(", ") },
      kinds.map(([kind, [sum, limiter]]) =>
        h("span", {
          style: `width:${(100 * sum) / total}%;background:${signs.colour(limiter)}`,
          title: `${kind}: ${percent(sum / total, 1)} of the time`,
        }),
      ),
    ),
    h(
      "ul.kinds",
      kinds.slice(0, 6).map(([kind, [sum, limiter]]) => h("li", signs.mark(limiter), h("b", percent(sum / total)), ` ${kind}`)),
    ),
  ];
}

function first(rows, total, signs) {
  const said = rows
    .slice(0, FIRST)
    .map((row) =>
      h(
        "li",
        h("a", { href: href("kernel", { r: row.r, k: row.k }) }, row.label),
        h("span.note", ` ${row.total === null ? "no time" : percent(row.total / total)}`),
        h("span", " ", signs.mark(row.limiter), row.words ?? notKnown(row)),
      ),
    );
  return [
    h("ol.answers", said),
    rows.length > FIRST &&
      h(
        "p.note",
        `${rows.length - FIRST} more below, ${percent(d3.sum(rows.slice(FIRST), (row) => row.total) / (total || 1))} of the time.`,
      ),
  ];
}

function notKnown(row) {
  return row.failed ? "not known: profiling failed" : "not known: this report has no Speed of Light";
}

/** Durations of launches in their order. */
export function line(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const [width, height] = [90, 18];
  const x = d3.scaleLinear([0, values.length - 1], [1, width - 1]);
  const y = d3.scaleLinear([0, d3.max(known)], [height - 1, 1]);
  const path = d3
    .line()
    .defined((value) => value !== null)
    .x((_, at) => x(at))
    .y(y);
  return s("svg.spark", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, s("path", { d: path(values) }));
}

function spread(row) {
  const of = row.duration;
  if (!of || of.n < 2) return "–";
  return `${micro(of.least / 1e3)} · ${micro(of.median / 1e3)} · ${micro(of.most / 1e3)}`;
}

function list(main, rows, total, signs, params) {
  const chosen = { q: params.get("q") ?? "", sort: params.get("sort") ?? "-total" };
  const column = (value) => ({
    label: value[0],
    unit: "%",
    number: true,
    text: (row) => (row[value[1]] === null ? "–" : row[value[1]].toFixed(0)),
    key: value[1],
  });
  const columns = [
    {
      key: "name",
      label: "kernel",
      width: 36,
      text: (row) => row.label,
      node: (row) => h("a", { href: href("kernel", { r: row.r, k: row.k }), title: row.demangled }, row.label),
    },
    {
      key: "total",
      label: "of the time",
      unit: "%",
      number: true,
      text: (row) => (total && row.total !== null ? ((100 * row.total) / total).toFixed(1) : "–"),
    },
    { key: "time", label: "time", number: true, text: (row) => micro(row.time === null ? null : row.time / 1e3) },
    { key: "n", label: "launches", number: true, text: (row) => number(row.n) },
    { key: "median", label: "least · median · most", width: 25, text: spread },
    { key: "line", label: "in their order", fixed: true, width: 13, text: () => "", node: (row) => line(row.values) ?? "" },
    {
      key: "words",
      label: "what limits it",
      width: 38,
      text: (row) => row.words ?? notKnown(row),
      node: (row) => h("span", { title: row.words }, signs.mark(row.limiter), row.words ?? notKnown(row)),
    },
    { ...column(["room", "room"]), title: "per cent of the time that ends with all waits, for the same work" },
    column(["SM", "sm_throughput_pct"]),
    column(["memory", "memory_throughput_pct"]),
    column(["DRAM", "dram_throughput_pct"]),
    {
      key: "issue_active",
      label: "issue",
      unit: "%",
      number: true,
      text: (row) => (row.issue_active === null ? "–" : (100 * row.issue_active).toFixed(0)),
    },
    column(["occupancy", "achieved_occupancy_pct"]),
    { key: "registers", label: "registers", number: true, text: (row) => number(row.registers) },
    { key: "stall", label: "top stall", text: (row) => (row.stall ? `${row.stall[0]} ${percent(row.stall[1])}` : "–") },
  ];
  const count = h("output.count", { "aria-live": "polite" });
  const grid = new Grid("Kernels", columns, {
    open: (row) => go("kernel", { r: row.r, k: row.k }),
    sort: (key, down) => {
      chosen.sort = down + key;
      keep({ sort: chosen.sort });
      grid.setColumns(columns, chosen.sort);
      refresh();
    },
  });
  grid.setColumns(columns, chosen.sort);
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    value: chosen.q,
    "aria-label": "Filter kernels",
    placeholder: "filter: gemm limiter=dram registers>128 -fill",
    spellcheck: "false",
    oninput: () => {
      chosen.q = filter.value;
      keep({ q: chosen.q });
      refresh();
    },
  });
  const refresh = () => {
    const holds = matcher(
      chosen.q,
      (name) => (rows[0] && name in rows[0] ? (row) => row[name] : null),
      (row) => `${row.name} ${row.demangled ?? ""} ${row.words ?? ""} ${row.stall?.[0] ?? ""}`,
    );
    const key = chosen.sort.replace(/^-/, "");
    const order = chosen.sort.startsWith("-") ? d3.descending : d3.ascending;
    const [known, unknown] = [true, false].map((is) => rows.filter((row) => holds(row) && (row[key] !== null) === is));
    const found = [...d3.sort(known, (a, b) => order(a[key], b[key])), ...unknown];
    grid.setRows(found);
    const here = rows.filter((row) => has(`kernels ${row.r} ${Math.floor(row.k / main.together)}`)).length;
    fill(
      count,
      `${found.length} of ${rows.length} kernels`,
      here < rows.length && `; ${here} have a panel here, the others were left out for the size of this file`,
    );
  };
  refresh();
  return [h("div.controls", filter, count), grid.element];
}
