/** Choices and opportunities: what could be gained and what it rests on, what each choice costs, what NVIDIA's rules say. */

import { changes, chart } from "./chart.js";
import { coded, folded, h, section, table, tabled } from "./dom.js";
import { change, inColumn, interval, number, percent } from "./format.js";
import { href } from "./state.js";

const NOTE =
  "Each row is a pair of points that differ in this choice alone. The line is the interval of the change, the bar the noise floor; a filled mark is a change beyond it.";

export function choices(evidence) {
  const side = evidence.side;
  const priced = side.targets.filter((target) => target.prices.length);
  return [
    opportunities(evidence, side),
    priced.length ? null : h("p.empty", "Not in this evidence: pairs of points that differ in one choice."),
    priced.map(({ title, prices }) => section(`Choices: ${title}`, NOTE, ...prices.map((choice) => choiceOf(evidence, side, choice)))),
    rulesSection(evidence, side),
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
  const rows = pairs.map((pair) => ({ ...pair, text: label(pair), kind: kindOf(pair) }));
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

function kindOf({ change: found, verdict }) {
  return verdict === "differs" ? (found < 0 ? "faster" : "slower") : verdict;
}

// Groups of the finding in the order in which they stand, with what they are called.
const GROUPS = [
  ["won", "Tried, and faster", "What saved most over its points comes first for each kernel."],
  ["untried", "Not tried", "What can bring most comes first for each kernel."],
  ["lost", "Tried, and not faster", "Where a change does not pay."],
];

const AT_MOST =
  "At most: of the time, as a mechanism bounds it whose condition holds there; a dash where nothing but the roofs does. It brought: the change of that time with its interval.";

/** Opportunities as the finding groups and ranks them: what shows it, the most that it can bring, and what it brought. */
function opportunities(evidence, side) {
  const all = side.targets.flatMap((target) => target.opportunities.map((one) => ({ target, one })));
  return GROUPS.map(([group, title, order]) => {
    const rows = all.filter(({ one }) => one.group === group).map(({ target, one }) => row(evidence, side, target, one));
    return tabled(title, `${order} ${AT_MOST}`, ["change", "what the evidence shows", "how", ["at most"], "measured"], rows);
  });
}

function row(evidence, side, target, one) {
  const point = evidence.link(side, `${target.name}/${one.at}`, one.at);
  return [
    [
      h("b", one.what),
      one.where && [", where ", h("code", one.where)],
      one.sets && [", only with ", h("code", one.sets)],
      h("div.note", target.title),
    ],
    [coded(one.shown), ", at ", point, one.more > 0 && ` and ${one.more} more`],
    [coded(one.change), one.source && h("div.note", "source location ", h("code", one.source))],
    one.most,
    coded(one.brought),
  ];
}

/** The best opportunity of a target as a cell: a finding's where there is one, else the choice that differs most. */
export function best(target) {
  const told = target.opportunities.find((one) => one.group !== "lost");
  const bound = told?.most === "–" ? "not tried" : `at most −${told?.most}`;
  const brought = told?.brought.startsWith("not tried") ? bound : told?.brought.split(/ \(|[,;]/)[0];
  const text = told ? `${told.what}: ${brought}` : bestChoice(target);
  return text ? h("a", { href: href("choices", { at: target.name }) }, text) : "–";
}

/** The choice that differs most in its time, in words; null where none differs. */
function bestChoice(target) {
  const all = target.prices.flatMap(({ called, pairs }) => pairs.map((pair) => ({ called, ...pair })));
  const differing = all.filter((pair) => pair.verdict === "differs");
  const cold = ({ metric }) => metric === "time_cold_us";
  const found = d3.greatest(differing, (pair) => Number(cold(pair)) + Math.abs(Math.log1p(pair.change)) / 100);
  if (!found) return null;
  const [from, to] = found.change < 0 ? found.called : [...found.called].reverse();
  const gain = found.change < 0 ? -found.change : found.change / (1 + found.change);
  return `${to} for ${from}: −${percent(gain)}${cold(found) ? "" : ` of ${found.label}`}`;
}

const ESTIMATES =
  "Estimates are NVIDIA's: of the whole kernel (global) or of the part that a rule looks at (local). They do not add up, and none can exceed the headroom under the roofline.";

/** NVIDIA's rules that fired, a row for each of a kernel. */
function rulesSection(evidence, side) {
  const rows = side.targets.flatMap((target) => target.rules.map((one) => ruleRow(evidence, side, target, one)));
  const heads = ["kernel", "rule", ["points"], ["largest estimate"], "at", "what it says there"];
  return section("NVIDIA's rules over all points", ESTIMATES, table(heads, rows, "NVIDIA's rules"));
}

function ruleRow(evidence, side, target, { rule, points, pct, kind, id, message }) {
  const estimate = pct === null ? "–" : `${number(pct)} % (${kind ?? "scope not stated"})`;
  const at = evidence.link(side, id, id.split("/")[1]);
  return [target.title, h("code", rule), `${points} of ${target.total}`, estimate, at, folded(message.slice(0, 90), message)];
}
