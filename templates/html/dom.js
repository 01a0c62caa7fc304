/** Elements whose text is text: nothing that a report says becomes markup. */

import { number } from "./format.js";

// Control characters, line and paragraph separators and the marks that turn the direction of writing.
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** Text with what a reader could not see made visible. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/**
 * An element of a selector like "p.note"; its properties may be left out. Those that begin with "on" listen, null ones
 * are left out, strings become text.
 */
export function h(selector, ...rest) {
  return made((tag) => document.createElement(tag), selector, rest);
}

/** The same of SVG. */
export function s(selector, ...rest) {
  return made((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag), selector, rest);
}

function made(create, selector, rest) {
  const [tag, ...classes] = selector.split(".");
  const element = create(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const given = rest[0]?.constructor === Object ? rest.shift() : {};
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  append(element, rest);
  return element;
}

/** Add children: nodes as they are, lists one by one, null not at all, all else as text. */
export function append(element, children) {
  for (const child of children.flat(Number.POSITIVE_INFINITY)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** A link that leads away; text alone where the address is none of the web. */
export function away(address, text) {
  if (!/^https:\/\/[^\s]+$/.test(address ?? "")) return text ?? address;
  return h("a", { href: address, rel: "noreferrer noopener", target: "_blank" }, text ?? address);
}

/** A long name that may break after its underscores. */
export function breakable(text) {
  return visible(text)
    .split(/(?<=_)/)
    .flatMap((part) => [part, document.createElement("wbr")]);
}

/** The same element, in which code and ids may break after the marks within them, and nowhere else. */
export function softened(element) {
  for (const code of element.querySelectorAll("code, a.id")) {
    const pieces = code.textContent.split(/(?<=[_/,(=])(?=\w)/);
    if (pieces.length > 1 && !code.closest("pre"))
      code.replaceChildren(...pieces.flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part])));
  }
  return element;
}

// Characters of a column's longest cell from which on it is text, and a sentence: style.css has their least widths.
const TEXT = 18;
const SENTENCE = 60;

/** Give each column of a table the least width that its text needs to be read. */
export function readable(table) {
  const longest = [];
  const cells = [...table.rows].filter((row) => row.closest("tbody")).flatMap((row) => [...row.cells]);
  for (const cell of cells) longest[cell.cellIndex] = Math.max(longest[cell.cellIndex] ?? 0, cell.textContent.length);
  for (const cell of cells) {
    const most = longest[cell.cellIndex];
    cell.classList.add(most >= SENTENCE ? "sentence" : most >= TEXT ? "text" : "short");
  }
  return table;
}

/** An element with what `item` makes of each value. */
export function each(selector, values, item) {
  return h(selector, [...values].map(item));
}

/** What opens at a press on its summary. */
export function folded(summary, ...children) {
  return h("details", h("summary", summary), children);
}

/** What tools warned of: a line that opens to all. texts: of one and the same how many is told; items: what it opens to. */
export function warned(texts, items = texts) {
  if (!texts.length) return null;
  const said = [...countOf(texts, (text) => text)].map(([text, count]) => (count > 1 ? `${text} (${count})` : text));
  const first = said[0].length > 90 ? `${said[0].slice(0, 89)}…` : said[0];
  const more = said.length > 1 ? `, and ${said.length - 1} more` : "";
  const all = each("ul", items, (item) => h("li", item));
  return h("details.warning", h("summary", `The tools warned: ${first}${more}`), all);
}

/** Text with what stands between backticks as code. */
export function coded(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", part) : part));
}

/** Names with what they stand for: "dl.facts", or "dl.tiles" of a box for each. found: [[name, value]…], of which those without a value are left out. */
export function pairs(selector, found) {
  const entries = found.filter(([, value]) => value).map(([name, value]) => [h("dt", name), h("dd", value)]);
  return h(selector, selector === "dl.tiles" ? entries.map((entry) => h("div", entry)) : entries);
}

/** A button; props: as of an element, "pressed" among them where it stays down. */
export function button(selector, { pressed, ...props }, ...children) {
  return h(`button${selector}`, { type: "button", "aria-pressed": pressed === undefined ? null : String(pressed), ...props }, children);
}

/** A labelled choice between few values, as buttons of which one is pressed. */
export function switcher(label, values, chosen, onchoose) {
  const buttons = values.map(([value, text, title]) => button("", { title, pressed: value === chosen, "data-value": value }, text));
  for (const one of buttons)
    one.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === one));
      onchoose(one.dataset.value);
    });
  return h("div.switcher", { role: "group", "aria-label": label }, h("span.label", label), buttons);
}

/** How many rows have each value. */
export function countOf(rows, value) {
  return d3.rollup(rows, (found) => found.length, value);
}

/** Buttons that filter by a value, with how many rows have it; a second press takes the filter away. look(value): its nodes. */
export function facets(counts, values, chosen, look, onchoose) {
  return values.map((value) => {
    const pressed = value === chosen;
    return button("", { pressed, onclick: () => onchoose(pressed ? null : value) }, look(value), h("span.count", counts.get(value) ?? 0));
  });
}

/** A labelled <select>. values: [[value, text]…]. */
export function picker(label, values, chosen, onchoose) {
  const options = values.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  const select = h("select", { onchange: () => onchoose(select.value) }, options);
  return h("label.picker", h("span.label", label), select);
}

/** A choice above what it shows. control: picker or switcher; make(value): what a value shows; kept(value): keeps it. */
export async function choosing(control, label, values, chosen, make, kept = () => null) {
  const body = h("div");
  const show = async (value) => fill(body, await make(value));
  await show(chosen);
  const onchoose = (value) => {
    kept(value);
    show(value);
  };
  return [values.length > 1 && h("div.controls", control(label, values, chosen, onchoose)), body];
}

/** The box of a filter. props: aria-label, placeholder, value. */
export function search(props, oninput) {
  return h("input", { type: "search", "data-filter": true, spellcheck: "false", ...props, oninput: ({ target }) => oninput(target.value) });
}

/** Of what is said to those who hear the page when it changes. */
export const LIVE = { "aria-live": "polite" };

/** A section with a heading. */
export function section(title, note, ...children) {
  return h("section.panel", h("h2", title), note && h("p.note", note), children);
}

/** A section of one table; nothing where it has no rows. */
export function tabled(title, note, heads, rows) {
  return rows.length > 0 && section(title, note, table(heads, rows, title));
}

/** Two panels beside each other, or the one that there is. */
export function beside(left, right) {
  return left && right ? h("div.wide-two", left, right) : (left ?? right);
}

/** A plain table. heads: text, or [text, "number"]; rows: lists of cells. A column in which no row has anything is left out. */
export function table(every, cells, caption) {
  const kept = every.map((_, at) => !cells.length || cells.some((row) => !["–", "", null, undefined, false].includes(row[at])));
  const [heads, ...rows] = [every, ...cells].map((row) => row.filter((_, at) => kept[at]));
  const kind = (at) => ({ class: Array.isArray(heads[at]) && "number" });
  const head = heads.map((text, at) => h("th", { scope: "col", ...kind(at) }, text));
  const body = rows.map((row) => each("tr", row, (cell, at) => h("td", kind(at), cell)));
  const shown = h("table.plain", h("caption.hidden", caption), h("thead", h("tr", head)), h("tbody", body));
  return framed(softened(readable(shown)), caption);
}

/** A table of the first values, each made a row, and how many more there are; told: what is said of those. */
export function cut(heads, values, row, caption, most, told = "") {
  const more = values.length - most;
  return [table(heads, values.slice(0, most).map(row), caption), more > 0 && h("p.note", `${number(more)} more${told}.`)];
}

/** The first rows, and the others where they are asked for. more: what they are called; shown(rows, name): what shows them. */
export function firstOf(rows, most, more, shown) {
  const others = rows.length - most;
  return [shown(rows.slice(0, most)), others > 0 && folded(`${others} more ${more}`, shown(rows.slice(most), `More ${more}`))];
}

/** A frame in which what is wider scrolls. */
export function framed(wide, name) {
  return h("div.scroll", { tabindex: "0", role: "region", "aria-label": name }, wide);
}

/** A dialog over the page with nodes under a title: closed by Escape, its button, or a press beside it. */
export function popup(title, ...nodes) {
  const close = h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "×");
  const dialog = h("dialog", { "aria-label": title }, h("header", h("h2", title), close), h("div.popup-body", nodes));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
