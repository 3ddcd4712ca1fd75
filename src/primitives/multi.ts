import { follow, unlimitedController } from "../core/abort.js";
import type { Clock } from "../core/clock.js";
import { assertOpen, type Context } from "../core/context.js";
import { AcquireTimeoutError, InvalidArgumentError, LeaseLostError } from "../core/errors.js";
import type { HeldLease } from "../core/held-lease.js";
import type { LeaseState, ReleaseResult } from "../core/lease.js";
import { type AcquireOptions, acquireOptionsBut } from "../core/options.js";
import { CLAIM, claimOf } from "../core/proved-grant.js";
import { LAST_REPLY_MS } from "../core/reply-timeout.js";
import type { SequencerOptions } from "../core/sequencer.js";
import { type Call, resolveCall } from "../core/settings.js";
import type { ClaimMode } from "../core/store.js";
import { checkName, checkOptions, type Duration, show } from "../core/validate.js";
import { Waiter } from "../core/waiter.js";
import { checkOnLost, type OnLost, optionsAndFn, workUnder } from "../core/work.js";
import type { EnterableFence, Fenced } from "../fence/fence.js";
import { compareUtf8 } from "../stores/shared/utf8.js";
import { checkFence } from "./fail-open.js";

/** Options of `acquireAll`. */
export type MultiOptions = Omit<AcquireOptions, "reentrant">;

/** Options of `withAll`. */
export interface WithAllOptions extends MultiOptions {
  /** Entered before `fn` runs, for each name as a resource, with that name's token. Default: no fence. */
  fence?: EnterableFence | undefined;
  /** When `fn` succeeds but a lease was lost on the way: reject, or return the value. Default `"throw"`. */
  onLost?: OnLost | undefined;
}

/** Several names held as one: lost when any of them is. */
export interface MultiLease extends AsyncDisposable {
  /** Sorted, without duplicates. */
  readonly names: readonly string[];
  /** The fencing token of each name. */
  readonly tokens: ReadonlyMap<string, bigint>;
  /** A label for people: host, process, and `note`. */
  readonly holder: string;
  /** The same for all names. */
  readonly mode: ClaimMode;
  /** The worst state of the leases. */
  readonly state: LeaseState;
  /** Milliseconds until the first lease would be lost, if no renewal succeeds. */
  readonly remainingMs: number;
  /** Aborts with the `LeaseLostError` of the first lease that is lost. */
  readonly signal: AbortSignal;
  /** Throws `LeaseLostError` unless all are held. */
  assertHeld(): void;
  /**
   * For a fence, `guardTxn` or `fencedFetch`: token and floor of one of the names, with the signal and `assertHeld` of all.
   * Throws `InvalidArgumentError` for another name.
   */
  of(name: string): Fenced & Pick<MultiLease, "signal" | "assertHeld">;
  /** As `lease.sequencer`, for one of the names. Throws `LeaseLostError` unless all are held. */
  sequencer(name: string, options?: SequencerOptions): string;
  /** Renews all leases; as `lease.renew`. */
  renew(ttl?: Duration): Promise<void>;
  /** Releases all. `lost` if any of them was, `unknown` if the store did not reply for any. */
  release(): Promise<ReleaseResult>;
  /** For `JSON.stringify`: tokens as strings. */
  toJSON(): { tokens: Record<string, string>; holder: string; mode: ClaimMode };
}

const MOST_NAMES = 256;
const MULTI_OPTIONS = acquireOptionsBut("reentrant");

/**
 * All names or none. In one step if all are free and the store can; otherwise one after another, in
 * the same order for every caller: no call waits for a name while it holds a later one.
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

/** Acquires all of the names, enters the fence for each, runs `fn`, and releases. */
export async function withAll<T>(
  context: Context,
  names: readonly string[],
  optionsOrFn: WithAllOptions | undefined | ((lease: MultiLease) => T | Promise<T>),
  maybeFn: ((lease: MultiLease) => T | Promise<T>) | undefined,
): Promise<T> {
  const [given, fn] = optionsAndFn(optionsOrFn, maybeFn, "withAll");
  checkOptions(given, "the options of withAll", [...MULTI_OPTIONS, "fence", "onLost"]);
  checkFence(given);
  const { fence, onLost, ...rest } = given;
  const whenLost = checkOnLost(onLost);
  const lease = await acquireAll(context, names, rest);
  const enter = async (): Promise<void> => {
    for (const name of lease.names) await fence?.enter(undefined, name, lease.of(name));
  };
  return workUnder(lease, whenLost, async () => fn(lease), fence && enter);
}

/** Starts again when a name is lost during the wait for the others: nobody has worked under it yet. */
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

/** Returns the loss that ended the attempt as a value; all names are released by then. */
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
  const ignoreSignal = follow(wait, signal);
  try {
    for (const name of names) {
      // If no time is left, the name is still claimed once.
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
    await atMost(LAST_REPLY_MS, clock, released);
    throw error instanceof AcquireTimeoutError
      ? new AcquireTimeoutError(error.lockName, call.waitMs, error.holder)
      : error;
  } finally {
    ignoreSignal();
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
    // Like a single lease that is lost, they expire by themselves if nobody releases them.
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
      this.#controller = unlimitedController();
      for (const { signal } of this.#leases) follow(this.#controller, signal);
    }
    return this.#controller.signal;
  }

  assertHeld(): void {
    for (const lease of this.#leases) lease.assertHeld();
  }

  of(name: string): NamedLease {
    return new NamedLease(this, this.#leaseOf(name));
  }

  sequencer(name: string, options?: SequencerOptions): string {
    const lease = this.#leaseOf(name);
    this.assertHeld();
    return lease.sequencer(options);
  }

  #leaseOf(name: string): HeldLease {
    const lease = this.#leases.find((one) => one.name === name);
    if (lease !== undefined) return lease;
    throw new InvalidArgumentError(
      `${show(name)} is none of the names that were acquired: ${this.names.map(show).join(", ")}`,
    );
  }

  async renew(ttl?: Duration): Promise<void> {
    // The first loss is the cause; the others follow from it.
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

/** Its own properties are the numbers alone, so that a copy for a queue or another thread is possible. */
class NamedLease implements Fenced {
  readonly token: bigint;
  readonly floor: bigint;
  readonly #all: MultiLease;
  readonly #lease: HeldLease;

  constructor(all: MultiLease, lease: HeldLease) {
    this.#all = all;
    this.#lease = lease;
    this.token = lease.token;
    this.floor = lease.floor;
  }

  [CLAIM](): ReturnType<typeof claimOf> {
    return claimOf(this.#lease);
  }

  get signal(): AbortSignal {
    return this.#all.signal;
  }

  assertHeld(): void {
    this.#all.assertHeld();
  }
}

const WORST_FIRST: readonly LeaseState[] = ["lost", "released", "jeopardy"];

/** In order of their UTF-8 bytes, without duplicates: the same order on every machine, whatever its language. */
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
  return folded.sort(compareUtf8);
}
