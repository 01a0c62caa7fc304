/** The source of a kernel in two reports, line by line: what each line's share of the samples was, and is. */

import { block } from "./block.js";
import { fill, h, picker, section, table } from "./dom.js";
import { number, signed } from "./format.js";
import { Grid, toRow } from "./grid.js";
import { byKey, codeColumn, rowsOf, samplesOf } from "./instructions.js";

const MOST_CELLS = 4e6; // of the table by which lines are matched: 2 000 by 2 000 lines that differ
const MOST_OPCODES = 24;

/** places: [{r, k}, {r, k}], the baseline first. */
export async function sources(main, places) {
  const found = await Promise.all(places.map(({ r, k }) => block(`code ${r} ${k}`)));
  const names = places.map(({ r }) => main.reports[r].file);
  const title = "Source side by side";
  const without = names.filter((_, at) => !found[at]);
  if (without.length) return section(title, null, h("p.empty", `No instructions of this kernel in this file: ${without.join(", ")}.`));
  const sides = found.map((one) => ({ found: one, rows: rowsOf(one, (at) => ({ executed: one.executed[at] })) }));
  for (const side of sides) side.total = samplesOf(side.rows);
  const body = h("div");
  const files = shared(...sides);
  const show = (at) => fill(body, lines(sides, files[at]));
  if (files.length) show(0);
  const samples = sides.map(({ total }, at) => `${number(total)} in ${names[at]}`).join(", ");
  const note = `Per cent of each report's own samples of this kernel: ${samples}. A sample says where a warp stood, so a line that gained may wait for what another causes.`;
  const choices = files.map(({ name }, at) => [String(at), name]);
  const choice =
    files.length > 0 &&
    h(
      "div.controls",
      picker("File", choices, "0", (at) => show(Number(at))),
    );
  return section(title, note, choice, body, h("h3", "Instructions, by opcode"), opcodes(sides, names));
}

/** How many last parts of two paths are the same. */
function alike(a, b) {
  let same = 0;
  while (same < Math.min(a.length, b.length) && a[same] === b[same]) same += 1;
  return same;
}

/** The files that both have lines of, by the ends of their names, the most sampled of the baseline first. */
function shared(base, head) {
  const files = ({ rows, found }) => {
    const lined = rows.filter((row) => row.file !== null && row.line);
    return byKey(lined, (row) => row.file).map(({ name }) => ({ at: name, parts: found.files[name].split(/[/\\]/).reverse() }));
  };
  const [ours, theirs] = [files(base), files(head)];
  const pairs = ours.map(({ at, parts }) => {
    const other = d3.greatest(theirs, (one) => alike(parts, one.parts));
    return { places: [at, other?.at], near: other ? alike(parts, other.parts) : 0, name: parts[0] };
  });
  // Of several that are nearest to one file the nearest has it.
  const best = (one) => d3.greatest(pairs, (pair) => (pair.places[1] === one.places[1] ? pair.near : null));
  return pairs.filter((one) => one.near > 0 && best(one) === one);
}

/** The lines of a file of both, as a grid that begins at the line that changed most, else has the most samples. */
function lines(sides, { places }) {
  const of = sides.map(({ rows, found, total }, at) => {
    const groups = byKey(
      rows.filter((row) => row.file === places[at] && row.line),
      (row) => row.line,
    );
    const byLine = new Map(groups.map(({ name, samples }) => [name, samples]));
    const share = (line) => (byLine.has(line) && total ? (100 * byLine.get(line)) / total : null);
    return { byLine, text: found.sources[places[at]] ?? null, share };
  });
  const rows = matched(...of).map(([a, b]) => {
    const [before, after] = [of[0].share(a), of[1].share(b)];
    const change = before === null && after === null ? null : (after ?? 0) - (before ?? 0);
    return { a, b, before, after, change, text: (b === null ? of[0].text?.[a - 1] : of[1].text?.[b - 1]) ?? null };
  });
  const share = (value) => (value === null ? "" : value.toFixed(1));
  const grid = new Grid(
    "Source side by side",
    [
      { key: "before", label: "baseline %", number: true, width: 9, text: (row) => share(row.before) },
      { key: "after", label: "then %", number: true, width: 9, text: (row) => share(row.after) },
      { key: "change", label: "points", number: true, width: 8, text: points, node: marked },
      { key: "a", label: "line", number: true, width: 6, text: (row) => String(row.a ?? "") },
      { key: "b", label: "line", number: true, width: 6, text: (row) => String(row.b ?? "") },
      { key: "sign", label: "", width: 2.5, text: sign },
      codeColumn("text", "source", 90),
    ],
    {},
  );
  grid.setRows(rows);
  const some = rows.some((row) => points(row));
  const most = d3.greatestIndex(rows, (row) => (row.change === null ? null : some ? Math.abs(row.change) : row.after));
  requestAnimationFrame(() => toRow(grid, Math.max(0, most)));
  return h("div.pane", grid.element);
}

function points({ change }) {
  return change === null || Math.abs(change) < 0.05 ? "" : signed(change, (value) => value.toFixed(1));
}

function marked(row) {
  return h("span", { class: row.change > 1 ? "worse" : row.change < -1 ? "better" : null }, points(row));
}

/** Lines that one side alone has. */
function sign({ a, b, text }) {
  return text === null ? "" : a === null ? "+" : b === null ? "−" : "";
}

/** Pairs of line numbers that are the same line: by their text where both sides have it, else by their number. */
function matched(base, head) {
  if (base.text && head.text) return byText(base.text, head.text);
  const known = new Set([...base.byLine.keys(), ...head.byLine.keys()]);
  return d3.sort(known).map((line) => [line, line]);
}

/** The longest sequence of lines that both texts have in order; what lies between stands alone. */
function byText(a, b) {
  let top = 0;
  while (top < a.length && top < b.length && a[top] === b[top]) top += 1;
  let end = 0;
  while (end < a.length - top && end < b.length - top && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const pairs = d3.range(top).map((at) => [at + 1, at + 1]);
  pairs.push(...between(a.slice(top, a.length - end), b.slice(top, b.length - end)).map(([x, y]) => [x && x + top, y && y + top]));
  pairs.push(...d3.range(end).map((at) => [a.length - end + at + 1, b.length - end + at + 1]));
  return pairs;
}

function between(a, b) {
  const alone = [...a.map((_, at) => [at + 1, null]), ...b.map((_, at) => [null, at + 1])];
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return alone;
  const wide = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      longest[i * wide + j] =
        a[i] === b[j] ? longest[(i + 1) * wide + j + 1] + 1 : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      i += 1;
      j += 1;
      pairs.push([i, j]);
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * wide + j] >= longest[i * wide + j + 1])) {
      i += 1;
      pairs.push([i, null]);
    } else {
      j += 1;
      pairs.push([null, j]);
    }
  }
  return pairs;
}

/** Executed instructions and samples of each opcode, the largest change of executed ones first. */
function opcodes(sides, names) {
  const sums = sides.map(({ rows }) => {
    const groups = byKey(
      rows.filter((row) => row.opcode),
      (row) => row.opcode,
    );
    return new Map(groups.map(({ name, rows: of, samples }) => [name, { executed: d3.sum(of, (row) => row.executed ?? 0), samples }]));
  });
  const all = [...new Set(sums.flatMap((one) => [...one.keys()]))].map((opcode) => {
    const [a, b] = sums.map((one) => one.get(opcode) ?? { executed: 0, samples: 0 });
    return { opcode, a, b };
  });
  all.sort(
    (x, y) =>
      Math.abs(y.b.executed - y.a.executed) - Math.abs(x.b.executed - x.a.executed) ||
      y.a.samples + y.b.samples - x.a.samples - x.b.samples,
  );
  if (!all.length) return h("p.empty", "No disassembly of this kernel.");
  const rows = all.slice(0, MOST_OPCODES).map(({ opcode, a, b }) => {
    const change = a.executed === b.executed ? "same" : signed(b.executed - a.executed, number);
    return [h("code", opcode), number(a.executed), number(b.executed), change, number(a.samples), number(b.samples)];
  });
  const heads = ["opcode", ...names.map((name) => [`executed, ${name}`]), ["difference"], ...names.map((name) => [`samples, ${name}`])];
  const more = all.length - MOST_OPCODES;
  return [table(heads, rows, "Instructions, by opcode"), more > 0 && h("p.note", `${more} more, that differ less.`)];
}
