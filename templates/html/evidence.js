/** Evidence: the unpacked main block, asked by side, point and column. */

import { block } from "./block.js";
import { h } from "./dom.js";
import { href } from "./state.js";

/** One capture: its points as columns; all: the places of every point. */
export class Side {
  constructor(found, number, declared, limiters) {
    Object.assign(this, found);
    this.limiters = limiters;
    this.number = number;
    this.all = d3.range(found.points.id.length);
    this.place = new Map(found.points.id.map((id, at) => [id, at]));
    this.columns = columnsOf(found.points, declared);
    this.byTarget = new Map(found.targets.map((target) => [target.name, target]));
  }

  /** The value of a column at a point; null where it is not known. */
  value(name, at) {
    return this.columns.get(name)?.values[at] ?? null;
  }

  /** Points that are right and were measured. */
  good() {
    return this.all.filter((at) => this.points.status[at] === "ok");
  }

  /** A point's id without its target. */
  short(at) {
    const id = this.points.id[at];
    return id.slice(id.indexOf("/") + 1);
  }

  detail(at) {
    return block(`detail ${this.number} ${this.points.target[at]}`);
  }

  /** The rate that a target is read in, with the ceiling that it is held against. */
  rateOf(target) {
    const rate = this.byTarget.get(target)?.rate ?? "gbs";
    return { rate, unit: rate === "tflops" ? "TFLOPS" : "GB/s", fraction: `${rate}_fraction_measured` };
  }
}

// Columns of a point that are no measurement: name -> [group, what it is].
const OWN = {
  point: ["point", "id of the point"],
  target: ["point", "kernel target"],
  limiter: ["verdict", "what limits the point: a unit or a wait"],
  limits: ["verdict", "the verdict without its figures"],
  limited_by: ["verdict", "the same with its figures"],
};

function columnsOf(points, declared) {
  const all = new Map();
  const add = (name, values, about) => all.set(name, { name, values, label: name.replace("_", " "), unit: "", kind: "text", ...about });
  const own = (names) => {
    for (const name of names) add(name, points[name] ?? points.id, { group: OWN[name][0], formula: OWN[name][1] });
  };
  own(["point", "target"]);
  for (const [name, values] of Object.entries(points.params)) {
    const kind = values.every((value) => value === null || typeof value === "number") ? "float" : "text";
    add(name, values, { kind, group: "parameter", label: name, formula: "parameter of the point" });
  }
  own(["limiter", "limits", "limited_by"]);
  for (const column of declared)
    if (!all.has(column.name)) add(column.name, points.measurement[column.name], { ...column, group: column.source });
  return all;
}

/** All of the page's evidence. */
export class Evidence {
  constructor(main) {
    this.main = main;
    this.declared = new Map(main.columns.map((column) => [column.name, { unit: "", terms: [], keys: [], ...column }]));
    this.sides = main.sides.map((side, number) => new Side(side, number, main.columns, main.limiters));
  }

  /** The side that views show where nothing else is said: the newest. */
  get side() {
    return this.sides.at(-1);
  }

  /** {side, at} of a reference: a point id, with "number~" before it where there are several sides; or null. */
  find(reference) {
    const [, number, id] = /^(?:(\d+)~)?(.*)$/s.exec(reference ?? "");
    const side = number === undefined ? this.side : this.sides[Number(number)];
    const at = side?.place.get(id);
    return at === undefined ? null : { side, at };
  }

  reference(side, at) {
    return this.named(side, side.points.id[at]);
  }

  /** A link to a point by its id. */
  link(side, id, text = id) {
    return h("a.id", { href: href("point", { id: this.named(side, id) }) }, text);
  }

  /** The reference of a point by its id. */
  named(side, id) {
    return this.sides.length > 1 ? `${side.number}~${id}` : id;
  }
}
