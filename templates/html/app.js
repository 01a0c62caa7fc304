/** The page of captures: its views, and what its head says. */

import { block, has, libraries } from "./block.js";
import { choices } from "./choices.js";
import { claims } from "./claims.js";
import { compare } from "./compare.js";
import { h } from "./dom.js";
import { environment } from "./environment.js";
import { Evidence } from "./evidence.js";
import { guide } from "./guide.js";
import { overview } from "./overview.js";
import { point } from "./point.js";
import { listed, points } from "./points.js";
import { show } from "./shell.js";
import { source } from "./source.js";
import { go, read } from "./state.js";

const VIEWS = {
  overview: ["Overview", overview],
  points: ["Points", points],
  source: ["Source", source],
  claims: ["Claims", claims],
  choices: ["Choices", choices],
  guide: ["Guide", guide],
  environment: ["Environment", environment],
};

async function start() {
  const [main] = await Promise.all([block("main"), libraries()]);
  const given = new Evidence(main);
  const views = has("compare") ? { compare: ["Compare", compare], ...VIEWS } : VIEWS;
  const within = { point: ["points", "Point", point] };
  await show({ given, views, within, name: given.side.name, brand: brand(given), step: (by) => neighbour(given, by) });
}

function brand(given) {
  const of = given.side.provenance;
  const line = [
    of.gpu,
    of.flashinfer && `FlashInfer ${of.flashinfer}`,
    of.cuda && `CUDA ${of.cuda}`,
    of.date?.replace(/T\S*/g, ""),
    of.mixed.length > 0 && `not all with one ${of.mixed.join(", ")}`,
  ];
  return [
    h("span", given.sides.map((side) => side.name).join(" → ")),
    h("span.note", line.filter(Boolean).join(" · ")),
    h("span.tier", { title: "A: live counters, B: live without counters, C: recorded elsewhere" }, `tier ${of.tier}`),
  ];
}

/** The point before or after the shown one, of those that were listed last. */
function neighbour(given, by) {
  const { view, params } = read();
  const ids = params.getAll("id");
  if (view !== "point" || ids.length !== 1) return false;
  const all = listed.ids.length ? listed.ids : given.side.all.map((at) => given.reference(given.side, at));
  const at = all.indexOf(ids[0]);
  const next = all[at + by];
  if (at >= 0 && next) go("point", { id: next });
  return true;
}

start();
