import type { Event } from "../check/history.js";
import { clientOf } from "../check/picture.js";
import type { CheckResult, FaultRecord } from "../runner/result.js";
import type { Model } from "./model.js";
import { describeEvent, listed } from "./words.js";

/** One line of a story. Context lines have no number: the evidence is complete without them. */
export interface StoryLine {
  readonly event: Event;
  readonly number?: number;
}

/** Longer evidence is shortened to its end, which shows the violation. */
const MOST_LINES = 10;
/** Events later than this after the evidence are not part of the story. */
const LATER_MS = 3_000;
/** A fault that was healed this long before the evidence may still have caused the violation. */
const EARLIER_MS = 1_000;
const NEAR_MS = 50;

/** The evidence of a check, with the other events of the same operations, workers and store at that time. */
export function storyLines(model: Model, { evidence }: CheckResult): readonly StoryLine[] {
  const numbered = evidence.map((event, i): StoryLine => ({ event, number: i + 1 }));
  const shown = numbered.slice(-MOST_LINES);
  const lastMs = evidence.at(-1)!.atMs;
  const away = ({ atMs }: Event): number => Math.abs(atMs - lastMs);
  const context = contextOf(model, evidence)
    .sort((a, b) => away(a) - away(b))
    .slice(0, MOST_LINES - shown.length)
    .map((event): StoryLine => ({ event }));
  return [...shown, ...context].sort((a, b) => a.event.atMs - b.event.atMs);
}

/** The story of the first broken promise, which is one of safety if any is, and the others in one line. */
export function storyText(model: Model, checks: readonly CheckResult[]): readonly string[] {
  const broken = checks.filter(({ verdict }) => verdict === "violated");
  const told = broken.find(({ evidence }) => evidence.length > 0) ?? broken[0];
  if (told === undefined) return [];
  const others = broken.filter((one) => one !== told).map(({ id }) => id);
  const lines = told.evidence.length === 0 ? [] : storyLines(model, told);
  return [
    `${told.id}: ${told.why}`,
    ...lines.map(({ event }) => {
      const { subject, predicate } = describeEvent(event, model.runAt(event.atMs), model.at);
      return `  ${model.at(event.atMs).padStart(10)}  ${subject} ${predicate}`;
    }),
    ...(others.length === 0 ? [] : [`Also broken: ${listed(others)}.`]),
  ];
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

/**
 * Whether the record is the one of this event. A fault of one name may occur several times, and its
 * record and its events differ slightly in time.
 */
const isOf = (
  { fault, atMs }: Extract<Event, { fault: string }>,
  { name, fromMs, untilMs }: FaultRecord,
): boolean => fault === name && atMs >= fromMs - NEAR_MS && atMs <= untilMs + NEAR_MS;

/** Whether the event changes the worker's belief, or whether that belief is right. */
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

/** Identifies an event by its content, because evidence may have been read from a file. */
const keyOf = (event: Event): string =>
  [
    event.kind,
    event.atMs,
    "op" in event ? event.op : "",
    "client" in event ? event.client : "",
  ].join(" ");
