/** The columns of a table: a dialog to choose them. */

import { h, popup, search } from "./dom.js";

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
