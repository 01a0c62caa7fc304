/** What charts share: a frame that follows its room, a name for those who do not see it; bars, boxes and changes. */

import { h, s } from "./dom.js";
import { change, pct } from "./format.js";

/** An element that holds what `draw(width)` gives, drawn again where its width changes. */
export function chart(name, draw) {
  const frame = h("figure.chart", { role: "group", "aria-label": name });
  let drawn = 0;
  const again = () => {
    const width = Math.floor(frame.clientWidth);
    if (width < 40) return;
    drawn = width;
    frame.replaceChildren(draw(width));
    for (const svg of frame.querySelectorAll("svg")) named(svg);
  };
  new ResizeObserver(() => {
    if (Math.abs(frame.clientWidth - drawn) > 2) again();
  }).observe(frame);
  frame.redraw = again;
  return frame;
}

/** Options of Plot that every chart has. */
export function base(width, name) {
  return { width, ariaLabel: name, style: { background: "transparent", overflow: "visible" }, className: "plot" };
}

export const COLOURS = { slower: "var(--c1)", faster: "var(--c2)" };
const SYMBOLS = { slower: "triangle", faster: "diamond2" };

/**
 * Changes as rows: the noise floor as a bar, the interval as a line, the change as a mark with its number.
 * rows: [{text, change, low, high, floor, kind}], kind: slower, faster or neither; label: of the axis; name: of the chart.
 */
export function changes(rows, width, name, label) {
  const small = narrow(width);
  const most = small ? Math.floor(width / 6.4) : Math.max(40, Math.round(width / 15));
  const text = ({ text }) => (text.length > most ? `…${text.slice(1 - most)}` : text);
  const y = (row) => String(rows.indexOf(row));
  const colour = ({ kind }) => COLOURS[kind] ?? "var(--quiet)";
  const fill = (row) => (row.kind in COLOURS ? colour(row) : "var(--panel)");
  const at = { y, x: (row) => Math.max(0, row.change, row.high ?? 0), textAnchor: "start", dx: 8, fill: "var(--text)" };
  const known = rows.filter((row) => row.change !== null);
  const inset = small ? 12 : 5; // a telephone has the name above its row
  const above = { y, frameAnchor: "left", textAnchor: "start", dx: -12, dy: -13, fill: "var(--text)", text };
  const [low, high] = [rows.filter((row) => row.floor), rows.filter((row) => row.low !== null)];
  return Plot.plot({
    ...base(width, name),
    height: 70 + (small ? 34 : 20) * rows.length,
    marginLeft: 16 + (small ? 0 : 6.6 * d3.max(rows, (row) => text(row).length)),
    marginRight: 64,
    marginTop: 30,
    x: { label, axis: "both", tickFormat: (value) => change(value, 0), grid: true, nice: true, ticks: small ? 4 : 8 },
    y: { domain: rows.map(y), tickFormat: (at) => (small ? "" : text(rows[at])), label: null, tickSize: 0 },
    marks: [
      Plot.barX(low, { y, x1: (row) => -row.floor, x2: "floor", fill: "var(--line)", insetTop: inset, insetBottom: inset }),
      small ? Plot.text(rows, above) : null,
      Plot.ruleX([0], { stroke: "var(--quiet)" }),
      Plot.ruleY(known, { y, x1: 0, x2: "change", stroke: colour, strokeOpacity: 0.35 }),
      Plot.ruleY(high, { y, x1: "low", x2: "high", stroke: colour, strokeWidth: 2 }),
      Plot.dot(known, { y, x: "change", r: 4, stroke: colour, fill, symbol: ({ kind }) => SYMBOLS[kind] ?? "circle" }),
      Plot.text(known, { ...at, text: (row) => change(row.change) }),
    ],
  });
}

/** Whether the room is a telephone's. */
export function narrow(width) {
  return width < 560;
}

/** A drawing of its own size, with a name for those who hear the page. */
export function picture(name, width, height, ...marks) {
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name }, marks);
}

/** A box with as much of its text as it has room for; look: fill, and how opaque that is. */
export function box(title, texts, look, { x, y, width, height }) {
  const room = Math.floor((width - 9) / 6.5);
  const [text] = texts.slice(-1);
  const shown = texts.find((one) => one.length <= room) ?? (room > 5 ? `${text.slice(0, room - 1)}…` : "");
  const style = `fill:${look.fill};fill-opacity:${look.soft ?? 1};stroke:${look.fill}`;
  const rect = s("rect", { x, y, width: Math.max(1.5, width), height, rx: 2, style });
  return s("g.box", s("title", title), rect, shown && s("text", { x: x + 5, y: y + height / 2 + 4 }, shown));
}

/** A picture for those who hear the page: its own name, and none for the marks of which Plot made it. */
function named(svg) {
  svg.setAttribute("role", "img");
  for (const part of svg.querySelectorAll("g[aria-label]")) {
    part.setAttribute("class", `mark-${part.getAttribute("aria-label").replace(/\W+/g, "-")}`);
    part.removeAttribute("aria-label");
    part.removeAttribute("aria-description");
  }
}

/** Bars of per cent in rows that read like a table. rows: [{label, value (per cent or null), title, strong, note}]. */
export function bars(name, rows) {
  return h("table.bars", h("caption.hidden", name), h("colgroup", h("col.what"), h("col"), h("col.share")), h("tbody", rows.map(barRow)));
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
