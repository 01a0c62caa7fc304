/** The timeline of a launch: the host's calls above, the GPU's streams below, the gaps between. */

import { chart, narrow } from "./chart.js";
import { fill, h, picker, s } from "./dom.js";
import { micro } from "./format.js";

const ROW = 30;

/** The operations of a point's launches: launch -> rows. */
export function launchesOf(timeline, place) {
  const rows = timeline.point.map((point, row) => [point, row]).filter(([point]) => point === place);
  return d3.group(
    rows.map(([, row]) => row),
    (row) => timeline.launch[row],
  );
}

/** The chart with a choice of the launch. */
export function lanes(timeline, place) {
  const launches = launchesOf(timeline, place);
  if (!launches.size) return h("p.empty", "Not in this evidence: a trace of this point by nsys.");
  const frame = h("div");
  const show = (launch) => {
    const rows = launches.get(Number(launch));
    const idle = d3.sum(rows.slice(1), (row) => timeline.gap_before_ns[row] ?? 0);
    fill(
      frame,
      chart("Timeline", (width) => draw(timeline, rows, width)),
      h(
        "p.note",
        `${rows.length} operation${rows.length === 1 ? "" : "s"} on the GPU, idle between them ${micro(idle / 1e3)}. Traced by nsys (${timeline.report.join(", ")}); time from the start of the launch.`,
      ),
    );
  };
  const names = [...launches.keys()].map((launch) => [String(launch), `launch ${launch}`]);
  show(names[0][0]);
  return [h("div.controls", picker("Repeat", names, names[0][0], show)), frame];
}

/** The chart of some rows of a timeline: the host's calls, and a lane for each stream. */
export function draw(timeline, rows, width) {
  const of = (row) => ({
    name: timeline.name[row] ?? timeline.kind[row],
    start: timeline.start_ns[row],
    end: timeline.start_ns[row] + timeline.duration_ns[row],
    gap: timeline.gap_before_ns[row],
    stream: timeline.stream[row],
    call: timeline.api_start_ns[row],
    calling: timeline.api_duration_ns[row],
  });
  const operations = rows.map(of);
  const streams = [...new Set(operations.map((one) => one.stream))];
  const left = narrow(width) ? 58 : 84;
  const end = d3.max(operations, (one) => Math.max(one.end, (one.call ?? 0) + (one.calling ?? 0)));
  const x = d3.scaleLinear([0, end], [left, width - 8]);
  const lanes = ["host", ...streams.map((stream) => `stream ${stream ?? "–"}`)];
  const height = lanes.length * ROW + 34;
  const boxes = [];
  for (const [at, one] of operations.entries()) {
    const lane = 1 + streams.indexOf(one.stream);
    if (one.call !== null && one.calling)
      boxes.push(
        boxOf(x, 0, one.call, one.call + one.calling, "launch", "var(--c4)", `host call for ${one.name}: ${micro(one.calling / 1e3)}`),
      );
    if (at && one.gap > 0) boxes.push(gapOf(x, lane, one.start - one.gap, one.start));
    boxes.push(
      boxOf(
        x,
        lane,
        one.start,
        one.end,
        one.name,
        "var(--c0)",
        `${one.name}: ${micro((one.end - one.start) / 1e3)}${one.gap ? `, after ${micro(one.gap / 1e3)} idle` : ""}`,
      ),
    );
  }
  const ticks = x.ticks(narrow(width) ? 3 : 8);
  return s(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `Timeline of ${operations.length} operations over ${micro(end / 1e3)}`,
    },
    ticks.map((tick) => [
      s("line.rule", { x1: x(tick), x2: x(tick), y1: 0, y2: lanes.length * ROW }),
      s("text.tick", { x: x(tick), y: lanes.length * ROW + 16, "text-anchor": "middle" }, micro(tick / 1e3)),
    ]),
    lanes.map((name, at) => s("text.tick", { x: 0, y: at * ROW + ROW / 2 + 4 }, name)),
    boxes,
  );
}

function boxOf(x, lane, start, end, text, colour, title) {
  const wide = Math.max(1.5, x(end) - x(start));
  const room = Math.floor((wide - 8) / 6.4);
  const shown = text.length <= room ? text : room > 6 ? `${text.slice(0, room - 1)}…` : "";
  return s(
    "g.box",
    s("title", title),
    s("rect", {
      x: x(start),
      y: lane * ROW + 4,
      width: wide,
      height: ROW - 8,
      rx: 2,
      style: `fill:${colour};fill-opacity:.3;stroke:${colour}`,
    }),
    shown && s("text", { x: x(start) + 5, y: lane * ROW + ROW / 2 + 4 }, shown),
  );
}

function gapOf(x, lane, start, end) {
  const y = lane * ROW + ROW / 2;
  return s("g", s("title", `idle ${micro((end - start) / 1e3)}`), s("line.gap", { x1: x(start), x2: x(end), y1: y, y2: y }));
}
