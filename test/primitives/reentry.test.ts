import { AsyncResource } from "node:async_hooks";
import { EventEmitter } from "node:events";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { InvalidArgumentError, LeaseLostError } from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { Deferred, fixedRandom, never, refusal, rejection, stage, watch } from "../core/helpers.js";

const REENTRANT = { reentrant: true } as const;

/** Two Locks on one store. */
function pair(options = {}) {
  const on = stage(options);
  const more = { clock: on.clock, inner: on.store.inner, random: fixedRandom(0.5, "OTHER") };
  return { ...on, other: stage(options, more).locks };
}

describe("an acquire of a name inside withLock of that name", () => {
  it("waits as any other would, unless both say reentrant", async () => {
    const on = stage();
    for (const [outer, inner] of [
      [{}, {}],
      [{}, REENTRANT],
      [REENTRANT, {}],
    ]) {
      await on.locks.withLock("a", outer!, async () => {
        const acquiring = watch(on.locks.acquire("a", { ...inner, wait: "5s" }));
        expect(await on.locks.tryAcquire("a", inner!)).toBeNull();
        await on.clock.advance(5_000);
        expect(acquiring).toMatchObject({
          outcome: "rejected",
          value: { code: "ACQUIRE_TIMEOUT" },
        });
      });
    }
  });

  it("shares the lease: one grant, one token, released with the outermost", async () => {
    const on = stage();
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await on.locks.acquire("a", REENTRANT);
      const tried = (await on.locks.tryAcquire("a", REENTRANT))!;
      for (const lease of [inner, tried]) {
        expect(lease).not.toBe(outer);
        expect(lease.toJSON()).toEqual(outer.toJSON());
        expect([lease.name, lease.token, lease.floor, lease.holder, lease.mode]).toEqual([
          "a",
          outer.token,
          outer.floor,
          outer.holder,
          "exclusive",
        ]);
        expect([lease.permits, lease.state, lease.remainingMs]).toEqual([
          1,
          "held",
          outer.remainingMs,
        ]);
        lease.assertHeld();
      }
      expect(await inner.release()).toBe("released");
      expect(await inner.release()).toBe("released");
      expect([inner.state, tried.state, outer.state]).toEqual(["released", "held", "held"]);
      expect(refusal(() => inner.assertHeld())).toMatchObject({ reason: "released" });
      expect([inner.remainingMs, inner.signal.aborted]).toEqual([0, false]);
      tried.assertHeld();
      await tried[Symbol.asyncDispose]();
      outer.assertHeld();
      expect(on.store.releases).toEqual([]);
    });
    expect([on.store.claims.length, on.store.releases.length]).toEqual([1, 1]);
    expect(on.store.inspect("default:a")).toBeNull();
  });

  it("is released with the outermost of three levels, and nobody else gets the name before", async () => {
    const { locks, other, store, clock } = pair();
    const tokens: bigint[] = [];
    const waiting = new Deferred<Lease>();
    await locks.withLock("a", REENTRANT, async (one) => {
      other.acquire("a", { wait: "1m" }).then(waiting.resolve, waiting.reject);
      await locks.withLock("a", REENTRANT, async (two) => {
        await locks.withLock("a", REENTRANT, async (three) => {
          tokens.push(one.token, two.token, three.token);
        });
        await clock.advance(0);
        expect([two.state, watch(waiting.promise).outcome]).toEqual(["held", "pending"]);
      });
      await clock.advance(0);
      expect(await other.tryAcquire("a")).toBeNull();
      expect(store.releases).toEqual([]);
    });
    expect(new Set(tokens).size).toBe(1);
    expect((await waiting.promise).token).toBeGreaterThan(tokens[0]!);
  });

  it("by another Locks on the same store does not join", async () => {
    const { locks, other } = pair();
    await locks.withLock("a", REENTRANT, async () => {
      expect(await other.tryAcquire("a", REENTRANT)).toBeNull();
    });
  });

  it("joins only inside a withLock: a lease from acquire opens no context", async () => {
    const on = stage();
    await on.locks.acquire("a", REENTRANT);
    expect(await on.locks.tryAcquire("a", REENTRANT)).toBeNull();
    await on.locks.withLock("b", REENTRANT, async () => {
      await on.locks.acquire("c", REENTRANT);
      expect(await on.locks.tryAcquire("c", REENTRANT)).toBeNull();
      expect(await on.locks.tryAcquire("a", REENTRANT)).toBeNull();
    });
  });

  it("joins also across other names in between", async () => {
    const on = stage();
    await on.locks.withLock("a", REENTRANT, (a) =>
      on.locks.withLock("b", REENTRANT, (b) =>
        on.locks.withLock("a", REENTRANT, async (again) => {
          expect(again.token).toBe(a.token);
          const same = await on.locks.acquire("b", REENTRANT);
          expect(same.token).toBe(b.token);
        }),
      ),
    );
    expect(on.store.claims).toHaveLength(2);
  });

  it("is refused when its signal has aborted, or the locks are closed", async () => {
    const on = stage();
    const reason = new Error("enough");
    const signal = AbortSignal.abort(reason);
    const work = on.locks.withLock("a", REENTRANT, async () => {
      expect(await rejection(on.locks.acquire("a", { ...REENTRANT, signal }))).toBe(reason);
      expect(await rejection(on.locks.tryAcquire("a", { ...REENTRANT, signal }))).toBe(reason);
      await on.locks.close();
      expect((await rejection(on.locks.acquire("a", REENTRANT))).code).toBe("CLOSED");
    });
    expect(await rejection(work)).toMatchObject({ code: "LEASE_LOST", reason: "closed" });
  });

  it("joins as shared inside exclusive; exclusive inside shared is refused with the reason", async () => {
    const on = stage();
    const shared = { ...REENTRANT, mode: "shared" } as const;
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await on.locks.acquire("a", shared);
      expect([inner.token, inner.mode]).toEqual([outer.token, "exclusive"]);
    });
    await on.locks.withLock("a", shared, async (outer) => {
      const inner = await on.locks.acquire("a", shared);
      expect([inner.token, inner.mode]).toEqual([outer.token, "shared"]);
      for (const acquiring of [
        on.locks.acquire("a", REENTRANT),
        on.locks.tryAcquire("a", REENTRANT),
      ]) {
        const error = await rejection(acquiring);
        expect(error).toBeInstanceOf(InvalidArgumentError);
        expect(error.message).toBe(
          '"a" is held shared here and can\'t be made exclusive: two readers that both tried would ' +
            "wait for each other. Take it exclusively from the start",
        );
      }
      // Without reentrant, the acquire is a claim like any other, and waits for the readers.
      expect(await on.locks.tryAcquire("a")).toBeNull();
    });
  });
});

describe("two tasks at the same time", () => {
  it("inside one withLock both join, and do not exclude each other", async () => {
    const on = stage();
    let inside = 0;
    let most = 0;
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const sibling = () =>
        on.locks.withLock("a", REENTRANT, async (lease) => {
          most = Math.max(most, ++inside);
          await new Promise(setImmediate);
          inside--;
          return lease.token;
        });
      expect(await Promise.all([sibling(), sibling()])).toEqual([outer.token, outer.token]);
    });
    expect(most).toBe(2);
    expect(on.store.claims).toHaveLength(1);
  });

  it("outside any withLock exclude each other", async () => {
    const on = stage();
    let inside = 0;
    const flow = () =>
      on.locks.withLock("a", REENTRANT, async (lease) => {
        expect(++inside).toBe(1);
        await on.locks.withLock("a", REENTRANT, () => new Promise(setImmediate));
        inside--;
        return lease.token;
      });
    const tokens = await Promise.all([flow(), flow(), flow()]);
    expect(new Set(tokens).size).toBe(3);
  });
});

describe("when the outer lease is lost", () => {
  it("inner leases are lost too, and no new one is given", async () => {
    const on = stage({ ttl: "10s" });
    const seen: LeaseLostError[] = [];
    const work = on.locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await on.locks.acquire("a", REENTRANT);
      inner.on("lost", (error) => seen.push(error));
      on.store.onRenew = () => never();
      await on.clock.advance(20_000);
      expect([outer.state, inner.state]).toEqual(["lost", "lost"]);
      expect(inner.signal.aborted).toBe(true);
      expect(inner.signal.reason).toBe(outer.signal.reason);
      expect(refusal(() => inner.assertHeld())).toBe(outer.signal.reason);
      expect(await inner.release()).toBe("lost");
      expect(await rejection(on.locks.acquire("a", REENTRANT))).toBe(outer.signal.reason);
      expect(await rejection(on.locks.tryAcquire("a", REENTRANT))).toBe(outer.signal.reason);
      expect(await rejection(inner.renew())).toBe(outer.signal.reason);
    });
    const error = await rejection(work);
    expect(error).toMatchObject({ code: "LEASE_LOST", reason: "expired" });
    expect(seen).toEqual([expect.any(LeaseLostError)]);
  });

  it("the signal of an inner lease aborts in the same moment, before the name can be granted to another", async () => {
    const { locks, other, store, clock } = pair({ ttl: "10s" });
    const work = locks.withLock("a", REENTRANT, async () => {
      const inner = await locks.acquire("a", REENTRANT);
      const next = other.acquire("a", { wait: "1m" });
      const granted = watch(next);
      store.onRenew = () => never();
      const aborted = new Promise<string>((resolve) => {
        inner.signal.addEventListener("abort", () => resolve(granted.outcome));
      });
      await clock.advance(30_000);
      expect(await aborted).toBe("pending");
      expect(granted.outcome).toBe("resolved");
    });
    expect((await rejection(work)).code).toBe("LEASE_LOST");
  });

  it("an inner withLock rejects with the loss", async () => {
    const on = stage({ ttl: "10s" });
    const outer = on.locks.withLock("a", REENTRANT, async () => {
      const inner = on.locks.withLock("a", REENTRANT, async () => {
        on.clock.stall(60_000);
        return 7;
      });
      expect(await rejection(inner)).toMatchObject({ code: "LEASE_LOST", value: 7 });
      return 8;
    });
    expect(await rejection(outer)).toMatchObject({ code: "LEASE_LOST", value: 8 });
  });
});

describe("work that outlives its context", () => {
  it("holds nothing any more, and is notified before the name is free", async () => {
    const { locks, other, clock } = pair();
    const left = new Deferred<Lease>();
    const events: string[] = [];
    const goOn = new Deferred<void>();
    const later = new Deferred<Lease | null>();
    await locks.withLock("a", REENTRANT, async () => {
      const inner = await locks.acquire("a", REENTRANT);
      other.acquire("a", { wait: "1m" }).then(() => events.push("granted"));
      inner.signal.addEventListener("abort", () => events.push("aborted"));
      inner.on("lost", ({ reason }) => events.push(`lost: ${reason}`));
      left.resolve(inner);
      goOn.promise.then(() => locks.tryAcquire("a", REENTRANT)).then(later.resolve, later.reject);
    });
    const inner = await left.promise;
    await clock.advance(0);
    expect(events).toEqual(["aborted", "lost: released", "granted"]);
    expect([inner.state, inner.remainingMs]).toEqual(["lost", 0]);
    expect(inner.signal.reason).toBeInstanceOf(LeaseLostError);
    expect(inner.signal.reason).toMatchObject({ reason: "released" });
    expect(inner.signal.reason.message).toContain("the work that it was part of has ended");
    expect(refusal(() => inner.assertHeld())).toMatchObject({ reason: "released" });
    expect(await rejection(inner.renew())).toMatchObject({ reason: "released" });
    expect(await inner.release()).toBe("lost");
    goOn.resolve();
    expect(await later.promise).toBeNull();
  });

  it("finds its signal aborted even if it reads it only afterwards", async () => {
    const on = stage();
    const inner = await on.locks.withLock("a", REENTRANT, () => on.locks.acquire("a", REENTRANT));
    expect(inner.signal.aborted).toBe(true);
    expect(inner.signal.reason).toMatchObject({ reason: "released" });
  });

  it("is notified when the outer lease is released in the middle of the work", async () => {
    const { locks, other } = pair();
    await locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await locks.acquire("a", REENTRANT);
      const { signal } = inner;
      await outer.release();
      const next = (await other.tryAcquire("a"))!;
      expect(next.token).toBeGreaterThan(outer.token);
      expect(inner.state).toBe("lost");
      expect(refusal(() => inner.assertHeld())).toMatchObject({ reason: "released" });
      expect(signal.aborted).toBe(true);
      await next.release();
    });
  });

  it("and acquires later sends a claim of its own, with a token of its own", async () => {
    const on = stage();
    const goOn = new Deferred<void>();
    const later = new Deferred<bigint[]>();
    const token = await on.locks.withLock("a", REENTRANT, async (outer) => {
      goOn.promise
        .then(() =>
          on.locks.withLock("a", REENTRANT, async (own) => {
            const inner = await on.locks.acquire("a", REENTRANT);
            return [own.token, inner.token];
          }),
        )
        .then(later.resolve, later.reject);
      return outer.token;
    });
    goOn.resolve();
    const [own, inner] = await later.promise;
    expect(own).toBeGreaterThan(token);
    expect(inner).toBe(own);
  });

  it("and starts itself again and again keeps no ended lease in memory", async () => {
    // Not on a stage, which records everything and so keeps it in memory.
    const locks = createLocks(memoryStore());
    const alive: WeakRef<Lease>[] = [];
    const done = new Deferred<number>();
    const round = (left: number): Promise<void> =>
      locks.withLock("a", REENTRANT, async (lease) => {
        alive.push(new WeakRef(lease));
        // The callback belongs to this context, as that of a timer or of a next message would.
        setImmediate(() => (left === 0 ? last() : round(left - 1)));
      });
    const last = async (): Promise<void> => {
      await collectGarbage();
      done.resolve(alive.filter((one) => one.deref() !== undefined).length);
    };
    await round(50);
    expect(await done.promise).toBeLessThan(10);
  });
});

describe("the context of a withLock", () => {
  const places: [string, (acquire: () => Promise<Lease>) => Promise<Lease>][] = [
    ["a timer", (acquire) => sleep(1).then(acquire)],
    [
      "setImmediate",
      (acquire) => new Promise((ok, no) => setImmediate(() => acquire().then(ok, no))),
    ],
    [
      "nextTick",
      (acquire) => new Promise((ok, no) => process.nextTick(() => acquire().then(ok, no))),
    ],
    [
      "a stream",
      async (acquire) => {
        const got: Lease[] = [];
        await pipeline(
          Readable.from([1]),
          async function* (source) {
            for await (const one of source) {
              got.push(await acquire());
              yield one;
            }
          },
          async (source) => {
            for await (const _ of source);
          },
        );
        return got[0]!;
      },
    ],
    [
      "a listener that is bound by AsyncResource",
      (acquire) =>
        new Promise((ok, no) => {
          emitter.once(
            "message",
            AsyncResource.bind(() => acquire().then(ok, no)),
          );
          poke();
        }),
    ],
  ];
  // Emits outside any context.
  const emitter = new EventEmitter();
  const outside = new AsyncResource("outside");
  const poke = (): void => {
    outside.runInAsyncScope(() => setImmediate(() => emitter.emit("message")));
  };

  it.each(places)("follows the work through %s", async (_, through) => {
    const on = stage();
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await through(() => on.locks.acquire("a", { ...REENTRANT, wait: 0 }));
      expect(inner.token).toBe(outer.token);
    });
  });

  it("does not follow a listener that is called from elsewhere", async () => {
    const on = stage();
    await on.locks.withLock("a", REENTRANT, async () => {
      const acquiring = new Promise<Lease | null>((ok, no) => {
        emitter.once("message", () => on.locks.tryAcquire("a", REENTRANT).then(ok, no));
      });
      poke();
      expect(await acquiring).toBeNull();
    });
  });
});

describe("an inner lease", () => {
  it("passes events on until it is released or the listener is removed", async () => {
    const on = stage({ ttl: "10s", retry: { pause: 100 } });
    const work = on.locks.withLock("a", REENTRANT, async (outer) => {
      const events: string[] = [];
      const one = await on.locks.acquire("a", REENTRANT);
      const two = await on.locks.acquire("a", REENTRANT);
      const gone = await on.locks.acquire("a", REENTRANT);
      const record = (who: string) => (event: string) => () => void events.push(`${who} ${event}`);
      const unwanted = record("one")("jeopardy, unwanted");
      outer.on("jeopardy", record("outer")("jeopardy"));
      one.on("jeopardy", record("one")("jeopardy")).on("recovered", record("one")("recovered"));
      one.on("jeopardy", unwanted).off("jeopardy", unwanted).off("jeopardy", unwanted);
      two.on("recovered", record("two")("recovered")).on("lost", record("two")("lost"));
      gone.on("jeopardy", record("gone")("jeopardy")).on("lost", record("gone")("lost"));
      await gone.release();
      gone.on("recovered", record("gone")("recovered"));
      on.store.onRenew = () => Promise.reject(new Error("down"));
      await on.clock.advance(4_000);
      expect(events).toEqual(["outer jeopardy", "one jeopardy"]);
      expect([outer.state, one.state]).toEqual(["jeopardy", "jeopardy"]);
      on.store.onRenew = (apply) => apply();
      await on.clock.advance(1_000);
      expect(events.slice(2)).toEqual(["one recovered", "two recovered"]);
      on.store.onRenew = () => never();
      await on.clock.advance(20_000);
      expect(events.slice(4)).toEqual(["outer jeopardy", "one jeopardy", "two lost"]);
    });
    expect((await rejection(work)).code).toBe("LEASE_LOST");
  });

  it("renews the lease that it shares", async () => {
    const on = stage({ ttl: "10s" });
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const inner = await on.locks.acquire("a", REENTRANT);
      await inner.renew("1m");
      expect(outer.remainingMs).toBeGreaterThan(50_000);
      expect(inner.remainingMs).toBe(outer.remainingMs);
    });
  });

  it("leaves nothing behind on the lease that it shared", async () => {
    const on = stage();
    await on.locks.withLock("a", REENTRANT, async (outer) => {
      const listening = countListeners(outer.signal);
      for (let i = 0; i < 20; i++) {
        await on.locks.withLock("a", REENTRANT, async (inner) => {
          inner.signal.addEventListener("abort", () => {});
        });
      }
      expect(listening()).toBe(0);
    });
  });
});

/** Counts the listeners that are added to the signal from now on and are still there. */
function countListeners(signal: AbortSignal): () => number {
  const all = new Set<unknown>();
  const { addEventListener: add, removeEventListener: remove } = signal;
  signal.addEventListener = (...args: Parameters<typeof add>) => {
    all.add(args[1]);
    add.apply(signal, args);
  };
  signal.removeEventListener = (...args: Parameters<typeof remove>) => {
    all.delete(args[1]);
    remove.apply(signal, args);
  };
  return () => all.size;
}

async function collectGarbage(): Promise<void> {
  const { setFlagsFromString } = await import("node:v8");
  const { runInNewContext } = await import("node:vm");
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc") as () => void;
  for (let i = 0; i < 3; i++) {
    await new Promise(setImmediate);
    gc();
  }
}
