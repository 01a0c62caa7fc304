/** What all charts share: a frame that follows its room, and a name for those who do not see it. */

import { h } from "./dom.js";

/** An element that holds what `draw(width)` gives, drawn again where its width changes. */
export function chart(name, draw) {
  const frame = h("figure.chart", { role: "group", "aria-label": name });
  let drawn = 0;
  const again = () => {
    const width = Math.floor(frame.clientWidth);
    if (width < 40) return;
    drawn = width;
    frame.replaceChildren(draw(width));
    for (const svg of frame.querySelectorAll("svg")) named(svg);
  };
  new ResizeObserver(() => {
    if (Math.abs(frame.clientWidth - drawn) > 2) again();
  }).observe(frame);
  frame.redraw = again;
  return frame;
}

/** Options of Plot that every chart has. */
export function base(width, name) {
  return { width, ariaLabel: name, style: { background: "transparent", overflow: "visible" }, className: "plot" };
}

/** Whether the room is a telephone's. */
export function narrow(width) {
  return width < 560;
}

/** A picture for those who hear the page: its own name, and none for the marks of which Plot made it. */
function named(svg) {
  svg.setAttribute("role", "img");
  for (const part of svg.querySelectorAll("g[aria-label]")) {
    part.setAttribute("class", `mark-${part.getAttribute("aria-label").replace(/\W+/g, "-")}`);
    part.removeAttribute("aria-label");
    part.removeAttribute("aria-description");
  }
}
