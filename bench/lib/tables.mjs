import { format } from "./format.mjs";

/** Markdown; the first column to the left, the others to the right. */
export function table(head, rows) {
  const line = (cells) => `| ${cells.map(escapeCell).join(" | ")} |`;
  const rule = head.map((_, i) => (i === 0 ? "---" : "---:"));
  return [line(head), line(rule), ...rows.map(line)].join("\n");
}

const escapeCell = (cell) => String(cell).replaceAll("|", "\\|").replaceAll("\n", " ");

/** One row a contestant, one column a figure; `columns` is `{ figure: [heading, unit] }`. */
export function figureTable(columns, figures) {
  const shown = Object.entries(columns).filter(([key]) =>
    Object.values(figures).some((of) => of[key] !== undefined),
  );
  return table(
    ["", ...shown.map(([, [heading]]) => heading)],
    Object.entries(figures).map(([name, of]) => [
      name,
      ...shown.map(([key, [, unit]]) => format(of[key], unit)),
    ]),
  );
}
