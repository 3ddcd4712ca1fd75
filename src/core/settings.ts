import { constants, hostname } from "node:os";
import { isMainThread, threadId } from "node:worker_threads";
import { InvalidArgumentError, UnsupportedError } from "./errors.js";
import type { Logger } from "./events.js";
import {
  ACQUIRE_OPTIONS,
  type AcquireOptions,
  LOCKS_OPTIONS,
  type LocksOptions,
  type OnUnavailable,
  type ReleaseOnExit,
} from "./options.js";
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

/** The options of a `Locks`, checked and complete. */
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
  /** Undefined: a tenth of each call's ttl. */
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

/** Signals that a process can't listen to. */
const UNCATCHABLE = ["SIGKILL", "SIGSTOP"];
const EXIT_SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP"] as const;
export const HOLDER_BYTES = 255;
/** The shortest ttl on any store. */
export const TTL_MIN_MS = 20;
export const DEFAULT_NAMESPACE = "default";

/** Host and process, with a number for each thread and `Locks`: `deadlocks` identifies holders by their labels. */
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
    namespace: checkNamespace(orElse(options.namespace, DEFAULT_NAMESPACE)),
    tokenOffset: checkTokenOffset(orElse(options.tokenOffset, 0n)),
    logger: options.logger === undefined ? undefined : checkLogger(options.logger),
    purpose,
    onUnavailable: checkOnUnavailable(options.onUnavailable, "throw", purpose),
    releaseOnExit: checkReleaseOnExit(orElse(options.releaseOnExit, false)),
    abortBefore: options.abortBefore,
  };
  const ttlMs = parseTtl(orElse(options.ttl, defaultTtlMs(traits)), traits);
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

/** The ttl of leases on a store, unless an option names another. */
export const defaultTtlMs = ({ maxTtlMs }: Traits): number => Math.min(30_000, maxTtlMs ?? 30_000);

export function resolveCall(
  options: AcquireOptions | undefined,
  settings: Settings,
  traits: Traits,
  known: readonly string[] = ACQUIRE_OPTIONS,
): Call {
  const defaults = settings.defaults;
  if (options === undefined) return defaults;
  checkOptions(options, "the options of a call", known);
  const ttlMs =
    options.ttl === undefined ? defaults.ttlMs : checkTtl(options.ttl, settings, traits);
  const mode = checkOneOf(orElse(options.mode, "exclusive"), "mode", ["exclusive", "shared"]);
  if (mode === "shared") refuseIfCannot(traits, "shared", 'mode "shared"');
  const atLeastMs = parseDuration(orElse(options.atLeast, 0), "atLeast", { min: 0 });
  if (atLeastMs > 0) refuseIfCannot(traits, "at-least", "atLeast");
  const abortBefore = orElse(options.abortBefore, settings.abortBefore);
  return {
    ttlMs,
    waitMs: parseDuration(orElse(options.wait, defaults.waitMs), "wait", {
      min: 0,
      infinite: true,
    }),
    signal: checkSignal(options.signal),
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

/** The clock drift allowed for this ttl, in milliseconds. */
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
    throw new UnsupportedError(`the store (${traits.store}) can't do ${what}: ${reason}`);
  }
}

function parseTtl(value: unknown, { store, minTtlMs, maxTtlMs = Infinity }: Traits): number {
  const ttlMs = parseDuration(value, "ttl", { min: TTL_MIN_MS });
  if (ttlMs >= minTtlMs && ttlMs <= maxTtlMs) return ttlMs;
  const limit = ttlMs < minTtlMs ? `less than ${minTtlMs}` : `more than ${maxTtlMs}`;
  throw new InvalidArgumentError(
    `ttl is ${show(value)}; the store (${store}) can't keep a lease for ${limit} ms`,
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
      `abortBefore of ${ms} ms and the drift of ${driftOf(ttlMs, settings)} ms leave nothing of a ttl of ${ttlMs} ms; choose a longer ttl or a shorter abortBefore`,
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
          : `The store (${traits.store}) can also grant a name twice after ${faults}. `) +
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
  const known = Object.keys(constants.signals).filter((one) => !UNCATCHABLE.includes(one));
  if (!Array.isArray(signals) || !signals.every((signal) => known.includes(signal))) {
    throw new InvalidArgumentError(
      `releaseOnExit.signals is ${Array.isArray(signals) ? `[${signals.map(show).join(", ")}]` : show(signals)}; ` +
        'it must be an array of names of signals that a process can listen to, such as ["SIGTERM"]',
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
