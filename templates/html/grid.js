/** A grid: a table of any length, whose rows are made as they come into view. */

import { narrow } from "./chart.js";
import { csv, saver } from "./csv.js";
import { button, fill, h, LIVE, search } from "./dom.js";
import { matcher, unknown } from "./query.js";
import { update } from "./state.js";

const ROW = 26; // px, as in style.css
const SPARE = 12; // rows beyond the edges of what is seen
const WIDEST = 52; // characters of a column
const NARROWEST = 28; // of one with names where the room is a telephone's
const PROPORTIONAL = 0.9; // of a digit's width, that of a letter in running text
const SEEN = 150; // rows that a column's width is measured on

/**
 * columns: [{key, label, unit, number, title, text(row), node(row)}]; rows: anything, those with a
 * `group` are headings whose `node` fills the row.
 * calls: {open(row), sort(key), mark(row)}; name: of the table, for those who hear it.
 */
export class Grid {
  constructor(name, columns, calls = {}, sort = undefined) {
    this.calls = calls;
    this.rows = [];
    this.current = 0;
    this.head = h("thead");
    this.body = h("tbody");
    this.widths = h("colgroup");
    const props = { role: "grid", tabindex: "0", "aria-label": name, onkeydown: (event) => this.key(event) };
    this.table = h("table.grid", props, this.widths, this.head, this.body);
    this.element = h("div.grid-frame", { onscroll: () => this.draw() }, this.table);
    this.setColumns(columns, sort);
    new ResizeObserver(() => this.measure()).observe(this.element);
    addEventListener("beforeprint", () => this.draw(true, true));
    addEventListener("afterprint", () => this.draw(true));
  }

  setColumns(columns, sort = this.sort) {
    this.columns = columns;
    this.sort = sort;
    const cells = columns.map((column) => this.headCell(column));
    fill(this.head, h("tr", cells));
    this.measure();
  }

  headCell(column) {
    const kind = { scope: "col", class: column.number && "number" };
    if (!this.calls.sort || column.fixed) return h("th", kind, column.label);
    const [sort = "", key] = /^(-?)(.*)$/.exec(this.sort ?? "").slice(1);
    const sorted = key !== column.key ? "none" : sort ? "descending" : "ascending";
    const arrow = { ascending: "▲", descending: "▼", none: "" }[sorted];
    const onclick = () => this.calls.sort(column.key, sorted === "ascending" ? "-" : "");
    const unit = column.unit && h("span.unit", ` ${column.unit}`);
    const press = button("", { tabindex: "-1", onclick }, column.label, unit, h("span.arrow", { "aria-hidden": "true" }, arrow));
    return h("th", { ...kind, "aria-sort": sorted, title: column.title }, press);
  }

  setRows(rows) {
    this.rows = rows;
    this.current = Math.min(this.current, Math.max(0, rows.length - 1));
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.measure();
  }

  /** Give the columns their widths, and make the rows that are seen anew. */
  measure() {
    const step = Math.max(1, Math.floor(this.rows.length / SEEN));
    const sample = this.rows.filter((row, at) => row.group === undefined && at % step === 0);
    const widths = this.columns.map((column) => {
      const most = narrow(innerWidth) && ["point", "name"].includes(column.key) ? NARROWEST : (column.width ?? WIDEST);
      if (column.width) return Math.min(column.width, most);
      const texts = sample.map((row) => column.text(row).length * (column.number || column.key === "point" ? 1 : PROPORTIONAL));
      const words = `${column.label} ${column.unit ?? ""}`.split(" ").map((word) => word.length);
      const head = Math.max(...words, words.reduce((sum, length) => sum + length + 1, 0) / 2) + 3; // on two lines
      return Math.min(most, Math.max(head, ...texts) + 1);
    });
    const cols = widths.map((width) => h("col", { style: `width:${width}ch` }));
    fill(this.widths, cols);
    this.table.style.width = `${widths.reduce((sum, width) => sum + width, 0)}ch`;
    this.draw(true);
  }

  /** Make the rows that are seen, where they are not those that are made already. */
  draw(anew = false, all = false) {
    const { scrollTop, clientHeight } = this.element;
    const top = all ? 0 : Math.floor(scrollTop / ROW);
    const bottom = all ? this.rows.length : Math.ceil((scrollTop + (clientHeight || 600)) / ROW);
    if (!anew && top >= this.first && Math.min(bottom, this.rows.length) <= this.last) return;
    const first = Math.max(0, top - SPARE);
    const last = Math.min(this.rows.length, bottom + SPARE);
    [this.first, this.last] = [first, last];
    const space = (rows) => {
      const props = { "aria-hidden": "true", style: `height:${rows * ROW}px` };
      return rows > 0 && h("tr.space", props, h("td", { colspan: this.columns.length }));
    };
    const made = this.rows.slice(first, last).map((row, at) => this.rowOf(row, first + at));
    fill(this.body, space(first), ...made, space(this.rows.length - last));
    this.point();
  }

  rowOf(row, at) {
    const props = { id: `${this.table.ariaLabel.replace(/\W/g, "")}-${at}`, "aria-rowindex": at + 2, class: at % 2 ? "odd" : null };
    if (row.group !== undefined)
      return h("tr", { ...props, class: "group" }, h("th", { scope: "rowgroup", colspan: this.columns.length }, row.node()));
    const cells = this.columns.map((column, place) => {
      const value = column.node ? column.node(row) : column.text(row);
      return h(place ? "td" : "th", { class: column.number && "number", scope: place ? null : "row" }, value);
    });
    const element = h("tr", props, cells);
    element.addEventListener("click", (event) => {
      this.move(at, false);
      if (!event.target.closest("a, button, input, label")) this.calls.open?.(row);
    });
    return element;
  }

  /** Show which row is the current one. */
  point() {
    for (const row of this.body.querySelectorAll(".current")) row.classList.remove("current");
    const row = this.body.querySelector(`[aria-rowindex="${this.current + 2}"]`);
    row?.classList.add("current");
    if (row) this.table.setAttribute("aria-activedescendant", row.id);
    else this.table.removeAttribute("aria-activedescendant");
  }

  move(to, seen = true) {
    this.current = Math.max(0, Math.min(this.rows.length - 1, to));
    if (seen) {
      const top = this.current * ROW;
      const room = this.element.clientHeight - 2 * ROW;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      else if (top > this.element.scrollTop + room) this.element.scrollTop = top - room;
      this.draw();
    }
    this.point();
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 2);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -this.rows.length, End: this.rows.length };
    const row = this.rows[this.current];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) this.move(this.current + steps[event.key]);
    else if (event.key === "Enter" && event.target === this.table && row) this.calls.open?.(row);
    else if (event.key === "m" && row && row.group === undefined) this.calls.mark?.(row);
    else return;
    event.preventDefault();
  }
}

/** The button that saves the rows of a grid; text(): CSV in place of what the cells say. */
export function saverOf(grid, text) {
  const said = () => {
    const columns = grid.columns.filter(({ label }) => label);
    const heads = columns.map(({ label, unit }) => [label, unit].filter(Boolean).join(" "));
    const rows = grid.rows.filter((row) => row.group === undefined);
    return csv(
      heads,
      rows.map((row) => columns.map((column) => column.text(row).trim().replace(/^–$/, ""))),
    );
  };
  return saver(() => [`${grid.table.ariaLabel.toLowerCase()}.csv`, (text ?? said)()]);
}

/** Bring a grid to a row, which then stands in its upper part. */
export function toRow(grid, at) {
  grid.move(at);
  grid.element.scrollTop = Math.max(0, at * ROW - grid.element.clientHeight / 3);
  grid.draw(true);
}

/** Rows in the order of a value; those of which it is not known stand last, whichever way the others go. */
export function ordered(rows, sort, value) {
  const order = sort.startsWith("-") ? d3.descending : d3.ascending;
  const [known, unknown] = [true, false].map((is) => rows.filter((row) => ((value(row) ?? null) !== null) === is));
  return [...d3.sort(known, (a, b) => order(value(a), value(b))), ...unknown];
}

/**
 * A grid with a box that filters its rows. name, columns(), open(row), mark(row): of the grid; filter: the box's hint; words(name):
 * row -> value for a word of the filter; text(row): what its bare words look in; told(found): of the count. chosen: {q, sort},
 * kept in the address, null where neither is; value(key): row -> value to sort by; shown(found): rows with headings; beside:
 * further controls.
 */
export function listing({ name, what, filter, chosen, beside, ...of }) {
  const { columns, shown = (found) => found } = of;
  const count = h("output.count", LIVE);
  const sort = (key, down) => {
    update(chosen, { sort: down + key });
    grid.setColumns(columns(), chosen.sort);
    refresh();
  };
  const grid = new Grid(name, columns(), { ...of, sort: chosen && sort }, chosen?.sort);
  const onkeydown = (event) => event.key === "Enter" && grid.table.focus();
  const ask = (q) => {
    box.value = q;
    if (chosen) update(chosen, { q });
    refresh();
  };
  const box = search({ value: chosen?.q, "aria-label": `Filter ${what}`, placeholder: filter, onkeydown }, ask);
  const refresh = () => {
    const found = of.rows().filter(matcher(box.value, of.words, of.text));
    const sorted = chosen?.sort ? ordered(found, chosen.sort, of.value(chosen.sort.replace(/^-/, ""))) : found;
    grid.setRows(shown(sorted));
    const strange = unknown(box.value, of.words);
    fill(count, of.told(found), strange.length > 0 && h("span.status", `no column ${strange.join(", ")}`));
  };
  refresh();
  return { grid, controls: h("div.controls", box, beside, saverOf(grid, of.csv), count), refresh, ask };
}
