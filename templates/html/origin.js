/** Origin: from a number back to the report, kernel and counter that it comes from, with every formula between. */

import { h } from "./dom.js";
import { quantity, shellWord } from "./format.js";
import { popup } from "./popup.js";

/** A number of a point that tells its origin when it is pressed. text: how it is printed here. */
export function numberOf(evidence, side, at, name, text) {
  const struck = side.points.struck[at].includes(name);
  const about = evidence.declared.get(name);
  return h(
    "button",
    {
      type: "button",
      class: `origin${struck ? " struck" : ""}`,
      title: about ? `${name}: ${about.formula}` : name,
      onclick: () => show(evidence, side, at, name),
    },
    text ?? quantity(side.value(name, at), about?.unit ?? ""),
  );
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
export function kernelsOf(detail, place) {
  const rows = detail.kernels.point
    .map((point, row) => [point, row])
    .filter(([point]) => point === place)
    .map(([, row]) => row);
  const known = rows.every((row) => detail.kernels.duration_ns[row] !== null);
  const main = known ? d3.greatest(rows, (row) => detail.kernels.duration_ns[row]) : undefined;
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

function leaves({ side, at, detail, place, kernels }, about) {
  const found = [];
  for (const { row, main } of kernels) {
    if (about.main && !main) continue;
    const where = `${detail.kernels.report[row]}, kernel ${detail.kernels.kernel[row]} ${detail.kernels.name[row]}`;
    for (const key of about.keys) {
      const value = detail.kernels.metrics[key]?.[row];
      if (value === undefined || value === null) continue;
      const counter = detail.counters.names[detail.counters.of[key]?.[row]];
      found.push(h("li", h("code", counter ?? key), " = ", h("span.value", exact(value)), h("span.note", ` ${where}`)));
    }
    if (about.evidence === "stalls")
      for (const [reason, kind, ratio, share] of detail.kernels.stalls[row])
        if (kind === "stall" && share)
          found.push(
            h("li", h("code", reason), ` ${exact(ratio)} cycles per instruction, share ${exact(share)}`, h("span.note", ` ${where}`)),
          );
  }
  if (about.source === "events")
    found.push(
      h(
        "li",
        reportOf(detail, place),
        h("span.note", ` tolerance of the check ${exact(detail.check.tolerance[place])}, ${side.points.status[at]}`),
      ),
    );
  if (about.source === "nsys" && !about.terms.length) found.push(h("li", detail.timeline.report.join(", ") || "no trace"));
  if (about.evidence && about.evidence !== "stalls") found.push(h("li", about.evidence));
  return found;
}

function reportOf(detail, place) {
  const row = detail.timing.point.findIndex((point, at) => point === place && !detail.timing.run[at]);
  return row < 0 ? "timing.jsonl" : detail.timing.report[row];
}

function exact(value) {
  return value === null || value === undefined ? "–" : String(value);
}
