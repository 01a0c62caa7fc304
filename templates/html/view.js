/** The page of a view, reports and traces of any program: its views, and what its head says. */

import { block, libraries } from "./block.js";
import { h } from "./dom.js";
import { show } from "./shell.js";
import { go, read } from "./state.js";
import { compared } from "./view_compare.js";
import { files, ranges } from "./view_files.js";
import { kernel } from "./view_kernel.js";
import { kernels } from "./view_kernels.js";
import { trace } from "./view_trace.js";

// Name -> [title, what shows it, whether the files have something to show in it].
const VIEWS = {
  kernels: ["Kernels", kernels, ({ reports }) => reports.length > 0],
  compare: ["Compare", compared, ({ reports }) => reports.length > 1],
  trace: ["Trace", trace, ({ traces }) => traces.length > 0],
  ranges: ["NVTX", ranges, ({ reports, traces }) => [...reports, ...traces].some((one) => one.nvtx.length > 0)],
  files: ["Files", files, () => true],
};

async function start() {
  const [given] = await Promise.all([block("main"), libraries()]);
  const views = Object.fromEntries(Object.entries(VIEWS).filter(([, [, , has]]) => has(given)));
  const within = { kernel: ["kernels", "Kernel", kernel] };
  const all = [...given.reports, ...given.traces];
  const name = all.map((one) => one.file).join(" → ");
  const devices = [...new Set(all.flatMap((one) => one.devices))];
  const brand = [h("span.wrap", name), h("span.note", devices.join(", "))];
  await show({ given, views, within, name, brand, step: (by) => neighbour(given, by) });
}

/** The kernel before or after the shown one, in the order of the list. */
function neighbour(main, by) {
  const { view, params } = read();
  if (view !== "kernel") return false;
  const [r, k] = [Number(params.get("r") ?? 0), Number(params.get("k") ?? 0) + by];
  if (k >= 0 && k < (main.reports[r]?.kernels.name.length ?? 0)) go("kernel", { r, k, part: params.get("part") });
  return true;
}

start();
