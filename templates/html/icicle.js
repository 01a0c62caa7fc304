/** The stall tree as an icicle: what the schedulers did with their cycles, each share as wide as it is large. */

import { box, chart, picture } from "./chart.js";
import { folded, h, table } from "./dom.js";
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
  const note = `Issued and not issued are counted. Below that cycles without an issue are charged to the reasons in proportion to the warps that waited, ${basis}.`;
  const heads = ["reason", "group", ["of cycles"], ["of those without an issue"], ["cycles per instruction"], "a warp waits for"];
  return [
    chart("Stall tree", (width) => draw(tree, groups, about, width)),
    h("p.note", note),
    folded(`All ${rows.length} reasons as a table`, table(heads, rows, "Stall reasons")),
  ];
}

function draw(tree, groups, about, width) {
  const drawn = (level, from, share, text, fill, soft, meaning) => {
    const title = `${text}: ${percent(share, 1)} of cycles${meaning ? `\nwaits for ${meaning}` : ""}`;
    const place = { x: from * width + 0.5, y: level * ROW + 1, width: share * width - 1, height: ROW - 2 };
    return share > LEAST && box(title, [`${text} ${percent(share)}`, text], { fill, soft }, place);
  };
  const boxes = [
    drawn(0, 0, 1, "active scheduler cycles", "var(--line)"),
    drawn(1, 0, tree.issued, "issued", "var(--accent-soft)"),
    drawn(1, tree.issued, 1 - tree.issued, "no instruction issued", "var(--line)"),
  ];
  const sum = (reasons) => d3.sum(reasons, ([, , share]) => share);
  const grouped = d3.group(tree.reasons, ([, group]) => group);
  let from = tree.issued;
  for (const [group, reasons] of d3.sort(grouped, ([, reasons]) => -sum(reasons))) {
    const colour = GROUP_COLOURS[groups.indexOf(group) % GROUP_COLOURS.length];
    boxes.push(drawn(2, from, sum(reasons), group, colour, 0.3));
    for (const [reason, , share] of reasons) {
      boxes.push(drawn(3, from, share, reason, colour, 0.18, about.stalls[reason]));
      from += share;
    }
  }
  const name = `Stall tree: issued ${percent(tree.issued)}, largest reason ${tree.reasons[0]?.[0] ?? "none"}`;
  return picture(name, width, 4 * ROW + 4, boxes.filter(Boolean));
}
