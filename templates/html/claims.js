/** Claims: what is said about these kernels, by verdict, kernel and source, each with its evidence. */

import { block, has } from "./block.js";
import { away, fill, folded, h, LIVE, pairs, picker, search, table } from "./dom.js";
import { count, inColumn, number } from "./format.js";
import { judged, verdicts } from "./judged.js";
import { chosenOf, update } from "./state.js";

export async function claims(evidence, params) {
  const side = evidence.side;
  if (!has(`claims ${side.number}`)) return h("p.empty", "Not in this evidence: judged claims.");
  const all = await block(`claims ${side.number}`);
  const chosen = chosenOf(params, { verdict: null, target: "", source: "", q: "" });
  const list = h("ul.claims.panel");
  const buttons = h("div.facets");
  const shown = h("output.count", LIVE);
  const choose = (patch) => update(chosen, patch, show);
  const show = () => {
    const found = all.filter((claim) => holds(claim, chosen));
    const left = found.filter((claim) => !chosen.verdict || claim.verdict === chosen.verdict);
    const facets = verdicts(found, all, chosen.verdict, (verdict) => choose({ verdict }));
    fill(buttons, facets);
    fill(list, ...left.map((claim) => claimOf(evidence, side, claim)));
    fill(shown, `${left.length} of ${all.length} claims`);
  };
  const choice = (label, name, value) => {
    const values = [...new Set(all.map(value).filter(Boolean))].sort();
    return picker(label, [["", "all"], ...values.map((one) => [one, one])], chosen[name], (one) => choose({ [name]: one }));
  };
  show();
  const controls = h(
    "div.controls",
    search({ value: chosen.q, placeholder: "filter the statements", "aria-label": "Filter claims" }, (q) => choose({ q })),
    choice("Kernel", "target", (claim) => claim.target),
    choice("Source", "source", (claim) => claim.source?.document),
    shown,
  );
  return [controls, buttons, list];
}

function holds(claim, { target, source, q }) {
  const text = `${claim.id} ${claim.statement} ${claim.reason ?? ""} ${claim.source?.document ?? ""}`.toLowerCase();
  const words = q.toLowerCase().split(/\s+/);
  const chosen = [target, source].every((asked, at) => !asked || asked === [claim.target, claim.source?.document][at]);
  return chosen && words.every((word) => text.includes(word));
}

function claimOf(evidence, side, claim) {
  const note = `${claim.target ?? "all kernels"} · ${claim.verdict}`;
  return judged(claim.verdict, h("span.statement", claim.statement), note, () => proof(evidence, side, claim));
}

/** The evidence of a claim: made when it is opened. */
function proof(evidence, side, claim) {
  const { source, published } = claim;
  const document = [source?.document, source?.section, source?.date].filter(Boolean).join(", ");
  const facts = [
    ["why", claim.reason],
    ["needs", claim.needs],
    ["whatever the GPU", claim.independent],
    ["source", [document, " ", away(source?.url)]],
    ["convention", published?.convention],
    ["at", claim.measured?.point && pointLink(evidence, side, claim.measured.point)],
    ...claim.told,
    ["file", h("code", `${claim.file}, ${claim.id}`)],
  ];
  const rows = (claim.evidence ?? []).map(({ name, value, formula, metric, point, report }) => {
    const where = point ? pointLink(evidence, side, point) : "–";
    return [name, number(value), h("code", formula ?? metric ?? "–"), where, h("code", report ?? "–")];
  });
  const found = claim.points ?? [];
  const print = inColumn(d3.map(found, (one) => one.value));
  const points = found.map((one) => [pointLink(evidence, side, one.point), print(one.value)]);
  return [
    pairs("dl.facts", facts),
    rows.length > 0 && table(["term", ["value"], "formula", "point", "report"], rows, "Evidence"),
    points.length > 0 && folded(`Its value at ${count(points.length, "point")}`, table(["point", ["value"]], points, "Values by point")),
  ];
}

function pointLink(evidence, side, id) {
  return side.place.has(id) ? evidence.link(side, id) : h("code", id);
}
