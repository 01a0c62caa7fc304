/** Environment: the machine, its versions and ceilings, what the preflight found, and what this page holds. */

import { away, h, section, table } from "./dom.js";
import { micro, number, si, unit } from "./format.js";
import { href } from "./state.js";

export function environment(evidence, params) {
  const at = params.get("at");
  if (at) requestAnimationFrame(() => document.getElementById(at)?.scrollIntoView());
  return [...evidence.sides]
    .reverse()
    .map((side) => [
      evidence.sides.length > 1 && h("h1", side.name),
      h(
        "div.two",
        section("Machine", null, machine(side.provenance)),
        section(
          "Software",
          null,
          table(
            ["", "version"],
            Object.entries(evidence.main.software).map(([key, name]) => [name, side.provenance[key] ?? "–"]),
            "Software",
          ),
        ),
      ),
      ceilings(side),
      preflight(side.machine),
      jit(side.jit),
      incomplete(evidence, side),
      struck(side),
    ])
    .concat([columnsOf(evidence), about()]);
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
  return table(
    ["", ""],
    rows.map(([name, value]) => [name, value ?? "–"]),
    "Machine",
  );
}

function ceilings(side) {
  const found = side.machine?.ceilings ?? side.targets[0]?.ceilings;
  if (!found) return null;
  const tensor = (value) =>
    value && typeof value === "object"
      ? Object.entries(value)
          .map(([type, tflops]) => `${type} ${unit(tflops, "TFLOPS")}`)
          .join(", ") || "–"
      : unit(value, "TFLOPS");
  const rows = ["datasheet", "measured"].map((name) => [
    name,
    unit(found[name]?.dram_gbs, "GB/s"),
    tensor(found[name]?.tensor_tflops),
    found[name]?.source ?? "–",
  ]);
  for (const { title, ceilings } of side.targets) {
    const { points, dram_gbs, tensor_tflops } = ceilings.measured ?? {};
    for (const [kind, point] of Object.entries(points ?? {})) {
      const memory = kind === "dram_gbs";
      rows.push([title, unit(memory ? dram_gbs : null, "GB/s"), tensor(memory ? null : { [kind]: tensor_tflops[kind] }), point]);
    }
  }
  return section(
    "Ceilings",
    "What a rate is held against. The counter ceiling belongs to each launch, at its own clock, and stands with the point. A copy reads and writes in turn; a kernel that almost only reads can pass it, and stands here by its name: its points are held against its own highest rate.",
    table(["", ["memory"], ["tensor"], "source"], rows, "Ceilings"),
  );
}

function preflight(info) {
  const found = info?.findings ?? [];
  if (!found.length) return section("Preflight", null, h("p.empty", "Not in this evidence: a preflight."));
  return section(
    "Preflight",
    null,
    table(
      ["check", "status", "found", "remedy"],
      found.map((one) => [
        one.check,
        h("span", { class: `type ${one.status === "ok" ? "fine" : "fired"}` }, one.status),
        one.found ?? "–",
        one.remedy ?? "–",
      ]),
      "Preflight",
    ),
  );
}

function jit(found) {
  const rows = found?.summary ?? [];
  if (!rows.length) return null;
  const seconds = (value) => micro(value === null ? null : 1e6 * value);
  return section(
    "JIT",
    "The price of a first call.",
    table(
      ["module", ["cold build"], ["disk hit"], ["memory hit"]],
      rows.map((one) => [h("code", one.module), seconds(one.cold_s), seconds(one.disk_hit_s), seconds(one.memory_hit_s)]),
      "JIT",
    ),
  );
}

/** What points lack, once for all points of a kernel that lack it. */
function incomplete(evidence, side) {
  const rows = side.targets.flatMap((target) =>
    target.incomplete.map(([why, points]) => [
      target.title,
      why,
      h("a", { href: href("points", { q: `target=${target.name}`, by: "problems" }) }, `${points.length} of ${target.total}`),
      h(
        "details",
        h("summary", "points"),
        points
          .map((id) => h("a.id", { href: href("point", { id: evidence.reference(side, side.place.get(id)) }) }, id))
          .flatMap((link) => [link, " "]),
      ),
    ]),
  );
  const why = h("a", { href: href("guide", { page: side.targets[0]?.name, at: "not-measured-or-not-wholly" }) }, "the guide");
  return (
    rows.length > 0 &&
    h(
      "div",
      { id: "incomplete" },
      section(
        "Incomplete points",
        ["Each lacks what is named here; all else of it stands. Why, as far as it is known: ", why, ", under what was not measured."],
        table(["kernel", "lacks", ["points"], ""], rows, "Incomplete points"),
      ),
    )
  );
}

function struck(side) {
  return (
    side.struck.length > 0 &&
    section(
      "Struck through",
      "Numbers that cannot be true.",
      h(
        "ul",
        side.struck.map((reason) => h("li", reason)),
      ),
    )
  );
}

function columnsOf(evidence) {
  const rows = [...evidence.declared.values()].map((column) => [h("code", column.name), column.unit ?? "", column.source, column.formula]);
  return section(
    "Columns",
    null,
    h(
      "details",
      h("summary", `${rows.length} columns of the measurement and their formulas`),
      table(["column", "unit", "from", "formula"], rows, "Columns"),
    ),
  );
}

function about() {
  return section(
    "This page",
    null,
    h(
      "p",
      "One file, without a network: data, styles and scripts are inside, and its content security policy allows no request. Charts by ",
      away("https://observablehq.com/plot/", `Observable Plot ${Plot.version}`),
      " on ",
      away("https://d3js.org", `d3 ${d3.version}`),
      ", both under the ISC licence, whose text stands in the file.",
    ),
  );
}
