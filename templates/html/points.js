/** Points: every point in one table, sorted, filtered and grouped as the reader likes. */

import { chooser } from "./columns.js";
import { csv, save } from "./csv.js";
import { fill, h, picker } from "./dom.js";
import { headUnit, inColumn } from "./format.js";
import { Grid } from "./grid.js";
import { matcher, withWord, words } from "./query.js";
import { limitedBy, limiterSigns, targetSigns } from "./signs.js";
import { spark, sweeps } from "./spark.js";
import { go, href, keep } from "./state.js";

const USUAL = [
  "time_cold_us",
  "tflops",
  "gbs",
  "tflops_fraction_measured",
  "gbs_fraction_measured",
  "limits",
  "issue_active",
  "achieved_occupancy_pct",
  "top_stall",
  "top_stall_share",
  "sol_dram_pct",
  "tensor_pipe_pct",
  "time_insitu_us",
  "time_ncu_us",
];

/** The points that were listed last, by reference, for the neighbours of a point. */
export const listed = { ids: [] };

export function points(evidence, params) {
  const side = evidence.side;
  const chosen = {
    q: params.get("q") ?? "",
    sort: params.get("sort") ?? "",
    by: params.get("by") ?? "",
    cols:
      params
        .get("cols")
        ?.split(",")
        .filter((name) => side.columns.has(name)) ?? USUAL,
    mark: params.getAll("mark").filter((id) => evidence.find(id)),
  };
  const view = {
    evidence,
    side,
    chosen,
    signs: limiterSigns(side),
    kinds: targetSigns(side),
    count: h("output.count", { "aria-live": "polite" }),
    bar: h("div.marked"),
    facets: h("div.facets"),
  };
  view.grid = new Grid("Points", columnsOf(view), {
    open: ({ at }) => at !== undefined && open(view, at),
    sort: (key, down) => sorted(view, down + key),
    mark: ({ at }) => mark(view, at),
  });
  view.grid.setColumns(columnsOf(view), chosen.sort);
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    value: chosen.q,
    "aria-label": "Filter points",
    placeholder: "filter: prefill batch=32 time_cold_us>100 -fa2",
    spellcheck: "false",
    oninput: () => change(view, { q: filter.value }),
    onkeydown: (event) => event.key === "Enter" && view.grid.table.focus(),
  });
  view.filter = filter;
  const groups = [
    ["", "none"],
    ["target", "kernel"],
    ["limits", "verdict"],
    ["limiter", "limiter"],
    ...Object.keys(side.points.params).map((name) => [name, name]),
  ];
  change(view, {}, false);
  return [
    h(
      "div.controls",
      filter,
      picker("Group", groups, chosen.by, (by) => change(view, { by })),
      h("button", { type: "button", onclick: () => chooser(side, chosen.cols, (cols) => recolumn(view, cols)) }, "Columns…"),
      h("button", { type: "button", onclick: () => save("points.csv", shownAsCsv(view)) }, "CSV"),
      view.count,
    ),
    view.facets,
    view.bar,
    view.grid.element,
  ];
}

function open(view, at) {
  go("point", { id: view.evidence.reference(view.side, at) });
}

/** Take over what was chosen, keep it in the address, and show the rows. */
function change(view, patch, kept = true) {
  Object.assign(view.chosen, patch);
  if (kept) keep(patch);
  const { side, chosen } = view;
  const holds = matcher(
    chosen.q,
    (name) => finder(side, name),
    (at) => side.points.id[at],
  );
  view.shown = ordered(side, side.range().filter(holds), chosen.sort);
  listed.ids = view.shown.map((at) => view.evidence.reference(side, at));
  view.grid.setRows(chosen.by ? grouped(view, chosen.by) : view.shown.map((at) => ({ at })));
  fill(view.count, `${view.shown.length} of ${side.size} points`);
  fill(view.facets, facets(view));
  fill(view.bar, markedBar(view));
}

function finder(side, name) {
  const column = side.columns.get(name) ?? (name === "status" ? { values: side.points.status } : null);
  return column ? (at) => column.values[at] : null;
}

function ordered(side, places, sort) {
  if (!sort) return places;
  const values = side.columns.get(sort.replace(/^-/, ""))?.values;
  if (!values) return places;
  const down = sort.startsWith("-") ? -1 : 1;
  // What is not known stands last, whichever way the others go.
  return places.slice().sort((a, b) => {
    const [x, y] = [values[a], values[b]];
    if (x === null || y === null) return (x === null) - (y === null);
    return down * (x < y ? -1 : x > y ? 1 : 0);
  });
}

function sorted(view, sort) {
  view.grid.setColumns(columnsOf(view), sort);
  change(view, { sort });
}

function recolumn(view, cols) {
  view.chosen.cols = cols;
  keep({ cols: cols.join(",") === USUAL.join(",") ? null : cols.join(",") });
  view.grid.setColumns(columnsOf(view));
  view.grid.measure();
}

function grouped(view, by) {
  const { side, chosen } = view;
  const values = side.columns.get(by).values;
  const rows = [];
  for (const [value, places] of d3.group(view.shown, (at) => values[at] ?? "–")) {
    rows.push({ group: value, node: () => groupHead(side, by, value, places, chosen) });
    rows.push(...places.map((at) => ({ at })));
  }
  return rows;
}

function groupHead(side, by, value, places, chosen) {
  const sort = chosen.sort.replace(/^-/, "");
  const numeric = side.columns.get(sort)?.kind !== "text" && side.columns.get(sort)?.group !== "parameter" && sort;
  const lines = [...d3.group(places, (at) => side.points.target[at])].map(([target, found]) => {
    const axis = side.byTarget.get(target).axis;
    const column = numeric || side.rateOf(target).rate;
    const drawn = spark(`${target}: ${side.columns.get(column).label} over ${axis}`, sweeps(side, found, axis, column));
    return drawn && h("span.series", `${target} `, drawn);
  });
  return h("span.group-head", h("b", `${by} ${value}`), ` ${places.length} point${places.length === 1 ? "" : "s"}`, lines);
}

function columnsOf(view) {
  const { side, chosen, evidence, signs, kinds } = view;
  const marks = {
    key: "mark",
    label: "",
    fixed: true,
    width: 4,
    text: () => "",
    node: ({ at }) =>
      h("input", {
        type: "checkbox",
        tabindex: "-1",
        checked: chosen.mark.includes(evidence.reference(side, at)),
        "aria-label": `mark ${side.points.id[at]}`,
        onclick: (event) => event.stopPropagation(),
        onchange: () => mark(view, at),
      }),
  };
  const point = {
    key: "point",
    label: "point",
    text: ({ at }) => side.points.id[at] + (side.points.status[at] === "ok" ? "" : ` ${side.points.status[at]}`),
    node: ({ at }) => [
      kinds.mark(side.points.target[at]),
      h("a.id", { tabindex: "-1", href: href("point", { id: evidence.reference(side, at) }) }, side.points.id[at]),
      side.points.status[at] !== "ok" && h("span.status", { title: side.points.reason[at] }, side.points.status[at]),
    ],
  };
  return [point, marks, ...chosen.cols.map((name) => columnOf(side, name, signs))].sort((a, b) => (b.key === "mark") - (a.key === "mark"));
}

function columnOf(side, name, signs) {
  const column = side.columns.get(name);
  const numeric = column.kind !== "text";
  const verdict = name === "limits";
  const print = inColumn(column.values, column.unit);
  const text = ({ at }) => (verdict ? `   ${column.values[at]}` : print(column.values[at]));
  const struck = ({ at }) => (side.points.struck[at].includes(name) ? h("s", { title: "cannot be true" }, text({ at })) : text({ at }));
  return {
    key: name,
    label: column.label,
    unit: headUnit(column.unit),
    number: numeric,
    title: `${name}: ${column.formula}`,
    text,
    node: verdict ? ({ at }) => limitedBy(side, at, signs, name) : struck,
  };
}

function mark(view, at) {
  const id = view.evidence.reference(view.side, at);
  const had = view.chosen.mark.includes(id);
  const marked = had ? view.chosen.mark.filter((one) => one !== id) : [...view.chosen.mark, id].slice(-2);
  view.chosen.mark = marked;
  keep({ mark: marked });
  view.grid.draw(true);
  fill(view.bar, markedBar(view));
}

function markedBar({ chosen }) {
  if (!chosen.mark.length) return null;
  const both = chosen.mark.length === 2;
  return [
    "marked: ",
    chosen.mark.map((id) => h("code", id)),
    both
      ? h("a.button", { href: href("point", { id: chosen.mark }) }, "Open side by side")
      : h("span.note", "mark a second one to open both side by side"),
  ];
}

/** Buttons that filter by kernel and by limiter, with how many of the shown points each has. */
function facets(view) {
  const { side, chosen, signs, kinds } = view;
  const asked = words(chosen.q);
  return ["target", "limiter"].map((name) => {
    const counts = d3.rollup(
      view.shown,
      (found) => found.length,
      (at) => side.value(name, at) ?? "unknown",
    );
    const has = new Set(side.columns.get(name).values);
    const all = (name === "target" ? kinds : signs).names.filter((one) => has.has(one));
    const on = asked.find((word) => word.name === name && word.sign === "=" && !word.not)?.text;
    return h(
      "div",
      { role: "group", "aria-label": `Filter by ${name}` },
      all.map((value) => {
        const pressed = on === String(value).toLowerCase();
        const press = () => {
          view.filter.value = withWord(chosen.q, name, pressed ? null : value);
          change(view, { q: view.filter.value });
        };
        return h(
          "button",
          { type: "button", "aria-pressed": String(pressed), onclick: press },
          (name === "target" ? kinds : signs).mark(value),
          name === "target" ? value : side.limiterName(value),
          h("span.count", counts.get(value) ?? 0),
        );
      }),
    );
  });
}

function shownAsCsv(view) {
  const names = ["point", "target", ...view.chosen.cols.filter((name) => name !== "target")];
  return csv(
    names,
    view.shown.map((at) => names.map((name) => view.side.value(name, at))),
  );
}
