/** The timeline of a launch: the host's calls above, the GPU's streams below, the gaps between. */

import { box, chart, narrow, picture } from "./chart.js";
import { choosing, h, picker, s } from "./dom.js";
import { count, nano } from "./format.js";

const ROW = 30;

/** The chart with a choice of the launch. */
export function lanes(timeline, place) {
  const rows = d3.range(timeline.point.length).filter((row) => timeline.point[row] === place);
  const launches = d3.group(rows, (row) => timeline.launch[row]);
  if (!launches.size) return h("p.empty", "Not in this evidence: a trace of this point by nsys.");
  const show = (launch) => {
    const of = launches.get(Number(launch));
    const idle = d3.sum(of.slice(1), (row) => timeline.gap_before_ns[row] ?? 0);
    const note = `${count(of.length, "operation")} on the GPU, idle between them ${nano(idle)}. Traced by nsys (${timeline.report.join(", ")}); time from the start of the launch.`;
    return [chart("Timeline", (width) => draw(timeline, of, width)), h("p.note", note)];
  };
  const names = [...launches.keys()].map((launch) => [String(launch), `launch ${launch}`]);
  return choosing(picker, "Repeat", names, names[0][0], show);
}

/** The chart of some rows of a timeline: the host's calls, and a lane for each stream; found(at): whether one is marked. */
export function draw(timeline, rows, width, found = () => false) {
  const operations = rows.map((row) => ({
    name: timeline.name[row] ?? timeline.kind[row],
    start: timeline.start_ns[row],
    end: timeline.start_ns[row] + timeline.duration_ns[row],
    gap: timeline.gap_before_ns[row],
    stream: timeline.stream[row],
    call: timeline.api_start_ns[row],
    calling: timeline.api_duration_ns[row],
  }));
  const streams = [...new Set(operations.map((one) => one.stream))];
  const end = d3.max(operations, (one) => Math.max(one.end, (one.call ?? 0) + (one.calling ?? 0)));
  const x = d3.scaleLinear([0, end], [narrow(width) ? 58 : 84, width - 8]);
  const names = ["host", ...streams.map((stream) => `stream ${stream ?? "–"}`)];
  const bottom = names.length * ROW;
  const boxOf = (lane, from, to, text, fill, title) => {
    const place = { x: x(from), y: lane * ROW + 4, width: x(to) - x(from), height: ROW - 8 };
    return box(title, [text], { fill, soft: 0.3 }, place);
  };
  const middle = (lane) => ({ y1: (lane + 0.5) * ROW, y2: (lane + 0.5) * ROW });
  const marks = operations.map(({ name, start, end: last, gap, stream, call, calling }, at) => {
    const lane = 1 + streams.indexOf(stream);
    const title = `${name}: ${nano(last - start)}${gap ? `, after ${nano(gap)} idle` : ""}`;
    return [
      call !== null && calling && boxOf(0, call, call + calling, "launch", "var(--c4)", `host call for ${name}: ${nano(calling)}`),
      at > 0 && gap > 0 && s("g", s("title", `idle ${nano(gap)}`), s("line.gap", { x1: x(start - gap), x2: x(start), ...middle(lane) })),
      boxOf(lane, start, last, name, found(at) ? "var(--c1)" : "var(--c0)", title),
    ];
  });
  const ticks = x
    .ticks(narrow(width) ? 3 : 8)
    .map((tick) => [
      s("line.rule", { x1: x(tick), x2: x(tick), y1: 0, y2: bottom }),
      s("text.tick", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, nano(tick)),
    ]);
  const heads = names.map((name, at) => s("text.tick", { x: 0, y: at * ROW + ROW / 2 + 4 }, name));
  return picture(`Timeline of ${operations.length} operations over ${nano(end)}`, width, bottom + 34, ticks, heads, marks);
}
