/** Choices and opportunities: what each choice costs at every pair of points that prices it. */

import { base, chart, narrow } from "./chart.js";
import { h, section, table } from "./dom.js";
import { change, inColumn, interval, number, percent } from "./format.js";
import { opportunities, rulesSection } from "./opportunities.js";
import { href } from "./state.js";

export async function choices(evidence) {
  const side = evidence.side;
  const priced = side.targets.filter((target) => target.prices.length);
  return [
    opportunities(evidence, side),
    priced.length ? null : h("p.empty", "Not in this evidence: pairs of points that differ in one choice."),
    priced.map((target) =>
      section(
        `Choices: ${target.title}`,
        "Each row is a pair of points that differ in this choice alone. The line is the interval of the change, the bar the noise floor; a filled mark is a change beyond it.",
        target.prices.map((choice) => choiceOf(evidence, side, choice)),
      ),
    ),
    await rulesSection(side),
  ];
}

function choiceOf(evidence, side, choice) {
  const varied = variedIn(choice.pairs);
  const rows = choice.pairs.map((pair) => ({ ...pair, label: labelOf(pair, varied, choice) }));
  const differ = rows.filter((pair) => pair.verdict === "differs").length;
  const [first, second] = ["base", "other"].map((side) =>
    inColumn(
      rows.map((pair) => pair[side]),
      "µs",
    ),
  );
  const cells = rows.map((pair) => [
    h(
      "a",
      {
        href: href("point", {
          id: [pair.base_point, pair.other_point].map((id) => (evidence.sides.length > 1 ? `${side.number}~${id}` : id)),
        }),
      },
      pair.label,
    ),
    first(pair.base),
    second(pair.other),
    change(pair.change),
    interval(pair),
    percent(pair.floor, 1),
    pair.p === null ? "–" : pair.p < 0.001 ? "< 0.001" : number(pair.p),
    pair.verdict,
  ]);
  return h(
    "div.choice",
    h("h3", choice.title, h("span.note", ` ${choice.called[0]} → ${choice.called[1]}; ${differ} of ${rows.length} differ`)),
    chart(`Price of ${choice.title}`, (width) => draw(choice, rows, width)),
    h(
      "details",
      h("summary", "As a table"),
      table(
        [
          "pair",
          ...choice.called.map((name) => [`${name}, µs`]),
          ["change"],
          ["interval, with the floor"],
          ["noise floor"],
          ["p, of the launches alone"],
          "verdict",
        ],
        cells,
        choice.title,
      ),
    ),
  );
}

/** Parameters that are not the same in all pairs. */
function variedIn(pairs) {
  const names = [...new Set(pairs.flatMap((pair) => Object.keys(pair.fixed)))];
  return names.filter((name) => new Set(pairs.map((pair) => pair.fixed[name])).size > 1);
}

function labelOf(pair, varied, choice) {
  const metric =
    new Set(choice.pairs.map((one) => one.metric)).size > 1 ? `, ${pair.metric.replace(/^time_|_us$/g, "").replaceAll("_", " ")}` : "";
  return (varied.map((name) => `${name} ${pair.fixed[name] ?? "–"}`).join(", ") || "the only pair") + metric;
}

function draw(choice, rows, width) {
  const small = narrow(width);
  const most = small ? 24 : Math.max(40, Math.round(width / 15));
  const text = (at) => (rows[at].label.length > most ? `…${rows[at].label.slice(1 - most)}` : rows[at].label);
  const floor = rows.filter((row) => row.floor !== null);
  const at = (row) => String(rows.indexOf(row));
  const sign = (row) => (row.verdict === "differs" ? (row.change < 0 ? "var(--c2)" : "var(--c1)") : "var(--quiet)");
  return Plot.plot({
    ...base(width, `${choice.title}: change from ${choice.called[0]} to ${choice.called[1]}`),
    height: 44 + 20 * rows.length,
    marginLeft: small
      ? 150
      : 16 +
        6 *
          Math.min(
            most,
            d3.max(rows, (row) => row.label.length),
          ),
    marginRight: 62,
    marginTop: 4,
    x: {
      label: `change of the time, ${choice.called[1]} against ${choice.called[0]} →`,
      tickFormat: (v) => change(v, 0),
      grid: true,
      ticks: small ? 2 : 8,
      nice: true,
    },
    y: { domain: rows.map(at), tickFormat: (d) => text(Number(d)), label: null, tickSize: 0 },
    marks: [
      Plot.barX(floor, { y: at, x1: (row) => -row.floor, x2: (row) => row.floor, fill: "var(--line)", insetTop: 5, insetBottom: 5 }),
      Plot.ruleX([0], { stroke: "var(--quiet)" }),
      Plot.ruleY(rows, { y: at, x1: 0, x2: "change", stroke: sign, strokeOpacity: 0.35 }),
      Plot.ruleY(
        rows.filter((row) => row.low !== null),
        { y: at, x1: "low", x2: "high", stroke: sign, strokeWidth: 2 },
      ),
      Plot.dot(rows, {
        y: at,
        x: "change",
        r: 4.5,
        stroke: sign,
        fill: (row) => (row.verdict === "differs" ? sign(row) : "var(--panel)"),
        symbol: (row) => (row.verdict === "differs" ? "circle" : "diamond2"),
      }),
      Plot.text(rows, {
        y: at,
        x: (row) => Math.max(0, row.high ?? row.change),
        text: (row) => change(row.change),
        textAnchor: "start",
        dx: 9,
        fill: "var(--text)",
      }),
    ],
  });
}
