/** The choice of columns: a dialog that lists all, by where they come from. */

import { h } from "./dom.js";
import { popup } from "./popup.js";

/** Show it; onchoose gets the names in the order of the table. */
export function chooser(side, chosen, onchoose) {
  const all = [...side.columns.values()].filter((column) => column.name !== "point");
  const boxes = new Map();
  const told = () => {
    const on = [...boxes].filter(([, box]) => box.checked).map(([name]) => name);
    onchoose([...chosen.filter((name) => on.includes(name)), ...on.filter((name) => !chosen.includes(name))]);
  };
  const item = (column) => {
    const box = h("input", { type: "checkbox", checked: chosen.includes(column.name), onchange: told });
    boxes.set(column.name, box);
    return h(
      "label.column",
      { "data-name": `${column.name} ${column.label}` },
      box,
      h("code", column.name),
      h("span.note", ` ${column.unit ? `${column.unit} · ` : ""}${column.formula}`),
    );
  };
  const groups = [...d3.group(all, (column) => column.group)].map(([name, found]) => h("fieldset", h("legend", name), found.map(item)));
  const search = h("input", {
    type: "search",
    placeholder: "search columns",
    "aria-label": "Search columns",
    oninput: () => narrow(dialog, search.value.toLowerCase()),
  });
  const dialog = popup("Columns", search, groups);
  search.focus();
}

function narrow(dialog, text) {
  for (const label of dialog.querySelectorAll("label.column")) label.hidden = !label.textContent.toLowerCase().includes(text);
  for (const group of dialog.querySelectorAll("fieldset"))
    group.hidden = ![...group.querySelectorAll("label")].some((label) => !label.hidden);
}
