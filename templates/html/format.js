/** How values are printed: the rules of the Markdown pages (ncuflow/format.py), to the digit. */

export const DASH = "–";
const PREFIXES = { T: 1e12, G: 1e9, M: 1e6, k: 1e3 };

export function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

// Of two equally near numbers Python prints the even one, JavaScript the larger: more digits tell whether they are equally near.
const MORE = 40;

/** [mantissa, exponent] of what `print(digits)` gives, rounded as Python does. */
function rounded(print, digits) {
  const [[shown, power], [exact, same]] = [digits, digits + MORE].map((many) => print(many).split("e"));
  const tie = power === same && /^50*$/.test(exact.slice(-MORE)) && "13579".includes(shown.at(-1));
  return [tie ? exact.slice(0, -MORE).replace(/\.$/, "") : shown, power];
}

function fixed(value, digits) {
  return rounded((many) => value.toFixed(many), digits)[0];
}

/** `digits` significant digits, thousands kept whole: 4172, 41.7, 0.0417, 5.43e-8. */
export function number(value, digits = 3) {
  if (missing(value)) return DASH;
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  if (Math.abs(value) >= 10 ** digits) return fixed(value, 0).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
  const [mantissa, exponent] = rounded((many) => value.toExponential(many), digits - 1);
  return Number(exponent) < -4 ? `${Number(mantissa)}e${exponent}` : String(Number(`${mantissa}e${exponent}`));
}

/** `number` and its unit, of which "1 chunks" is "1 chunk"; the dash stands alone. */
export function unit(value, name, digits = 3) {
  if (missing(value)) return DASH;
  const text = number(value, digits);
  return `${text}\u00a0${text === "1" ? name.replace(/^([a-z ]{3,})s$/, "$1") : name}`.trimEnd();
}

/** With a decimal prefix: 146.2e9 FLOP is 146 GFLOP. */
export function si(value, name, digits = 3) {
  if (missing(value)) return DASH;
  for (const [prefix, factor] of Object.entries(PREFIXES))
    if (Math.abs(value) >= factor) return `${number(value / factor, digits)}\u00a0${prefix}${name}`;
  return unit(value, name, digits);
}

/** A value that is per cent already. */
export function pct(value, digits = 0) {
  return missing(value) ? DASH : `${fixed(value, digits)}\u00a0%`;
}

/** A fraction of 1 as per cent. */
export function percent(value, digits = 0) {
  return pct(missing(value) ? null : 100 * value, digits);
}

/** A difference with its sign, unless it is printed as nothing; print: how its amount is printed. */
export function signed(value, print) {
  const amount = missing(value) ? DASH : print(Math.abs(value));
  return `${/[1-9]/.test(amount) ? (value > 0 ? "+" : "−") : ""}${amount}`;
}

/** A change as per cent with its sign. */
export function change(value, digits = 1) {
  return signed(value, (amount) => percent(amount, digits));
}

/** The change from one number to another; null where it is none. */
export function relative(base, head) {
  return typeof base === "number" && typeof head === "number" && base !== 0 ? head / base - 1 : null;
}

/** The interval of a change: {low, high}. */
export function interval(found) {
  return found.low === null || found.high === null ? DASH : `${change(found.low)} … ${change(found.high)}`;
}

/** Microseconds, as milliseconds or seconds where that reads better. */
export function micro(value) {
  if (missing(value)) return DASH;
  if (value >= 1e6) return `${number(value / 1e6)}\u00a0s`;
  return value >= 1e4 ? `${number(value / 1e3)}\u00a0ms` : `${number(value)}\u00a0µs`;
}

/** Nanoseconds, in the same units. */
export function nano(value) {
  return micro(missing(value) ? null : value / 1e3);
}

/** A number with what it counts: 1 point, 2 points. */
export function count(value, name) {
  return `${number(value)} ${name}${value === 1 ? "" : /(s|ch)$/.test(name) ? "es" : "s"}`;
}

const LARGE = 1e5; // from here on a count reads better with a prefix
const PREFIXED = { byte: "B", "byte/s": "B/s", hz: "Hz", FLOP: "FLOP", "FLOP/s": "FLOP/s", op: "op", "op/s": "op/s", B: "B" };

/** A value in a unit of the tables or of the metric registry, with that unit. */
export function quantity(value, name) {
  if (missing(value)) return DASH;
  if (typeof value !== "number") return String(value);
  if (name in PREFIXED) return si(value, PREFIXED[name]);
  if (name === "ns") return micro(value / 1e3);
  if (name === "µs") return micro(value);
  if (name === "of 1" || name === "fraction") return percent(value, 1);
  const plain = name === "count" ? "" : name;
  return Math.abs(value) >= LARGE ? `${si(value, "")}\u00a0${plain}`.trimEnd() : unit(value, plain);
}

/** A value beside which its unit stands: headUnit. */
export function bare(value, name) {
  if (typeof value !== "number") return String(value ?? DASH);
  if (name === "of 1") return fixed(100 * value, 1);
  return name === "%" ? fixed(value, 1) : number(value);
}

const SIGNIFICANT = 3;
const FIGURE_SPACE = "\u2007"; // as wide as a digit
const POINT_SPACE = "\u2008"; // as wide as a point

/** How the values of a column are printed: as `bare`, each with all its significant digits (per cent:
 * with one decimal), the points under each other. */
export function inColumn(values, name) {
  const whole = values.every((value) => typeof value !== "number" || Number.isInteger(value));
  const even = whole || headUnit(name) === "%";
  const text = (value) => (even || typeof value !== "number" ? bare(value, name) : filled(bare(value, name)));
  const decimals = (shown) => (/\.(\d+)$/.exec(shown)?.[1] ?? "").length;
  const most = Math.max(0, ...values.filter((value) => typeof value === "number").map((value) => decimals(text(value))));
  return (value) => {
    if (typeof value !== "number") return text(value);
    const shown = text(value);
    const own = decimals(shown);
    return shown + (most && !own ? POINT_SPACE : "") + FIGURE_SPACE.repeat(most - own);
  };
}

/** A number with the zeros that `number` leaves out at its end. */
function filled(text) {
  const digits = text.replace(/\D/g, "").replace(/^0+/, "").length;
  if (!digits || digits >= SIGNIFICANT || text.includes("e")) return text;
  return `${text}${text.includes(".") ? "" : "."}${"0".repeat(SIGNIFICANT - digits)}`;
}

/** The unit that stands in the head of such a column. */
export function headUnit(name) {
  return name === "of 1" ? "%" : name;
}

/** Text as one word of a shell, to be copied into a terminal. */
export function shellWord(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}
