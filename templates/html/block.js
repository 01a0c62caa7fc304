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

/** The text that a script of the page holds compressed. */
export async function textOf(script) {
  const packed = atob(script.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}
