/** Bars of per cent: how far each unit was driven, in rows that read like a table. */

import { folded, h } from "./dom.js";
import { pct } from "./format.js";

/** rows: [{label, value (per cent or null), title, strong, note}]. */
export function bars(name, rows) {
  return h("table.bars", h("caption.hidden", name), h("colgroup", h("col.what"), h("col"), h("col.share")), h("tbody", rows.map(barRow)));
}

/** The same of the first rows, and the others where they are asked for; more: what they are called. */
export function longBars(name, rows, most, more = "") {
  const others = rows.length - most;
  return [
    bars(name, rows.slice(0, most)),
    others > 0 && folded(`${others} more${more && ` ${more}`}`, bars(more ? `More ${more}` : name, rows.slice(most))),
  ];
}

function barRow({ label, value, title, strong, note }) {
  const wide = Math.max(0, Math.min(100, value ?? 0));
  return h(
    "tr",
    { title, class: strong && "strong" },
    h("th", { scope: "row" }, label, note && h("code.note", ` ${note}`)),
    h("td.bar", h("span.track", h("span.fill", { style: `width:${wide}%` }))),
    h("td.number", pct(value, 1)),
  );
}
