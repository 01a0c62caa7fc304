/** Choices and opportunities: what each choice costs at every pair of points that prices it. */

import { base, chart, narrow } from "./chart.js";
import { h, section, table } from "./dom.js";
import { change, micro, number, percent } from "./format.js";
import { rulesSection } from "./opportunities.js";
import { href } from "./state.js";

export async function choices(evidence) {
  const side = evidence.side;
  const priced = side.targets.filter((target) => target.prices.length);
  return [
    side.targets.some((target) => target.opportunities?.length) && opportunities(side),
    priced.length ? null : h("p", { class: "empty" }, "Not in this evidence: pairs of points that differ in one choice."),
    priced.map((target) => section(`Choices: ${target.title}`, "Each row is a pair of points that differ in this choice alone. The bar is the noise floor; a filled mark is a change beyond it.", target.prices.map((choice) => choiceOf(evidence, side, choice)))),
    await rulesSection(side),
  ];
}

function choiceOf(evidence, side, choice) {
  const varied = variedIn(choice.pairs);
  const rows = choice.pairs.map((pair) => ({ ...pair, label: labelOf(pair, varied, choice) }));
  const differ = rows.filter((pair) => pair.verdict === "differs").length;
  const cells = rows.map((pair) => [
    h("a", { href: href("point", { id: [pair.base_point, pair.other_point].map((id) => (evidence.sides.length > 1 ? `${side.number}~${id}` : id)) }) }, pair.label),
    micro(pair.base), micro(pair.other), change(pair.change), interval(pair), percent(pair.floor, 1), pair.p === null || pair.p === undefined ? "–" : pair.p < 0.001 ? "< 0.001" : number(pair.p), pair.verdict,
  ]);
  return h(
    "div",
    { class: "choice" },
    h("h3", null, choice.title, h("span", { class: "note" }, ` ${choice.called[0]} → ${choice.called[1]}; ${differ} of ${rows.length} differ`)),
    chart(`Price of ${choice.title}`, (width) => draw(choice, rows, width)),
    h("details", null, h("summary", null, "As a table"), table(["pair", [choice.called[0]], [choice.called[1]], ["change"], ["interval"], ["noise floor"], ["p"], "verdict"], cells, choice.title)),
  );
}

function interval(pair) {
  const found = pair.interval ?? (pair.low !== undefined ? [pair.low, pair.high] : null);
  return found?.[0] === null || !found ? "–" : `${change(found[0])} … ${change(found[1])}`;
}

/** Parameters that are not the same in all pairs. */
function variedIn(pairs) {
  const names = [...new Set(pairs.flatMap((pair) => Object.keys(pair.fixed)))];
  return names.filter((name) => new Set(pairs.map((pair) => pair.fixed[name])).size > 1);
}

function labelOf(pair, varied, choice) {
  const metric = new Set(choice.pairs.map((one) => one.metric)).size > 1 ? `, ${pair.metric.replace(/^time_|_us$/g, "").replaceAll("_", " ")}` : "";
  return (varied.map((name) => `${name} ${pair.fixed[name] ?? "–"}`).join(", ") || "the only pair") + metric;
}

function draw(choice, rows, width) {
  const small = narrow(width);
  const labels = rows.map((row, at) => `${at}`);
  const most = small ? 20 : Math.max(40, Math.round(width / 15));
  const text = (at) => (rows[at].label.length > most ? `${rows[at].label.slice(0, most - 1)}…` : rows[at].label);
  const floor = rows.filter((row) => row.floor !== null && row.floor !== undefined);
  const at = (row) => String(rows.indexOf(row));
  const sign = (row) => (row.verdict === "differs" ? (row.change < 0 ? "var(--c2)" : "var(--c1)") : "var(--quiet)");
  return Plot.plot({
    ...base(width, `${choice.title}: change from ${choice.called[0]} to ${choice.called[1]}`),
    height: 44 + 20 * rows.length,
    marginLeft: small ? 130 : 16 + 6 * Math.min(most, d3.max(rows, (row) => row.label.length)),
    marginRight: 62,
    marginTop: 4,
    x: { label: `change of the time, ${choice.called[1]} against ${choice.called[0]} →`, tickFormat: (v) => change(v, 0), grid: true, ticks: small ? 3 : 8, nice: true },
    y: { domain: labels, tickFormat: (d) => text(Number(d)), label: null, tickSize: 0 },
    marks: [
      Plot.barX(floor, { y: at, x1: (row) => -row.floor, x2: (row) => row.floor, fill: "var(--line)", insetTop: 5, insetBottom: 5 }),
      Plot.ruleX([0], { stroke: "var(--quiet)" }),
      Plot.ruleY(rows, { y: at, x1: 0, x2: "change", stroke: sign, strokeWidth: 1.5 }),
      Plot.dot(rows, { y: at, x: "change", r: 4.5, stroke: sign, fill: (row) => (row.verdict === "differs" ? sign(row) : "var(--panel)"), symbol: (row) => (row.verdict === "differs" ? "circle" : "diamond2") }),
      Plot.text(rows, { y: at, x: (row) => Math.max(0, row.change), text: (row) => change(row.change), textAnchor: "start", dx: 9, fill: "var(--text)" }),
    ],
  });
}

/** Opportunities as the finding ranks them: what, the most it can bring, what it brought. */
function opportunities(side) {
  const words = (value) => (value === null || value === undefined ? "–" : typeof value === "number" ? percent(value, 1) : typeof value === "object" ? JSON.stringify(value) : String(value));
  const all = side.targets.flatMap((target) => (target.opportunities ?? []).map((one) => ({ kernel: target.title, ...one })));
  const heads = [...new Set(all.flatMap((one) => Object.keys(one)))];
  return section("Opportunities", null, table(heads, all.map((one) => heads.map((name) => words(one[name]))), "Opportunities"));
}
