/** Source, PTX and SASS beside each other, each line with the samples that found warps there. */

import { button, fill, h, picker, section } from "./dom.js";
import { count, number, percent } from "./format.js";
import { Grid, listing, saverOf, toRow } from "./grid.js";
import { about, byKey, codeColumn, heatColumn, instructionsOf, PANEL, PC, SASS, samplesOf, told } from "./instructions.js";

/** found: the code block of a kernel. */
export function source(main, found) {
  const rows = instructionsOf(found, (at) => ({
    statement: found.ptx[at],
    ptx: found.ptx_texts[found.ptx[at]] ?? null,
    executed: found.executed[at],
    threads: found.threads[at],
    sectors: found.sectors[at],
    wavefronts: found.wavefronts[at],
  }));
  const total = samplesOf(rows);
  const files = filesOf(found, rows);
  const view = { main, found, rows, total, file: files[0]?.name ?? null, linked: new Set(), ptx: true, panel: h(...PANEL) };
  const panes = h("div.panes");
  const show = () => {
    view.panes = [textPane(view), view.ptx && ptxPane(view), sassPane(view)].filter(Boolean);
    fill(panes, ...view.panes.map((one) => one.node));
  };
  show();
  // What a reader looks for: once the panes have their room they stand at the line with the most samples.
  requestAnimationFrame(() => open(view, hottest(view)));
  const choices = files.map(({ name, samples }) => {
    const part = total ? percent(samples / total) : "–";
    return [String(name), `${found.files[name]} · ${part}${found.sources[name] ? "" : " · no text"}`];
  });
  const again = (patch) => {
    Object.assign(view, patch);
    show();
    open(view, hottest(view));
  };
  const choice = choices.length > 0 && picker("File", choices, String(view.file), (at) => again({ file: Number(at) }));
  const onclick = () => {
    again({ ptx: !view.ptx });
    ptx.setAttribute("aria-pressed", String(view.ptx));
  };
  const ptx = button("", { pressed: true, onclick }, "PTX");
  const chosen = h("div.controls", choice, rows.some((row) => row.ptx !== null) && ptx);
  const note = `${told(rows, files.length > 0)} Choose a line to see what belongs to it in the others.`;
  return section("Source", note, chosen, panes, view.panel);
}

function linesOf(rows, file) {
  return rows.filter((row) => row.file === file && row.line);
}

/** The instructions of the line of the chosen file with the most samples; without files the most sampled instruction. */
function hottest({ rows, file }) {
  const [most] = file === null ? byKey(rows, (row) => row.at) : byKey(linesOf(rows, file), (row) => row.line);
  return most?.rows ?? [];
}

/** Mark instructions in all panes, which come to the first of them. */
function open(view, rows, beside = null) {
  view.linked = new Set(rows.map((row) => row.at));
  for (const one of view.panes) one.link(one.grid === beside);
}

/** The files that instructions are of, the most sampled first; those with their text before the others. */
function filesOf(found, rows) {
  const lined = rows.filter((row) => row.file !== null && row.line);
  const files = byKey(lined, (row) => row.file);
  return d3.sort(files, ({ name }) => (found.sources[name] ? 0 : 1));
}

function share(view, samples) {
  return samples && view.total ? ((100 * samples) / view.total).toFixed(1) : "";
}

// What instructions ask of memory: key -> [of which memory, in what, heading].
const ASKED = {
  sectors: ["global memory", "sectors", "global, × ideal"],
  wavefronts: ["shared memory", "wavefronts", "shared, × ideal"],
};

/** What some instructions asked of a memory, and the least that the same bytes take; null where none of them did. */
function asked(rows, key) {
  const known = rows.filter((row) => row[key] !== null);
  return known.length ? [0, 1].map((at) => d3.sum(known, (row) => row[key][at])) : null;
}

/** How many times the least that its bytes take a row of a pane asked for. */
function excess({ own }, key) {
  const [all, least] = asked(own, key) ?? [];
  return least ? all / least : null;
}

function times(value) {
  return value === null ? "" : number(value);
}

/** Columns of memory efficiency, of the memories that the kernel's instructions ask. */
function efficiency(view) {
  return Object.entries(ASKED)
    .filter(([key]) => view.rows.some((row) => row[key]?.[0] > 0))
    .map(([key, [, , label]]) => ({ key, label, number: true, width: 8, text: (row) => times(excess(row, key)) }));
}

/** The higher of them in one column, where the text of a line has to find room beside it. */
function worst(view) {
  const columns = efficiency(view);
  const text = (row) => times(d3.max(columns, ({ key }) => excess(row, key)) ?? null);
  return columns.length ? [{ key: "excess", label: "× ideal", number: true, width: 7, text }] : [];
}

/** The same in words, of the chosen row. */
function askedWords(rows) {
  return Object.entries(ASKED).map(([key, [memory, what]]) => {
    const [all, least] = asked(rows, key) ?? [];
    if (!all) return null;
    const asking = rows.filter((row) => row[key] !== null);
    const executed = d3.sum(asking, (row) => row.executed ?? 0);
    const each = executed ? `, ${number(all / executed)} per instruction of a warp` : "";
    const ideal = least ? ` the same bytes take at least ${number(least)}, that is ${number(all / least)} times as many` : "";
    return h("p.note", `${number(all)} ${what} of ${memory}${each};${ideal}`);
  });
}

/** A pane: a grid of rows that know their `own` instructions; those of the linked ones are marked. list: of its filter. */
function pane(view, name, rows, columns, list) {
  const marked = (row) => row.own.some(({ at }) => view.linked.has(at));
  const mark = (row) => (marked(row) ? h("b.linked", "▸") : "");
  const all = [
    { key: "mark", label: "", fixed: true, width: 2.5, text: () => "", node: mark },
    heatColumn(d3.max(rows, (row) => row.samples) ?? 0),
    { key: "share", label: "%", number: true, width: 6, text: (row) => share(view, row.samples) },
    ...columns,
  ];
  const openRow = (row) => {
    fill(view.panel, aboutRow(view, row));
    open(view, row.own, grid);
  };
  const made = list && listing({ name, what: "instructions", rows: () => rows, columns: () => all, open: openRow, ...list });
  const grid = made?.grid ?? new Grid(name, all, { open: openRow });
  if (!made) grid.setRows(rows);
  const link = (own) => {
    const first = grid.rows.findIndex(marked);
    if (!own && first >= 0) toRow(grid, first);
    grid.draw(true);
  };
  const kind = name.startsWith("Source, from") ? "div.pane.wide" : "div.pane";
  return { grid, link, node: h(kind, h("h3", name), made?.controls ?? saverOf(grid), grid.element) };
}

function textPane(view) {
  if (view.file === null) return null;
  const byLine = d3.group(linesOf(view.rows, view.file), (row) => row.line);
  const text = view.found.sources[view.file];
  const numbers = text ? d3.range(1, text.length + 1) : d3.sort(byLine.keys());
  const rows = numbers.map((line) => {
    const own = byLine.get(line) ?? [];
    return { line, text: text?.[line - 1] ?? null, own, samples: samplesOf(own) };
  });
  const from = view.found.found[view.file];
  return pane(view, from ? `Source, from the ${from}` : "Source lines, without their text", rows, [
    { key: "line", label: "line", number: true, width: 6, text: (row) => String(row.line) },
    ...worst(view),
    codeColumn("text", "source", text ? 80 : 6),
  ]);
}

function ptxPane(view) {
  const known = view.rows.filter((row) => row.ptx !== null);
  if (!known.length) return null;
  const groups = d3.group(known, (row) => row.statement);
  const rows = [...groups.values()].map((own) => ({ text: own[0].ptx, own, samples: samplesOf(own) }));
  return pane(view, "PTX", rows, [codeColumn("text", "statement", 44)]);
}

const WORDS = ["pc", "samples", "sass", "ptx", "top", "line", "executed", "threads"];

function sassPane(view) {
  const rows = view.rows.map((row) => ({ ...row, own: [row] }));
  const where = ({ file, line }) => (line && file !== null ? `${view.found.files[file]}:${line}` : "–");
  const columns = [
    PC,
    SASS,
    { key: "top", label: "top reason", width: 16, text: (row) => row.top ?? "" },
    { key: "executed", label: "executed", number: true, text: (row) => number(row.executed) },
    {
      key: "threads",
      label: "threads each",
      number: true,
      text: (row) => (row.executed && row.threads !== null ? number(row.threads / row.executed) : "–"),
    },
    ...efficiency(view),
    { key: "line", label: "line", text: where },
  ];
  return pane(view, "SASS", rows, columns, {
    filter: "filter: HMMA samples>100 top=wait",
    words: (name) => (WORDS.includes(name) ? (row) => row[name] : null),
    text: (row) => `${row.sass ?? ""} ${row.top ?? ""}`,
    told: (found) => `${found.length} of ${rows.length} instructions`,
  });
}

/** The warp states of some instructions, for the panel below. */
function aboutRow(view, row) {
  const text = row.text ?? row.sass ?? `line ${row.line}`;
  const samples = `${number(row.samples)} samples, ${share(view, row.samples) || "0"} % of all`;
  const note = `${count(row.own.length, "instruction")}, ${samples}`;
  return about(text.trim(), note, row.own, view.main.stalls, askedWords(row.own));
}
