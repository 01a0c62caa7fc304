/** Opportunities: what could be gained, what it rests on, and what NVIDIA's rules say over all points. */

import { block, has } from "./block.js";
import { h, section, table } from "./dom.js";
import { labelOf } from "./evidence.js";
import { number, percent } from "./format.js";
import { href } from "./state.js";

const ADVICE = ["optimization", "warning"];
// Fires for any kernel: it wants memory allocated as compressible, which torch does not do.
const NO_ADVICE = "MemoryL2Compression";

/** Rules of NVIDIA that fired on a target's points: [{rule, points, most: {pct, type, message, id}}]. */
export async function rulesOf(side, target) {
  const detail = await block(`detail ${side.number} ${target.name}`);
  const found = new Map();
  detail.kernels.rules.forEach((rules, row) => {
    for (const [rule, , type, pct, kind, text] of rules) {
      if (!ADVICE.includes(type) || rule === NO_ADVICE) continue;
      const one = found.get(rule) ?? { rule, points: new Set(), most: null };
      one.points.add(detail.kernels.point[row]);
      if (!one.most || (pct ?? 0) > (one.most.pct ?? 0))
        one.most = { pct, kind, message: detail.kernels.texts[text], id: detail.id[detail.kernels.point[row]] };
      found.set(rule, one);
    }
  });
  return d3.sort(found.values(), (one) => -one.points.size);
}

// Groups of the finding in the order in which they stand, with what they are called.
const GROUPS = [
  ["won", "Tried, and faster", "What saved most over its points comes first for each kernel."],
  ["untried", "Not tried", "What can bring most comes first for each kernel."],
  ["lost", "Tried, and not faster", "Where a change does not pay."],
];

/** Opportunities as the finding groups and ranks them: what shows it, the most that it can bring, and what it brought. */
export function opportunities(evidence, side) {
  return GROUPS.map(([group, title, order]) => {
    const rows = side.targets.flatMap((target) =>
      target.opportunities.filter((one) => one.group === group).map((one) => row(evidence, side, target, one)),
    );
    return (
      rows.length > 0 &&
      section(
        title,
        `${order} At most: of the time, as the counters bound it and never more than the roofs leave. It brought: the change of that time with its interval.`,
        table(["change", "what the evidence shows", "how", ["at most"], "measured"], rows, title),
      )
    );
  });
}

function row(evidence, side, target, one) {
  const at = side.place.get(`${target.name}/${one.at}`);
  const point = h("a.id", { href: href("point", { id: evidence.reference(side, at) }) }, one.at);
  const where = ["at ", point, one.more > 0 && ` and ${one.more} more`];
  return [
    [h("b", one.what), one.where && [", where ", h("code", one.where)], h("div.note", target.title)],
    [code(one.shown), ", ", where],
    [code(one.change), h("div.note", "decided at ", h("code", one.source))],
    one.most,
    code(one.brought),
  ];
}

/** Text with what stands between backticks as code. */
function code(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", part) : part));
}

/** The best opportunity of a target as a cell: a finding's where there is one, else the choice that differs most. */
export function best(target) {
  const told = target.opportunities.find((one) => one.group !== "lost");
  if (told) {
    const brought = told.brought.startsWith("not tried") ? `at most −${told.most}` : told.brought.split(/ \(|[,;]/)[0];
    return h("a", { href: href("choices", { at: target.name }) }, `${told.what}: ${brought}`);
  }
  const differing = target.prices.flatMap((choice) =>
    choice.pairs.filter((pair) => pair.verdict === "differs").map((pair) => ({ choice, pair })),
  );
  const price = d3.greatest(differing, ({ pair }) => (pair.metric === "time_cold_us" ? 1 : 0) + Math.abs(Math.log1p(pair.change)) / 100);
  if (!price) return "–";
  const [from, to] = price.pair.change < 0 ? price.choice.called : [...price.choice.called].reverse();
  const gain = price.pair.change < 0 ? -price.pair.change : price.pair.change / (1 + price.pair.change);
  return h(
    "a",
    { href: href("choices", { at: target.name }) },
    `${to} for ${from}: −${percent(gain)}${price.pair.metric === "time_cold_us" ? "" : ` of ${labelOf(price.pair.metric)}`}`,
  );
}

/** The view of NVIDIA's rules, a table per kernel. */
export async function rulesSection(side) {
  const tables = await Promise.all(
    side.targets
      .filter((target) => has(`detail ${side.number} ${target.name}`))
      .map(async (target) => [target, await rulesOf(side, target)]),
  );
  const rows = tables.flatMap(([target, found]) =>
    found.map(({ rule, points, most }) => [
      target.title,
      h("code", rule),
      `${points.size} of ${target.total}`,
      most.pct === null ? "–" : `${number(most.pct)} % (${most.kind ?? "scope not stated"})`,
      h("a.id", { href: href("point", { id: side.number ? `${side.number}~${most.id}` : most.id }) }, most.id.split("/")[1]),
      h("details", h("summary", most.message.slice(0, 90)), most.message),
    ]),
  );
  return section(
    "NVIDIA's rules over all points",
    "Estimates are NVIDIA's: of the whole kernel (global) or of the part that a rule looks at (local). They do not add up, and none can exceed the room under the roof.",
    table(["kernel", "rule", ["points"], ["largest estimate"], "at", "what it says there"], rows, "NVIDIA's rules"),
  );
}
