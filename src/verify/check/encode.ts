import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import type { Event, EventOf, History } from "./history.js";

const VERSION = 1;
const HEADER = JSON.stringify({ holdfast: "history", version: VERSION });
/** Longer than a snapshot of a name with many waiters. */
const LONGEST_LINE = 1_000_000;
const MOST_EVENTS = 5_000_000;

/** JSON lines: a header, then one event per line. */
export function encodeHistory(history: History): string {
  return [HEADER, ...history.map(encodeEvent), ""].join("\n");
}

/** Encodes one event without a line end. JSON has neither bigint nor infinity, so both become text. */
export function encodeEvent(event: Event): string {
  return JSON.stringify(event, (_key, value) => {
    if (typeof value === "bigint") return String(value);
    return value === Number.POSITIVE_INFINITY ? "Infinity" : value;
  });
}

/** Decodes JSON lines. The header may be missing, so that the lines of several processes can be concatenated. */
export function decodeHistory(text: string, { most = MOST_EVENTS } = {}): History {
  const events: Event[] = [];
  let number = 0;
  for (let from = 0; from < text.length; ) {
    const end = text.indexOf("\n", from);
    const to = end === -1 ? text.length : end;
    number++;
    if (to - from > LONGEST_LINE) fail(number, `has more than ${LONGEST_LINE} characters`);
    const line = text.slice(from, to).trim();
    from = to + 1;
    if (line === "") continue;
    const fields = parse(line, number);
    if (fields["holdfast"] === "history") checkVersion(fields["version"], number);
    else if (events.length === most) fail(number, `is beyond the ${most} events that are read`);
    else events.push(decode(fields, number));
  }
  return events;
}

type Fields = Readonly<Record<string, unknown>>;
/** Reads one field; undefined if the value is not of the expected form. */
type Reader = readonly [what: string, read: (value: unknown) => unknown];

const text: Reader = ["text", (value) => (typeof value === "string" ? value : undefined)];
const yesOrNo: Reader = [
  "true or false",
  (value) => (typeof value === "boolean" ? value : undefined),
];
const number: Reader = ["a number", (value) => (Number.isFinite(value) ? value : undefined)];
const count: Reader = [
  "a whole number, 0 or more",
  (value) => (Number.isSafeInteger(value) && (value as number) >= 0 ? value : undefined),
];
const duration: Reader = [
  'a number, 0 or more, or "Infinity"',
  (value) => {
    if (value === "Infinity") return Number.POSITIVE_INFINITY;
    return Number.isFinite(value) && (value as number) >= 0 ? value : undefined;
  },
];
const token: Reader = [
  "a whole number as text",
  (value) => (typeof value === "string" && /^\d{1,30}$/.test(value) ? BigInt(value) : undefined),
];
const oneOf = (...words: readonly string[]): Reader => [
  `one of ${words.join(", ")}`,
  (value) => (words.includes(value as string) ? value : undefined),
];
const list = ([what, read]: Reader): Reader => [
  `a list, each ${what}`,
  (value) => {
    if (!Array.isArray(value)) return undefined;
    const items = value.map(read);
    return items.includes(undefined) ? undefined : items;
  },
];
const holder: Reader = [
  "with op and token",
  (value) => {
    if (!isObject(value)) return undefined;
    const [op, given] = [text[1](value["op"]), token[1](value["token"])];
    return op === undefined || given === undefined ? undefined : { op, token: given };
  },
];
const optional = ([what, read]: Reader): Reader => [
  `${what}, or missing`,
  (value) => (value === undefined ? null : read(value)),
];

const access = { op: text, resource: text, step: count, token, floor: token, accepted: yesOrNo };

/** All fields of all kinds of events. */
const FIELDS: {
  readonly [K in Event["kind"]]: Record<Exclude<keyof EventOf<K>, "kind" | "atMs">, Reader>;
} = {
  asked: {
    op: text,
    client: text,
    name: text,
    permits: count,
    limit: count,
    ttlMs: duration,
    longestTtlMs: optional(duration),
    maxHoldMs: optional(duration),
    atLeastMs: optional(duration),
    renew: optional(yesOrNo),
    waitMs: duration,
    within: optional(text),
    together: optional(text),
  },
  queued: { op: text, sentAtMs: optional(number) },
  aborting: { op: text },
  "not-granted": { op: text, outcome: oneOf("busy", "timeout", "aborted", "unknown", "refused") },
  made: { op: text, token, limit: optional(count) },
  kept: { op: text, untilMs: number, token: optional(token) },
  granted: { op: text, token, floor: token, untilMs: number },
  renewed: { op: text, untilMs: number },
  looked: { op: text, held: yesOrNo },
  lost: { op: text, reason: text },
  releasing: { op: text },
  released: { op: text, result: oneOf("released", "lost", "unknown") },
  entered: access,
  wrote: { ...access, read: number, value: number },
  "wrote-unfenced": { op: text, resource: text, read: number, found: number, value: number },
  seen: {
    sinceMs: number,
    name: text,
    holders: list(holder),
    waiters: list(text),
    closed: optional(list(text)),
  },
  revoked: { sinceMs: number, op: text, token },
  resized: { sinceMs: number, name: text, limit: count },
  paused: { client: text, frozen: optional(yesOrNo), stalled: optional(yesOrNo) },
  resumed: { client: text, stalled: optional(yesOrNo) },
  killed: { client: text },
  injected: { fault: text, sparesStore: optional(yesOrNo), name: optional(text) },
  healed: { fault: text },
  "clock-set": { byMs: number },
  counted: { waiters: count, handovers: count, commands: count },
  left: { client: text, waiters: count, timers: count, sockets: count },
};

function decode(fields: Fields, line: number): Event {
  const kind = fields["kind"];
  if (typeof kind !== "string" || !Object.hasOwn(FIELDS, kind)) {
    fail(line, `has the kind ${show(kind)}; known: ${Object.keys(FIELDS).join(", ")}`);
  }
  const readers: Readonly<Record<string, Reader>> = {
    atMs: number,
    ...FIELDS[kind as Event["kind"]],
  };
  const event: Record<string, unknown> = { kind };
  for (const [field, [what, read]] of Object.entries(readers)) {
    const value = read(fields[field]);
    if (value === undefined) {
      fail(line, `${kind}: ${field} is ${show(fields[field])}; it must be ${what}`);
    }
    if (value !== null) event[field] = value;
  }
  for (const field of Object.keys(fields)) {
    if (field !== "kind" && !Object.hasOwn(readers, field)) {
      fail(line, `${kind} has no field ${show(field)}`);
    }
  }
  return event as unknown as Event;
}

function parse(line: string, number: number): Fields {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    fail(number, `is not JSON: ${(error as Error).message}`);
  }
  if (!isObject(value)) fail(number, `is ${show(value)}; it must be an object`);
  return value;
}

function checkVersion(version: unknown, line: number): void {
  if (version !== VERSION) {
    fail(line, `says version ${show(version)}; this Holdfast reads version ${VERSION}`);
  }
}

const isObject = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function fail(line: number, what: string): never {
  throw new InvalidArgumentError(`history, line ${line}: ${what}`);
}
