import { channel } from "node:diagnostics_channel";
import type { Events, LoggedEvent, UnloggedEvent } from "./event-fields.js";
import { logLine } from "./log-lines.js";

export type { AcquireFields, Command, Events, LeaseFields } from "./event-fields.js";

/** The name of an event, without `holdfast:`. */
export type EventName = keyof Events;

/** Any logger with these methods: console, pino and winston need a line of adapting at the most. */
export interface Logger {
  /** Events of normal work. */
  debug(message: string, fields: object): void;
  /** Recovery after a warning. */
  info(message: string, fields: object): void;
  /** Events that a person should look at: jeopardy, losses, work without the lock. */
  warn(message: string, fields: object): void;
}

const LEVEL: Record<LoggedEvent, keyof Logger> & Record<UnloggedEvent, null> = {
  asked: "debug",
  granted: "debug",
  "not-granted": "debug",
  renewed: "debug",
  "renewal-failed": "debug",
  jeopardy: "warn",
  recovered: "info",
  lost: "warn",
  released: "debug",
  revoked: "warn",
  unprotected: "warn",
  "stale-token": null,
  request: null,
  stalled: null,
};

export const EVENT_NAMES = Object.keys(LEVEL) as EventName[];

const channels = Object.fromEntries(
  EVENT_NAMES.map((name) => [name, channel(`holdfast:${name}`)]),
) as Record<EventName, ReturnType<typeof channel>>;

/** Whether the event has a subscriber: for events that cost more to find out than to build. */
export const hasSubscribers = (event: EventName): boolean => channels[event].hasSubscribers;

/** Publishes an event that has no logger. */
export function publish<E extends UnloggedEvent>(event: E, fields: () => Events[E]): void {
  const to = channels[event];
  if (to.hasSubscribers) to.publish(fields());
}

/** Calls `fields` only when the event has a subscriber or a logger. */
export function emit<E extends LoggedEvent>(
  event: E,
  logger: Logger | undefined,
  fields: () => Events[E],
): void {
  const to = channels[event];
  if (!to.hasSubscribers && logger === undefined) return;
  const built = fields();
  if (to.hasSubscribers) to.publish(built);
  if (logger === undefined) return;
  // The end of a lease by its own close() is no incident.
  const isClosing = event === "lost" && (built as Events["lost"]).reason === "closed";
  const level = isClosing ? "debug" : LEVEL[event];
  guarded(() => logger[level](logLine(event, built), { event, ...forLogs(built) }));
}

/** Tokens as text, because most loggers write JSON, which has no bigint; whole milliseconds. */
function forLogs(fields: object): object {
  const shown = (key: string, value: unknown): unknown => {
    if (typeof value === "bigint") return String(value);
    return key.endsWith("Ms") ? Math.round(value as number) : value;
  };
  return Object.fromEntries(Object.entries(fields).map(([key, value]) => [key, shown(key, value)]));
}

/** Calls the user's code. An error that it throws is an uncaught exception, and stops nothing of ours. */
export function guarded(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
