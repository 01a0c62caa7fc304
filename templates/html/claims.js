/** Claims: what is said about these kernels, by verdict, kernel and source, each with its evidence. */

import { block, has } from "./block.js";
import { away, fill, h, picker, table } from "./dom.js";
import { change, inColumn, number, percent, unit } from "./format.js";
import { href, keep } from "./state.js";

const SHAPES = { confirmed: "✓", refuted: "✗", "differs by architecture": "≠", "not testable here": "?" };

export async function claims(evidence, params) {
  const side = evidence.side;
  if (!has(`claims ${side.number}`)) return h("p.empty", "Not in this evidence: judged claims.");
  const all = await block(`claims ${side.number}`);
  const chosen = {
    verdict: params.get("verdict"),
    target: params.get("target") ?? "",
    source: params.get("source") ?? "",
    q: params.get("q") ?? "",
  };
  const list = h("ul.claims.panel");
  const buttons = h("div.facets");
  const count = h("output.count", { "aria-live": "polite" });
  const update = (patch) => {
    Object.assign(chosen, patch);
    keep(patch);
    show();
  };
  const show = () => {
    const found = all.filter((claim) => holds(claim, { ...chosen, verdict: null }));
    const counts = d3.rollup(
      found,
      (some) => some.length,
      (claim) => claim.verdict,
    );
    const verdicts = [...new Set(all.map((claim) => claim.verdict))].sort(
      (a, b) => Object.keys(SHAPES).indexOf(a) - Object.keys(SHAPES).indexOf(b),
    );
    fill(
      buttons,
      h(
        "div",
        { role: "group", "aria-label": "Filter by verdict" },
        verdicts.map((verdict) =>
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(chosen.verdict === verdict),
              onclick: () => update({ verdict: chosen.verdict === verdict ? null : verdict }),
            },
            verdictSign(verdict),
            verdict,
            h("span.count", counts.get(verdict) ?? 0),
          ),
        ),
      ),
    );
    const shown = found.filter((claim) => !chosen.verdict || claim.verdict === chosen.verdict);
    fill(
      list,
      shown.map((claim) => claimOf(evidence, side, claim)),
    );
    fill(count, `${shown.length} of ${all.length} claims`);
  };
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    value: chosen.q,
    placeholder: "filter the statements",
    "aria-label": "Filter claims",
    oninput: () => update({ q: filter.value }),
  });
  const values = (get) => [["", "all"], ...[...new Set(all.map(get).filter(Boolean))].sort().map((value) => [value, value])];
  show();
  return [
    h(
      "div.controls",
      filter,
      picker(
        "Kernel",
        values((claim) => claim.target),
        chosen.target,
        (target) => update({ target }),
      ),
      picker(
        "Source",
        values((claim) => claim.source?.document),
        chosen.source,
        (source) => update({ source }),
      ),
      count,
    ),
    buttons,
    list,
  ];
}

function holds(claim, { verdict, target, source, q }) {
  const text = `${claim.id} ${claim.statement} ${claim.reason ?? ""} ${claim.source?.document ?? ""}`.toLowerCase();
  return (
    (!verdict || claim.verdict === verdict) &&
    (!target || claim.target === target) &&
    (!source || claim.source?.document === source) &&
    q
      .toLowerCase()
      .split(/\s+/)
      .every((word) => text.includes(word))
  );
}

function verdictSign(verdict) {
  return h("span", { class: `verdict ${verdict.split(" ")[0]}`, "aria-hidden": "true" }, SHAPES[verdict] ?? "·");
}

function claimOf(evidence, side, claim) {
  const said = h(
    "summary",
    verdictSign(claim.verdict),
    h("span.statement", claim.statement),
    h("span.note", `${claim.target ?? "all kernels"} · ${claim.verdict}`),
  );
  const details = h("details", said);
  details.addEventListener(
    "toggle",
    () => details.open && details.childElementCount === 1 && details.append(...proof(evidence, side, claim)),
  );
  return h("li", details);
}

/** The evidence of a claim: made when it is opened. */
function proof(evidence, side, claim) {
  const value = (found) => (found?.value === null || found?.value === undefined ? null : amount(found.value, found.unit));
  const facts = [
    ["why", claim.reason],
    ["needs", claim.needs],
    ["whatever the GPU", claim.independent],
    [
      "source",
      [[claim.source?.document, claim.source?.section, claim.source?.date].filter(Boolean).join(", "), " ", away(claim.source?.url)],
    ],
    ["convention", claim.published?.convention],
    ["published", publishedOf(claim.published)],
    [
      "measured",
      value(claim.measured) &&
        `${value(claim.measured)}${claim.measured.aggregate ? `, ${claim.measured.aggregate} over ${number(claim.measured.known)} points` : ""}`,
    ],
    ["at", claim.measured?.point && pointLink(evidence, side, claim.measured.point)],
    [
      "difference",
      claim.difference?.relative === null || claim.difference?.relative === undefined ? null : change(claim.difference.relative),
    ],
    ["rule", ruleOf(claim)],
    ["tolerance", toleranceOf(claim)],
    ["noise floor", claim.noise_floor === null || claim.noise_floor === undefined ? null : amount(claim.noise_floor, claim.unit)],
    ["file", h("code", `${claim.file}, ${claim.id}`)],
  ].filter(([, what]) => what);
  const rows = (claim.evidence ?? []).map((one) => [
    one.name,
    number(one.value),
    h("code", one.formula ?? one.metric ?? "–"),
    one.point ? pointLink(evidence, side, one.point) : "–",
    h("code", one.report ?? "–"),
  ]);
  const print = inColumn((claim.points ?? []).map((one) => one.value));
  const points = (claim.points ?? []).map((one) => [pointLink(evidence, side, one.point), print(one.value)]);
  return [
    h(
      "dl.facts",
      facts.map(([name, what]) => [h("dt", name), h("dd", what)]),
    ),
    rows.length > 0 && table(["term", ["value"], "formula", "point", "report"], rows, "Evidence"),
    points.length > 0 &&
      h(
        "details",
        h("summary", `Its value at ${points.length} point${points.length === 1 ? "" : "s"}`),
        table(["point", ["value"]], points, "Values by point"),
      ),
  ].filter(Boolean);
}

/** A value of a claim, in its unit. */
function amount(value, name) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return name === "of the ceiling" ? `${percent(value, 1)} of the ceiling` : unit(value, name ?? "");
}

/** The published figure or range, and the GPU that it was measured on or is expected of. */
function publishedOf(published) {
  const figure = figureOf(published);
  return figure && [figure, published.gpu && `${published.expected ? "expected of" : "on"} ${published.gpu}`].filter(Boolean).join(", ");
}

function figureOf({ value, range, unit: name }) {
  const missing = (end) => end === null || end === undefined;
  if (!missing(value)) return amount(value, name);
  if (!range) return null;
  const [low, high] = range;
  if (missing(low)) return `at most ${amount(high, name)}`;
  if (missing(high)) return `at least ${amount(low, name)}`;
  return low === high ? amount(low, name) : `${number(low)}–${amount(high, name)}`;
}

/** What decides the claim: how its values are taken together, and what that is compared with. */
function ruleOf({ compare, limit, measured, over, published, unit: name }) {
  if (!compare) return null;
  const { value, low, high } = published.compared ?? {};
  const bounds = [limit ?? value ?? low, limit ?? value ?? high].filter((bound) => bound !== null && bound !== undefined);
  const against = compare === "holds" ? [] : [...new Set(bounds)];
  return [`${measured?.aggregate ?? "value"} over ${over}`, compare, against.map((bound) => amount(bound, name)).join(" and ")]
    .filter(Boolean)
    .join(" ");
}

function toleranceOf({ tolerance, unit: name }) {
  if (!tolerance) return null;
  return tolerance.relative === undefined ? `± ${amount(tolerance.absolute, name)}` : `± ${percent(tolerance.relative, 1)} of the figure`;
}

function pointLink(evidence, side, id) {
  const at = side.place.get(id);
  return at === undefined ? h("code", id) : h("a.id", { href: href("point", { id: evidence.reference(side, at) }) }, id);
}
