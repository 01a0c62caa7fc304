/** What a profile of one launch shows beyond a table: Speed of Light, launch and occupancy, rules. */

import { bars } from "./bars.js";
import { h, table } from "./dom.js";
import { number, si } from "./format.js";

/** How far each unit was driven, in per cent of its peak. main: the main block; kernels: columns of launches; row: of one. */
export function light(main, kernels, row) {
  const strong = new Set(["sm_throughput_pct", "memory_throughput_pct"]);
  const keys = Object.keys(kernels.metrics).filter(
    (key) => main.metrics[key]?.[1] === "%" && !key.includes("occupancy") && !key.includes("hit"),
  );
  const found = keys.map((key) => ({
    key,
    label: main.metrics[key][0],
    value: kernels.metrics[key][row],
    title: `${key}: ${main.metrics[key][2]}`,
    strong: strong.has(key),
  }));
  return [
    bars(
      "Speed of Light",
      d3.sort(found, (a, b) => b.strong - a.strong || (b.value ?? -1) - (a.value ?? -1)),
    ),
    kernels.rolled_up[row] && h("p.note", kernels.rolled_up[row]),
  ];
}

const MOST_PARTS = 6;

/** The counters that make a throughput, the largest first: the unit that leads it is the first of them. */
export function breakdown(main, kernels, row) {
  const groups = d3.group(kernels.breakdown?.[row] ?? [], ([parent]) => parent);
  return [...groups].map(([parent, parts]) => {
    const rows = d3
      .sort(parts, (part) => -part[3])
      .map(([, counter, unit, value]) => ({
        label: main.limiters[unit] ?? unit,
        value,
        title: kernels.parts[counter],
        note: kernels.parts[counter].replace(/\.avg\.pct_of_peak_sustained_(elapsed|active)$/, ""),
      }));
    const name = `What ${main.metrics[parent]?.[0] ?? parent} is made of`;
    return [
      h("h3", name),
      bars(name, rows.slice(0, MOST_PARTS)),
      rows.length > MOST_PARTS && h("details", h("summary", `${rows.length - MOST_PARTS} more`), bars(name, rows.slice(MOST_PARTS))),
    ];
  });
}

/** The launch and what limits its occupancy. */
export function launch(kernels, row) {
  const m = (key) => kernels.metrics[key]?.[row] ?? null;
  const limits = [
    ["registers", "occupancy_limit_registers"],
    ["shared memory", "occupancy_limit_shared_mem"],
    ["warps", "occupancy_limit_warps"],
    ["blocks", "occupancy_limit_blocks"],
    ["barriers", "occupancy_limit_barriers"],
  ].map(([name, key]) => ({ name, value: m(key) }));
  const least = d3.min(limits, (one) => one.value ?? undefined);
  const shared =
    kernels.smem_static_bytes[row] === null || kernels.smem_dynamic_bytes[row] === null
      ? null
      : kernels.smem_static_bytes[row] + kernels.smem_dynamic_bytes[row];
  const facts = [
    ["grid", `${kernels.grid[row] ?? "–"} (${number(kernels.grid_size[row])} blocks)`],
    ["block", `${kernels.block[row] ?? "–"} (${number(kernels.block_size[row])} threads)`],
    ["registers per thread", number(kernels.registers[row])],
    ["shared memory per block", si(shared, "B")],
    ["waves", number(m("waves"))],
    ["replay passes", number(kernels.passes[row])],
  ];
  return h(
    "div.two",
    table(["launch", [""]], facts, "Launch"),
    h(
      "div",
      bars("Occupancy", [
        { label: "achieved occupancy", value: m("achieved_occupancy_pct"), strong: true },
        { label: "theoretical occupancy", value: m("theoretical_occupancy_pct") },
      ]),
      table(
        ["blocks per SM allowed by", [""]],
        limits.map(({ name, value }) =>
          value !== null && value === least ? [h("b", `${name} ◂ the limit`), h("b", number(value))] : [name, number(value)],
        ),
        "Limits of occupancy",
      ),
    ),
  );
}

/** What rules of ncu say, those that found something first. */
export function advice(kernels, row) {
  const rules = d3.sort(kernels.rules[row] ?? [], ([, , type, pct]) => (type === "ok" ? 1e9 : 0) - (pct ?? -1));
  if (!rules.length) return h("p.empty", "Not in this evidence: rules of ncu.");
  const item = ([rule, part, type, pct, kind, text]) =>
    h(
      "li",
      h("span", { class: `type ${type === "ok" ? "fine" : "fired"}` }, type),
      h("b", rule),
      h("span.note", ` ${part ?? ""}`),
      pct !== null && h("span.estimate", `estimated gain ${number(pct)} % (${kind ?? "scope not stated"})`),
      h("p", kernels.texts[text]),
    );
  const fired = rules.filter(([, , type]) => type !== "ok");
  const fine = rules.filter(([, , type]) => type === "ok");
  return [
    h("ul.advice", fired.map(item)),
    fine.length > 0 && h("details", h("summary", `${fine.length} that found nothing to change`), h("ul.advice", fine.map(item))),
  ];
}
