/** Compare: what changed between captures, by how much and why, the changed points first. */

import { block, has } from "./block.js";
import { base, COLOURS, changes, chart, narrow } from "./chart.js";
import { coded, each, fill, folded, h, pairs, picker, search, section, table, tabled } from "./dom.js";
import { change, interval, micro, number, percent, quantity, signed } from "./format.js";
import { judged, rank, verdicts } from "./judged.js";
import { chosenOf, href, keep, update } from "./state.js";

export async function compare(evidence, params) {
  if (!has("compare")) return h("p.empty", "This file holds one capture.");
  const all = await block("compare");
  const chosen = chosenOf(params, { pair: 0, metric: "cold_us", verdict: null, q: "", open: null });
  const body = h("div");
  const show = () => fill(body, pairView(evidence, all[chosen.pair] ?? all[0], chosen, choose));
  const choose = (patch) => update(chosen, patch, show);
  show();
  const metrics = [...new Set(all.flatMap((one) => one.points.flatMap((found) => Object.keys(found.metrics))))];
  const captures = all.map((one, at) => [String(at), `${one.base.name} → ${one.head.name}`]);
  const times = metrics.map((name) => [name, name.replace(/_us$/, "")]);
  const filter = { value: chosen.q, placeholder: "filter the points", "aria-label": "Filter points" };
  const controls = h(
    "div.controls",
    search(filter, (q) => choose({ q })),
    picker("Captures", captures, String(chosen.pair), (pair) => choose({ pair: Number(pair), open: null })),
    metrics.length > 1 && picker("Time", times, chosen.metric, (metric) => choose({ metric })),
  );
  return [controls, body];
}

function ofMetric(found, metric) {
  return { id: found.id, target: found.target, ...(found.metrics[metric] ?? (metric === found.metric ? found : {})) };
}

function pairView(evidence, comparison, chosen, choose) {
  const all = comparison.points.map((found) => ofMetric(found, chosen.metric)).filter((row) => row.verdict);
  const named = ({ id }) => id.toLowerCase().includes(chosen.q.toLowerCase());
  const left = all.filter((row) => (!chosen.verdict || row.verdict === chosen.verdict) && named(row));
  const rows = d3.sort(left, (a, b) => rank(a.verdict) - rank(b.verdict) || Math.abs(b.relative ?? 0) - Math.abs(a.relative ?? 0));
  const names = [comparison.base.name, comparison.head.name];
  const sides = names.map((name) => evidence.sides.find((side) => side.name === name));
  const told = `From ${names.join(" to ")}. The line is the interval of the change, the bar the noise floor.`;
  const judging = folded("How they are judged", ...comparison.statistics.notes.map((note) => h("p.note", coded(note))));
  const facets = verdicts(all, all, chosen.verdict, (verdict) => choose({ verdict }));
  const points = each("ul.claims", rows, (row) => pointOf(evidence, sides, row, chosen));
  const marks = rows.map((row) => ({ ...row, text: row.id, change: row.relative, kind: row.verdict }));
  const drawn = chart("Changes", (width) => changes(marks, width, "Change of each point with its interval", "change →"));
  return [
    h("div.facets", facets),
    section("Changes", told, judging, rows.length ? drawn : h("p.empty", "No point is left by the filter.")),
    section("Points", null, points),
    differences(comparison),
  ];
}

function pointOf(evidence, sides, row, chosen) {
  const note = `${micro(row.base)} → ${micro(row.head)} · ${change(row.relative)} · ${row.verdict}`;
  const opening = { open: chosen.open === row.id, onopen: () => keep({ open: row.id }) };
  return judged(row.verdict, h("span.statement.id", row.id), note, () => causes(evidence, sides, row), opening);
}

/** Why a point changed: the waterfall of its causes, and both of its sides. */
function causes(evidence, sides, row) {
  const places = sides.map((side) => side?.place.get(row.id));
  const facts = [
    ["change", `${change(row.relative)}, interval ${interval(row)}`],
    ["noise floor", percent(row.floor, 1)],
    ["q", number(row.q)],
    ["runs", row.runs?.join(" and ") ?? "–"],
    ["samples", row.samples?.join(" and ") ?? "–"],
  ];
  const found = row.causes ?? [];
  const steps = found.filter((cause) => cause.delta_us !== null && cause.delta_us !== undefined);
  const rows = found.map((cause) => {
    const told = [cause.what, shown(cause.base), shown(cause.head), signed(cause.delta_us, micro)];
    return [...told, percent(cause.share_of_delta), h("code", cause.evidence ?? "–")];
  });
  const both = () => ({ id: sides.map((side, at) => evidence.reference(side, places[at])) });
  return [
    !places.includes(undefined) && h("p", h("a.button", { href: href("point", both()) }, "Both sides of this point")),
    pairs("dl.facts", facts),
    steps.length > 0 && chart("Waterfall of causes", (width) => waterfall(row, steps, width)),
    rows.length > 0 && table(["cause", "from", "to", ["time"], ["of the change"], "evidence"], rows, "Causes"),
    found.map(({ what, parts, facts: beside }) => [
      within(`Within: ${what}`, ["part", "from", "to", ["time"]], parts, (part) => [signed(part.delta_us, micro)]),
      within(`What differs beside it: ${what}`, ["fact", "from", "to"], beside, () => []),
    ]),
  ];
}

/** Parts or facts of a cause, both sides in their unit. */
function within(title, heads, found, last) {
  const side = (value, unit) => (typeof value === "number" ? quantity(value, unit) : shown(value));
  const rows = found.map((one) => [one.what, side(one.base, one.unit), side(one.head, one.unit), ...last(one)]);
  return rows.length > 0 && folded(title, table(heads, rows, title));
}

function shown(value) {
  return typeof value === "boolean" ? String(value) : number(value);
}

function waterfall(row, steps, width) {
  let from = row.base;
  const bars = [{ what: "base", from: 0, to: row.base }];
  for (const { what, delta_us: us } of [
    ...steps,
    { what: "unexplained", delta_us: row.head - row.base - d3.sum(steps, (one) => one.delta_us) },
  ]) {
    bars.push({ what, from, to: from + us, kind: us > 0 ? "slower" : "faster" });
    from += us;
  }
  bars.push({ what: "head", from: 0, to: row.head });
  const small = narrow(width);
  const most = small ? 20 : 52;
  const label = (at) => (bars[at].what.length > most ? `${bars[at].what.slice(0, most - 1)}…` : bars[at].what);
  const y = (bar) => bars.indexOf(bar);
  const colour = (bar) => COLOURS[bar.kind] ?? "var(--quiet)";
  const text = (bar) => (bar.kind ? signed(bar.to - bar.from, micro) : micro(bar.to));
  return Plot.plot({
    ...base(width, `Waterfall from ${micro(row.base)} to ${micro(row.head)}`),
    height: 40 + 24 * bars.length,
    marginLeft: small ? 140 : 340,
    marginRight: 70,
    x: { label: "µs →", grid: true, ticks: small ? 3 : 7, tickFormat: (value) => number(value) },
    y: { domain: d3.range(bars.length), tickFormat: label, label: null, tickSize: 0 },
    marks: [
      Plot.barX(bars, { y, x1: "from", x2: "to", fill: colour, fillOpacity: 0.55, stroke: colour, insetTop: 3, insetBottom: 3 }),
      Plot.text(bars, { y, x: (bar) => Math.max(bar.from, bar.to), text, textAnchor: "start", dx: 6, fill: "var(--text)" }),
      Plot.ruleX([0]),
    ],
  });
}

function differences(comparison) {
  const axes = comparison.differences.map((one) => [one.axis, shown(one.base), shown(one.head), one.cause ? "yes" : "no"]);
  const failed = comparison.not_compared.map((one) => [h("span.id", one.id), one.base, one.head]);
  const only = { "Points of the base alone": comparison.only_base, "Points of the head alone": comparison.only_head };
  const lists = Object.entries(only).filter(([, list]) => list.length);
  const beside = "What else differs between the captures";
  return [
    tabled(beside, null, ["axis", "base", "head", "can move a kernel's time"], axes),
    tabled("Points that are not compared", "Not right, or not timed, on one side.", ["point", "base", "head"], failed),
    lists.map(([name, list]) => section(name, null, h("ul", ...list.map((one) => h("li.id", one))))),
  ];
}
