/** Reports beside each other, kernel by kernel and line by line; the first is the baseline. */

import { block } from "./block.js";
import { button, choosing, coded, cut, fill, folded, h, picker, section, table } from "./dom.js";
import { change, interval, micro, nano, number, percent, quantity, relative, si, signed } from "./format.js";
import { Grid, toRow } from "./grid.js";
import { byKey, codeColumn, instructionsOf, samplesOf } from "./instructions.js";
import { href, keep } from "./state.js";
import { rowsOf } from "./view_kernels.js";

const MOST_CELLS = 4e6; // of the table by which lines are matched: 2 000 by 2 000 lines that differ
const MOST_OPCODES = 24;
// Of the launch that stands for a kernel: [column, label, how it is printed]; what the metric registry has follows.
const FACTS = [
  ["time", "time, the longest launch", nano],
  ["median", "time, the median", nano],
  ["n", "launches", number],
  ["words", "what limits it", (value) => value ?? "–"],
  ["room", "headroom", (value) => quantity(value, "%")],
  ["issue_active", "schedulers issue in", (value) => percent(value, 1)],
  ["registers", "registers per thread", number],
  ["smem", "shared memory per block", (value) => si(value, "B")],
  ["grid", "grid", (value) => value ?? "–"],
  ["block", "block", (value) => value ?? "–"],
];

function factsOf(main) {
  const own = new Map(FACTS.map((fact) => [fact[0], fact]));
  const keys = Object.keys(main.reports[0].kernels).filter((key) => key in main.metrics && !own.has(key));
  const counted = keys.map((key) => {
    const [label, unit] = main.metrics[key];
    return [key, label, (value) => quantity(value, unit)];
  });
  return [...FACTS, ...counted];
}

const MOST = 400; // kernels of a table
const OTHERS = "other launches"; // whose longest need not have done the same work

export function compared(main, params) {
  const all = main.reports.map(rowsOf);
  const kernels = all[0].filter((base) => all.slice(1).some((rows) => same(all[0], base, rows)));
  const beside = h("div");
  const show = (base) => {
    keep({ k: base.k });
    fill(beside, sideBySide(main, all, base));
  };
  const asked = kernels.find((base) => base.k === Number(params.get("k") ?? Number.NaN)) ?? kernels[0];
  if (asked) fill(beside, sideBySide(main, all, asked));
  const note = `Of each kernel its longest launch; the baseline is ${main.reports[0].file}.`;
  const pairs = main.comparisons.map((one) => ofPair(main, one));
  return [section("Kernels side by side", note, overview(main, all, kernels, show)), beside, pairs];
}

/** The same kernel of another report: by its full name, else by a short name that is the only one of its kind in both. */
function same(ours, base, theirs) {
  const full = base.demangled && theirs.find((one) => one.demangled === base.demangled);
  if (full) return full;
  const named = theirs.filter((one) => one.name === base.name);
  return named.length === 1 && ours.filter((one) => one.name === base.name).length === 1 ? named[0] : null;
}

function overview(main, all, kernels, show) {
  if (!kernels.length) return h("p.empty", "No kernel of the baseline is in another report.");
  const others = main.reports.slice(1);
  const heads = ["kernel", ["baseline"], ...others.flatMap((report) => [[report.file], ["change"], ["registers"], ["occupancy"]])];
  const line = (base) => {
    const pick = h("button", { type: "button", class: "place", onclick: () => show(base) }, base.label);
    const cells = others.flatMap((_, at) => {
      const head = same(all[0], base, all[at + 1]);
      if (!head) return ["–", "–", "–", "–"];
      return [
        nano(head.time),
        base.n === head.n ? changed(relative(base.time, head.time)) : OTHERS,
        base.registers === head.registers ? number(head.registers) : `${number(base.registers)} → ${number(head.registers)}`,
        `${quantity(base.achieved_occupancy_pct, "%")} → ${quantity(head.achieved_occupancy_pct, "%")}`,
      ];
    });
    return [pick, nano(base.time), ...cells];
  };
  return cut(heads, kernels, line, "Kernels side by side", MOST);
}

function changed(value) {
  if (value === null) return "–";
  return h("span", { class: Math.abs(value) < 0.03 ? "note" : value > 0 ? "worse" : "better" }, change(value));
}

/** All figures of one kernel, a column for each report. */
function sideBySide(main, all, base) {
  const name = base.label;
  const found = all.map((rows, at) => (at ? same(all[0], base, rows) : base));
  // The baseline's cell, then two of each other report.
  const wide = (cells) => cells.flatMap(([own, change], at) => (at ? [own, change] : [own]));
  const lines = factsOf(main)
    .map(([key, label, shown]) => {
      const values = found.map((one) => one?.[key] ?? null);
      const cells = values.map((value) => [shown(value), changedValue(values[0], value, /_pct$|^room$/.test(key))]);
      return values.some((value) => value !== null) && [label, ...wide(cells)];
    })
    .filter(Boolean);
  const stalls = found.map((one) => (one?.stall ? `${one.stall[0]} ${percent(one.stall[1])}` : "–"));
  lines.push(["top stall", ...wide(stalls.map((stall) => [stall, stall === stalls[0] ? "same" : ""]))]);
  const heads = ["", ...wide(main.reports.map((report) => [[report.file], ["change"]]))];
  const others =
    found.some((one) => one && one.n !== base.n) &&
    "The reports have not as many launches of it: the longest of each need not have done the same work. Below they are matched, where ranges or their order tell.";
  const links = found.map((one, r) => one && [h("a", { href: href("kernel", { r, k: one.k }) }, main.reports[r].file), " "]);
  const panels = section(name, others, table(heads, lines, `${name} side by side`), h("p", "Panels: ", links));
  return [panels, source(main, found)];
}

/** The source of the baseline's kernel beside that of another report, once it is asked for. */
function source(main, found) {
  const places = found.flatMap((one, r) => (one?.code ? [{ r, k: one.k }] : []));
  const [base, ...heads] = places;
  if (base?.r !== 0 || !heads.length) return null;
  const body = h("div");
  const open = async (place) => fill(body, await sources(main, [base, place]));
  const buttons = heads.map((place) => {
    return button("", { "data-beside": place.r, onclick: () => open(place) }, `source beside ${main.reports[place.r].file}`);
  });
  return [h("p.controls", buttons), body];
}

/** The change of a value; of one that is per cent already, in points. */
function changedValue(base, head, points) {
  if (typeof base === "string" || typeof head === "string") return base === head ? "same" : "";
  if (points && base !== null && head !== null) return `${signed(Number((head - base).toFixed(1)), (by) => by.toFixed(1))} points`;
  return change(relative(base, head));
}

/** What the comparison of two reports finds: kernels matched by range, or by name and order, with statistics and causes. */
function ofPair(main, one) {
  const title = `${main.reports[0].file} → ${main.reports[one.head].file}`;
  if (one.why) return section(title, null, h("p.warning", one.why));
  const differ = one.differences.map(({ axis, base, head }) => `${axis}: ${base} → ${head}`).join("; ");
  const rows = one.points.map(({ id, base, head, relative: by, interval: of, verdict, causes: found }) => {
    const range = of ? interval({ low: of[0], high: of[1] }) : "–";
    return [h("span.wrap", id), micro(base), micro(head), changed(by), range, verdict, causes(found)];
  });
  const more = one.all - one.points.length;
  return section(
    title,
    "Launches of one kernel in one range, on one grid, are samples of it; as ncuflow compare prints it.",
    differ && h("p", differ),
    one.notes.map((note) => h("p.note", coded(note))),
    table(["kernel", ["baseline"], ["candidate"], ["change"], ["interval"], "verdict", "why"], rows, title),
    more > 0 && h("p.note", `${more} more that changed less.`),
    only("Only in the baseline", one.only_base),
    only("Only in the other", one.only_head),
  );
}

function causes(found) {
  if (!found.length) return "–";
  const told = found.map(({ what, base, head }) => `${what}: ${base} → ${head}`);
  const part = ([name, from, to, unit, us]) => {
    return h("div.note", `${us > 0 ? "+" : ""}${number(us)} µs ${name} (${number(from)} → ${number(to)} ${unit})`);
  };
  const more = found.length > 1 && `, and ${found.length - 1} more`;
  return folded([told[0], more], ...found.map(({ parts }, at) => [at > 0 && h("p", told[at]), parts.map(part)]));
}

function only(title, names) {
  return names.length > 0 && folded(`${title}: ${names.length}`, h("p.wrap", names.slice(0, MOST).join(", ")));
}

/** The source of a kernel in two reports: what each line's share of the samples was, and is. places: [{r, k}, {r, k}], the baseline first. */
async function sources(main, places) {
  const found = await Promise.all(places.map(({ r, k }) => block(`code ${r} ${k}`)));
  const names = places.map(({ r }) => main.reports[r].file);
  const title = "Source side by side";
  const without = names.filter((_, at) => !found[at]);
  if (without.length) return section(title, null, h("p.empty", `No instructions of this kernel in this file: ${without.join(", ")}.`));
  const sides = found.map((one) => ({ found: one, rows: instructionsOf(one, (at) => ({ executed: one.executed[at] })) }));
  for (const side of sides) side.total = samplesOf(side.rows);
  const files = shared(...sides);
  const samples = sides.map(({ total }, at) => `${number(total)} in ${names[at]}`).join(", ");
  const note = `Per cent of each report's own samples of this kernel: ${samples}. A sample says where a warp stood, so a line that gained may wait for what another causes.`;
  const choices = files.map(({ name }, at) => [String(at), name]);
  const shown = files.length > 0 && (await choosing(picker, "File", choices, "0", (at) => lines(sides, files[at])));
  return section(title, note, shown, h("h3", "Instructions, by opcode"), opcodes(sides, names));
}

/** How many of two lists are the same from their beginning on. */
function alike(a, b) {
  const other = a.findIndex((one, at) => one !== b[at]);
  return other < 0 ? a.length : other;
}

/** The files that both have lines of, by their names, the most sampled of the baseline first. */
function shared(...sides) {
  const [ours, theirs] = sides.map(({ rows, found }) => {
    const lined = rows.filter((row) => row.file !== null && row.line);
    return new Map(byKey(lined, (row) => row.file).map(({ name }) => [found.files[name], name]));
  });
  return [...ours].filter(([name]) => theirs.has(name)).map(([name, at]) => ({ name, places: [at, theirs.get(name)] }));
}

/** The lines of a file of both, as a grid that begins at the line that changed most, else has the most samples. */
function lines(sides, { places }) {
  const of = sides.map(({ rows, found, total }, at) => {
    const lined = rows.filter((row) => row.file === places[at] && row.line);
    const groups = byKey(lined, (row) => row.line);
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
      { key: "after", label: "candidate %", number: true, width: 11, text: (row) => share(row.after) },
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
  return d3.sort(new Set([...base.byLine.keys(), ...head.byLine.keys()])).map((line) => [line, line]);
}

/** The longest sequence of lines that both texts have in order; what lies between stands alone. */
function byText(a, b) {
  const top = alike(a, b);
  const end = alike(a.slice(top).reverse(), b.slice(top).reverse());
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
    const known = rows.filter((row) => row.opcode);
    const groups = byKey(known, (row) => row.opcode);
    return new Map(groups.map(({ name, rows: of, samples }) => [name, { executed: d3.sum(of, (row) => row.executed ?? 0), samples }]));
  });
  const all = [...new Set(sums.flatMap((one) => [...one.keys()]))].map((opcode) => {
    const [a, b] = sums.map((one) => one.get(opcode) ?? { executed: 0, samples: 0 });
    return { opcode, a, b };
  });
  const [changed, sampled] = [({ a, b }) => -Math.abs(b.executed - a.executed), ({ a, b }) => -(a.samples + b.samples)];
  if (!all.length) return h("p.empty", "No disassembly of this kernel.");
  const row = ({ opcode, a, b }) => {
    const change = a.executed === b.executed ? "same" : signed(b.executed - a.executed, number);
    return [h("code", opcode), number(a.executed), number(b.executed), change, number(a.samples), number(b.samples)];
  };
  const heads = ["opcode", ...names.map((name) => [`executed, ${name}`]), ["difference"], ...names.map((name) => [`samples, ${name}`])];
  return cut(heads, d3.sort(all, changed, sampled), row, "Instructions, by opcode", MOST_OPCODES, ", that differ less");
}
