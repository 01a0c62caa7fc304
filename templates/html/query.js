/** Queries: what a filter box means. Words that must all hold: text of the id, name:text, name>number, -word. */

const WORD = /(-?)(?:([\w.]+)\s*(:|>=|<=|!=|=|>|<)\s*)?(?:"([^"]*)"|(\S+))/g;

const COMPARE = { ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b };

/** The words of a query: [{not, name, sign, text}]. */
export function words(query) {
  return [...query.matchAll(WORD)].map(([, not, name, sign, quoted, bare]) => ({
    not: not === "-",
    name,
    sign,
    text: (quoted ?? bare).toLowerCase(),
  }));
}

/**
 * A test of a row for a query. find(name) gives a function row -> value, or null where there is no such
 * column; text(row) is what a bare word looks in. A word with an unknown name holds for no row.
 */
export function matcher(query, find, text) {
  const tests = words(query).map((word) => {
    const test = word.name ? ofColumn(word, find(word.name)) : (row) => text(row).toLowerCase().includes(word.text);
    return word.not ? (row) => !test(row) : test;
  });
  return (row) => tests.every((test) => test(row));
}

function ofColumn({ sign, text }, value) {
  if (!value) return () => false;
  if (sign in COMPARE) {
    const bound = Number(text);
    return (row) => typeof value(row) === "number" && COMPARE[sign](value(row), bound);
  }
  const shown = (row) => String(value(row) ?? "").toLowerCase();
  if (sign === ":") return (row) => shown(row).includes(text);
  const equal = (row) => {
    const found = value(row);
    return typeof found === "number" ? found === Number(text) : shown(row) === text;
  };
  return sign === "=" ? equal : (row) => !equal(row);
}

/** Names in a query that are no column's: a word with one of them holds for no row. */
export function unknown(query, find) {
  return words(query).flatMap(({ name }) => (name && !find(name) ? [name] : []));
}

/** A query with a word for a column put in, or its words of that column taken out where value is null. */
export function withWord(query, name, value) {
  const others = [...query.matchAll(WORD)].map((m) => m[0].trim()).filter((word) => !word.replace(/^-/, "").startsWith(`${name}=`));
  if (value !== null) others.push(`${name}=${/\s/.test(value) ? `"${value}"` : value}`);
  return others.join(" ");
}
