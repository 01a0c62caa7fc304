/** Overview: a row per kernel, and the roofline of all points. */

import { best } from "./choices.js";
import { breakable, framed, h, section, warned } from "./dom.js";
import { number, percent } from "./format.js";
import { roofline } from "./roofline.js";
import { limitedBy, limiterSigns, targetSigns } from "./signs.js";
import { spark, sweeps } from "./spark.js";
import { go, href } from "./state.js";

export function overview(evidence, params) {
  const side = evidence.side;
  return [
    Object.entries(side.stopped ?? {}).map(([name, reason]) => h("p.warning", `${name} is left out: ${reason}`)),
    warned(
      side.warnings.map(({ text }) => text),
      side.warnings.map(({ report, text }) => [h("code", report), ` ${text}`]),
    ),
    section("Kernels", null, kernels(evidence, side)),
    section(
      "Roofline",
      "Each mark is a point: work that the GPU counted over the traffic that it counted. On a slanted roof memory is the limit, under a flat one arithmetic; below both, something else. Hover a mark for its limiter and distance, press it to open the point.",
      roofline(side, params),
    ),
  ];
}

const HEADS = [
  ["points", "number"],
  ["highest rate", "number strong"],
  ["of measured peak", "number"],
  ["at"],
  ["limited by"],
  ["along its sweep"],
  ["limits of its points"],
  ["best opportunity", "opportunity"],
];

function kernels(evidence, side) {
  const [signs, kinds] = [limiterSigns(side.points.limiter), targetSigns(side)];
  const heads = [["kernel"], ...HEADS].map(([head, kind]) => h("th", { scope: "col", class: kind }, head));
  const rows = side.targets.map((target) => row(evidence, side, target, signs, kinds));
  return framed(h("table.plain.overview", h("thead", h("tr", heads)), h("tbody", rows)), "Kernels");
}

function row(evidence, side, target, signs, kinds) {
  const { rate, unit, fraction } = side.rateOf(target.name);
  const places = side.good().filter((place) => side.points.target[place] === target.name);
  const at = target.best === null ? undefined : side.place.get(target.best);
  const q = `target=${target.name}`;
  const ofBest = (shown) => (at === undefined ? "–" : shown());
  const cells = [
    target.good === target.total ? target.good : `${target.good} of ${target.total}`,
    ofBest(() => `${number(side.value(rate, at))} ${unit}`),
    target.passed ? `above ${target.passed}` : ofBest(() => meter(side.value(fraction, at))),
    ofBest(() => evidence.link(side, target.best, breakable(side.short(at)))),
    ofBest(() => limitedBy(side, at, signs)),
    spark(`${unit} over ${target.axis}`, sweeps(side, places, target.axis, rate)) ?? "–",
    shares(side, target, places, signs),
    best(target),
  ];
  const onclick = (event) => event.target.closest("a, button") || go("points", { q });
  return h(
    "tr",
    { "data-target": target.name, onclick },
    h("th", { scope: "row" }, kinds.mark(target.name), h("a", { href: href("points", { q }) }, target.title)),
    // On a telephone a row is a card, in which each value has its head beside it.
    cells.map((cell, place) => h("td", { class: HEADS[place][1], "data-head": HEADS[place][0] }, h("div", cell))),
  );
}

function meter(share) {
  if (share === null) return "–";
  const fill = h("span.fill", { style: `width:${Math.min(100, 100 * share)}%` });
  return h("span.meter", h("span.track", fill), percent(share));
}

const VERDICTS = 4; // of a row: the rest is a press away

/** How many points have each verdict, with the sign of its limiter. */
function shares(side, target, places, signs) {
  const groups = [...d3.group(places, (at) => side.points.limits[at])];
  const found = d3.sort(groups, ([, those]) => -those.length);
  const more = found.length - VERDICTS;
  const said = found.slice(0, VERDICTS).map(([words, those]) => {
    return h("li", signs.mark(side.points.limiter[those[0]] ?? "unknown"), `${those.length} ${words}`);
  });
  const all = href("points", { q: `target=${target.name}`, by: "limits" });
  return h("ul.shares", said, more > 0 && h("li", h("a", { href: all }, `${more} more`)));
}
