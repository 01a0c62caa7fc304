/** Environment: the machine, its versions and ceilings, what the preflight found, and what this page holds. */

import { away, each, folded, h, section, table, tabled } from "./dom.js";
import { micro, number, si, unit } from "./format.js";
import { href } from "./state.js";

export function environment(evidence, params) {
  const at = params.get("at");
  if (at) requestAnimationFrame(() => document.getElementById(at)?.scrollIntoView());
  const sides = d3
    .reverse(evidence.sides)
    .map((side) => [
      evidence.sides.length > 1 && h("h1", side.name),
      h("div.two", tabled("Machine", null, ["", ""], machine(side.provenance)), software(evidence, side)),
      ceilings(side),
      preflight(side.machine),
      jit(side.jit),
      incomplete(evidence, side),
      struck(side),
    ]);
  return [sides, columnsOf(evidence), about()];
}

function machine(of) {
  const rows = [
    ["GPU", of.gpu],
    ["compute capability", of.compute_capability],
    ["multiprocessors", number(of.sm_count)],
    ["L2 cache", si(of.l2_bytes, "B")],
    ["memory", si(of.memory_bytes, "B")],
    ["clocks while profiling", of.clock_policy === "none" ? "left alone" : of.clock_policy],
    ["recording", of.recording],
    ["date", of.date],
    ["tier", of.tier],
  ];
  return rows.map(([name, value]) => [name, value ?? "–"]);
}

function software(evidence, side) {
  const rows = Object.entries(evidence.main.software).map(([key, name]) => [name, side.provenance[key] ?? "–"]);
  return tabled("Software", null, ["", "version"], rows);
}

const CEILINGS =
  "What a rate is compared with. The counter ceiling belongs to each launch, at its own clock, and stands with the point. A copy reads and writes in turn; a kernel that almost only reads can pass it, and stands here by its name: its points are compared with its own highest rate.";

function ceilings(side) {
  const found = side.machine?.ceilings ?? side.targets[0]?.ceilings;
  if (!found) return null;
  const row = (name, gbs, tflops, source) => [name, unit(gbs, "GB/s"), tensor(tflops), source ?? "–"];
  const rows = ["datasheet", "measured"].map((name) => row(name, found[name]?.dram_gbs, found[name]?.tensor_tflops, found[name]?.source));
  for (const { title, ceilings: own } of side.targets)
    for (const [kind, point] of Object.entries(own.measured?.points ?? {}))
      rows.push(
        kind === "dram_gbs"
          ? row(title, own.measured.dram_gbs, null, point)
          : row(title, null, { [kind]: own.measured.tensor_tflops[kind] }, point),
      );
  return tabled("Ceilings", CEILINGS, ["", ["memory"], ["tensor"], "source"], rows);
}

/** One rate of arithmetic, or one of each type. */
function tensor(value) {
  if (typeof value !== "object" || value === null) return unit(value, "TFLOPS");
  const types = Object.entries(value).map(([type, tflops]) => `${type} ${unit(tflops, "TFLOPS")}`);
  return types.join(", ") || "–";
}

function preflight(info) {
  const rows = (info?.findings ?? []).map(({ check, status, found, remedy }) => {
    return [check, h(`span.type.${status === "ok" ? "fine" : "fired"}`, status), found ?? "–", remedy ?? "–"];
  });
  const none = section("Preflight", null, h("p.empty", "Not in this evidence: a preflight."));
  return tabled("Preflight", null, ["check", "status", "found", "remedy"], rows) || none;
}

function jit(found) {
  const seconds = (value) => micro(value === null ? null : 1e6 * value);
  const rows = (found?.summary ?? []).map((one) => {
    return [h("code", one.module), seconds(one.cold_s), seconds(one.disk_hit_s), seconds(one.memory_hit_s)];
  });
  return tabled("JIT", "The price of a first call.", ["module", ["cold build"], ["disk hit"], ["memory hit"]], rows);
}

/** What points lack, once for all points of a kernel that lack it. */
function incomplete(evidence, side) {
  const rows = side.targets.flatMap(({ name, title, total, incomplete: lacks }) =>
    lacks.map(([why, points]) => {
      const all = h("a", { href: href("points", { q: `target=${name}`, by: "problems" }) }, `${points.length} of ${total}`);
      const links = points.map((id) => [evidence.link(side, id), " "]);
      return [title, why, all, folded("points", links)];
    }),
  );
  const why = h("a", { href: href("guide", { page: side.targets[0]?.name, at: "not-measured-or-not-wholly" }) }, "the guide");
  const note = [
    "Each lacks what is named here; all else of it stands. Why, as far as it is known: ",
    why,
    ", under what was not measured.",
  ];
  const shown = tabled("Incomplete points", note, ["kernel", "lacks", ["points"], ""], rows);
  return shown && h("div", { id: "incomplete" }, shown);
}

function struck(side) {
  const reasons = each("ul", side.struck, (reason) => h("li", reason));
  return side.struck.length > 0 && section("Struck through", "Numbers that cannot be true.", reasons);
}

function columnsOf(evidence) {
  const rows = [...evidence.declared.values()].map(({ name, unit, source, formula }) => [h("code", name), unit, source, formula]);
  const shown = table(["column", "unit", "from", "formula"], rows, "Columns");
  return section("Columns", null, folded(`${rows.length} columns of the measurement and their formulas`, shown));
}

function about() {
  const told = h(
    "p",
    "One file, without a network: data, styles and scripts are inside, and its content security policy allows no request. Charts by ",
    away("https://observablehq.com/plot/", `Observable Plot ${Plot.version}`),
    " on ",
    away("https://d3js.org", `d3 ${d3.version}`),
    ", both under the ISC licence, whose text stands in the file.",
  );
  return section("This page", null, told);
}
