/** Compare: what changed between captures, by how much and why, the changed points first. */

import { block, has } from "./block.js";
import { base, chart, narrow } from "./chart.js";
import { append, fill, h, picker, section, table } from "./dom.js";
import { change, interval, micro, number, percent, quantity } from "./format.js";
import { href, keep } from "./state.js";

const ORDER = ["slower", "faster", "not tested", "too noisy to tell", "same", "not judged"];
const SIGNS = { slower: "▲", faster: "▼", same: "=", "too noisy to tell": "≈", "not tested": "?" };

export async function compare(evidence, params) {
  if (!has("compare")) return h("p.empty", "This file holds one capture.");
  const all = await block("compare");
  const chosen = {
    pair: Number(params.get("pair") ?? 0) || 0,
    metric: params.get("metric") ?? "cold_us",
    verdict: params.get("verdict"),
    q: params.get("q") ?? "",
    open: params.get("open"),
  };
  const body = h("div");
  const show = () => fill(body, pairView(evidence, all[chosen.pair] ?? all[0], chosen, update));
  const update = (patch) => {
    Object.assign(chosen, patch);
    keep(patch);
    show();
  };
  show();
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    value: chosen.q,
    placeholder: "filter the points",
    "aria-label": "Filter points",
    oninput: () => update({ q: filter.value }),
  });
  const metrics = [...new Set(all.flatMap((one) => one.points.flatMap((found) => Object.keys(found.metrics ?? {}))))];
  return [
    h(
      "div.controls",
      filter,
      picker(
        "Captures",
        all.map((one, at) => [String(at), `${one.base.name} → ${one.head.name}`]),
        String(chosen.pair),
        (pair) => update({ pair: Number(pair), open: null }),
      ),
      metrics.length > 1 &&
        picker(
          "Time",
          metrics.map((name) => [name, name.replace(/_us$/, "")]),
          chosen.metric,
          (metric) => update({ metric }),
        ),
    ),
    body,
  ];
}

function ofMetric(found, metric) {
  return { id: found.id, target: found.target, ...(found.metrics?.[metric] ?? (metric === found.metric ? found : {})) };
}

function pairView(evidence, comparison, chosen, update) {
  const all = comparison.points.map((found) => ofMetric(found, chosen.metric)).filter((row) => row.verdict);
  const counts = d3.rollup(
    all,
    (found) => found.length,
    (row) => row.verdict,
  );
  const verdicts = d3.sort(counts.keys(), (verdict) => ORDER.indexOf(verdict));
  const rows = d3.sort(
    all.filter((row) => (!chosen.verdict || row.verdict === chosen.verdict) && row.id.toLowerCase().includes(chosen.q.toLowerCase())),
    (a, b) =>
      d3.ascending(ORDER.indexOf(a.verdict), ORDER.indexOf(b.verdict)) ||
      d3.descending(Math.abs(a.relative ?? 0), Math.abs(b.relative ?? 0)),
  );
  const sides = [comparison.base.name, comparison.head.name].map((name) => evidence.sides.find((side) => side.name === name));
  return [
    h(
      "div.facets",
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
            h("span.count", counts.get(verdict)),
          ),
        ),
      ),
    ),
    section(
      "Changes",
      `From ${comparison.base.name} to ${comparison.head.name}. The line is the interval of the change, the bar the noise floor. ${(comparison.statistics?.notes ?? []).join(" ")}`,
      rows.length ? chart("Changes", (width) => draw(rows, width)) : h("p.empty", "No point is left by the filter."),
    ),
    section(
      "Points",
      null,
      h(
        "ul.claims",
        rows.map((row) => pointOf(evidence, sides, row, chosen)),
      ),
    ),
    differences(comparison),
  ];
}

function verdictSign(verdict) {
  return h("span", { class: `verdict ${verdict.split(" ")[0]}`, "aria-hidden": "true" }, SIGNS[verdict] ?? "·");
}

function draw(rows, width) {
  const small = narrow(width);
  const at = (row) => row.id;
  const colour = (row) => ({ slower: "var(--c1)", faster: "var(--c2)" })[row.verdict] ?? "var(--quiet)";
  const intervals = rows.filter((row) => row.low !== null);
  const text = (id) => (small ? `…${id.slice(-18)}` : id);
  return Plot.plot({
    ...base(width, "Change of each point with its interval"),
    height: 44 + 19 * rows.length,
    marginLeft: small ? 126 : Math.min(400, 16 + 6.8 * d3.max(rows, (row) => row.id.length)),
    marginRight: 64,
    marginTop: 4,
    x: { label: "change →", tickFormat: (value) => change(value, 0), grid: true, nice: true, ticks: small ? 3 : 8 },
    y: { domain: rows.map(at), tickFormat: text, label: null, tickSize: 0 },
    marks: [
      Plot.barX(
        rows.filter((row) => row.floor),
        { y: at, x1: (row) => -row.floor, x2: (row) => row.floor, fill: "var(--line)", insetTop: 5, insetBottom: 5 },
      ),
      Plot.ruleX([0], { stroke: "var(--quiet)" }),
      Plot.ruleY(intervals, { y: at, x1: "low", x2: "high", stroke: colour, strokeWidth: 2 }),
      Plot.dot(
        rows.filter((row) => row.relative !== null),
        {
          y: at,
          x: "relative",
          r: 4,
          stroke: colour,
          fill: (row) => (ORDER.indexOf(row.verdict) < 2 ? colour(row) : "var(--panel)"),
          symbol: (row) => ({ slower: "triangle", faster: "diamond2" })[row.verdict] ?? "circle",
        },
      ),
      Plot.text(
        rows.filter((row) => row.relative !== null),
        {
          y: at,
          x: (row) => Math.max(0, row.relative, row.high ?? 0),
          text: (row) => change(row.relative),
          textAnchor: "start",
          dx: 8,
          fill: "var(--text)",
        },
      ),
    ],
  });
}

function pointOf(evidence, sides, row, chosen) {
  const summary = h(
    "summary",
    verdictSign(row.verdict),
    h("span.statement.id", row.id),
    h("span.note", `${micro(row.base)} → ${micro(row.head)} · ${change(row.relative)} · ${row.verdict}`),
  );
  const details = h("details", { open: chosen.open === row.id }, summary);
  const made = () => details.childElementCount === 1 && append(details, causes(evidence, sides, row));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    made();
    keep({ open: row.id });
  });
  if (details.open) made();
  return h("li", details);
}

/** Why a point changed: the waterfall of its causes, and both of its sides. */
function causes(evidence, sides, row) {
  const places = sides.map((side) => side?.place.get(row.id));
  const both = sides.every((side, at) => side && places[at] !== undefined);
  const facts = [
    ["change", `${change(row.relative)}, interval ${interval(row)}`],
    ["noise floor", percent(row.floor, 1)],
    ["q", number(row.q ?? null)],
    ["runs", row.runs?.join(" and ") ?? "–"],
    ["samples", row.samples?.join(" and ") ?? "–"],
  ];
  const steps = (row.causes ?? []).filter((cause) => cause.delta_us !== null && cause.delta_us !== undefined);
  return [
    both &&
      h(
        "p",
        h(
          "a.button",
          { href: href("point", { id: sides.map((side, at) => evidence.reference(side, places[at])) }) },
          "Both sides of this point",
        ),
      ),
    h(
      "dl.facts",
      facts.map(([name, what]) => [h("dt", name), h("dd", what)]),
    ),
    steps.length > 0 && chart("Waterfall of causes", (width) => waterfall(row, steps, width)),
    (row.causes ?? []).length > 0 &&
      table(
        ["cause", "from", "to", ["time"], ["of the change"], "evidence"],
        row.causes.map((cause) => [
          cause.what,
          shown(cause.base),
          shown(cause.head),
          signed(cause.delta_us),
          percent(cause.share_of_delta ?? null),
          h("code", cause.evidence ?? "–"),
        ]),
        "Causes",
      ),
    (row.causes ?? []).flatMap((cause) => [
      within(`Within: ${cause.what}`, ["part", "from", "to", ["time"]], cause.parts, (part) => signed(part.delta_us)),
      within(`What differs beside it: ${cause.what}`, ["fact", "from", "to"], cause.facts),
    ]),
  ];
}

/** Parts or facts of a cause, both sides in their unit. */
function within(title, heads, found, last) {
  const side = (value, unit) => (typeof value === "number" ? quantity(value, unit) : shown(value));
  return (
    found.length > 0 &&
    h(
      "details",
      h("summary", title),
      table(
        heads,
        found.map((one) => [one.what, side(one.base, one.unit), side(one.head, one.unit), ...(last ? [last(one)] : [])]),
        title,
      ),
    )
  );
}

function shown(value) {
  return value === null || value === undefined ? "–" : typeof value === "number" ? number(value) : String(value);
}

function signed(us) {
  return us === null || us === undefined ? "–" : `${us > 0 ? "+" : us < 0 ? "−" : ""}${micro(Math.abs(us))}`;
}

function waterfall(row, steps, width) {
  let from = row.base;
  const bars = [{ what: "base", from: 0, to: row.base, kind: "total" }];
  for (const step of steps) {
    bars.push({ what: step.what, from, to: from + step.delta_us, kind: step.delta_us > 0 ? "slower" : "faster" });
    from += step.delta_us;
  }
  const rest = row.head - from;
  bars.push({ what: "unexplained", from, to: from + rest, kind: rest > 0 ? "slower" : "faster" });
  bars.push({ what: "head", from: 0, to: row.head, kind: "total" });
  const small = narrow(width);
  const label = (at) => (bars[at].what.length > (small ? 20 : 52) ? `${bars[at].what.slice(0, small ? 19 : 51)}…` : bars[at].what);
  const at = (bar) => bars.indexOf(bar);
  const colour = { total: "var(--quiet)", slower: "var(--c1)", faster: "var(--c2)" };
  return Plot.plot({
    ...base(width, `Waterfall from ${micro(row.base)} to ${micro(row.head)}`),
    height: 40 + 24 * bars.length,
    marginLeft: small ? 140 : 340,
    marginRight: 70,
    x: { label: "µs →", grid: true, ticks: small ? 3 : 7 },
    y: { domain: d3.range(bars.length), tickFormat: label, label: null, tickSize: 0 },
    marks: [
      Plot.barX(bars, {
        y: at,
        x1: "from",
        x2: "to",
        fill: (bar) => colour[bar.kind],
        fillOpacity: 0.55,
        stroke: (bar) => colour[bar.kind],
        insetTop: 3,
        insetBottom: 3,
      }),
      Plot.text(bars, {
        y: at,
        x: (bar) => Math.max(bar.from, bar.to),
        text: (bar) => (bar.kind === "total" ? micro(bar.to) : signed(bar.to - bar.from)),
        textAnchor: "start",
        dx: 6,
        fill: "var(--text)",
      }),
      Plot.ruleX([0]),
    ],
  });
}

function differences(comparison) {
  const found = comparison.differences ?? [];
  const only = [
    ["Points of the base alone", comparison.only_base],
    ["Points of the head alone", comparison.only_head],
  ].filter(([, list]) => list.length);
  const failed = comparison.not_compared;
  return [
    found.length > 0 &&
      section(
        "What else differs between the captures",
        null,
        table(
          ["axis", "base", "head", "can move a kernel's time"],
          found.map((one) => [one.axis, shown(one.base), shown(one.head), one.cause ? "yes" : "no"]),
          "Differences",
        ),
      ),
    failed.length > 0 &&
      section(
        "Points that are not compared",
        "Not right, or not timed, on one side.",
        table(
          ["point", "base", "head"],
          failed.map((one) => [h("span.id", one.id), one.base, one.head]),
          "Not compared",
        ),
      ),
    only.map(([name, list]) =>
      section(
        name,
        null,
        h(
          "ul",
          list.map((one) => h("li.id", one)),
        ),
      ),
    ),
  ];
}
