/** State: the view and all that a reader chose, in the address, so that a link shows what its sender saw. */

/** The parameters of an address, and which of them a view asked for. */
class Asked extends URLSearchParams {
  asked = new Set();
  get(name) {
    return this.getAll(name)[0] ?? null;
  }
  getAll(name) {
    this.asked.add(name);
    return super.getAll(name);
  }
}

/** {view, params} of an address's fragment: #/points?q=decode */
export function read(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", params: new Asked(query ?? "") };
}

/** The fragment of a view. params: {name: value, or a list of them}; null and "" are left out. */
export function href(view, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") query.append(name, one);
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Go to a view: a step that "back" undoes. */
export function go(view, params) {
  location.hash = href(view, params);
}

/** What a reader chose of the address: what stands there, else its default; a number where that is one. */
export function chosenOf(params, defaults) {
  const read = (text, other) => (typeof other === "number" ? Number(text) || other : (text ?? other));
  return Object.fromEntries(Object.entries(defaults).map(([name, other]) => [name, read(params.get(name), other)]));
}

/** Put what is chosen now, here and in the address, and show it. */
export function update(chosen, patch, show = () => null) {
  Object.assign(chosen, patch);
  keep(patch);
  show();
}

/** Keep what was chosen within a view in the address, without a step. */
export function keep(patch) {
  const { view, params } = read();
  const all = {};
  for (const name of new Set(params.keys())) all[name] = params.getAll(name);
  history.replaceState(null, "", href(view, { ...all, ...patch }));
}
