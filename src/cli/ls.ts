import type { NameStatus } from "../core/name-status.js";
import { append } from "../stores/shared/append.js";
import { Exit } from "./exit.js";
import { look } from "./look.js";
import { MOST_NAMES, modeText, waitersText } from "./names.js";
import type { Options } from "./options.js";
import { formatMs, jsonText, note, print, printable, quoted, table } from "./output.js";
import { chooseStore, describeStore, inNamespace, withLocks } from "./store.js";

const HEADING = ["NAME", "MODE", "HOLDER", "TOKEN", "HELD FOR", "EXPIRES IN", "WAITERS"];

export async function ls(options: Options): Promise<number> {
  if (options.watch) return (await import("./ls-watch.js")).watchNames(options);
  const { prefix = "", json } = options;
  const { names, knowsWaiters } = await withLocks(
    options,
    (locks) => look(locks, { prefix, limit: MOST_NAMES }),
    { names: [], knowsWaiters: true },
  );
  if (json) print(jsonText(names));
  else if (names.length > 0) {
    print(table([HEADING, ...names.flatMap((info) => rowsOf(info, knowsWaiters))]));
  } else {
    const where = describeStore(chooseStore(options).url);
    const under = prefix === "" ? "" : ` under ${quoted(prefix)}`;
    print(`Nothing is held${under} ${inNamespace(options)} of ${where}.`);
  }
  if (!json) printNotes(names);
  if (names.length === MOST_NAMES)
    note(`only the first ${MOST_NAMES} names are shown; use --prefix TEXT to see others`);
  return Exit.ok;
}

/** A node that is down is mentioned once, not for each name. */
function printNotes(names: readonly NameStatus[]): void {
  const byText = new Map<string, string[]>();
  for (const { name, notes = [] } of names) for (const text of notes) append(byText, text, name);
  for (const [text, about] of byText) {
    const which = about.length === 1 ? quoted(about[0]!) : `${about.length} names`;
    note(`${which}: ${printable(text)}`);
  }
}

/** A row for each holder; a name without a holder gets one row too. */
function rowsOf(info: NameStatus, knowsWaiters: boolean): string[][] {
  const waiters = waitersText(info, knowsWaiters);
  const name = printable(info.name);
  if (info.holders.length === 0) return [[name, "-", "-", "-", "-", "-", waiters]];
  return info.holders.map((one, at) => [
    name,
    one.closed ? "closed" : modeText(one, info.limit),
    printable(one.holder),
    String(one.token),
    formatMs(one.heldMs),
    formatMs(one.expiresInMs),
    at === 0 ? waiters : "",
  ]);
}
