import { channel } from "node:diagnostics_channel";
import type { LossReason } from "./errors.js";

/** Every event, with its fixed fields. Published on `holdfast:<event>`. */
export interface Events {
  asked: { name: string; holder: string; mode: string; permits: number };
  granted: {
    name: string;
    token: bigint;
    holder: string;
    waitMs: number;
    handedOver: boolean;
  };
  "not-granted": {
    name: string;
    holder: string;
    waitMs: number;
    reason: "busy" | "timeout" | "aborted" | "unavailable" | "closed" | "refused";
  };
  renewed: { name: string; token: bigint; ttlMs: number };
  jeopardy: { name: string; token: bigint; remainingMs: number; cause: string };
  recovered: { name: string; token: bigint };
  lost: { name: string; token: bigint; reason: LossReason; heldMs: number };
  released: { name: string; token: bigint; heldMs: number; outcome: "released" | "unknown" };
  /** A name was taken by force: by whom, from whom, and why. */
  revoked: { name: string; token: bigint; holder: string; by: string; why: string };
  /** `onUnavailable: "run"`: work went on without the lock. */
  unprotected: { name: string; holder: string; cause: string };
  "stale-token": { resource: string; token: bigint; highest: bigint };
}

export type EventName = keyof Events;

/** Any logger with these methods: console, pino and winston need a line of adapting at the most. */
export interface Logger {
  debug(message: string, fields: object): void;
  info(message: string, fields: object): void;
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

/** `fields` is built only when somebody listens. */
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

/** Calls the user's code. What it throws is an uncaught exception, and stops nothing of ours. */
export function guarded(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
