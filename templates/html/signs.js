/** Signs: a colour and a shape for each name, so that colour is never alone. */

import { h, s } from "./dom.js";

const COUNT = 8;
const SHAPES = ["circle", "square", "diamond2", "triangle", "star", "cross", "wye", "times"];

/** Colours and shapes of names, in their order: the same name has the same sign wherever these names are drawn. */
export class Signs {
  constructor(names) {
    this.names = [...new Set(names)];
  }

  at(name) {
    return Math.max(0, this.names.indexOf(name));
  }

  colour(name) {
    return `var(--c${this.at(name) % COUNT})`;
  }

  shape(name) {
    // Beyond the colours the shapes are shifted, so that no two names share both.
    const at = this.at(name);
    return SHAPES[(at + 3 * Math.floor(at / COUNT)) % COUNT];
  }

  /** A small picture of the sign. */
  mark(name) {
    const shape = this.shape(name);
    const symbol = d3[`symbol${shape.charAt(0).toUpperCase()}${shape.slice(1)}`];
    const path = s("path", { d: d3.symbol(symbol, 70)(), style: `fill:${this.colour(name)};stroke:${this.colour(name)}` });
    return s("svg.sign", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, path);
  }
}

// Known limiters first, so that they keep their signs whatever a page holds; others follow.
const LIMITERS = ["dram", "latency", "tensor", "issue", "blocks", "l2", "l1", "tail"];

/** Signs of limiters by name, the known ones first. */
export function limiterSigns(names) {
  return new Signs([...LIMITERS, ...[...new Set(names.filter(Boolean))].sort()]);
}

export function targetSigns(side) {
  return new Signs(side.targets.map((target) => target.name));
}

/** What limits a point, with the sign of its limiter; words: ``limited_by`` or, without figures, ``limits``. */
export function limitedBy(side, at, signs, words = "limited_by") {
  const name = side.points.limiter[at];
  return h("span.limited", { title: side.points.limited_by[at] }, name && signs.mark(name), side.points[words][at]);
}
