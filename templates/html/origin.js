/** Origin: from a number back to the report, kernel and counter that it comes from, with every formula between. */

import { button, h, popup } from "./dom.js";
import { missing, shellWord } from "./format.js";

/** A number of a point that tells its origin when it is pressed. print(value, unit): how it is printed here. */
export function numberOf(evidence, side, at, name, print) {
  const struck = side.points.struck[at].includes(name);
  const about = evidence.declared.get(name);
  const title = about ? `${name}: ${about.formula}` : name;
  const press = () => show(evidence, side, at, name);
  return button(struck ? ".origin.struck" : ".origin", { title, onclick: press }, print(side.value(name, at), about?.unit ?? ""));
}

async function show(evidence, side, at, name) {
  const detail = await side.detail(at);
  const place = detail.id.indexOf(side.points.id[at]);
  const context = { evidence, side, at, detail, place, kernels: kernelsOf(detail, place), seen: new Set() };
  popup(
    `Origin of ${name}`,
    h("p.note", side.points.id[at], ` · ${side.provenance.gpu}, tier ${side.value("tier", at)}`),
    h("ul.origin-tree", node(context, name)),
    h("p.note", "The same on the command line: ", h("code", `ncuflow trace ${shellWord(side.points.id[at])} ${name}`)),
  );
}

/** Kernels of a point: [{row, main}], in their order. */
export function kernelsOf({ kernels }, place) {
  const rows = d3.range(kernels.point.length).filter((row) => kernels.point[row] === place);
  const known = rows.every((row) => kernels.duration_ns[row] !== null);
  const main = known ? d3.greatest(rows, (row) => kernels.duration_ns[row]) : undefined;
  return rows.map((row) => ({ row, main: row === main }));
}

function node(context, name) {
  const { evidence, side, at, seen } = context;
  const about = evidence.declared.get(name);
  const value = side.value(name, at);
  const line = [
    h("b", name),
    " = ",
    h("span.value", exact(value), about?.unit && ` ${about.unit}`),
    h("span.note", ` ${about?.source ?? ""}: ${about?.formula ?? ""}`),
  ];
  if (!about || seen.has(name)) return h("li", line);
  seen.add(name);
  const below = [...about.terms.map((term) => node(context, term)), ...leaves(context, about)];
  return h("li", line, below.length > 0 && h("ul", below));
}

/** What a column was read from: counters and stalls of kernels, the timing, the trace. */
function leaves({ side, at, detail, place, kernels }, about) {
  const found = kernels.filter(({ main }) => main || !about.main).flatMap(({ row }) => ofKernel(detail, row, about));
  if (about.source === "events") {
    const tolerance = ` tolerance of the check ${exact(detail.check.tolerance[place])}, ${side.points.status[at]}`;
    found.push(h("li", reportOf(detail, place), h("span.note", tolerance)));
  }
  if (about.source === "nsys" && !about.terms.length) found.push(h("li", detail.timeline.report.join(", ") || "no trace"));
  if (about.evidence && about.evidence !== "stalls") found.push(h("li", about.evidence));
  return found;
}

function ofKernel({ kernels, counters }, row, about) {
  const where = h("span.note", ` ${kernels.report[row]}, kernel ${kernels.kernel[row]} ${kernels.name[row]}`);
  const here = () => where.cloneNode(true);
  const known = about.keys.filter((key) => exact(kernels.metrics[key]?.[row]) !== "–");
  const read = known.map((key) => {
    const counter = counters.names[counters.of[key]?.[row]];
    return h("li", h("code", counter ?? key), " = ", h("span.value", exact(kernels.metrics[key][row])), here());
  });
  const stalls = about.evidence === "stalls" ? kernels.stalls[row].filter(([, kind, , share]) => kind === "stall" && share) : [];
  const waits = stalls.map(([reason, , ratio, share]) => {
    return h("li", h("code", reason), ` ${exact(ratio)} cycles per instruction, share ${exact(share)}`, here());
  });
  return [...read, ...waits];
}

function reportOf(detail, place) {
  const row = detail.timing.point.findIndex((point, at) => point === place && !detail.timing.run[at]);
  return row < 0 ? "timing.jsonl" : detail.timing.report[row];
}

function exact(value) {
  return missing(value) ? "–" : String(value);
}
