import { channel } from "node:diagnostics_channel";
import type { LossReason } from "./errors.js";

/** Every event, with its fixed fields. Published on `holdfast:<event>`. */
export interface Events {
  /** A call of `acquire` or the like has begun. */
  asked: { name: string; holder: string; mode: string; permits: number };
  /** A lease was granted after `waitMs`; `handedOver` if another holder passed it on. */
  granted: {
    name: string;
    token: bigint;
    holder: string;
    waitMs: number;
    handedOver: boolean;
  };
  /** An acquire has ended without a lease. */
  "not-granted": {
    name: string;
    holder: string;
    waitMs: number;
    reason: "busy" | "timeout" | "aborted" | "unavailable" | "closed" | "refused";
  };
  /** A renewal was confirmed; `ttlMs` is the new ttl. */
  renewed: { name: string; token: bigint; ttlMs: number };
  /** Renewals fail; the lease is good for `remainingMs` more. */
  jeopardy: { name: string; token: bigint; remainingMs: number; cause: string };
  /** A renewal succeeded after jeopardy. */
  recovered: { name: string; token: bigint };
  /** The lease can no longer be proved. */
  lost: { name: string; token: bigint; reason: LossReason; heldMs: number };
  /** The holder has released its lease. */
  released: { name: string; token: bigint; heldMs: number; outcome: "released" | "unknown" };
  /** A name was taken by force: by whom, from whom, and why. */
  revoked: { name: string; token: bigint; holder: string; by: string; why: string };
  /** `onUnavailable: "run"`: work went on without the lock. */
  unprotected: { name: string; holder: string; cause: string };
  /** A fence has refused a token. */
  "stale-token": { resource: string; token: bigint; highest: bigint };
}

/** The name of an event, without `holdfast:`. */
export type EventName = keyof Events;

/** Any logger with these methods: console, pino and winston need a line of adapting at the most. */
export interface Logger {
  /** Events of normal work. */
  debug(message: string, fields: object): void;
  /** Recovery after a warning. */
  info(message: string, fields: object): void;
  /** Events that a person should look at: jeopardy, losses, stale tokens. */
  warn(message: string, fields: object): void;
}

const LEVEL: Record<EventName, keyof Logger> = {
  asked: "debug",
  granted: "debug",
  "not-granted": "debug",
  renewed: "debug",
  jeopardy: "warn",
  recovered: "info",
  lost: "warn",
  released: "debug",
  revoked: "warn",
  unprotected: "warn",
  "stale-token": "warn",
};

export const EVENT_NAMES = Object.keys(LEVEL) as EventName[];

const channels = Object.fromEntries(
  EVENT_NAMES.map((name) => [name, channel(`holdfast:${name}`)]),
) as Record<EventName, ReturnType<typeof channel>>;

/** Calls `fields` only when the event has a subscriber or a logger. */
export function emit<E extends EventName>(
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
  guarded(() => logger[level](`holdfast:${event}`, forLogs(built)));
}

/** Tokens as text: most loggers write JSON, which has no bigint. */
function forLogs(fields: object): object {
  const entries = Object.entries(fields);
  return Object.fromEntries(
    entries.map(([key, value]) => [key, typeof value === "bigint" ? String(value) : value]),
  );
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
