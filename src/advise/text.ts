import { durationText } from "../core/validate.js";
import type { Advice } from "./advise.js";
import type { Note } from "./notes.js";
import type { Figure, Timing } from "./timing.js";

const WIDTH = 78;

/** The advice for a terminal; `bold` marks its headings. */
export function adviceText(advice: Advice, bold: (text: string) => string): string {
  const { title, code, metrics, reasons, warnings } = advice;
  const parts: [heading: string, lines: readonly string[]][] = [
    [title, table(rowsOf(advice))],
    ["Warnings", notes(warnings)],
    [
      "Alert on",
      notes(
        metrics.map(({ name, alert, why, link }) => ({ text: `${name}: ${alert} (${why})`, link })),
      ),
    ],
    ["Code", code.text.split("\n")],
    ["Why", notes(reasons)],
  ];
  return parts
    .filter(([, lines]) => lines.length > 0)
    .map(([heading, lines]) => [bold(heading), ...lines.map(indented)].join("\n"))
    .join("\n\n");
}

const indented = (line: string): string => (line === "" ? "" : `  ${line}`);

const LABELS = {
  ttl: "ttl",
  renewal: "renewal",
  validity: "validity",
  abortBefore: "abortBefore",
  maxHold: "maxHold",
  withoutRenewal: "if renew: false",
} as const satisfies Record<keyof Timing, string>;

function rowsOf({ lock, store, timing, whenDown, fence }: Advice): [string, string][] {
  const rows: [string, string][] = [["lock", lock]];
  if (store !== null) rows.push(["store", store.url]);
  for (const [name, label] of Object.entries(LABELS)) {
    if (timing === null) break;
    const { ms, formula }: Figure = timing[name as keyof Timing];
    const each = { renewal: "every ", withoutRenewal: "ttl " }[name] ?? "";
    rows.push([label, `${each}${shown(ms)} (${formula})`]);
  }
  if (whenDown !== null) rows.push(["store down", whenDown]);
  rows.push([
    "fence",
    fence.needed ? (fence.name ?? "needed, but the resource can't check") : "not needed",
  ]);
  return rows;
}

/** In whole milliseconds, rounded down; from ten seconds on as a number of seconds, unless a larger unit fits. */
function shown(ms: number): string {
  const whole = Math.floor(ms);
  return whole < 10_000 || whole % 1_000 === 0 ? durationText(whole) : `${whole / 1_000}s`;
}

/** Two columns; the second one is wrapped below itself. */
function table(rows: readonly (readonly [string, string])[]): string[] {
  const width = Math.max(...rows.map(([left]) => left.length)) + 2;
  return rows.flatMap(([left, right]) =>
    wrap(right, WIDTH - width).map((line, at) => `${(at === 0 ? left : "").padEnd(width)}${line}`),
  );
}

const notes = (all: readonly Note[]): string[] =>
  all.flatMap(({ text, link }) => [
    ...wrap(text, WIDTH - 2).map((line, at) => `${at === 0 ? "- " : "  "}${line}`),
    `  docs/${link}`,
  ]);

/** Lines of at most this many characters. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = "";
    }
    line += line === "" ? word : ` ${word}`;
  }
  return [...lines, line];
}
