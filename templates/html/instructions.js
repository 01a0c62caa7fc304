/** Instructions with the samples that found warps there: what all views of a source share. */

import { h, LIVE, table } from "./dom.js";
import { number, percent } from "./format.js";

const READY = ["selected", "not_selected"];

/** The instructions of a listing as rows: samples by reason, the largest stall, and what `more(at)` knows of each. */
export function instructionsOf(found, more = () => null) {
  return found.pc.map((pc, at) => {
    const by = found.samples[at];
    const [sass, file, line] = [found.sass[at], found.file[at], found.line[at]];
    const opcode = /^(?:@!?U?P\w+\s+)?([A-Z][\w.]*)/.exec(sass ?? "")?.[1] ?? null;
    const stalls = by.filter(([reason]) => !READY.includes(reason));
    const top = d3.greatest(stalls, ([, samples]) => samples)?.[0] ?? null;
    const [samples, idle] = [d3.sum(by, (one) => one[1]), d3.sum(by, (one) => one[2] ?? 0)];
    return { at, pc, sass, file, line, opcode, by, samples, idle, top, ...more(at) };
  });
}

export function samplesOf(rows) {
  return d3.sum(rows, (row) => row.samples);
}

/** Rows by a key, with the samples of each: the most sampled first. */
export function byKey(rows, key) {
  const groups = [...d3.group(rows, key)].map(([name, found]) => ({ name, rows: found, samples: samplesOf(found) }));
  return d3.sort(groups, ({ samples }) => -samples);
}

/** What the samples are of; part: how much of them has a source line. */
export function told(rows, lined) {
  const total = samplesOf(rows);
  const part = lined ? `, ${percent(total ? samplesOf(rows.filter((row) => row.line)) / total : null)} of them with a source line` : "";
  return `${number(total)} samples on ${number(rows.length)} instructions${part}. A sample says where a warp stood: the line that waits, seldom the one that causes the wait.`;
}

export function heat(samples, most) {
  const style = `width:${most ? (100 * samples) / most : 0}%`;
  return h("span.heat", { "aria-hidden": "true" }, h("span", { style }));
}

/** Reasons of some instructions with their samples, and of these those at which nothing issued; the largest first. */
export function reasonsOf(rows) {
  const all = rows.flatMap((row) => row.by);
  const groups = d3.group(all, ([reason]) => reason);
  const sums = [...groups].map(([reason, found]) => [reason, d3.sum(found, (one) => one[1]), d3.sum(found, (one) => one[2] ?? 0)]);
  return d3.sort(sums, ([, samples]) => -samples);
}

/** Why warps stood at some instructions. stalls: what reasons mean. */
function reasonTable(rows, stalls) {
  const all = samplesOf(rows);
  const cells = reasonsOf(rows).map(([reason, samples, idle]) => {
    return [reason, number(samples), number(idle), percent(samples / all, 1), stalls[reason] ?? "ready to issue"];
  });
  return cells.length > 0 && table(["reason", ["samples"], ["not issued"], ["share"], "a warp waits for"], cells, "Stall reasons");
}

/** The panel below a listing, and what it says of the row that was opened. */
export const PANEL = ["div.instruction", LIVE];

export function about(text, note, rows, stalls, ...more) {
  return [h("h3", h("code", text)), h("p.note", note), more, reasonTable(rows, stalls)];
}

/** Columns of a listing. most: samples of the row that has most. */
export function heatColumn(most) {
  return { key: "heat", label: "heat", fixed: true, width: 9, text: () => "", node: (row) => (row.samples ? heat(row.samples, most) : "") };
}

export const PC = { key: "pc", label: "pc", width: 8, number: true, text: (row) => row.pc.toString(16).padStart(5, "0") };

export function codeColumn(key, label, width) {
  const node = (row) => h("code.code", { title: row[key] }, row[key] ?? "–");
  return { key, label, width, text: (row) => row[key] ?? "–", node };
}

export const SASS = codeColumn("sass", "instruction", 46);
