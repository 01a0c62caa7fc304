/** Source, PTX and SASS beside each other, each line with the samples that found warps there. */

import { fill, h, picker, section, table } from "./dom.js";
import { number, percent } from "./format.js";
import { Grid } from "./grid.js";
import { matcher } from "./query.js";

const ROW = 26; // px, as in grid.js
const READY = ["selected", "not_selected"];

/** found: the code block of a kernel. */
export function source(main, found) {
  const rows = instructions(found);
  const total = d3.sum(rows, (row) => row.samples);
  const files = filesOf(found, rows);
  const view = { main, found, rows, total, file: files[0]?.at ?? null, linked: new Set(), panes: [] };
  const panel = h("div.instruction", { "aria-live": "polite" });
  const panes = h("div.panes");
  const show = () => {
    view.panes = [textPane(view, panel), ptxPane(view, panel), sassPane(view, panel)].filter(Boolean);
    fill(
      panes,
      view.panes.map((pane) => pane.node),
    );
  };
  show();
  // What a reader looks for: once the panes have their room they stand at the line with the most samples.
  requestAnimationFrame(() => open(view, hottest(view)));
  const choices = files.map(({ at, samples }) => [
    String(at),
    `${found.files[at].split(/[/\\]/).at(-1)} · ${total ? percent(samples / total) : "–"}${found.sources[at] ? "" : " · no text"}`,
  ]);
  const withLine = d3.sum(
    rows.filter((row) => row.line),
    (row) => row.samples,
  );
  return section(
    "Source",
    `${number(total)} samples on ${number(rows.length)} instructions${files.length ? `, ${percent(total ? withLine / total : null)} of them with a source line` : ""}. A sample says where a warp stood: the line that waits, seldom the one that causes the wait. Choose a line to see what belongs to it in the others.`,
    choices.length > 0 &&
      h(
        "div.controls",
        picker("File", choices, String(view.file), (at) => {
          view.file = Number(at);
          show();
          open(view, hottest(view));
        }),
        h("code.note.wrap", found.files[view.file]),
      ),
    panes,
    panel,
  );
}

/** The instructions of the line of the chosen file with the most samples; without files the most sampled instruction. */
function hottest({ rows, file }) {
  if (file === null) return [d3.greatest(rows, (row) => row.samples)?.at].filter((at) => at !== undefined);
  const lines = d3.group(
    rows.filter((row) => row.file === file && row.line),
    (row) => row.line,
  );
  const most = d3.greatest(lines.values(), (of) => d3.sum(of, (row) => row.samples)) ?? [];
  return most.map((row) => row.at);
}

/** Mark instructions in all panes, which come to the first of them. */
function open(view, linked, beside = null) {
  view.linked = new Set(linked);
  for (const one of view.panes) one.link(one.grid === beside);
}

function instructions(found) {
  return found.pc.map((pc, at) => {
    const by = found.samples[at];
    const stalls = by.filter(([reason]) => !READY.includes(reason));
    const ptx = found.ptx[at];
    return {
      at,
      pc,
      sass: found.sass[at],
      ptx: ptx === null ? null : found.ptx_texts[ptx],
      statement: ptx,
      file: found.file[at],
      line: found.line[at],
      by,
      samples: d3.sum(by, (one) => one[1]),
      executed: found.executed[at],
      threads: found.threads[at],
      sectors: found.sectors[at],
      wavefronts: found.wavefronts[at],
      top: d3.greatest(stalls, (one) => one[1])?.[0] ?? null,
    };
  });
}

/** The files that instructions are of, the most sampled first; those with their text before the others. */
function filesOf(found, rows) {
  const sums = d3.rollup(
    rows.filter((row) => row.file !== null && row.line),
    (of) => d3.sum(of, (row) => row.samples),
    (row) => row.file,
  );
  return d3.sort(
    [...sums].map(([at, samples]) => ({ at, samples })),
    ({ at, samples }) => -samples - (found.sources[at] ? 1e12 : 0),
  );
}

function heat(samples, most) {
  return h("span.heat", { "aria-hidden": "true" }, h("span", { style: `width:${most ? (100 * samples) / most : 0}%` }));
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
function excess(view, row, key) {
  const [all, least] =
    asked(
      row.own.map((at) => view.rows[at]),
      key,
    ) ?? [];
  return least ? all / least : null;
}

/** Columns of memory efficiency, of the memories that the kernel's instructions ask. */
function efficiency(view) {
  return Object.entries(ASKED)
    .filter(([key]) => view.rows.some((row) => row[key]?.[0] > 0))
    .map(([key, [, , label]]) => ({ key, label, number: true, width: 8, text: (row) => number(excess(view, row, key)).replace("–", "") }));
}

/** The higher of them in one column, where the text of a line has to find room beside it. */
function worst(view) {
  const columns = efficiency(view);
  const text = (row) => number(d3.max(columns, ({ key }) => excess(view, row, key)) ?? null).replace("–", "");
  return columns.length ? [{ key: "excess", label: "× ideal", number: true, width: 7, text }] : [];
}

/** The same in words, of the chosen row. */
function askedWords(of) {
  return Object.entries(ASKED).flatMap(([key, [memory, what]]) => {
    const found = asked(of, key);
    if (!found?.[0]) return [];
    const [all, least] = found;
    const executed = d3.sum(
      of.filter((row) => row[key] !== null),
      (row) => row.executed ?? 0,
    );
    const each = executed ? `, ${number(all / executed)} per instruction of a warp` : "";
    const times = least ? ` the same bytes take at least ${number(least)}, that is ${number(all / least)} times as many` : "";
    return [h("p.note", `${number(all)} ${what} of ${memory}${each};${times}`)];
  });
}

/** A pane: a grid of rows that know their instructions; those of the linked ones are marked. */
function pane(view, panel, name, rows, columns) {
  const most = d3.max(rows, (row) => row.samples) ?? 0;
  const all = [
    {
      key: "mark",
      label: "",
      fixed: true,
      width: 2.5,
      text: () => "",
      node: (row) => (row.own.some((at) => view.linked.has(at)) ? h("b.linked", "▸") : ""),
    },
    { key: "heat", label: "heat", fixed: true, width: 9, text: () => "", node: (row) => (row.samples ? heat(row.samples, most) : "") },
    { key: "share", label: "%", number: true, width: 6, text: (row) => share(view, row.samples) },
    ...columns,
  ];
  const grid = new Grid(name, all, {
    open: (row) => {
      fill(panel, about(view, row));
      open(view, row.own, grid);
    },
  });
  grid.setRows(rows);
  return {
    grid,
    node: h("div.pane", h("h3", name), grid.element),
    link(own) {
      const first = grid.rows.findIndex((row) => row.own?.some((at) => view.linked.has(at)));
      if (!own && first >= 0) {
        grid.move(first);
        grid.element.scrollTop = Math.max(0, first * ROW - grid.element.clientHeight / 3);
      }
      grid.draw(true);
    },
  };
}

function textPane(view, panel) {
  if (view.file === null) return null;
  const byLine = d3.group(
    view.rows.filter((row) => row.file === view.file && row.line),
    (row) => row.line,
  );
  const text = view.found.sources[view.file];
  const numbers = text ? d3.range(1, text.length + 1) : [...byLine.keys()].sort((a, b) => a - b);
  const rows = numbers.map((line) => {
    const of = byLine.get(line) ?? [];
    return { line, text: text?.[line - 1] ?? null, own: of.map((row) => row.at), samples: d3.sum(of, (row) => row.samples) };
  });
  const from = view.found.found[view.file];
  return pane(view, panel, from ? `Source, from the ${from}` : "Source lines, without their text", rows, [
    { key: "line", label: "line", number: true, width: 6, text: (row) => String(row.line) },
    ...worst(view),
    {
      key: "text",
      label: "source",
      width: text ? 52 : 6,
      text: (row) => row.text ?? "",
      node: (row) => h("code.code", { title: row.text }, row.text ?? "–"),
    },
  ]);
}

function ptxPane(view, panel) {
  const known = view.rows.filter((row) => row.statement !== null);
  if (!known.length) return null;
  const groups = d3.group(known, (row) => row.statement);
  const rows = [...groups].map(([statement, of]) => ({
    text: view.found.ptx_texts[statement],
    own: of.map((row) => row.at),
    samples: d3.sum(of, (row) => row.samples),
  }));
  return pane(view, panel, "PTX", rows, [
    {
      key: "text",
      label: "statement",
      width: 44,
      text: (row) => row.text,
      node: (row) => h("code.code", { title: row.text }, row.text),
    },
  ]);
}

function sassPane(view, panel) {
  const rows = view.rows.map((row) => ({ ...row, own: [row.at] }));
  const columns = [
    { key: "pc", label: "pc", width: 7, number: true, text: (row) => row.pc.toString(16).padStart(5, "0") },
    {
      key: "sass",
      label: "instruction",
      width: 44,
      text: (row) => row.sass ?? "–",
      node: (row) => h("code.code", { title: row.sass }, row.sass ?? "–"),
    },
    { key: "top", label: "top reason", width: 16, text: (row) => row.top ?? "" },
    { key: "executed", label: "executed", number: true, text: (row) => number(row.executed) },
    {
      key: "threads",
      label: "threads each",
      number: true,
      text: (row) => (row.executed ? number(row.threads === null ? null : row.threads / row.executed) : "–"),
    },
    ...efficiency(view),
    {
      key: "line",
      label: "line",
      text: (row) => (row.line && row.file !== null ? `${view.found.files[row.file].split(/[/\\]/).at(-1)}:${row.line}` : "–"),
    },
  ];
  const made = pane(view, panel, "SASS", rows, columns);
  const count = h("output.count", { "aria-live": "polite" });
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    "aria-label": "Filter instructions",
    placeholder: "filter: HMMA samples>100 top=wait",
    spellcheck: "false",
    oninput: () => show(),
  });
  const show = () => {
    const holds = matcher(
      filter.value,
      (name) => (["pc", "samples", "sass", "ptx", "top", "line", "executed", "threads"].includes(name) ? (row) => row[name] : null),
      (row) => `${row.sass ?? ""} ${row.top ?? ""}`,
    );
    const found = rows.filter(holds);
    made.grid.setRows(found);
    fill(count, `${found.length} of ${rows.length} instructions`);
  };
  show();
  made.node.insertBefore(h("div.controls", filter, count), made.grid.element);
  return made;
}

/** The warp states of some instructions, for the panel below. */
function about(view, row) {
  const of = row.own.map((at) => view.rows[at]);
  const sums = d3.sort(
    d3.rollup(
      of.flatMap((one) => one.by),
      (found) => [d3.sum(found, (one) => one[1]), d3.sum(found, (one) => one[2] ?? 0)],
      ([reason]) => reason,
    ),
    ([, [samples]]) => -samples,
  );
  const text = row.text ?? row.sass ?? `line ${row.line}`;
  return [
    h("h3", h("code", text.trim())),
    h(
      "p.note",
      `${number(of.length)} instruction${of.length === 1 ? "" : "s"}, ${number(row.samples)} samples, ${share(view, row.samples) || "0"} % of all`,
    ),
    askedWords(of),
    sums.length > 0 &&
      table(
        ["reason", ["samples"], ["not issued"], ["share"], "a warp waits for"],
        sums.map(([reason, [samples, idle]]) => [
          reason,
          number(samples),
          number(idle),
          percent(samples / row.samples, 1),
          view.main.stalls[reason] ?? "ready to issue",
        ]),
        "Warp states",
      ),
  ];
}
