/** Charts of a launch: its instructions and pipes, the spread over SMs and slices, counters over the run, occupancy. */

import { bars, base, chart, narrow } from "./chart.js";
import { beside, each, firstOf, h, section, table } from "./dom.js";
import { nano, number, percent, quantity } from "./format.js";
import { sharedMemory } from "./profile.js";

const MOST_OPCODES = 16;
const MOST_SPREAD = 12;

/** Pipes and opcodes beside each other. */
export function mix({ pipes, opcodes }) {
  const all = d3.sum(opcodes, ([, n]) => n);
  const rows = opcodes.map(([label, n]) => ({ label, value: (100 * n) / all, title: `${number(n)} instructions of warps` }));
  const busy = pipes.map(([label, value]) => ({ label, value }));
  const shown = (part, name = "Instruction mix") => bars(name, part);
  const executed = `${number(all)} instructions that warps executed, by opcode.`;
  return beside(
    rows.length ? section("Instruction mix", executed, firstOf(rows, MOST_OPCODES, "opcodes", shown)) : null,
    busy.length ? section("Pipes", "Per cent of each pipe's peak while SMs were active.", bars("Pipes", busy)) : null,
  );
}

/** How differently loaded the instances of a unit were. */
export function spread({ spread: found }) {
  if (!found.length) return null;
  const rows = found.map(([counter, unit, mean, least, most]) => {
    const above = mean ? percent(most / mean - 1) : "–";
    return [unit, h("code", counter), strip(mean, least, most), number(least), number(mean), number(most), above];
  });
  const heads = ["over", "counter", "min to max, mean", ["min"], ["mean"], ["max"], ["max above mean"]];
  const note = "Where the most loaded instance is far above the mean, the others wait for it.";
  const shown = (part, name = "Spread") => table(heads, part, name);
  return section("Spread over SMs and slices", note, firstOf(rows, MOST_SPREAD, "counters", shown));
}

/** From the least loaded instance to the most loaded one, of which the whole strip is long, with a mark at the mean. */
function strip(mean, least, most) {
  const at = (value) => ({ style: `left:${most > 0 ? Math.max(0, (100 * value) / most) : 0}%` });
  return h("span.range", { "aria-hidden": "true" }, h("span.between", at(least)), h("span.mean", at(mean)));
}

/** Small charts beside each other. found: [name, what it says, its head, options of its plot]. */
function multiples(found) {
  return each("div.multiples", found, ([name, told, head, { x, y, ...options }]) => {
    const ticks = (width) => (narrow(width) ? 3 : x.ticks);
    const plot = (width) => ({ ...base(width, told), marginBottom: 24, x: { label: null, ...x, ticks: ticks(width) }, ...options });
    return h(
      "div",
      head,
      chart(name, (width) => Plot.plot({ ...plot(width), y: { label: null, grid: true, ticks: 3, zero: true, ...y } })),
    );
  });
}

const X = { x: ([x]) => x, y: ([, y]) => y };

/** Counters that were sampled while the kernel ran. */
export function series({ series: found }) {
  const known = found.filter(([, , values]) => values.some(([, value]) => value > 0));
  if (!known.length) return null;
  const charts = known.map(([name, unit, values]) => {
    const most = d3.max(values, ([, value]) => value);
    const marks = [
      Plot.areaY(values, { ...X, fill: "var(--c0)", fillOpacity: 0.18 }),
      Plot.lineY(values, { ...X, stroke: "var(--c0)", strokeWidth: 1.3 }),
    ];
    const axes = { x: { tickFormat: nano, ticks: 5 }, y: { tickFormat: (value) => number(value) } };
    const told = `${name} over the run, at most ${quantity(most, unit)}`;
    return [name, told, h("code.note", name), { ...axes, height: 110, marginLeft: 44, marks }];
  });
  return section("Over the run", "Counters that ncu sampled in passes of their own (PM sampling).", multiples(charts));
}

/**
 * Occupancy over what it depends on: the calculator's curves in the report, and where this launch stands on them.
 * found: name -> [[x, warps of an SM]] at the places where they change; of and row: the launch.
 */
export function curves(found, of, row) {
  // What a launch has, in which unit, and how many of the report's that is.
  const now = {
    registers: [of.registers[row], "registers per thread", 1],
    "shared memory": [sharedMemory(of, row), "KiB of shared memory per block", 1024],
    "block size": [of.block_size[row], "threads per block", 1],
  };
  const names = Object.keys(found).filter((name) => found[name].length > 1 && now[name][0] !== null);
  if (!names.length) return null;
  const charts = names.map((name) => {
    const [value, unit, times] = now[name];
    const marks = [
      Plot.lineY(found[name], { x: ([x]) => x / times, y: X.y, curve: "step-after", stroke: "var(--c0)", strokeWidth: 1.4 }),
      Plot.ruleX([value / times], { stroke: "var(--c1)", strokeWidth: 1.6 }),
    ];
    const told = `Warps per SM over ${unit}; this launch: ${number(value / times)}`;
    const x = { ticks: 4, tickFormat: (at) => number(at), label: unit, labelArrow: "none" };
    const y = { label: "warps per SM", labelArrow: "none" };
    const options = { x, y, height: 146, marginTop: 22, marginBottom: 34, marginLeft: 30, marks };
    return [`Occupancy over ${name}`, told, h("span.note", told), options];
  });
  return multiples(charts);
}
