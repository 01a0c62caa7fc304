/** Points: every point in one table, sorted, filtered and grouped as the reader likes. */

import { chooser } from "./columns.js";
import { csv } from "./csv.js";
import { button, countOf, facets, fill, h, picker } from "./dom.js";
import { count, headUnit, inColumn } from "./format.js";
import { listing } from "./grid.js";
import { withWord, words } from "./query.js";
import { limitedBy, limiterSigns, targetSigns } from "./signs.js";
import { spark, sweeps } from "./spark.js";
import { chosenOf, go, href, keep, update } from "./state.js";

/** The points that were listed last, by reference, for the neighbours of a point. */
export const listed = { ids: [] };

export function points(evidence, params) {
  const side = evidence.side;
  const { usual } = evidence.main;
  const cols = params.get("cols")?.split(",") ?? usual;
  const chosen = chosenOf(params, { q: "", sort: "", by: "" });
  chosen.cols = cols.filter((name) => side.columns.has(name));
  const strange = [...cols, chosen.by, chosen.sort.replace(/^-/, "")].filter((name) => name && !side.columns.has(name));
  if (!side.columns.has(chosen.by)) chosen.by = "";
  chosen.mark = params.getAll("mark").filter((id) => evidence.find(id));
  const panels = { bar: h("div.marked"), facets: h("div.facets") };
  const view = { evidence, side, chosen, signs: limiterSigns(side.points.limiter), kinds: targetSigns(side), ...panels };
  const groups = [
    ["", "none"],
    ["target", "kernel"],
    ["limits", "verdict"],
    ["limiter", "limiter"],
  ];
  const by = (name) => update(chosen, { by: name }, () => view.list.refresh());
  const recolumn = (names) => {
    chosen.cols = names;
    keep({ cols: names.join(",") === usual.join(",") ? null : names.join(",") });
    view.list.grid.setColumns(columnsOf(view));
  };
  view.list = listing({
    name: "Points",
    what: "points",
    rows: () => side.all.map((at) => ({ at })),
    columns: () => columnsOf(view),
    filter: "filter: prefill batch=32 time_cold_us>100 -fa2",
    words: (name) => reader(name === "status" ? { values: side.points.status } : side.columns.get(name)),
    text: ({ at }) => side.points.id[at],
    told: (found) => `${found.length} of ${side.all.length} points${strange.length ? `; no column ${strange.join(", ")}` : ""}`,
    chosen,
    value: (key) => reader(side.columns.get(key)) ?? (() => null),
    shown: (found) => rowsOf(view, found),
    beside: [
      picker("Group", [...groups, ...Object.keys(side.points.params).map((name) => [name, name])], chosen.by, by),
      button("", { onclick: () => chooser(side, chosen.cols, recolumn) }, "Columns…"),
    ],
    csv: () => shownAsCsv(view),
    open: ({ at }) => at !== undefined && go("point", { id: evidence.reference(side, at) }),
    mark: ({ at }) => mark(view, at),
  });
  fill(view.facets, facetsOf(view));
  return [view.list.controls, view.facets, view.bar, view.list.grid.element];
}

function reader(column) {
  return column ? ({ at }) => column.values[at] : null;
}

/** The rows of the grid, in groups where a reader asked for them, with what stands above the grid. */
function rowsOf(view, found) {
  const { evidence, side, chosen } = view;
  view.shown = found.map(({ at }) => at);
  listed.ids = view.shown.map((at) => evidence.reference(side, at));
  if (view.list) fill(view.facets, facetsOf(view));
  fill(view.bar, markedBar(view));
  if (!chosen.by) return found;
  const values = side.columns.get(chosen.by).values;
  return [...d3.group(view.shown, (at) => values[at] ?? "–")].flatMap(([value, places]) => {
    return [{ group: value, node: () => groupHead(side, value, places, chosen) }, ...places.map((at) => ({ at }))];
  });
}

function groupHead(side, value, places, { by, sort }) {
  const sorted = side.columns.get(sort.replace(/^-/, ""));
  const numeric = sorted && sorted.kind !== "text" && sorted.group !== "parameter";
  const lines = [...d3.group(places, (at) => side.points.target[at])].map(([target, found]) => {
    const axis = side.byTarget.get(target).axis;
    const column = numeric ? sorted.name : side.rateOf(target).rate;
    const drawn = spark(`${target}: ${side.columns.get(column).label} over ${axis}`, sweeps(side, found, axis, column));
    return drawn && h("span.series", `${target} `, drawn);
  });
  return h("span.group-head", h("b", `${by} ${value}`), ` ${count(places.length, "point")}`, lines);
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
  const { evidence, side, chosen } = view;
  const id = evidence.reference(side, at);
  update(chosen, { mark: chosen.mark.includes(id) ? chosen.mark.filter((one) => one !== id) : [...chosen.mark, id].slice(-2) });
  view.list.grid.draw(true);
  fill(view.bar, markedBar(view));
}

function markedBar({ chosen: { mark: ids } }) {
  if (!ids.length) return null;
  const open = h("a.button", { href: href("point", { id: ids }) }, "Open side by side");
  const said = ids.length === 2 ? open : h("span.note", "mark a second one to open both side by side");
  return ["marked: ", ids.map((id) => h("code", id)), said];
}

/** Buttons that filter by kernel and by limiter, with how many of the shown points each has. */
function facetsOf(view) {
  const { side, chosen, signs, kinds } = view;
  const asked = words(chosen.q);
  return ["target", "limiter"].map((name) => {
    const counts = countOf(view.shown, (at) => side.value(name, at) ?? "unknown");
    const has = new Set(side.columns.get(name).values);
    const [marks, called] = name === "target" ? [kinds, (value) => value] : [signs, (value) => side.limiters[value] ?? value];
    const all = marks.names.filter((one) => has.has(one));
    const on = asked.find((word) => word.name === name && word.sign === "=" && !word.not)?.text;
    const pressed = all.find((value) => value.toLowerCase() === on);
    const look = (value) => [marks.mark(value), called(value)];
    const buttons = facets(counts, all, pressed, look, (value) => view.list.ask(withWord(chosen.q, name, value)));
    return h("div", { role: "group", "aria-label": `Filter by ${name}` }, buttons);
  });
}

function shownAsCsv({ side, chosen, shown }) {
  const names = ["point", "target", ...chosen.cols.filter((name) => name !== "target")];
  const rows = shown.map((at) => names.map((name) => side.value(name, at)));
  return csv(names, rows);
}
