/** Tables as CSV, for a spreadsheet. */

// A cell that a spreadsheet would run as a formula gets a quote before it, as OWASP advises; a number with its sign is none.
const FORMULA = /^[=@\t\r]|^[+-](?![\d.\s]*(?:%|[µmn]?s|points)?$)/;

function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Rows as CSV text; missing is an empty cell. */
export function csv(heads, rows) {
  return `${[heads, ...rows].map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

/** The button that hands a file to the reader; make(): [its name, its text]. */
export function saver(make) {
  const button = document.createElement("button");
  const onclick = () => {
    const [download, text] = make();
    const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href, download }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  };
  return Object.assign(button, { type: "button", className: "csv", textContent: "CSV", onclick });
}

/** Put a button below each table of a part of the page, now and as tables come; a grid has its own. */
export function withSavers(part) {
  const add = () => {
    for (const table of part.querySelectorAll("table:not([data-csv], .grid)")) {
      table.dataset.csv = "";
      const frame = table.closest(".scroll");
      const button = saver(() => [`${nameOf(table)}.csv`, ofTable(table)]);
      frame?.lastElementChild === table ? frame.append(button) : table.after(button);
    }
  };
  new MutationObserver(add).observe(part, { childList: true, subtree: true });
  add();
}

function nameOf(table) {
  const named = table.caption?.textContent || table.closest("[aria-label]")?.ariaLabel || "table";
  return named.toLowerCase().replace(/\W+/g, "-").slice(0, 60);
}

/** What the cells of a table say; a dash is nothing. */
function ofTable(table) {
  const told = ({ textContent }) => textContent.replace(/\s+/g, " ").trim().replace(/^–$/, "");
  const [head, ...rows] = [...table.rows].map((row) => [...row.cells].map(told));
  return csv(head, rows);
}
