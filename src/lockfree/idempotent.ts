import type { Context } from "../core/context.js";
import { contextOf } from "../core/context.js";
import {
  AcquireTimeoutError,
  HoldfastError,
  InProgressError,
  InvalidArgumentError,
  LeaseLostError,
  OtherRequestError,
  StoredFailureError,
  StoreUnavailableError,
} from "../core/errors.js";
import type { Lease } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { pause } from "../core/pause.js";
import type { RecordWrite, WriteAnswer } from "../core/records.js";
import { resolveCall } from "../core/settings.js";
import {
  checkOptions,
  checkText,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "../core/validate.js";
import { checkWork, workUnder } from "../core/work.js";
import type { Locks } from "../locks.js";
import { type Entry, entryText, parseEntry } from "./idempotent-entry.js";
import { jsonCodec, type ResultCodec } from "./json-codec.js";
import { NamespaceRecords } from "./records.js";

/** Options of `idempotent`. Those of `acquire` apply to the lock of the key. */
export interface IdempotentOptions<T = unknown>
  extends Omit<AcquireOptions, "mode" | "atLeast" | "reentrant"> {
  /** How long the result is kept, from the end of the work. Choose it longer than anybody retries. */
  keep: Duration;
  /** How long to wait while another caller works under the key; `0`: not at all. Default: that of the `Locks`. */
  wait?: Duration | undefined;
  /** Identifies the request, such as a hash of its body. The key with another fingerprint is an error. Default: none. */
  fingerprint?: string | undefined;
  /** Whether a failure is a result too, and kept. Default false: the next caller does the work again. */
  keepFailures?: boolean | ((error: unknown) => boolean) | undefined;
  /** Turns results into text and back. Default: JSON. */
  codec?: ResultCodec<T> | undefined;
}

/** The result, and whether an earlier call made it. */
interface Outcome<T> {
  readonly value: T;
  readonly replayed: boolean;
}

/** A lock and a record of this name belong to a key. */
const PREFIX = "idempotent:";
const MOST_KEY_BYTES = 255 - PREFIX.length;
/** How often a write is sent that gets no reply, or that the store refuses. */
const TRIES = 5;
const MOST_MESSAGE_CHARS = 1_000;
const LOCK_OPTIONS = acquireOptionsBut("mode", "atLeast", "reentrant");
const OPTIONS = [...LOCK_OPTIONS, "keep", "fingerprint", "keepFailures", "codec"];

/**
 * Runs `fn` once for a key: every later call with the key, on any machine, gets the result of the first for as
 * long as it is kept. Concurrent callers wait for it. If the process of the first caller crashes, the next
 * caller runs `fn` again: what `fn` does elsewhere happens once only if that place takes the key too.
 *
 * Rejects with the error of `fn`, `InProgressError` when another caller works for longer than `wait`,
 * `OtherRequestError` for another fingerprint, `StoredFailureError` for a failure that is kept,
 * `InvalidArgumentError` for a result that can't be kept (then no later call runs `fn` either),
 * `LeaseLostError` when another caller took over and has no result, `StoreUnavailableError`,
 * `UnsupportedError` and `ClosedError`.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { idempotent } from "holdfast/lockfree";
 *
 * const locks = await connect("redis://127.0.0.1:6379");
 * const receipt = await idempotent(locks, "charge:42", { keep: "24h" }, async (lease) => {
 *   return charge({ idempotencyKey: "charge:42", signal: lease.signal });
 * });
 * ```
 */
export async function idempotent<T>(
  locks: Locks,
  key: string,
  options: IdempotentOptions<T>,
  fn: (lease: Lease) => T | Promise<T>,
): Promise<T> {
  return (await idempotentOutcome(locks, key, options, fn)).value;
}

/** As `idempotent`, and says whether the result is that of an earlier call. */
export async function idempotentOutcome<T>(
  locks: Locks,
  key: string,
  options: IdempotentOptions<T>,
  fn: (lease: Lease) => T | Promise<T>,
): Promise<Outcome<T>> {
  const call = new IdempotentCall<T>(locks, key, options);
  checkWork(fn, "idempotent");
  return call.run(fn);
}

/** Throws InvalidArgumentError for bad options, and UnsupportedError for a store without records. */
export function checkIdempotent(locks: Locks, options: IdempotentOptions): void {
  new IdempotentCall(locks, "key", options);
}

/**
 * Each write of the record is a compare-and-set on the version that was read, and nobody writes over a result:
 * so there is one result, however many holders of the lock believe that they still hold it.
 */
class IdempotentCall<T> {
  readonly #locks: Locks;
  readonly #context: Context;
  readonly #records: NamespaceRecords;
  readonly #key: string;
  readonly #name: string;
  readonly #keepMs: number;
  readonly #fingerprint: string | null;
  readonly #keepsFailure: (error: unknown) => boolean;
  readonly #codec: ResultCodec<T>;
  readonly #acquireOptions: AcquireOptions;

  constructor(locks: Locks, key: string, options: IdempotentOptions<T>) {
    this.#locks = locks;
    this.#context = contextOf(locks);
    this.#records = new NamespaceRecords(this.#context, "idempotent");
    checkOptions(options, "the options of idempotent", OPTIONS);
    const { keep, fingerprint, keepFailures, codec, ...rest } = options;
    this.#key = checkText(key, "the key", 1, MOST_KEY_BYTES);
    this.#name = PREFIX + key;
    this.#keepMs = parseDuration(keep, "keep", { min: 1 });
    this.#fingerprint =
      fingerprint === undefined ? null : checkText(fingerprint, "fingerprint", 1, 255);
    this.#keepsFailure = checkKeepFailures(orElse(keepFailures, false));
    this.#codec = checkCodec(orElse(codec, jsonCodec as ResultCodec<T>));
    // Now, and not only if there is no result yet.
    resolveCall(rest, this.#context.settings, this.#context.store.traits);
    this.#acquireOptions = rest;
  }

  async run(fn: (lease: Lease) => T | Promise<T>): Promise<Outcome<T>> {
    const before = this.#settled(await this.#read());
    if (before !== null) return before;
    const lease = await this.#acquire();
    // A lease that is lost on the way does no harm: the record decides.
    const outcome = await workUnder(lease, "return", () => this.#work(lease, fn));
    return outcome ?? this.#resultOfSuccessor(lease);
  }

  /** Null: a later caller has taken over. */
  async #work(lease: Lease, fn: (lease: Lease) => T | Promise<T>): Promise<Outcome<T> | null> {
    const begun = await this.#begin(lease);
    if (begun === null || "outcome" in begun) return begun?.outcome ?? null;
    lease.assertHeld();
    let value: T;
    try {
      value = await fn(lease);
    } catch (error) {
      // The loss is not the work's failure: whether the work was done is unknown, as after a crash.
      if (lease.signal.aborted) throw error;
      if (!this.#keepsFailure(error)) {
        await this.#forget(lease, begun.version);
        throw error;
      }
      const text = JSON.stringify(describeFailure(error));
      if (await this.#finish(lease, begun.version, { state: "failed", text })) throw error;
      return null;
    }
    return (await this.#keep(lease, begun.version, value)) ? { value, replayed: false } : null;
  }

  /** Marks the record as ours. From then on, an earlier holder can write no result. */
  async #begin(lease: Lease): Promise<{ version: string } | { outcome: Outcome<T> } | null> {
    const { runtime, requests } = this.#context;
    for (let i = 1; i <= TRIES; i++) {
      const found = await this.#read();
      const outcome = this.#settled(found);
      if (outcome !== null) return { outcome };
      if (found !== null && found.token > lease.token) return null;
      const condition =
        found === null
          ? ({ kind: "absent" } as const)
          : ({ kind: "version", version: found.version } as const);
      const version = this.#newVersion();
      const entry = { state: "running", text: "" } as const;
      const { kind } = await this.#write(lease, version, entry, condition);
      if (kind === "written") return { version };
      // An earlier holder has written after our read, or the record has just expired: look again.
      if (lease.state === "lost") return null;
      await pause(runtime.clock, requests.retryPauseMs());
    }
    throw new StoreUnavailableError(
      `the store has refused to write the record of the key ${show(this.#key)} ${TRIES} times, each time right after it was read; ` +
        "the work was not begun: call again, and examine the store if that does not help",
    );
  }

  /**
   * Removes the record after a failure, so that the key is free for another request too. A holder that has
   * taken over keeps its record. Without a reply, ours is gone after `keep`.
   */
  async #forget(lease: Lease, version: string): Promise<void> {
    const entry = { state: "running", text: "", token: lease.token, fingerprint: null } as const;
    const write = { key: this.#name, value: entryText(entry), version: this.#newVersion() };
    const condition = { kind: "version", version } as const;
    await this.#records.write({ ...write, keepMs: 1, condition }).catch(() => {});
  }

  /** False: a later caller has taken over. */
  async #keep(lease: Lease, version: string, value: T): Promise<boolean> {
    let entry: Pick<Entry, "state" | "text">;
    try {
      entry = { state: "done", text: this.#codec.encode(value) };
      entryText(this.#headed(lease, entry)); // Throws for a text that no store can keep.
    } catch (error) {
      // The work is done: nobody may do it again because its result can't be kept.
      const failure = describeFailure(error);
      const text = JSON.stringify(failure);
      if (!(await this.#finish(lease, version, { state: "unstorable", text }))) return false;
      throw this.#notKept(failure);
    }
    return this.#finish(lease, version, entry);
  }

  async #finish(
    lease: Lease,
    version: string,
    entry: Pick<Entry, "state" | "text">,
  ): Promise<boolean> {
    try {
      const next = this.#newVersion();
      const own = { kind: "version", version } as const;
      const answer = await this.#write(lease, next, entry, own);
      if (answer.kind === "written") return true;
      // The work took longer than `keep`.
      if (answer.record !== null || lease.state === "lost") return false;
      const again = await this.#write(lease, next, entry, { kind: "absent" });
      return again.kind === "written";
    } catch (error) {
      if (!HoldfastError.is(error) || error.code !== "STORE_UNAVAILABLE") throw error;
      throw new StoreUnavailableError(
        `the work under the key ${show(this.#key)} is done, but its result may not be recorded: ${error.message}. ` +
          "The next call with the key gets it, or does the work again",
        { cause: error },
      );
    }
  }

  /** The result that another call has recorded; this call's own is discarded, as one key must not give two results. */
  async #resultOfSuccessor(lease: Lease): Promise<Outcome<T>> {
    let cause: unknown;
    try {
      const next = await this.#acquire();
      try {
        const outcome = this.#settled(await this.#read());
        if (outcome !== null) return outcome;
      } finally {
        await next.release();
      }
    } catch (error) {
      if (!HoldfastError.is(error) || error.code !== "IN_PROGRESS") throw error;
      cause = error;
    }
    const detail = "another caller has taken over its key, and has no result yet; call again";
    throw new LeaseLostError(lease, "superseded", { detail, cause });
  }

  async #acquire(): Promise<Lease> {
    try {
      return await this.#locks.acquire(this.#name, this.#acquireOptions);
    } catch (error) {
      throw error instanceof AcquireTimeoutError ? new InProgressError(this.#key, error) : error;
    }
  }

  async #read(): Promise<Entry | null> {
    const record = await this.#records.read(this.#name);
    return record === null ? null : parseEntry(record, this.#key);
  }

  /** Null if there is no result yet. Throws a failure that is kept. */
  #settled(entry: Entry | null): Outcome<T> | null {
    if (entry === null) return null;
    const { fingerprint, state, text } = entry;
    const both = fingerprint !== null && this.#fingerprint !== null;
    if (both && fingerprint !== this.#fingerprint) throw new OtherRequestError(this.#key);
    if (state === "failed") throw new StoredFailureError(this.#key, JSON.parse(text));
    if (state === "unstorable") throw this.#notKept(JSON.parse(text));
    return state === "running" ? null : { value: this.#codec.decode(text), replayed: true };
  }

  /** A write without a reply is repeated as it was: it is executed once. */
  async #write(
    lease: Lease,
    version: string,
    entry: Pick<Entry, "state" | "text">,
    condition: RecordWrite["condition"],
  ): Promise<WriteAnswer> {
    const value = entryText(this.#headed(lease, entry));
    const write = { key: this.#name, value, version, keepMs: this.#keepMs, condition };
    const { runtime, requests } = this.#context;
    for (let i = 1; ; i++) {
      try {
        return await this.#records.write(write);
      } catch (error) {
        const isOutage = HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE";
        if (!isOutage || !error.retryable || i === TRIES) throw error;
        await pause(runtime.clock, requests.retryPauseMs());
      }
    }
  }

  #headed(lease: Lease, entry: Pick<Entry, "state" | "text">): Omit<Entry, "version"> {
    return { ...entry, token: lease.token, fingerprint: this.#fingerprint };
  }

  #notKept({ message }: { message: string }): InvalidArgumentError {
    return new InvalidArgumentError(
      `the work under the key ${show(this.#key)} is done, but its result can't be kept: ${message}`,
    );
  }

  #newVersion(): string {
    return this.#context.runtime.random.grantId();
  }
}

function describeFailure(error: unknown): { name: string; message: string; code?: string } {
  if (!(error instanceof Error)) return { name: "Error", message: show(error) };
  const { name, message, code } = error as { [field in "name" | "message" | "code"]?: unknown };
  // Some libraries put an object there.
  const textOf = (value: unknown): string =>
    (typeof value === "string" ? value : show(value)).slice(0, MOST_MESSAGE_CHARS);
  const more = typeof code === "string" && { code: textOf(code) };
  return { name: textOf(name), message: textOf(message), ...more };
}

function checkKeepFailures(value: unknown): (error: unknown) => boolean {
  if (typeof value === "boolean") return () => value;
  if (typeof value === "function") return value as (error: unknown) => boolean;
  throw new InvalidArgumentError(
    `keepFailures is ${show(value)}; it must be true, false, or a function that tells by the error`,
  );
}

function checkCodec<T>(codec: ResultCodec<T>): ResultCodec<T> {
  if (typeof codec?.encode === "function" && typeof codec.decode === "function") return codec;
  throw new InvalidArgumentError(`codec is ${show(codec)}; it needs encode and decode`);
}
