/** Libraries: d3 and Plot, unpacked and run; the page's policy knows their digests and lets nothing else run. */

import { textOf } from "./block.js";

/** Run what the page brings along, in its order. */
export async function libraries() {
  const packed = [...document.querySelectorAll("script[data-library]")];
  for (const text of await Promise.all(packed.map(textOf))) {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }
}
