import type { NameStatus } from "../core/name-status.js";
import type { HolderInfo } from "../core/store.js";
import { lookAgain } from "./look.js";
import { clockTime, modeText } from "./names.js";
import type { Options } from "./options.js";
import { formatMs, jsonText, note, print, printable, quoted } from "./output.js";

const EVERY_MS = 500;
/** The most that `list` returns: a name that falls out of a shorter list would look as if it had ended. */
const MOST = 100_000;

/** A difference between two looks at the store. */
export type Change =
  | { event: "held" | "granted" | "ended"; name: string; limit: number | null; of: HolderInfo }
  | { event: "waiters"; name: string; waiting: number };

/** Prints what changes in the store: who is granted what, whose lease ends, how many wait. */
export async function events(options: Options): Promise<number> {
  const { prefix = "", json } = options;
  let before: readonly NameStatus[] | null = null;
  let isFailing = false;
  return lookAgain(options, { prefix, limit: MOST }, EVERY_MS, (look) => {
    if ("connecting" in look) return note(look.connecting);
    if ("problem" in look) {
      if (!isFailing) note(`${look.problem}; trying again every ${formatMs(EVERY_MS)}`);
      isFailing = true;
      return;
    }
    if (isFailing) note("the store replies again");
    isFailing = false;
    const changes = changesBetween(before, look.names);
    before = look.names;
    for (const change of changes) print(json ? asJson(change) : asLine(change));
  });
}

/** `before` is null at the first look. */
export function changesBetween(
  before: readonly NameStatus[] | null,
  after: readonly NameStatus[],
): Change[] {
  const former = new Map((before ?? []).map((one) => [one.name, one]));
  const current = new Map(after.map((one) => [one.name, one]));
  const names = new Set([...former.keys(), ...current.keys()]);
  const isNew = before === null ? "held" : "granted";
  return [...names].flatMap((name) => {
    const [was, is] = [former.get(name), current.get(name)];
    const held = (one: NameStatus | undefined): readonly HolderInfo[] =>
      (one?.holders ?? []).filter(({ closed }) => !closed);
    const missingIn = (one: NameStatus | undefined) => {
      const tokens = new Set(held(one).map(({ token }) => token));
      return ({ token }: HolderInfo): boolean => !tokens.has(token);
    };
    const change = (event: "held" | "granted" | "ended", limit: number | null) => {
      return (of: HolderInfo): Change => ({ event, name, limit, of });
    };
    const waiting = is?.waiting ?? 0;
    return [
      ...held(was)
        .filter(missingIn(is))
        .map(change("ended", was?.limit ?? null)),
      ...held(is)
        .filter(missingIn(was))
        .map(change(isNew, is?.limit ?? null)),
      ...(waiting === (was?.waiting ?? 0) ? [] : [{ event: "waiters", name, waiting } as const]),
    ];
  });
}

/** Names, labels and numbers come from the store, where others may have written anything. */
const asLine = (change: Change): string => printable(describe(change));

function describe(change: Change): string {
  const start = `${clockTime(Date.now())}  ${change.event.padEnd(7)}  ${quoted(change.name)}`;
  if (change.event === "waiters") return `${start}: ${change.waiting}`;
  const { of, limit } = change;
  return `${start} by ${of.holder}, ${modeText(of, limit)}, token ${of.token}, for ${formatMs(of.heldMs)}`;
}

/** One line, with the time of the look. */
function asJson(change: Change): string {
  const at = new Date().toISOString();
  if (change.event === "waiters") return jsonText({ at, ...change }, 0);
  const { holder, mode, permits, token, heldMs } = change.of;
  const { event, name } = change;
  return jsonText({ at, event, name, holder, mode, permits, token, heldMs }, 0);
}
