/** The files: what made them, what is wrong with them, and what they lack, with the option that brings it. */

import { h, section, table } from "./dom.js";
import { micro, number } from "./format.js";

export function files(main) {
  return [
    ...main.reports.map((report, at) => [
      section(
        report.file,
        at === 0 && main.reports.length > 1 ? "The baseline." : null,
        facts([
          ["made by", `${report.tool}${report.version ? ` ${report.version}` : ""}`],
          ["GPU", report.devices.join(", ") || "–"],
          ["kernels", number(report.kernels.name.length)],
          ["launches", number(d3.sum(report.kernels.n))],
          ["launches that failed or lack something", number(d3.sum(report.kernels.problems))],
        ]),
        problems(report),
      ),
      lacking(report),
    ]),
    ...main.traces.map((trace) =>
      section(
        trace.file,
        null,
        facts([
          ["made by", `nsys${trace.version ? ` ${trace.version}` : ""}`],
          ["GPU", trace.devices.join(", ") || "–"],
          ["operations", number(trace.count)],
          ["from the first to the last", micro(trace.span_ns === null ? null : trace.span_ns / 1e3)],
        ]),
        problems(trace),
      ),
    ),
  ];
}

function facts(rows) {
  return table(["", "value"], rows, "Facts of the file");
}

function problems(file) {
  return file.problems.map((text) => h("p.warning", text));
}

/** What a report lacks, said once. */
export function lacking(report) {
  if (!report.lacks.length) return null;
  return section(
    "Not in this report",
    "Captured again with these options it has them; --set full has most.",
    table(
      ["what", "brought by"],
      report.lacks.map(({ what, option }) => [what, h("code", option)]),
      `What ${report.file} lacks`,
    ),
  );
}
