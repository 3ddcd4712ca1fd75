import { wrap } from "../advise/text.js";
import type { NameStatus } from "../core/name-status.js";
import { usage } from "./exit.js";
import { type Look, lookAgain, type Seen } from "./look.js";
import { clockTime, MOST_NAMES, modeText, waitersText } from "./names.js";
import type { Options } from "./options.js";
import { aligned, formatMs, GAP, printable, style, widthsOf } from "./output.js";
import { chooseStore, describeStore } from "./store.js";

const EVERY_MS = 1_000;
const BAR = 10;
/** Names and holders are cut to no less than this. */
const SHORTEST = 8;
const HEADING = ["NAME", "MODE", "HOLDER", "HELD FOR", "TIME LEFT", "WAITERS"];
/** The other screen of the terminal, without cursor, and without a new line where one is too long. */
const BEGIN = "\u001b[?1049h\u001b[?25l\u001b[?7l";
const END = "\u001b[?7h\u001b[?25h\u001b[?1049l";

/** `holdfast ls --watch`: the table, drawn again every second until a signal ends it. */
export async function watchNames(options: Options): Promise<number> {
  if (options.json)
    throw usage("--watch and --json contradict each other; see holdfast events --json");
  const { stdout } = process;
  if (!stdout.isTTY) throw usage("--watch needs a terminal; holdfast events prints what changes");
  const where = describeStore(chooseStore(options).url);
  const frames = new Frames(where);
  let isDrawing = false;
  const takeScreen = (isOurs: boolean): void => {
    if (isOurs !== isDrawing) stdout.write(isOurs ? BEGIN : END);
    isDrawing = isOurs;
  };
  // Ctrl-Z: the shell has its screen back until it goes on.
  process.on("SIGTSTP", () => {
    takeScreen(false);
    process.kill(process.pid, "SIGSTOP");
  });
  process.on("SIGCONT", () => takeScreen(true));
  // A second Ctrl-C ends the process at once.
  process.once("exit", () => takeScreen(false));
  takeScreen(true);
  try {
    const { prefix = "" } = options;
    return await lookAgain(options, { prefix, limit: MOST_NAMES }, EVERY_MS, (look) => {
      // A new terminal may have no size.
      const [rows, columns] = [stdout.rows || 24, stdout.columns || 80];
      const lines = frames.next(look, rows, columns).map((line) => line.slice(0, columns));
      const [first, ...rest] = lines;
      const text = [style(stdout, "bold", first!), ...rest].map((line) => `${line}\u001b[K`);
      stdout.write(`\u001b[H${text.join("\r\n")}\u001b[J`);
    });
  } finally {
    takeScreen(false);
  }
}

/** The lines of each drawing. A store that fails leaves the last table, and its error, on the screen. */
export class Frames {
  readonly #where: string;
  #seen: Seen = { names: [], knowsWaiters: true };
  /** The most time that each lease had left: its ttl, after the first renewal that is seen. */
  #longest = new Map<string, number>();

  constructor(where: string) {
    this.#where = where;
  }

  next(look: Look, rows: number, columns: number): string[] {
    if ("names" in look) this.#seen = look;
    const title = `${clockTime(Date.now())}  ${this.#where}`;
    const top =
      "names" in look
        ? [`${title}  ${count(look.names.length)}`]
        : [title, ...wrap("problem" in look ? look.problem : look.connecting, columns)];
    // Names, labels and numbers come from the store, where others may have written anything.
    const cells = [HEADING, ...this.#rows()].map((row) => row.map(printable));
    const lines = aligned(shortened(cells, columns));
    const room = Math.max(2, rows - 1 - top.length);
    if (lines.length <= room) return [...top, ...lines];
    return [...top, ...lines.slice(0, room - 1), `and ${lines.length - room + 1} more`];
  }

  #rows(): string[][] {
    const longest = new Map<string, number>();
    const { names, knowsWaiters } = this.#seen;
    const rows = mostWaitersFirst(names).flatMap((info) => {
      const { name, limit, holders } = info;
      const waiters = waitersText(info, knowsWaiters);
      if (holders.length === 0) return [[name, "-", "-", "-", "-", waiters]];
      return holders.map((one, at) => {
        const key = `${one.token} ${name}`;
        const most = Math.max(one.expiresInMs, this.#longest.get(key) ?? 0, 1);
        longest.set(key, most);
        return [
          at === 0 ? name : "",
          one.closed ? "closed" : modeText(one, limit),
          one.holder,
          formatMs(one.heldMs),
          `${bar(one.expiresInMs / most)} ${formatMs(one.expiresInMs)}`,
          at === 0 ? waiters : "",
        ];
      });
    });
    this.#longest = longest;
    return rows;
  }
}

/** The sort is stable: names with as many waiters stay in their order. */
const mostWaitersFirst = (names: readonly NameStatus[]): readonly NameStatus[] =>
  names.toSorted((one, other) => other.waiting - one.waiting);

/** Cuts names and holders until a line fits, the longer ones first; the other columns say what changes. */
function shortened(rows: readonly (readonly string[])[], columns: number): string[][] {
  const widths = widthsOf(rows);
  const [name, holder] = [HEADING.indexOf("NAME"), HEADING.indexOf("HOLDER")];
  const others = widths.filter((_, i) => i !== name && i !== holder);
  const gaps = GAP.length * (widths.length - 1);
  const room = others.reduce((left, width) => left - width, columns - gaps);
  const half = Math.max(SHORTEST, Math.floor(room / 2));
  const most = new Map([
    [name, Math.max(half, room - widths[holder]!)],
    [holder, Math.max(half, room - widths[name]!)],
  ]);
  return rows.map((row) => row.map((cell, i) => cut(cell, most.get(i) ?? cell.length)));
}

const cut = (text: string, most: number): string =>
  text.length <= most ? text : `${text.slice(0, most - 1)}…`.toWellFormed();

const count = (names: number): string =>
  names < MOST_NAMES
    ? `${names} name${names === 1 ? "" : "s"}`
    : `the first ${names} names; --prefix TEXT shows others`;

function bar(share: number): string {
  const full = Math.round(Math.min(1, Math.max(0, share)) * BAR);
  return `[${"#".repeat(full)}${"-".repeat(BAR - full)}]`;
}
