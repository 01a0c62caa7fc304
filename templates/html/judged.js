/** Lists of what was judged: a sign for each verdict, buttons that filter by it, rows that open to their evidence. */

import { append, countOf, facets, h } from "./dom.js";

// Verdicts in the order in which they stand: of claims, and of changes.
const SIGNS = {
  confirmed: "✓",
  refuted: "✗",
  "differs by architecture": "≠",
  "not testable here": "?",
  slower: "▲",
  faster: "▼",
  "not tested": "?",
  inconclusive: "≈",
  same: "=",
  "not judged": "·",
};

/** The place of a verdict among all. */
export function rank(verdict) {
  return Object.keys(SIGNS).indexOf(verdict);
}

function sign(verdict) {
  return h(`span.verdict.${verdict.split(" ")[0]}`, { "aria-hidden": "true" }, SIGNS[verdict] ?? "·");
}

/** Buttons that filter rows by their verdict. all: verdicts that have one whatever is left of the rows. */
export function verdicts(rows, all, chosen, onchoose) {
  const names = d3.sort(new Set(all.map((row) => row.verdict)), rank);
  const counts = countOf(rows, (row) => row.verdict);
  const look = (verdict) => [sign(verdict), verdict];
  return h("div", { role: "group", "aria-label": "Filter by verdict" }, facets(counts, names, chosen, look, onchoose));
}

/** A row that opens to its evidence, which is made then. */
export function judged(verdict, statement, note, evidence, { open = false, onopen = () => null } = {}) {
  const details = h("details", { open }, h("summary", sign(verdict), statement, h("span.note", note)));
  const made = () => details.childElementCount === 1 && append(details, evidence());
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    made();
    onopen();
  });
  if (open) made();
  return h("li", details);
}
