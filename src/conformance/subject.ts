import assert from "node:assert/strict";
import { createLocksOn, type Locks } from "../core/locks.js";
import type { LocksOptions } from "../core/options.js";
import type { Runtime } from "../core/runtime.js";
import type { Claim, ClaimAnswer, Feature, Grant, Store } from "../core/store.js";
import { LOCK_LIMIT } from "../core/store.js";
import type { Fence } from "../fence/fence.js";
import { FaultyStore } from "../testing/faulty-store.js";
import type { VirtualClock } from "../testing/virtual-clock.js";

/** What the suite is run against, fresh for each case: a store that starts empty. */
export interface Subject {
  readonly runtime: Runtime;
  /** The clock that core and store live by, where time is virtual. */
  readonly virtual?: VirtualClock;
  /** Long enough not to run out under load, short enough to wait for. */
  readonly ttlMs: number;
  /** One more client of the same data, as another process would have it. */
  open(): Promise<Store>;
  /** The fence of the same kind, if it has one, with transactions and a cell to write in. */
  fence?(): Promise<FencedCell>;
  dispose(): Promise<void>;
}

/** A number behind a fence. */
export interface FencedCell {
  readonly fence: Fence<unknown>;
  transaction<T>(fn: (tx: unknown) => Promise<T>): Promise<T>;
  read(tx: unknown): Promise<number>;
  write(tx: unknown, value: number): Promise<void>;
}

export interface Case {
  readonly name: string;
  /** Skipped, with the reason from the traits, where the store can't. */
  readonly feature?: Feature;
  /** Needs to set clocks or stall: only where time is virtual. */
  readonly virtualOnly?: true;
  readonly needsFence?: true;
  /** Keeps the machine busy for seconds: run it beside no case that lives in real time. */
  readonly alone?: true;
  run(bench: Bench): Promise<void>;
}

/** A subject at work in one case. */
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

  /** A core on a client of its own that goes wrong on command. */
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

  /** Lets time pass until it is so; at most `withinMs`, or where time is real two seconds more. */
  async until(
    what: string,
    isSo: () => boolean | Promise<boolean>,
    withinMs = this.ttlMs * 3,
  ): Promise<void> {
    const stepMs = this.subject.virtual ? 1 : 5;
    const untilMs = this.nowMs + withinMs + (this.subject.virtual ? 0 : 2_000);
    while (!(await isSo())) {
      if (this.nowMs > untilMs) assert.fail(`not so within ${withinMs} ms: ${what}`);
      await this.pass(stepMs);
    }
  }

  /** A promise that is awaited later: if the case fails before that, its rejection tells nothing more. */
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

  async waitersAre(locks: Locks, name: string, count: number): Promise<void> {
    await this.until(
      `${count} wait for ${name}`,
      async () => ((await locks.inspect(name))?.waiters.length ?? 0) === count,
    );
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

  async dispose(): Promise<void> {
    // A store that still hangs is given up after the command timeout, which has to pass.
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
