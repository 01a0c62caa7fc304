/** What a profile of one launch shows beyond a table: Speed of Light, launch and occupancy, rules. */

import { bars } from "./chart.js";
import { each, firstOf, folded, h, table } from "./dom.js";
import { number, si } from "./format.js";

const WHOLES = ["sm_throughput_pct", "memory_throughput_pct"];

/** How far each unit was driven, in per cent of its peak. main: the main block; kernels: columns of launches; row: of one. */
export function light(main, kernels, row) {
  const driven = (key) => main.metrics[key]?.[1] === "%" && !/occupancy|hit/.test(key);
  const keys = Object.keys(kernels.metrics).filter(driven);
  const found = keys.map((key) => {
    const [label, , meaning] = main.metrics[key];
    return { label, value: kernels.metrics[key][row], title: `${key}: ${meaning}`, strong: WHOLES.includes(key) };
  });
  const ranked = d3.sort(found, (a, b) => b.strong - a.strong || (b.value ?? -1) - (a.value ?? -1));
  return [bars("Speed of Light", ranked), kernels.rolled_up[row] && h("p.note", kernels.rolled_up[row])];
}

const MOST_PARTS = 6;

/** The counters that make a throughput, the largest first: the unit that leads it is the first of them. */
export function breakdown(main, kernels, row) {
  const groups = d3.group(kernels.breakdown[row], ([parent]) => parent);
  return [...groups].map(([parent, parts]) => {
    const name = `What ${main.metrics[parent]?.[0] ?? parent} is made of`;
    const ranked = d3.sort(parts, ([, , , value]) => -value);
    const rows = ranked.map(([, counter, unit, value]) => {
      const title = kernels.parts[counter];
      const note = title.replace(/\.avg\.pct_of_peak_sustained_(elapsed|active)$/, "");
      return { label: main.limiters[unit] ?? unit, value, title, note };
    });
    return [h("h3", name), firstOf(rows, MOST_PARTS, "parts", (some) => bars(name, some))];
  });
}

/** The shared memory of a block: static and dynamic; null where one of them is not known. */
export function sharedMemory(kernels, row) {
  const parts = [kernels.smem_static_bytes[row], kernels.smem_dynamic_bytes[row]];
  return parts.includes(null) ? null : d3.sum(parts);
}

const RESOURCES = { registers: "registers", "shared memory": "shared_mem", warps: "warps", blocks: "blocks", barriers: "barriers" };

/** The launch and what limits its occupancy. */
export function launch(kernels, row) {
  const metric = (key) => kernels.metrics[key]?.[row] ?? null;
  const limits = Object.entries(RESOURCES).map(([name, key]) => [name, metric(`occupancy_limit_${key}`)]);
  const least = d3.min(limits, ([, value]) => value ?? undefined);
  const facts = [
    ["grid", `${kernels.grid[row] ?? "–"} (${number(kernels.grid_size[row])} blocks)`],
    ["block", `${kernels.block[row] ?? "–"} (${number(kernels.block_size[row])} threads)`],
    ["registers per thread", number(kernels.registers[row])],
    ["shared memory per block", si(sharedMemory(kernels, row), "B")],
    ["waves", number(metric("waves"))],
    ["replay passes", number(kernels.passes[row])],
  ];
  const occupancy = [
    { label: "achieved occupancy", value: metric("achieved_occupancy_pct"), strong: true },
    { label: "theoretical occupancy", value: metric("theoretical_occupancy_pct") },
  ];
  const cells = limits.map(([name, value]) => {
    const limiting = value !== null && value === least;
    return limiting ? [h("b", `${name} ◂ the limit`), h("b", number(value))] : [name, number(value)];
  });
  const allowed = table(["blocks per SM allowed by", [""]], cells, "Limits of occupancy");
  return h("div.two", table(["launch", [""]], facts, "Launch"), h("div", bars("Occupancy", occupancy), allowed));
}

/** What rules of ncu say, those that found something first. */
export function advice(kernels, row) {
  const rules = d3.sort(kernels.rules[row], ([, , , pct]) => -(pct ?? -1));
  if (!rules.length) return h("p.empty", "Not in this evidence: rules of ncu.");
  const list = (found) => each("ul.advice", found, (rule) => ruleOf(rule, kernels.texts));
  const [fine, fired] = [true, false].map((is) => rules.filter(([, , type]) => (type === "ok") === is));
  return [list(fired), fine.length > 0 && folded(`${fine.length} that found nothing to change`, list(fine))];
}

function ruleOf([rule, part, type, pct, kind, text], texts) {
  return h(
    "li",
    h(`span.type.${type === "ok" ? "fine" : "fired"}`, type),
    h("b", rule),
    h("span.note", ` ${part ?? ""}`),
    pct !== null && h("span.estimate", `estimated gain ${number(pct)} % (${kind ?? "scope not stated"})`),
    h("p", texts[text]),
  );
}
