/** Bars of per cent: how far each unit was driven, in rows that read like a table. */

import { h } from "./dom.js";
import { pct } from "./format.js";

/** rows: [{label, value (per cent or null), title, strong, note}]. */
export function bars(name, rows) {
  return h(
    "table",
    { class: "bars" },
    h("caption", { class: "hidden" }, name),
    h("colgroup", null, h("col", { class: "what" }), h("col"), h("col", { class: "share" })),
    h("tbody", null, rows.map(barRow)),
  );
}

function barRow({ label, value, title, strong, note }) {
  const wide = Math.max(0, Math.min(100, value ?? 0));
  return h(
    "tr",
    { title, class: strong && "strong" },
    h("th", { scope: "row" }, label, note && h("code", { class: "note" }, ` ${note}`)),
    h("td", { class: "bar" }, h("span", { class: "track" }, h("span", { class: "fill", style: `width:${wide}%` }))),
    h("td", { class: "number" }, pct(value, 1)),
  );
}
