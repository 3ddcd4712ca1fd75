import assert from "node:assert/strict";
import type { LocksOptions } from "../core/options.js";
import type { Runtime } from "../core/runtime.js";
import type { Claim, ClaimAnswer, Feature, Grant, Store } from "../core/store.js";
import { LOCK_LIMIT } from "../core/store.js";
import type { Fence } from "../fence/fence.js";
import { createLocksOn, type Locks } from "../locks.js";
import { FaultyStore } from "../testing/faulty-store.js";
import type { VirtualClock } from "../testing/virtual-clock.js";

/** A store under test with its time and its fence. Each case gets a fresh one, which starts empty. */
export interface Subject {
  /** The clock, the random source and the seams of every core that a case makes. */
  readonly runtime: Runtime;
  /** The clock of core and store, if time is virtual. */
  readonly virtual?: VirtualClock;
  /**
   * The ttl of leases in the suite, in milliseconds. Choose one that does not expire under load;
   * cases wait for several ttls.
   */
  readonly ttlMs: number;
  /** Opens another client of the same data, as another process would. */
  open(): Promise<Store>;
  /** A fence for the same kind of store, if there is one, with transactions and a number behind it. */
  fence?(): Promise<FencedCell>;
  /** Called when the case is over, after its stores are closed. */
  dispose(): Promise<void>;
}

/** A number behind a fence. */
export interface FencedCell {
  /** Guards the resource `cell`. */
  readonly fence: Fence<unknown>;
  /** Runs `fn` in a transaction of the kind that the fence expects; rolls back when it rejects. */
  transaction<T>(fn: (tx: unknown) => Promise<T>): Promise<T>;
  /** The number as this transaction sees it. */
  read(tx: unknown): Promise<number>;
  /** Replaces the number. */
  write(tx: unknown, value: number): Promise<void>;
}

/** One promise of a store, and the code that tests it. */
export interface Case {
  /** The promise in words: the name of a test. */
  readonly name: string;
  /** Skipped where `traits.cannot` names this feature or one of these, with the reason given there. */
  readonly feature?: Feature | readonly Feature[];
  /** The case sets clocks or stalls the event loop: skipped unless time is virtual. */
  readonly virtualOnly?: true;
  /** The case is about places in a queue: skipped where waiters have none (`traits.fair` is false). */
  readonly needsQueue?: true;
  /** Skipped where the subject has no fence. */
  readonly needsFence?: true;
  /** The case keeps the machine busy for seconds: run no case in real time beside it. */
  readonly alone?: true;
  /** Resolves if the promise is kept; rejects with an `AssertionError` if not. */
  run(bench: Bench): Promise<void>;
}

/** The tools of a case: clients of the subject's store, and time. */
export class Bench {
  readonly subject: Subject;
  readonly ttlMs: number;
  readonly #stores: Store[] = [];
  readonly #locks: Locks[] = [];
  #ids = 0;

  constructor(subject: Subject) {
    this.subject = subject;
    this.ttlMs = subject.ttlMs;
  }

  get nowMs(): number {
    return this.subject.runtime.clock.elapsedMs();
  }

  get virtual(): VirtualClock {
    assert(this.subject.virtual, "this case needs virtual time");
    return this.subject.virtual;
  }

  async store(): Promise<Store> {
    const store = await this.subject.open();
    this.#stores.push(store);
    return store;
  }

  /** `Locks` on a client of its own, and the `FaultyStore` between the two. */
  async client(options: LocksOptions = {}): Promise<{ locks: Locks; store: FaultyStore }> {
    const store = new FaultyStore(await this.store(), this.subject.runtime.clock);
    const locks = createLocksOn(this.subject.runtime, store, {
      ttl: this.ttlMs,
      wait: this.ttlMs * 20,
      commandTimeout: this.ttlMs * 4,
      ...options,
    });
    this.#locks.push(locks);
    return { locks, store };
  }

  async locks(options: LocksOptions = {}): Promise<Locks> {
    return (await this.client(options)).locks;
  }

  async pass(ms: number): Promise<void> {
    if (this.subject.virtual) await this.subject.virtual.advance(ms);
    else await new Promise((resolve) => setTimeout(resolve, ms));
  }

  /** Lets time pass until the condition holds; fails after `withinMs`, in real time two seconds later. */
  async until(
    what: string,
    isSo: () => boolean | Promise<boolean>,
    withinMs = this.ttlMs * 3,
  ): Promise<void> {
    const stepMs = this.subject.virtual ? 1 : 5;
    const untilMs = this.nowMs + withinMs + (this.subject.virtual ? 0 : 2_000);
    while (!(await isSo())) {
      if (this.nowMs > untilMs) assert.fail(`not true within ${withinMs} ms: ${what}`);
      await this.pass(stepMs);
    }
  }

  /** Marks a promise that is awaited later, so that its rejection is not unhandled if the case fails before. */
  later<T>(promise: Promise<T>): Promise<T> {
    promise.catch(() => {});
    return promise;
  }

  /** Waits for a promise while time passes. */
  async settled<T>(promise: Promise<T>, withinMs = this.ttlMs * 3): Promise<T> {
    let done = false;
    const finish = (): void => {
      done = true;
    };
    promise.then(finish, finish);
    await this.until("the promise is settled", () => done, withinMs);
    return promise;
  }

  /** Where waiters have no place in the store, nobody can see them: they get time to claim. */
  async waitersAre(locks: Locks, name: string, count: number): Promise<void> {
    if (!locks.traits.fair) return this.pass(this.ttlMs / 10);
    await this.until(
      `${count} wait for ${name}`,
      async () => ((await locks.inspect(name))?.waiters.length ?? 0) === count,
    );
  }

  /**
   * The store has nothing about the name. A release is answered when a majority of a quorum has dropped the
   * record, and the other nodes do so soon: hence the wait.
   */
  async isEmpty(store: Pick<Store, "inspect"> | Locks, name: string): Promise<void> {
    await this.until("nothing is left behind", async () => (await store.inspect(name)) === null);
  }

  claim(name: string, more: Partial<Claim> = {}): Claim {
    this.#ids++;
    return {
      names: [name],
      grantId: `grant-${this.#ids}-${"x".repeat(12)}`,
      seq: 1,
      permits: LOCK_LIMIT,
      limit: LOCK_LIMIT,
      ttlMs: this.ttlMs,
      atLeastMs: 0,
      holder: `holder-${this.#ids}`,
      queue: false,
      ...more,
    };
  }

  /** A claim that does not expire in a case that is not about expiry, however busy the machine is. */
  lastingClaim(name: string, more: Partial<Claim> = {}): Claim {
    return this.claim(name, { ttlMs: this.ttlMs * 20, ...more });
  }

  async dispose(): Promise<void> {
    // A request to a store that still hangs ends with the command timeout, which has to pass.
    const closing = this.#locks.map((locks) => locks.close().catch(() => {}));
    await this.settled(Promise.all(closing), this.ttlMs * 10);
    for (const store of this.#stores) await store.close();
    await this.subject.dispose();
  }
}

export const ignore = (): void => {};

export function grantOf(answer: ClaimAnswer): Grant {
  assert.equal(answer.kind, "granted", "the claim is granted");
  return (answer as Extract<ClaimAnswer, { kind: "granted" }>).grants[0]!;
}
