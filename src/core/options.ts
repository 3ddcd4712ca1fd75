import { constants, hostname } from "node:os";
import { isMainThread, threadId } from "node:worker_threads";
import { InvalidArgumentError, UnsupportedError } from "./errors.js";
import type { Logger } from "./events.js";
import { LOCK_LIMIT, type Traits } from "./store.js";
import {
  checkBoolean,
  checkNumber,
  checkOneOf,
  checkOptions,
  checkSignal,
  checkText,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "./validate.js";

export type Mode = "exclusive" | "shared";

/** What can be said once for a `Locks`, and again for a single call where both have it. */
export interface LocksOptions {
  /** How long a lease lasts without renewal. Default 30 s. */
  ttl?: Duration | undefined;
  /** How long to wait for a busy name; `0` asks once, `Infinity` waits for ever. Default 10 s. */
  wait?: Duration | undefined;
  /** What clocks may differ by over a ttl. Default `{ factor: 0.01, ms: 2 }`. */
  drift?: { factor?: number | undefined; ms?: number | undefined } | undefined;
  /** The signal aborts this long before the lease's deadline. Default a tenth of the ttl. */
  abortBefore?: Duration | undefined;
  /** How long one command may take before its outcome counts as unknown. Default 5 s. */
  commandTimeout?: Duration | undefined;
  /** Pauses between asks on a store that can't push. Default `{ min: 50, max: 1000, jitter: 0.5 }`. */
  poll?:
    | {
        min?: Duration | undefined;
        max?: Duration | undefined;
        jitter?: number | undefined;
      }
    | undefined;
  /** Pause after an answer of unknown outcome. Default `{ pause: 200, jitter: 0.5 }`. */
  retry?: { pause?: Duration | undefined; jitter?: number | undefined } | undefined;
  /** A label for people. Default `host:pid`, with `#2` and so on for further `Locks` of the process. */
  holder?: string | undefined;
  /** Keeps apart users of one store: letters, digits, `_`, `.`, `-`. Default `"default"`. */
  namespace?: string | undefined;
  /** `"correctness"` demands `fenced: true` on every store, and refuses `onUnavailable: "run"`. Default `"efficiency"`. */
  purpose?: "efficiency" | "correctness" | undefined;
  /** You promise that the resource checks tokens, so that two holders at once do no harm. Default false. */
  fenced?: boolean | undefined;
  /** When the store can't be used, `withLock` throws (the default) or runs without the lock. */
  onUnavailable?: OnUnavailable | undefined;
  /** Closes these locks when the process is asked to end, or has nothing left to do. Default false. */
  releaseOnExit?: boolean | ReleaseOnExit | undefined;
  /** Added to every token: for moving to a store whose tokens start lower. Below 2^62, which leaves room for the token. */
  tokenOffset?: bigint | undefined;
  logger?: Logger | undefined;
}

export type OnUnavailable = "throw" | "run";

export interface ReleaseOnExit {
  /** Default SIGTERM, SIGINT and SIGHUP. */
  signals?: readonly NodeJS.Signals[] | undefined;
  /** How long work may take to stop after its signal has aborted, before its name is given back. Default 5 s. */
  grace?: Duration | undefined;
}

export interface AcquireOptions {
  ttl?: Duration | undefined;
  wait?: Duration | undefined;
  /** Gives up waiting; has no effect on a lease once granted. */
  signal?: AbortSignal | undefined;
  mode?: Mode | undefined;
  /** Whether the watchdog renews. Default true. */
  renew?: boolean | undefined;
  /** The longest that the lease is kept; then the signal aborts and the lease runs out. */
  maxHold?: Duration | undefined;
  /** The name stays closed until the grant + this, even if released earlier. */
  atLeast?: Duration | undefined;
  /** Shown beside the holder. */
  note?: string | undefined;
  /** Inside a `withLock` of the same name that says so too, shares its lease. Default false. */
  reentrant?: boolean | undefined;
  abortBefore?: Duration | undefined;
}

export interface Settings {
  readonly driftFactor: number;
  readonly driftMs: number;
  readonly commandTimeoutMs: number;
  readonly poll: { readonly minMs: number; readonly maxMs: number; readonly jitter: number };
  readonly retry: { readonly pauseMs: number; readonly jitter: number };
  readonly holder: string;
  readonly namespace: string;
  readonly tokenOffset: bigint;
  readonly logger: Logger | undefined;
  readonly purpose: Purpose;
  readonly onUnavailable: OnUnavailable;
  readonly releaseOnExit: { readonly signals: readonly string[]; readonly graceMs: number } | null;
  /** As it was set for all calls; otherwise it follows each call's ttl. */
  readonly abortBefore: Duration | undefined;
  readonly defaults: Call;
}

/** One call's options, checked and complete. */
export interface Call {
  readonly ttlMs: number;
  readonly waitMs: number;
  readonly signal: AbortSignal | undefined;
  readonly permits: number;
  readonly limit: number;
  readonly renew: boolean;
  readonly maxHoldMs: number;
  readonly atLeastMs: number;
  readonly holder: string;
  readonly reentrant: boolean;
  readonly abortBeforeMs: number;
}

type Purpose = "efficiency" | "correctness";

export const LOCKS_OPTIONS = [
  "ttl",
  "wait",
  "drift",
  "abortBefore",
  "commandTimeout",
  "poll",
  "retry",
  "holder",
  "namespace",
  "purpose",
  "fenced",
  "onUnavailable",
  "releaseOnExit",
  "tokenOffset",
  "logger",
] as const;

export const ACQUIRE_OPTIONS = [
  "ttl",
  "wait",
  "signal",
  "mode",
  "renew",
  "maxHold",
  "atLeast",
  "note",
  "reentrant",
  "abortBefore",
] as const;

type AcquireOption = (typeof ACQUIRE_OPTIONS)[number];

/** Those of a primitive that settles the others itself. */
export const acquireOptionsBut = (...settled: AcquireOption[]): readonly AcquireOption[] =>
  ACQUIRE_OPTIONS.filter((option) => !settled.includes(option));

/** They end or stop a process without asking it. */
const UNHEARD = ["SIGKILL", "SIGSTOP"];
const EXIT_SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP"] as const;
export const HOLDER_BYTES = 255;
const TTL_MIN_MS = 20;

/** Host and process, and what tells apart the threads and `Locks` of one: deadlocks go by labels. */
export function defaultHolder(number: number): string {
  const thread = isMainThread ? "" : `/${threadId}`;
  return `${hostname()}:${process.pid}${thread}${number > 1 ? `#${number}` : ""}`;
}

export function resolveSettings(
  options: LocksOptions,
  traits: Traits,
  holderByDefault: string = defaultHolder(1),
): Settings {
  checkOptions(options, "the options of locks", LOCKS_OPTIONS);
  const { drift = {}, poll = {}, retry = {} } = options;
  checkOptions(drift, "the options of drift", ["factor", "ms"]);
  checkOptions(poll, "the options of poll", ["min", "max", "jitter"]);
  checkOptions(retry, "the options of retry", ["pause", "jitter"]);
  const minMs = parseDuration(orElse(poll.min, 50), "poll.min", { min: 1 });
  const purpose = checkPurpose(options, traits);
  const holder = checkText(orElse(options.holder, holderByDefault), "holder", 1, HOLDER_BYTES);
  const settings: Omit<Settings, "defaults"> = {
    driftFactor: checkNumber(orElse(drift.factor, 0.01), "drift.factor", { min: 0, max: 0.5 }),
    driftMs: checkNumber(orElse(drift.ms, 2), "drift.ms", { min: 0, max: 60_000 }),
    commandTimeoutMs: parseDuration(orElse(options.commandTimeout, 5_000), "commandTimeout", {
      min: 1,
    }),
    poll: {
      minMs,
      maxMs: parseDuration(orElse(poll.max, Math.max(minMs, 1_000)), "poll.max", { min: minMs }),
      jitter: checkNumber(orElse(poll.jitter, 0.5), "poll.jitter", { min: 0, max: 1 }),
    },
    retry: {
      pauseMs: parseDuration(orElse(retry.pause, 200), "retry.pause", { min: 1 }),
      jitter: checkNumber(orElse(retry.jitter, 0.5), "retry.jitter", { min: 0, max: 1 }),
    },
    holder,
    namespace: checkNamespace(orElse(options.namespace, "default")),
    tokenOffset: checkTokenOffset(orElse(options.tokenOffset, 0n)),
    logger: options.logger === undefined ? undefined : checkLogger(options.logger),
    purpose,
    onUnavailable: checkOnUnavailable(options.onUnavailable, "throw", purpose),
    releaseOnExit: checkReleaseOnExit(orElse(options.releaseOnExit, false)),
    abortBefore: options.abortBefore,
  };
  const ttlMs = parseTtl(orElse(options.ttl, 30_000), traits);
  return {
    ...settings,
    defaults: {
      ttlMs,
      waitMs: parseDuration(orElse(options.wait, 10_000), "wait", { min: 0, infinite: true }),
      signal: undefined,
      permits: LOCK_LIMIT,
      limit: LOCK_LIMIT,
      renew: true,
      maxHoldMs: Number.POSITIVE_INFINITY,
      atLeastMs: 0,
      holder,
      reentrant: false,
      abortBeforeMs: resolveAbortBefore(options.abortBefore, ttlMs, settings),
    },
  };
}

export function resolveCall(
  options: AcquireOptions | undefined,
  settings: Settings,
  traits: Traits,
  known: readonly string[] = ACQUIRE_OPTIONS,
): Call {
  const defaults = settings.defaults;
  if (options === undefined) return defaults;
  checkOptions(options, "the options of a call", known);
  const ttlMs = options.ttl === undefined ? defaults.ttlMs : parseTtl(options.ttl, traits);
  if (ttlMs !== defaults.ttlMs) refuseIfCannot(traits, "own-ttl", "a ttl per lease");
  const mode = checkOneOf(orElse(options.mode, "exclusive"), "mode", ["exclusive", "shared"]);
  if (mode === "shared") refuseIfCannot(traits, "shared", 'mode "shared"');
  const atLeastMs = parseDuration(orElse(options.atLeast, 0), "atLeast", { min: 0 });
  if (atLeastMs > 0) refuseIfCannot(traits, "at-least", "atLeast");
  const abortBefore = orElse(options.abortBefore, settings.abortBefore);
  return {
    ttlMs,
    waitMs:
      options.wait === undefined
        ? defaults.waitMs
        : parseDuration(options.wait, "wait", { min: 0, infinite: true }),
    signal: options.signal === undefined ? undefined : checkSignal(options.signal),
    permits: mode === "shared" ? 1 : LOCK_LIMIT,
    limit: LOCK_LIMIT,
    renew: checkBoolean(orElse(options.renew, true), "renew"),
    maxHoldMs: parseDuration(orElse(options.maxHold, Number.POSITIVE_INFINITY), "maxHold", {
      min: 1,
      infinite: true,
    }),
    atLeastMs,
    holder: withNote(settings.holder, options.note),
    reentrant: checkBoolean(orElse(options.reentrant, false), "reentrant"),
    abortBeforeMs: resolveAbortBefore(abortBefore, ttlMs, settings),
  };
}

export function checkTtl(value: unknown, settings: Settings, traits: Traits): number {
  const ttlMs = parseTtl(value, traits);
  if (ttlMs !== settings.defaults.ttlMs) refuseIfCannot(traits, "own-ttl", "a ttl per lease");
  return ttlMs;
}

/** What a lease of this ttl is shorter by, because clocks differ. */
export function driftOf(
  ttlMs: number,
  settings: Pick<Settings, "driftFactor" | "driftMs">,
): number {
  return ttlMs * settings.driftFactor + settings.driftMs;
}

export function refuseIfCannot(
  traits: Traits,
  feature: keyof Traits["cannot"],
  what: string,
): void {
  const reason = traits.cannot[feature];
  if (reason !== undefined) {
    throw new UnsupportedError(`the ${traits.store} store can't do ${what}: ${reason}`);
  }
}

function parseTtl(value: unknown, { store, minTtlMs }: Traits): number {
  const ttlMs = parseDuration(value, "ttl", { min: TTL_MIN_MS });
  if (ttlMs >= minTtlMs) return ttlMs;
  throw new InvalidArgumentError(
    `ttl is ${show(value)}; the ${store} store can't keep a lease for less than ${minTtlMs} ms`,
  );
}

function resolveAbortBefore(
  value: Duration | undefined,
  ttlMs: number,
  settings: Pick<Settings, "driftFactor" | "driftMs">,
): number {
  const ms = value === undefined ? ttlMs / 10 : parseDuration(value, "abortBefore", { min: 0 });
  if (ms + driftOf(ttlMs, settings) >= ttlMs) {
    throw new InvalidArgumentError(
      `abortBefore of ${ms} ms and the drift of ${driftOf(ttlMs, settings)} ms leave nothing of a ttl of ${ttlMs} ms`,
    );
  }
  return ms;
}

function checkPurpose(options: LocksOptions, traits: Traits): Purpose {
  const purpose = checkOneOf(orElse(options.purpose, "efficiency"), "purpose", [
    "efficiency",
    "correctness",
  ]);
  const fenced = checkBoolean(orElse(options.fenced, false), "fenced");
  if (purpose === "correctness" && !fenced) {
    const faults = traits.grantsTwiceAfter.join("; ");
    throw new UnsupportedError(
      'purpose "correctness" needs fenced: true on every store: a holder that is paused past its lease ' +
        "goes on writing, and only the resource can refuse that. " +
        (faults === ""
          ? ""
          : `The ${traits.store} store can also grant a name twice after ${faults}. `) +
        "Let the resource check tokens (docs/fences.md), and say fenced: true",
    );
  }
  return purpose;
}

export function checkOnUnavailable(
  value: OnUnavailable | undefined,
  otherwise: OnUnavailable,
  purpose: Purpose,
): OnUnavailable {
  const checked = checkOneOf(orElse(value, otherwise), "onUnavailable", ["throw", "run"]);
  if (checked === "run" && purpose === "correctness") {
    throw new InvalidArgumentError(
      'onUnavailable "run" lets work go on without the lock, which purpose "correctness" forbids: it is for efficiency only',
    );
  }
  return checked;
}

function checkReleaseOnExit(value: boolean | ReleaseOnExit): Settings["releaseOnExit"] {
  if (value === false) return null;
  const options = value === true ? {} : value;
  checkOptions(options, "the options of releaseOnExit", ["signals", "grace"]);
  const signals: readonly string[] = orElse(options.signals, EXIT_SIGNALS);
  const known = Object.keys(constants.signals).filter((one) => !UNHEARD.includes(one));
  if (!Array.isArray(signals) || !signals.every((signal) => known.includes(signal))) {
    throw new InvalidArgumentError(
      `releaseOnExit.signals is ${Array.isArray(signals) ? `[${signals.map(show).join(", ")}]` : show(signals)}; ` +
        'it must be an array of names of signals that can be heard, such as ["SIGTERM"]',
    );
  }
  return { signals, graceMs: parseDuration(orElse(options.grace, 5_000), "grace", { min: 0 }) };
}

function checkNamespace(value: unknown): string {
  if (typeof value !== "string" || !/^[A-Za-z0-9_.-]{1,64}$/.test(value)) {
    throw new InvalidArgumentError(
      `namespace is ${show(value)}; it must be 1 to 64 letters, digits, "_", "." or "-"`,
    );
  }
  return value;
}

/** A token below 2^62 and the offset together stay below 2^63, the end of what a fence can store. */
function checkTokenOffset(value: unknown): bigint {
  if (typeof value !== "bigint" || value < 0n || value >= 2n ** 62n) {
    throw new InvalidArgumentError(
      `tokenOffset is ${show(value)}; it must be a bigint from 0 to 2^62 - 1`,
    );
  }
  return value;
}

function checkLogger(value: Logger): Logger {
  for (const level of ["debug", "info", "warn"] as const) {
    if (typeof value?.[level] !== "function") {
      throw new InvalidArgumentError(`logger has no method ${level}(message, fields)`);
    }
  }
  return value;
}

function withNote(holder: string, note: string | undefined): string {
  if (note === undefined) return holder;
  return checkText(
    `${holder} (${checkText(note, "note", 1, HOLDER_BYTES)})`,
    "holder with note",
    1,
    HOLDER_BYTES,
  );
}
