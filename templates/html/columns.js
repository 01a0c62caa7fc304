/** The columns of a table: a dialog to choose them, and what they show as a file. */

import { h, popup, search } from "./dom.js";
import { missing } from "./format.js";

/** Show it; onchoose gets the names in the order of the table. */
export function chooser(side, chosen, onchoose) {
  const all = [...side.columns.values()].filter((column) => column.name !== "point");
  const boxes = new Map();
  const told = () => {
    const on = [...boxes].filter(([, box]) => box.checked).map(([name]) => name);
    onchoose([...chosen.filter((name) => on.includes(name)), ...on.filter((name) => !chosen.includes(name))]);
  };
  const item = ({ name, label, unit, formula }) => {
    const box = h("input", { type: "checkbox", checked: chosen.includes(name), onchange: told });
    boxes.set(name, box);
    const about = ` ${unit ? `${unit} · ` : ""}${formula}`;
    return h("label.column", { "data-name": `${name} ${label}` }, box, h("code", name), h("span.note", about));
  };
  const groups = [...d3.group(all, (column) => column.group)].map(([name, found]) => h("fieldset", h("legend", name), found.map(item)));
  const props = { placeholder: "search columns", "aria-label": "Search columns" };
  const box = search(props, (text) => narrow(dialog, text.toLowerCase()));
  const dialog = popup("Columns", box, groups);
  box.focus();
}

function narrow(dialog, text) {
  for (const label of dialog.querySelectorAll("label.column")) label.hidden = !label.textContent.toLowerCase().includes(text);
  for (const group of dialog.querySelectorAll("fieldset"))
    group.hidden = ![...group.querySelectorAll("label")].some((label) => !label.hidden);
}

// A cell that a spreadsheet would run as a formula gets a quote before it, as OWASP advises.
const FORMULA = /^[=+\-@\t\r]/;

function cell(value) {
  if (missing(value)) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows as CSV text; missing is an empty cell. */
export function csv(heads, rows) {
  return `${[heads, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** Hand a text to the reader as a file. */
export function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
