/** Choices and opportunities: what each choice costs at every pair of points that prices it. */

import { changes, chart } from "./chart.js";
import { folded, h, section, table } from "./dom.js";
import { change, inColumn, interval, number, percent } from "./format.js";
import { opportunities, rulesSection } from "./opportunities.js";
import { href } from "./state.js";

const NOTE =
  "Each row is a pair of points that differ in this choice alone. The line is the interval of the change, the bar the noise floor; a filled mark is a change beyond it.";

export async function choices(evidence) {
  const side = evidence.side;
  const priced = side.targets.filter((target) => target.prices.length);
  return [
    opportunities(evidence, side),
    priced.length ? null : h("p.empty", "Not in this evidence: pairs of points that differ in one choice."),
    priced.map(({ title, prices }) => section(`Choices: ${title}`, NOTE, ...prices.map((choice) => choiceOf(evidence, side, choice)))),
    await rulesSection(evidence, side),
  ];
}

const HEADS = [["change"], ["interval, with the floor"], ["noise floor"], ["p, of the launches alone"], "verdict"];

function choiceOf(evidence, side, { title, called, pairs }) {
  const label = labels(pairs);
  const differ = pairs.filter((pair) => pair.verdict === "differs").length;
  const [first, second] = ["base", "other"].map((name) =>
    inColumn(
      d3.map(pairs, (pair) => pair[name]),
      "µs",
    ),
  );
  const cells = pairs.map((pair) => {
    const id = [pair.base_point, pair.other_point].map((one) => evidence.named(side, one));
    const p = pair.p !== null && pair.p < 0.001 ? "< 0.001" : number(pair.p);
    const figures = [first(pair.base), second(pair.other), change(pair.change), interval(pair), percent(pair.floor, 1)];
    return [h("a", { href: href("point", { id }) }, label(pair)), ...figures, p, pair.verdict];
  });
  const heads = ["pair", ...called.map((name) => [`${name}, µs`]), ...HEADS];
  const rows = pairs.map((pair) => drawnRow(pair, label(pair)));
  const [name, axis] = [`${title}: change from ${called[0]} to ${called[1]}`, `change of the time, ${called[1]} against ${called[0]} →`];
  return h(
    "div.choice",
    h("h3", title, h("span.note", ` ${called[0]} → ${called[1]}; ${differ} of ${pairs.length} differ`)),
    chart(`Price of ${title}`, (width) => changes(rows, width, name, axis)),
    folded("As a table", table(heads, cells, title)),
  );
}

/** What tells a pair from the others: parameters, and the time, that are not the same in all. */
function labels(pairs) {
  const several = (value) => new Set(pairs.map(value)).size > 1;
  const varied = [...new Set(pairs.flatMap((pair) => Object.keys(pair.fixed)))].filter((name) => several((pair) => pair.fixed[name]));
  const timed = several((pair) => pair.metric);
  return ({ fixed, metric }) => {
    const own = varied.map((name) => `${name} ${fixed[name] ?? "–"}`).join(", ") || "the only pair";
    return timed ? `${own}, ${metric.replace(/^time_|_us$/g, "").replaceAll("_", " ")}` : own;
  };
}

function drawnRow({ change: found, low, high, floor, verdict }, text) {
  const filled = verdict === "differs";
  const colour = filled ? (found < 0 ? "var(--c2)" : "var(--c1)") : "var(--quiet)";
  return { text, change: found, low, high, floor, filled, colour, symbol: filled ? "circle" : "diamond2" };
}
