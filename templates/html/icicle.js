/** The stall tree as an icicle: what the schedulers did with their cycles, each share as wide as it is large. */

import { chart, narrow } from "./chart.js";
import { h, s, table } from "./dom.js";
import { number, percent } from "./format.js";

const ROW = 30;
const GROUP_COLOURS = ["var(--c0)", "var(--c4)", "var(--c2)", "var(--c3)", "var(--c5)", "var(--c6)"];
const LEAST = 0.004; // of the width: a narrower box is not drawn, the table has it

/** tree and stalls: of a kernel, as the detail block has them; about: main block, for groups and meanings. */
export function icicle(tree, about, stalls) {
  if (!tree) return h("p.empty", "Not in this evidence: issue activity and warp states of this kernel.");
  const groups = [...new Set(Object.values(about.groups)), "other"];
  const basis = tree.basis === "samples" ? `by ${tree.samples} samples taken while nothing issued` : "by counted stall cycles";
  const charged = new Map(tree.reasons.map(([reason, ...rest]) => [reason, rest]));
  const counted = new Map(stalls.map(([reason, , ratio]) => [reason, ratio]));
  // What the tree charges first, the largest first; then what was counted beside it.
  const rows = [...new Set([...charged.keys(), ...counted.keys()])].map((reason) => {
    const [group, share, ofStalls, error = null] = charged.get(reason) ?? ["–", null, null];
    return [
      reason,
      group,
      percent(share, 1),
      percent(ofStalls, 1) + (error === null ? "" : ` ± ${percent(error, 1)}`),
      number(counted.get(reason)),
      about.stalls[reason] ?? "–",
    ];
  });
  return [
    chart("Stall tree", (width) => draw(tree, groups, about, width)),
    h(
      "p.note",
      `Issued and not issued are counted. Below that cycles without an issue are charged to the reasons in proportion to the warps that waited, ${basis}.`,
    ),
    h(
      "details",
      h("summary", `All ${rows.length} reasons as a table`),
      table(
        ["reason", "group", ["of cycles"], ["of those without an issue"], ["cycles per instruction"], "a warp waits for"],
        rows,
        "Stall reasons",
      ),
    ),
  ];
}

function draw(tree, groups, about, width) {
  const sums = d3.rollup(
    tree.reasons,
    (found) => d3.sum(found, (one) => one[2]),
    (one) => one[1],
  );
  const boxes = [
    { level: 0, from: 0, share: 1, text: "active scheduler cycles", fill: "var(--line)" },
    { level: 1, from: 0, share: tree.issued, text: "issued", fill: "var(--accent-soft)" },
    { level: 1, from: tree.issued, share: 1 - tree.issued, text: "no instruction issued", fill: "var(--line)" },
  ];
  let from = tree.issued;
  for (const [group, share] of d3.sort(sums, ([, sum]) => -sum)) {
    const colour = GROUP_COLOURS[groups.indexOf(group) % GROUP_COLOURS.length];
    boxes.push({ level: 2, from, share, text: group, fill: colour, soft: 0.3 });
    let within = from;
    for (const [reason, , part] of tree.reasons.filter((one) => one[1] === group)) {
      boxes.push({ level: 3, from: within, share: part, text: reason, fill: colour, soft: 0.18, title: about.stalls[reason] });
      within += part;
    }
    from += share;
  }
  const height = 4 * ROW + 4;
  return s(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `Stall tree: issued ${percent(tree.issued)}, largest reason ${tree.reasons[0]?.[0] ?? "none"}`,
    },
    boxes.filter((box) => box.share > LEAST).map((box) => boxOf(box, width)),
  );
}

function boxOf({ level, from, share, text, fill, soft, title }, width) {
  const [x, wide] = [from * width, share * width];
  const room = Math.floor((wide - 10) / (narrow(width) ? 6.4 : 6.6));
  const label = `${text} ${percent(share)}`;
  const shown = label.length <= room ? label : text.length <= room ? text : room > 5 ? `${text.slice(0, room - 1)}…` : "";
  return s(
    "g.box",
    s("title", `${text}: ${percent(share, 1)} of cycles${title ? `\nwaits for ${title}` : ""}`),
    s("rect", {
      x: x + 0.5,
      y: level * ROW + 1,
      width: Math.max(1, wide - 1),
      height: ROW - 2,
      rx: 3,
      style: `fill:${fill};fill-opacity:${soft ?? 1};stroke:${fill}`,
    }),
    shown && s("text", { x: x + 6, y: level * ROW + ROW / 2 + 4 }, shown),
  );
}
