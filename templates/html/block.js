/** Blocks: the page's data, compressed in its own scripts and unpacked when first asked for. */

const unpacked = new Map();

function packed(name) {
  return document.querySelector(`script[data-block="${CSS.escape(name)}"]`);
}

/** Whether the page holds a block. */
export function has(name) {
  return packed(name) !== null;
}

/** The value of a block, or null where the page does not hold it. */
export function block(name) {
  if (!unpacked.has(name)) unpacked.set(name, unpack(packed(name)));
  return unpacked.get(name);
}

async function unpack(script) {
  return script === null ? null : JSON.parse(await textOf(script));
}

/** Run what the page brings along, d3 and Plot, in its order; the page's policy knows their digests and lets nothing else run. */
export async function libraries() {
  const packed = [...document.querySelectorAll("script[data-library]")];
  for (const text of await Promise.all(packed.map(textOf))) {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }
}

/** The text that a script of the page holds compressed. */
async function textOf(script) {
  const packed = atob(script.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}
