import { onAbort, unlimitedController } from "../core/abort.js";
import type { Clock } from "../core/clock.js";
import type { Context } from "../core/commands.js";
import { AcquireTimeoutError, InvalidArgumentError, LeaseLostError } from "../core/errors.js";
import type { HeldLease } from "../core/held-lease.js";
import type { LeaseState, ReleaseResult } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut, type Call, resolveCall } from "../core/options.js";
import type { ClaimMode } from "../core/store.js";
import { checkName, type Duration, show } from "../core/validate.js";
import { assertOpen, LAST_WORD_MS, Waiter } from "../core/waiter.js";
import type { Fenced } from "../fence/fence.js";

export type MultiOptions = Omit<AcquireOptions, "reentrant">;

/** Several names held as one: lost when any of them is. */
export interface MultiLease extends AsyncDisposable {
  /** Sorted, without duplicates. */
  readonly names: readonly string[];
  readonly tokens: ReadonlyMap<string, bigint>;
  readonly holder: string;
  readonly mode: ClaimMode;
  /** The worst of them. */
  readonly state: LeaseState;
  /** The least of them. */
  readonly remainingMs: number;
  /** Aborts with the LeaseLostError of the first that is lost. */
  readonly signal: AbortSignal;
  assertHeld(): void;
  /** For a fence: token and floor of one of the names. */
  of(name: string): Fenced;
  renew(ttl?: Duration): Promise<void>;
  /** Gives all back. `lost` if any of them was, `unknown` if the store did not answer for any. */
  release(): Promise<ReleaseResult>;
  toJSON(): { tokens: Record<string, string>; holder: string; mode: ClaimMode };
}

const MOST_NAMES = 256;
export const MULTI_OPTIONS = acquireOptionsBut("reentrant");

/**
 * All names or none. In one step if all are free and the store can; otherwise one after another, in
 * an order that is the same for everybody: so nobody waits for a name while holding a later one.
 */
export async function acquireAll(
  context: Context,
  names: readonly string[],
  options: MultiOptions | undefined,
): Promise<MultiLease> {
  assertOpen(context);
  const call = resolveCall(options, context.settings, context.store.traits, MULTI_OPTIONS);
  const sorted = inOrder(names);
  const startedAtMs = context.runtime.clock.elapsedMs();
  const { cannot, namesAtOnce = sorted.length } = context.store.traits;
  const most = cannot["many-names"] === undefined ? namesAtOnce : 1;
  const oneStep = sorted.length <= most;
  if (oneStep) {
    const waiter = new Waiter(context, sorted, call);
    const leases = await waiter.acquire();
    if (leases !== null) return new HeldLeases(leases);
    const { busy } = waiter;
    if (call.waitMs === 0) throw new AcquireTimeoutError(busy.name, 0, busy.holder);
  }
  return oneByOne(context, sorted, call, startedAtMs);
}

/** Starts again when a name is lost while the others are waited for: nobody has worked under it yet. */
async function oneByOne(
  context: Context,
  names: readonly string[],
  call: Call,
  startedAtMs: number,
): Promise<MultiLease> {
  const untilMs = startedAtMs + call.waitMs;
  for (;;) {
    assertOpen(context);
    const outcome = await attempt(context, names, call, untilMs);
    if (outcome instanceof HeldLeases) return outcome;
    if (context.runtime.clock.elapsedMs() >= untilMs) throw outcome;
  }
}

/** A loss as a value: it ended the attempt, and nothing of it is left. */
async function attempt(
  context: Context,
  names: readonly string[],
  call: Call,
  untilMs: number,
): Promise<HeldLeases | LeaseLostError> {
  const { clock } = context.runtime;
  const held: HeldLease[] = [];
  const wait = new AbortController();
  const { signal } = call;
  signal?.throwIfAborted();
  const ignoreSignal = signal && onAbort(signal, () => wait.abort(signal.reason));
  try {
    for (const name of names) {
      // Nothing may be left, and then it is still asked for once.
      const waitMs = Math.max(0, untilMs - clock.elapsedMs());
      const waiter = new Waiter(context, [name], { ...call, signal: wait.signal, waitMs });
      const lease = (await waiter.acquire())?.[0];
      if (lease === undefined) throw new AcquireTimeoutError(name, 0, waiter.busy.holder);
      held.push(lease);
      lease.on("lost", (error) => wait.abort(error));
      lease.holdFrom(Number.POSITIVE_INFINITY);
    }
    for (const lease of held) if (lease.state === "lost") lease.assertHeld();
    for (const lease of held) lease.holdFrom(clock.elapsedMs());
    return new HeldLeases(held);
  } catch (error) {
    const released = Promise.all(held.map((lease) => lease.release()));
    // The caller's signal may be that of another lease, and its reason a loss too.
    if (error instanceof LeaseLostError && !call.signal?.aborted) {
      await released;
      return error;
    }
    // A store that hangs must not hold up the end of the wait; what is not released by then is owed.
    await atMost(LAST_WORD_MS, clock, released);
    throw error instanceof AcquireTimeoutError
      ? new AcquireTimeoutError(error.lockName, call.waitMs, error.holder)
      : error;
  } finally {
    ignoreSignal?.();
  }
}

/** Settles with the work, or when the time is up. */
function atMost(ms: number, clock: Clock, work: Promise<unknown>): Promise<void> {
  return new Promise((resolve) => {
    const timer = clock.after(ms, resolve);
    timer.keepAlive(true);
    work.then(() => {
      timer.cancel();
      resolve();
    });
  });
}

class HeldLeases implements MultiLease {
  readonly names: readonly string[];
  readonly tokens: ReadonlyMap<string, bigint>;
  readonly #leases: readonly HeldLease[];
  #controller: AbortController | null = null;
  #releasing: Promise<ReleaseResult> | null = null;

  constructor(leases: readonly HeldLease[]) {
    this.#leases = leases;
    this.names = leases.map((lease) => lease.name);
    this.tokens = new Map(leases.map((lease) => [lease.name, lease.token]));
    // Like a single one that is lost, they run out by themselves if nobody gives them back.
    const letRunOut = (): void => {
      for (const lease of leases) lease.letRunOut();
    };
    for (const lease of leases) lease.on("lost", letRunOut);
  }

  get holder(): string {
    return this.#leases[0]!.holder;
  }

  get mode(): ClaimMode {
    return this.#leases[0]!.mode;
  }

  get state(): LeaseState {
    const states = this.#leases.map((lease) => lease.state);
    return WORST_FIRST.find((state) => states.includes(state)) ?? "held";
  }

  get remainingMs(): number {
    return Math.min(...this.#leases.map((lease) => lease.remainingMs));
  }

  get signal(): AbortSignal {
    if (this.#controller === null) {
      const controller = unlimitedController();
      this.#controller = controller;
      for (const { signal } of this.#leases) {
        const abort = (): void => controller.abort(signal.reason);
        if (signal.aborted) abort();
        else signal.addEventListener("abort", abort, { once: true });
      }
    }
    return this.#controller.signal;
  }

  assertHeld(): void {
    for (const lease of this.#leases) lease.assertHeld();
  }

  of(name: string): Fenced {
    const lease = this.#leases.find((one) => one.name === name);
    if (lease !== undefined) return { token: lease.token, floor: lease.floor };
    throw new InvalidArgumentError(
      `${show(name)} is none of the names that were acquired: ${this.names.map(show).join(", ")}`,
    );
  }

  async renew(ttl?: Duration): Promise<void> {
    // The loss of one is the news, not what it does to the others.
    if (this.state === "lost" && this.signal.aborted) throw this.signal.reason;
    await Promise.all(this.#leases.map((lease) => lease.renew(ttl)));
  }

  release(): Promise<ReleaseResult> {
    this.#releasing ??= this.#release((lease) => lease.release());
    return this.#releasing;
  }

  abandon(): Promise<ReleaseResult> {
    this.#releasing ??= this.#release((lease) => lease.abandon());
    return this.#releasing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  toJSON(): { tokens: Record<string, string>; holder: string; mode: ClaimMode } {
    // A name may be any word, __proto__ too.
    const tokens = Object.fromEntries(this.#leases.map(({ name, token }) => [name, String(token)]));
    return { tokens, holder: this.holder, mode: this.mode };
  }

  async #release(one: (lease: HeldLease) => Promise<ReleaseResult>): Promise<ReleaseResult> {
    const results = await Promise.all(this.#leases.map(one));
    return (["lost", "unknown"] as const).find((one) => results.includes(one)) ?? "released";
  }
}

const WORST_FIRST: readonly LeaseState[] = ["lost", "released", "jeopardy"];

/** By their UTF-8 bytes, without duplicates: the same for everybody, whatever the language. */
function inOrder(names: unknown): readonly string[] {
  if (!Array.isArray(names)) {
    throw new InvalidArgumentError(`the names are ${show(names)}; they must be an array`);
  }
  // `map` alone would leave out the holes of a sparse array.
  const folded = [...new Set([...names].map(checkName))];
  if (folded.length === 0 || folded.length > MOST_NAMES) {
    throw new InvalidArgumentError(
      `there are ${folded.length} names; there must be from 1 to ${MOST_NAMES}`,
    );
  }
  return folded.sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
}
