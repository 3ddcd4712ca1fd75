import type { Event } from "../check/history.js";
import { clientOf } from "../check/picture.js";
import type { CheckResult, FaultRecord } from "../runner/result.js";
import type { Model } from "./model.js";

/** One line of a story. Context has no number: it is not needed to show the break. */
export interface StoryLine {
  readonly event: Event;
  readonly number?: number;
}

/** A story is read in a minute. Longer evidence is told from its end, which shows the break. */
const MOST_LINES = 12;
/** What comes later than this after the evidence is another story. */
const LATER_MS = 3_000;
/** A fault that was healed this long before the evidence may still have caused the break. */
const EARLIER_MS = 1_000;
const NEAR_MS = 50;

/** The evidence of a check, and what happened to the same operations, workers and store meanwhile. */
export function storyLines(model: Model, { evidence }: CheckResult): readonly StoryLine[] {
  const numbered = evidence.map((event, i): StoryLine => ({ event, number: i + 1 }));
  const told = numbered.slice(-MOST_LINES);
  const lastMs = evidence.at(-1)!.atMs;
  const away = ({ atMs }: Event): number => Math.abs(atMs - lastMs);
  const context = contextOf(model, evidence)
    .sort((a, b) => away(a) - away(b))
    .slice(0, MOST_LINES - told.length)
    .map((event): StoryLine => ({ event }));
  return [...told, ...context].sort((a, b) => a.event.atMs - b.event.atMs);
}

function contextOf(model: Model, evidence: readonly Event[]): Event[] {
  const [fromMs, lastMs] = [evidence[0]!.atMs, evidence.at(-1)!.atMs];
  const run = model.runAt(fromMs);
  const known = new Set(evidence.map(keyOf));
  const ops = new Set(evidence.flatMap((event) => ("op" in event ? [event.op] : [])));
  const clients = new Set(evidence.map((event) => clientOf(run, event)));
  const faults = model.faults.filter(
    (one) =>
      (one.client === undefined || clients.has(one.client)) &&
      one.fromMs <= lastMs &&
      one.untilMs >= fromMs - EARLIER_MS,
  );
  const isContext = (event: Event): boolean => {
    if ("fault" in event) return faults.some((one) => isOf(event, one));
    if (event.atMs < fromMs || event.kind === "left") return false;
    if ("op" in event) return ops.has(event.op) && isTurn(event);
    return event.kind === "clock-set" || ("client" in event && clients.has(event.client));
  };
  return run.events.filter(
    (event) => event.atMs <= lastMs + LATER_MS && !known.has(keyOf(event)) && isContext(event),
  );
}

/** A fault of one name may come several times; its record and its events are not of the same instant. */
const isOf = (
  { fault, atMs }: Extract<Event, { fault: string }>,
  { name, fromMs, untilMs }: FaultRecord,
): boolean => fault === name && atMs >= fromMs - NEAR_MS && atMs <= untilMs + NEAR_MS;

/** Whether it changes what the worker believes, or what its belief is worth. */
function isTurn(event: Event): boolean {
  switch (event.kind) {
    case "granted":
    case "renewed":
    case "lost":
    case "releasing":
    case "revoked":
    case "not-granted":
      return true;
    case "entered":
    case "wrote":
      return !event.accepted;
    default:
      return false;
  }
}

/** Evidence may have been read from a file: it is found again by what it says. */
const keyOf = (event: Event): string =>
  [
    event.kind,
    event.atMs,
    "op" in event ? event.op : "",
    "client" in event ? event.client : "",
  ].join(" ");
