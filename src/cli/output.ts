import { styleText } from "node:util";
import { printable } from "../core/text.js";

export { printable };

type Format = Parameters<typeof styleText>[0];

/** Colours text on a terminal, unless NO_COLOR is set. */
export function style(stream: NodeJS.WriteStream, format: Format, text: string): string {
  return stream.isTTY && !process.env["NO_COLOR"] ? styleText(format, text) : text;
}

export function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/** Prints a line on stderr, marked as holdfast's own among those of the child. */
export function note(text: string): void {
  process.stderr.write(`${style(process.stderr, "dim", "holdfast:")} ${text}\n`);
}

/** For text that may hold a store's URL, perhaps cut short: hides the password too. */
export function masked(text: string): string {
  return printable(text).replace(/\/\/\S*([@…])/g, "//***$1");
}

/** Quotes what the user typed, without the rest of a URL: it may hold a password in any place. */
export const typed = (text: string): string => JSON.stringify(beforeUrl(text));

export const beforeUrl = (text: string): string => printable(text).replace(/:\/\/.*/s, "://…");

export const quoted = (text: string): string => JSON.stringify(printable(text));

/** Quotes text as one word for a shell. */
export function shellWord(text: string): string {
  const shown = printable(text);
  return /^[\w@%+=:,./-]+$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}

/** At most two units: `850ms`, `1.5s`, `12s`, `5m 3s`, `2h 5m`, `3d 4h`. */
export function formatMs(ms: number): string {
  if (!Number.isFinite(ms)) return "for ever";
  if (ms < 1_000) return `${Math.max(0, Math.round(ms))}ms`;
  if (ms < 10_000) return `${Math.floor(ms / 100) / 10}s`;
  const seconds = Math.floor(ms / 1_000);
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3_600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "m"],
    [seconds % 60, "s"],
  ] as const;
  const first = parts.findIndex(([count]) => count > 0);
  return parts
    .slice(first, first + 2)
    .filter(([count]) => count > 0)
    .map(([count, unit]) => `${count}${unit}`)
    .join(" ");
}

/** Between the columns of a table. */
export const GAP = "  ";

/** The width of each column: that of its widest cell. */
export const widthsOf = (rows: readonly (readonly string[])[]): number[] =>
  rows[0]!.map((_, i) => rows.reduce((most, row) => Math.max(most, row[i]!.length), 0));

/** The lines of a table. */
export function aligned(rows: readonly (readonly string[])[]): string[] {
  const widths = widthsOf(rows);
  return rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join(GAP)
      .trimEnd(),
  );
}

/** A table whose first row is the heading. */
export function table(rows: readonly (readonly string[])[]): string {
  const [heading, ...lines] = aligned(rows);
  return [style(process.stdout, "bold", heading!), ...lines].join("\n");
}

/** JSON with tokens as strings. Escapes characters that control a terminal, which JSON allows. */
export function jsonText(value: unknown, indent = 2): string {
  const plain = (_key: string, one: unknown): unknown =>
    typeof one === "bigint" ? String(one) : one;
  return JSON.stringify(value, plain, indent).replace(
    /[\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
