/** Source: SASS and source lines of deep profiles, with the samples that found warps there. */

import { block, has } from "./block.js";
import { away, choosing, cut, fill, folded, h, picker, section, switcher } from "./dom.js";
import { count, number, percent } from "./format.js";
import { listing } from "./grid.js";
import { icicle } from "./icicle.js";
import { about, byKey, heat, heatColumn, instructionsOf, PANEL, PC, reasonsOf, SASS, samplesOf, told } from "./instructions.js";
import { chosenOf, href, update } from "./state.js";

const WORD_BYTES = 16; // of an instruction, from Volta on
const MOST_PLACES = 60;

export async function source(evidence, params) {
  const side = evidence.side;
  const names = side.targets.map((target) => `source ${side.number} ${target.name}`).filter(has);
  const all = (await Promise.all(names.map(block))).flat();
  const kernels = all.filter((kernel) => kernel.pc.length);
  if (!kernels.length)
    return h("p.empty", "Not in this evidence: a deep profile. On a machine with a GPU `snakemake -j1 decode` takes one.");
  const chosen = chosenOf(params, { k: 0, by: "line", at: null, q: "", sort: "pc" });
  const show = (k) => kernelView(evidence, side, kernels[Math.min(k, kernels.length - 1)], chosen);
  const choices = kernels.map((kernel, at) => [String(at), `${kernel.name} · ${kernel.point}`]);
  return choosing(picker, "Kernel", choices, String(chosen.k), show, (k) => update(chosen, { k, at: null, q: "" }));
}

const GROUPS = [
  ["line", "line"],
  ["inside", "call site", "the function that the line lies in"],
  ["file", "file"],
  ["opcode", "opcode"],
  ["top", "reason"],
];

function kernelView(evidence, side, kernel, chosen) {
  const places = new Map(kernel.places.map(([file, line, inside, text]) => [`${file}:${line}`, { inside, text }]));
  const rows = instructionsOf(kernel, (at) => places.get(`${kernel.file[at]}:${kernel.line[at]}`) ?? { inside: null, text: null });
  const tag = side.provenance.flashinfer;
  const view = { stalls: evidence.main.stalls, tag, chosen, rows, total: samplesOf(rows), places: h("div") };
  const list = listOf(view);
  const choose = (patch) => {
    update(chosen, patch);
    fill(view.places, placesOf(view, choose));
    list.refresh();
  };
  const by = switcher("Group by", GROUPS, chosen.by, (name) => choose({ by: name, at: null }));
  const note = h("p.note", `${told(rows, true)} `, h("a", { href: href("point", { id: kernel.point }) }, "The point"));
  const tree = folded("Stall tree of this profile", icicle(kernel.tree, evidence.main, kernel.stalls));
  return [
    section(kernel.name, null, note, tree, folded("Full name", h("code.wrap", kernel.demangled ?? "–"))),
    section("Where warps stood", null, h("div.controls", by), fill(view.places, placesOf(view, choose))),
    section("Instructions", null, list.nodes),
  ];
}

function keyOf(row, by) {
  if (by === "line") return row.line ? `${row.file}:${row.line}` : "no source line";
  return row[by] ?? (by === "inside" ? "no function known" : "–");
}

function lineOf({ file, line }) {
  return line ? `${file.split("/").at(-1)}:${line}` : "–";
}

function placesOf({ rows, chosen, total, stalls, tag }, choose) {
  const groups = byKey(rows, (row) => keyOf(row, chosen.by));
  const lines = chosen.by === "line";
  const row = ({ name, rows: found, samples }) => {
    const [first] = found;
    const pressed = chosen.at === name;
    const onclick = () => choose({ at: pressed ? null : name });
    return [
      heat(samples, groups[0].samples),
      percent(samples / total, 1),
      number(samples),
      h("button.place", { type: "button", "aria-pressed": String(pressed), onclick }, lines && first.line ? lineOf(first) : name),
      lines ? h("code", first.text ?? first.inside ?? "–") : number(found.length),
      reasons(found, stalls),
      link(tag, first.file, lines && first.line),
    ];
  };
  const [what, of] = lines ? ["line", "source or function"] : [chosen.by === "inside" ? "call site" : chosen.by, ["instructions"]];
  const heads = ["heat", ["share"], ["samples"], what, of, "why warps stood", "FlashInfer"];
  const left = " with fewer samples: all are in the instructions below";
  return h("div.places", cut(heads, groups, row, "Where warps stood", MOST_PLACES, left));
}

/** The reasons of some instructions in words, the largest first. */
function reasons(rows, stalls) {
  const all = samplesOf(rows);
  const shown = reasonsOf(rows).slice(0, 3);
  const said = shown.map(([reason, n]) => h("span.reason", { title: stalls[reason] }, `${reason} ${percent(n / all)}`));
  return h("span.reasons", said);
}

/** FlashInfer's file at the tag that was measured. */
function link(tag, file, line) {
  if (!file?.startsWith("include/flashinfer/") || !tag) return "–";
  const path = file.split("/").map(encodeURIComponent).join("/");
  const at = `v${encodeURIComponent(tag)}/${path}${line ? `#L${line}` : ""}`;
  return away(`https://github.com/flashinfer-ai/flashinfer/blob/${at}`, "open ↗");
}

const WORDS = ["pc", "samples", "idle", "sass", "top", "inside", "file", "opcode"];

function listOf({ rows, chosen, total, stalls, tag }) {
  const columns = [
    PC,
    heatColumn(d3.max(rows, (row) => row.samples)),
    { key: "samples", label: "samples", number: true, text: (row) => number(row.samples, 6) },
    { key: "share", label: "share", unit: "%", number: true, text: (row) => ((100 * row.samples) / total).toFixed(2) },
    { key: "idle", label: "not issued", number: true, text: (row) => number(row.idle, 6) },
    SASS,
    { key: "top", label: "top reason", text: (row) => row.top ?? "–" },
    { key: "line", label: "line", text: lineOf },
    { key: "inside", label: "in", text: (row) => row.inside ?? "–" },
  ];
  const values = {
    share: (row) => row.samples,
    line: (row) => row.file && `${row.file}:${String(row.line).padStart(6, "0")}`,
  };
  const panel = h(...PANEL);
  const list = listing({
    name: "Instructions",
    what: "instructions",
    rows: () => rows.filter((row) => !chosen.at || keyOf(row, chosen.by) === chosen.at),
    columns: () => columns,
    filter: "filter: HMMA samples>100 top=wait line:mma.cuh",
    words: (name) => (name === "line" ? (row) => `${row.file}:${row.line}` : WORDS.includes(name) ? (row) => row[name] : null),
    text: (row) => `${row.sass ?? ""} ${row.file ?? ""} ${row.inside ?? ""} ${row.top ?? ""}`,
    told: (found) => `${found.length} of ${rows.length} instructions${chosen.at ? ` at ${chosen.at}` : ""}`,
    chosen,
    value: (key) => values[key] ?? ((row) => row[key]),
    shown: (found) => (chosen.sort === "pc" && found.length === rows.length ? withGaps(found) : found),
    open: (row) => row.pc !== undefined && fill(panel, instruction(row, stalls, tag)),
  });
  return { nodes: [list.controls, list.grid.element, panel], refresh: list.refresh };
}

function instruction(row, stalls, tag) {
  const where = `${row.file ?? "no file"}${row.line ? `:${row.line}` : ""} `;
  return about(row.sass ?? "–", [where, link(tag, row.file, row.line), row.text && h("code", ` ${row.text}`)], [row], stalls);
}

/** The instructions with a heading where some between them were never sampled. */
function withGaps(rows) {
  return rows.flatMap((row, at) => {
    const missing = at ? (row.pc - rows[at - 1].pc) / WORD_BYTES - 1 : 0;
    const gap = { group: "", node: () => h("span.note", `${count(missing, "instruction")} without a sample`) };
    return missing > 0 ? [gap, row] : [row];
  });
}
