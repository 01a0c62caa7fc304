/** Source: SASS and source lines of deep profiles, with the samples that found warps there. */

import { block, has } from "./block.js";
import { away, fill, h, picker, section, switcher, table } from "./dom.js";
import { number, percent } from "./format.js";
import { Grid } from "./grid.js";
import { icicle } from "./icicle.js";
import { matcher } from "./query.js";
import { href, keep } from "./state.js";

const READY = ["selected", "not_selected"];
const WORD_BYTES = 16; // of an instruction, from Volta on
const MOST_PLACES = 60;

export async function source(evidence, params) {
  const side = evidence.side;
  const names = side.targets.map((target) => target.name).filter((name) => has(`source ${side.number} ${name}`));
  const all = (await Promise.all(names.map((name) => block(`source ${side.number} ${name}`)))).flat();
  const kernels = all.filter((kernel) => kernel.pc.length);
  if (!kernels.length)
    return h("p.empty", "Not in this evidence: a deep profile. On a machine with a GPU `snakemake -j1 decode` takes one.");
  const chosen = {
    k: Number(params.get("k") ?? 0) || 0,
    by: params.get("by") ?? "line",
    at: params.get("at"),
    q: params.get("q") ?? "",
    sort: params.get("sort") ?? "pc",
  };
  const body = h("div");
  const show = (k) => fill(body, kernelView(evidence, side, kernels[Math.min(k, kernels.length - 1)], chosen));
  show(chosen.k);
  return [
    h(
      "div.controls",
      picker(
        "Kernel",
        kernels.map((kernel, at) => [String(at), `${kernel.name} · ${kernel.point}`]),
        String(chosen.k),
        (k) => {
          Object.assign(chosen, { k: Number(k), at: null, q: "" });
          keep({ k, at: null, q: null });
          show(chosen.k);
        },
      ),
    ),
    body,
  ];
}

/** An instruction's row: its samples by reason, the largest stall, and where it comes from. */
function instructions(kernel) {
  const places = new Map(kernel.places.map((place) => [`${place[0]}:${place[1]}`, place]));
  return kernel.pc.map((pc, at) => {
    const samples = d3.sum(kernel.samples[at], (one) => one[1]);
    const stalls = kernel.samples[at].filter(([reason]) => !READY.includes(reason));
    const [, , inside, text] = places.get(`${kernel.file[at]}:${kernel.line[at]}`) ?? [];
    const sass = kernel.sass[at];
    return {
      at,
      pc,
      sass,
      samples,
      inside: inside ?? null,
      text: text ?? null,
      file: kernel.file[at],
      line: kernel.line[at],
      by: kernel.samples[at],
      idle: d3.sum(kernel.samples[at], (one) => one[2] ?? 0),
      opcode: sass?.replace(/^@!?\w+\s+/, "").split(/[\s;]/)[0] ?? null,
      top: d3.greatest(stalls, (one) => one[1])?.[0] ?? null,
    };
  });
}

function kernelView(evidence, side, kernel, chosen) {
  const rows = instructions(kernel);
  const total = d3.sum(rows, (row) => row.samples);
  const withLine = d3.sum(
    rows.filter((row) => row.line),
    (row) => row.samples,
  );
  const view = {
    evidence,
    side,
    kernel,
    chosen,
    rows,
    total,
    tag: side.provenance.flashinfer,
    count: h("output.count", { "aria-live": "polite" }),
    places: h("div"),
  };
  const listing = listingOf(view);
  return [
    section(
      kernel.name,
      null,
      h(
        "p.note",
        `${number(total)} samples on ${number(rows.length)} instructions, ${percent(withLine / total)} of them with a source line. A sample says where a warp stood: the line that waits, seldom the one that causes the wait. `,
        h("a", { href: href("point", { id: kernel.point }) }, "The point"),
      ),
      h("details", h("summary", "Stall tree of this profile"), icicle(kernel.tree, evidence.main, kernel.stalls)),
      h("details", h("summary", "Full name"), h("code.wrap", kernel.demangled ?? "–")),
    ),
    section(
      "Where warps stood",
      null,
      h(
        "div.controls",
        switcher(
          "Group by",
          [
            ["line", "line"],
            ["inside", "call site", "the function that the line lies in"],
            ["file", "file"],
            ["opcode", "opcode"],
            ["top", "reason"],
          ],
          chosen.by,
          (by) => {
            Object.assign(chosen, { by, at: null });
            keep({ by, at: null });
            fill(view.places, placesOf(view, listing));
            listing.refresh();
          },
        ),
      ),
      fill(view.places, placesOf(view, listing)),
    ),
    section("Instructions", null, listing.nodes),
  ];
}

function keyOf(row, by) {
  if (by === "line") return row.line ? `${row.file}:${row.line}` : "no source line";
  return row[by] ?? (by === "inside" ? "no function known" : "–");
}

function placesOf(view, listing) {
  const { rows, chosen, total } = view;
  const groups = d3.sort(
    d3.group(rows, (row) => keyOf(row, chosen.by)),
    ([, found]) => -d3.sum(found, (row) => row.samples),
  );
  const most = d3.sum(groups[0]?.[1] ?? [], (row) => row.samples);
  const body = groups.slice(0, MOST_PLACES).map(([key, found]) => {
    const samples = d3.sum(found, (row) => row.samples);
    const pick = () => {
      chosen.at = chosen.at === key ? null : key;
      keep({ at: chosen.at });
      fill(view.places, placesOf(view, listing));
      listing.refresh();
    };
    const [{ file, line, text, inside }] = found;
    const what = h(
      "button",
      { type: "button", class: "place", "aria-pressed": String(chosen.at === key), onclick: pick },
      chosen.by === "line" && line ? `${file.split("/").at(-1)}:${line}` : key,
    );
    return [
      heat(samples, most),
      percent(samples / total, 1),
      number(samples),
      what,
      chosen.by === "line" ? [h("code", text ?? inside ?? "–")] : number(found.length),
      reasons(found, view.evidence),
      link(view, file, chosen.by === "line" ? line : null),
    ];
  });
  const heads = [
    "heat",
    ["share"],
    ["samples"],
    chosen.by === "line" ? "line" : chosen.by === "inside" ? "call site" : chosen.by,
    chosen.by === "line" ? "source or function" : ["instructions"],
    "why warps stood",
    "FlashInfer",
  ];
  return h(
    "div.places",
    table(heads, body, "Where warps stood"),
    groups.length > MOST_PLACES &&
      h("p.note", `${groups.length - MOST_PLACES} more with fewer samples: all are in the instructions below.`),
  );
}

function heat(samples, most) {
  return h("span.heat", { "aria-hidden": "true" }, h("span", { style: `width:${(100 * samples) / most}%` }));
}

/** The reasons of some instructions in words, the largest first. */
function reasons(rows, evidence) {
  const sums = d3.sort(
    d3.rollup(
      rows.flatMap((row) => row.by),
      (found) => d3.sum(found, (one) => one[1]),
      ([reason]) => reason,
    ),
    ([, n]) => -n,
  );
  const all = d3.sum(sums, ([, n]) => n);
  const shown = sums
    .slice(0, 3)
    .map(([reason, n]) => h("span.reason", { title: evidence.main.stalls[reason] }, `${reason} ${percent(n / all)}`));
  return h("span.reasons", shown);
}

/** FlashInfer's file at the tag that was measured. */
function link(view, file, line) {
  if (!file?.startsWith("include/flashinfer/") || !view.tag) return "–";
  const path = file.split("/").map(encodeURIComponent).join("/");
  return away(
    `https://github.com/flashinfer-ai/flashinfer/blob/v${encodeURIComponent(view.tag)}/${path}${line ? `#L${line}` : ""}`,
    "open ↗",
  );
}

function listingOf(view) {
  const { rows, chosen, total, evidence } = view;
  const most = d3.max(rows, (row) => row.samples);
  const columns = [
    { key: "pc", label: "pc", width: 8, text: (row) => row.pc.toString(16).padStart(5, "0"), number: true },
    { key: "heat", label: "heat", fixed: true, width: 9, text: () => "", node: (row) => heat(row.samples, most) },
    { key: "samples", label: "samples", number: true, text: (row) => number(row.samples, 6) },
    { key: "share", label: "share", unit: "%", number: true, text: (row) => ((100 * row.samples) / total).toFixed(2) },
    { key: "idle", label: "not issued", number: true, text: (row) => number(row.idle, 6) },
    {
      key: "sass",
      label: "instruction",
      width: 46,
      text: (row) => row.sass ?? "–",
      node: (row) => h("code", { title: row.sass }, row.sass ?? "–"),
    },
    { key: "top", label: "top reason", text: (row) => row.top ?? "–" },
    { key: "line", label: "line", text: (row) => (row.line ? `${row.file.split("/").at(-1)}:${row.line}` : "–") },
    { key: "inside", label: "in", text: (row) => row.inside ?? "–" },
  ];
  const panel = h("div.instruction", { "aria-live": "polite" });
  const grid = new Grid("Instructions", columns, {
    open: (row) => row.pc !== undefined && fill(panel, instruction(view, row)),
    sort: (key, down) => {
      chosen.sort = down + key;
      keep({ sort: chosen.sort });
      grid.setColumns(columns, chosen.sort);
      refresh();
    },
  });
  grid.setColumns(columns, chosen.sort);
  const filter = h("input", {
    type: "search",
    "data-filter": true,
    value: chosen.q,
    "aria-label": "Filter instructions",
    placeholder: "filter: HMMA samples>100 top=wait line:mma.cuh",
    spellcheck: "false",
    oninput: () => {
      chosen.q = filter.value;
      keep({ q: chosen.q });
      refresh();
    },
    onkeydown: (event) => event.key === "Enter" && grid.table.focus(),
  });
  const find = (name) =>
    ["pc", "samples", "idle", "sass", "top", "inside", "file", "opcode", "line"].includes(name)
      ? (row) => (name === "line" ? `${row.file}:${row.line}` : row[name])
      : null;
  const refresh = () => {
    const holds = matcher(chosen.q, find, (row) => `${row.sass ?? ""} ${row.file ?? ""} ${row.inside ?? ""} ${row.top ?? ""}`);
    const found = rows.filter((row) => (!chosen.at || keyOf(row, chosen.by) === chosen.at) && holds(row));
    const key = chosen.sort.replace(/^-/, "");
    const value =
      { share: (row) => row.samples, line: (row) => `${row.file}:${String(row.line).padStart(6, "0")}` }[key] ?? ((row) => row[key]);
    const ordered = d3.sort(
      found,
      chosen.sort.startsWith("-") ? (a, b) => d3.descending(value(a), value(b)) : (a, b) => d3.ascending(value(a), value(b)),
    );
    grid.setRows(key === "pc" && !chosen.sort.startsWith("-") && found.length === rows.length ? withGaps(ordered) : ordered);
    fill(view.count, `${found.length} of ${rows.length} instructions${chosen.at ? ` at ${chosen.at}` : ""}`);
  };
  refresh();
  return { nodes: [h("div.controls", filter, view.count), grid.element, panel], refresh };

  function instruction(of, row) {
    const all = d3
      .sort(row.by, (one) => -one[1])
      .map(([reason, samples, idle]) => [
        reason,
        number(samples),
        number(idle),
        percent(samples / row.samples, 1),
        evidence.main.stalls[reason] ?? "ready to issue",
      ]);
    return [
      h("h3", h("code", row.sass ?? "–")),
      h(
        "p.note",
        `${row.file ?? "no file"}${row.line ? `:${row.line}` : ""} `,
        link(of, row.file, row.line),
        row.text && h("code", ` ${row.text}`),
      ),
      table(["reason", ["samples"], ["not issued"], ["share"], "a warp waits for"], all, "Stall reasons of the instruction"),
    ];
  }
}

/** The instructions with a heading where some between them were never sampled. */
function withGaps(rows) {
  return rows.flatMap((row, at) => {
    const missing = at ? (row.pc - rows[at - 1].pc) / WORD_BYTES - 1 : 0;
    return missing > 0
      ? [{ group: "", node: () => h("span.note", `${missing} instruction${missing === 1 ? "" : "s"} without a sample`) }, row]
      : [row];
  });
}
