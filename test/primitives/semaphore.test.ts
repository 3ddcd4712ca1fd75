import { describe, expect, it } from "vitest";
import {
  AcquireTimeoutError,
  ClosedError,
  InvalidArgumentError,
  LeaseLostError,
  UnsupportedError,
} from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import type { PermitOptions, Semaphore } from "../../src/primitives/semaphore.js";
import { refusal, rejection, stage, watch } from "../core/helpers.js";
import { clients, crash } from "./clients.js";

describe("a semaphore", () => {
  it("grants as many permits as there are, each lease with a token of its own", async () => {
    const on = stage({ holder: "A" });
    const gpu = on.locks.semaphore("gpu", { permits: 4 });
    expect([gpu.name, gpu.permits]).toEqual(["gpu", 4]);
    const two = await gpu.acquire({ permits: 2, note: "two" });
    const one = await gpu.acquire();
    expect([two.name, two.mode, two.permits]).toEqual(["gpu", "permits", 2]);
    expect([one.permits, one.token > two.token, one.floor]).toEqual([1, true, two.token]);
    expect(await gpu.tryAcquire({ permits: 2 })).toBeNull();
    const last = await gpu.tryAcquire();
    expect(last?.state).toBe("held");
    expect(await on.locks.inspect("gpu")).toMatchObject({
      limit: 4,
      holders: [
        { holder: "A (two)", mode: "permits", permits: 2, token: two.token },
        { holder: "A", mode: "permits", permits: 1, token: one.token },
        { holder: "A", mode: "permits", permits: 1, token: last!.token },
      ],
      waiters: [],
    });
    const three = watch(gpu.acquire({ permits: 3 }));
    expect(await two.release()).toBe("released");
    await on.clock.advance(0);
    expect(three.outcome).toBe("pending");
    await one.release();
    await on.clock.advance(0);
    expect((three.value as Lease).floor).toBe(last!.token);
  });

  it("with one permit excludes like a lock, but can't be taken as a lock", async () => {
    const on = stage({ wait: 0 });
    const single = on.locks.semaphore("s", { permits: 1 });
    const lease = await single.acquire();
    expect(lease.mode).toBe("permits");
    const busy = await rejection(single.acquire());
    expect(busy).toBeInstanceOf(AcquireTimeoutError);
    expect(busy.message).toMatch(/^"s" is held by .*; tried once/);
    expect(await rejection(on.locks.acquire("s"))).toBeInstanceOf(InvalidArgumentError);
    await lease.release();
    expect(await on.locks.inspect("s")).toBeNull();
  });

  it("has leases that are renewed, can be lost, and obey atLeast, as others do", async () => {
    const on = stage({ ttl: "3s" });
    const semaphore = on.locks.semaphore("s", { permits: 2 });
    const kept = await semaphore.acquire();
    const short = await semaphore.acquire({ maxHold: "1s" });
    await on.clock.advance(60_000);
    expect([kept.state, short.state]).toEqual(["held", "lost"]);
    expect((short.signal.reason as LeaseLostError).reason).toBe("max-hold");
    const closed = await semaphore.acquire({ atLeast: "5s" });
    await closed.release();
    expect(await semaphore.tryAcquire()).toBeNull();
    await on.clock.advance(5_000);
    expect(await semaphore.tryAcquire()).not.toBeNull();
  });

  it("ends a wait by its timeout, by a signal and by close, and leaves no ticket", async () => {
    const on = stage({ holder: "A" });
    const semaphore = on.locks.semaphore("s", { permits: 2 });
    const held = await semaphore.acquire({ permits: 2 });
    const late = watch(semaphore.acquire({ wait: "2s" }));
    const abort = new AbortController();
    const aborted = watch(semaphore.acquire({ signal: abort.signal }));
    await on.clock.advance(2_000);
    const timeout = late.value as AcquireTimeoutError;
    expect([timeout.code, timeout.lockName, timeout.waitMs, timeout.holder]).toEqual([
      "ACQUIRE_TIMEOUT",
      "s",
      2_000,
      "A",
    ]);
    abort.abort(new Error("enough"));
    await on.clock.advance(0);
    expect((aborted.value as Error).message).toBe("enough");
    expect((await on.locks.inspect("s"))?.waiters).toEqual([]);
    const closing = rejection(semaphore.acquire());
    await on.locks.close();
    expect(await closing).toBeInstanceOf(ClosedError);
    expect(held.state).toBe("lost");
    expect(on.store.inspect("default:s")).toBeNull();
    expect(await rejection(semaphore.acquire())).toBeInstanceOf(ClosedError);
    expect(await rejection(semaphore.tryAcquire())).toBeInstanceOf(ClosedError);
    expect(await rejection(semaphore.resize(3))).toBeInstanceOf(ClosedError);
    expect(on.clock.timers).toBe(0);
  });

  it("is refused where the store can't do it, with the store's reason", () => {
    const on = stage({}, { traits: { cannot: { permits: "it has no counters" } } });
    const refused = refusal(() => on.locks.semaphore("s", { permits: 2 }));
    expect(refused).toBeInstanceOf(UnsupportedError);
    expect(refused.message).toBe("the store (memory) can't do semaphores: it has no counters");
  });
});

describe("the queue for permits", () => {
  it("does not starve a waiter for many permits behind many waiters for one", async () => {
    const { clock, on } = clients();
    const of = (who: string) => on(who).locks.semaphore("s", { permits: 3 });
    const first = await of("A").acquire();
    const second = await of("B").acquire();
    const many = watch(of("M").acquire({ permits: 3, wait: "1h" }));
    // One permit is free all the time, and nobody who comes later gets it.
    const small: { outcome: string; value: unknown }[] = [];
    for (let i = 0; i < 20; i++) {
      small.push(watch(of(`S${i}`).acquire({ wait: "1h" })));
      expect(await of("T").tryAcquire()).toBeNull();
      await clock.advance(1_000);
    }
    await first.release();
    await clock.advance(0);
    expect([many.outcome, small.every((one) => one.outcome === "pending")]).toEqual([
      "pending",
      true,
    ]);
    await second.release();
    await clock.advance(0);
    expect(many.outcome).toBe("resolved");
    const { waiters } = (await on("A").locks.inspect("s"))!;
    expect(waiters.map(({ holder }) => holder)).toEqual(small.map((_, i) => `S${i}`));
    // Then three at a time, in the order in which they came.
    await (many.value as Lease).release();
    await clock.advance(0);
    expect(small.map((one) => one.outcome === "resolved")).toEqual(small.map((_, i) => i < 3));
  });

  it("moves at once when a waiter for many permits gives up", async () => {
    const { clock, on } = clients();
    const held = await on("A").locks.semaphore("s", { permits: 3 }).acquire({ permits: 2 });
    const abort = new AbortController();
    const many = watch(
      on("M").locks.semaphore("s", { permits: 3 }).acquire({ permits: 2, signal: abort.signal }),
    );
    const one = watch(on("B").locks.semaphore("s", { permits: 3 }).acquire());
    await clock.advance(100);
    abort.abort();
    await clock.advance(0);
    expect([many.outcome, one.outcome, held.state]).toEqual(["rejected", "resolved", "held"]);
  });

  it("gets a crashed holder's permits back at that holder's expiry, not all at once", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const of = (who: string) => on(who).locks.semaphore("s", { permits: 3 });
    await of("A").acquire({ ttl: "10s" });
    await of("B").acquire({ ttl: "20s" });
    const alive = await of("C").acquire({ ttl: "10s" });
    crash(on("A"));
    crash(on("B"));
    const waiting = ["D", "E", "F"].map((who) => watch(of(who).acquire()));
    const granted = (): boolean[] => waiting.map((one) => one.outcome === "resolved");
    await clock.advance(9_999);
    expect(granted()).toEqual([false, false, false]);
    await clock.advance(1);
    expect(granted()).toEqual([true, false, false]);
    await clock.advance(9_999);
    expect(granted()).toEqual([true, false, false]);
    await clock.advance(1);
    expect(granted()).toEqual([true, true, false]);
    await clock.advance(60_000);
    expect(granted()).toEqual([true, true, false]);
    expect(alive.state).toBe("held");
  });

  it("is held up by a crashed waiter for many permits until its ticket expires, no longer", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const of = (who: string) => on(who).locks.semaphore("s", { permits: 3 });
    await of("A").acquire({ permits: 2 });
    of("M")
      .acquire({ permits: 3, ttl: "6s" })
      .catch(() => {});
    crash(on("M"));
    const one = watch(of("B").acquire({ ttl: "3s" }));
    await clock.advance(5_999);
    expect(one.outcome).toBe("pending");
    // No push arrives: the waiter finds out when its own ticket is renewed.
    await clock.advance(1_001);
    expect(one.outcome).toBe("resolved");
  });
});

describe("the limit of a semaphore", () => {
  it("is fixed while the semaphore is in use, and another limit is an error", async () => {
    const { clock, on } = clients();
    const lease = await on("A").locks.semaphore("gpu", { permits: 4 }).acquire();
    const other = on("B").locks.semaphore("gpu", { permits: 3 });
    for (const acquiring of [other.acquire(), other.tryAcquire(), other.acquire({ wait: 0 })]) {
      const refused = await rejection(acquiring);
      expect(refused).toBeInstanceOf(InvalidArgumentError);
      expect(refused.message).toBe(
        '"gpu" is in use as a semaphore of 4 permits and can\'t be taken as a semaphore of 3 permits; ' +
          "use the same number everywhere, or change it with resize",
      );
    }
    expect((await on("A").locks.inspect("gpu"))?.waiters).toEqual([]);
    await lease.release();
    expect((await other.acquire()).permits).toBe(1);
    expect((await on("A").locks.inspect("gpu"))?.limit).toBe(3);
    await clock.advance(0);
  });

  it("can't be set on a name that is in use as a lock, nor the other way round", async () => {
    const { on } = clients({ wait: 0 });
    const { locks } = on("A");
    const message = (as: string, wanted: string): string =>
      `"n" is in use as ${as} and can't be taken as ${wanted}; use another name`;
    const semaphore = locks.semaphore("n", { permits: 2 });
    for (const mode of ["exclusive", "shared"] as const) {
      const lock = await locks.acquire("n", { mode });
      expect((await rejection(semaphore.acquire())).message).toBe(
        message("a lock", "a semaphore of 2 permits"),
      );
      expect((await rejection(semaphore.tryAcquire())).code).toBe("INVALID_ARGUMENT");
      await lock.release();
      const permit = await semaphore.acquire();
      expect((await rejection(locks.acquire("n", { mode }))).message).toBe(
        message("a semaphore of 2 permits", "a lock"),
      );
      expect((await rejection(locks.tryAcquire("n", { mode }))).code).toBe("INVALID_ARGUMENT");
      expect((await rejection(locks.acquireAll(["m", "n"], { mode }))).code).toBe(
        "INVALID_ARGUMENT",
      );
      expect(await locks.inspect("m")).toBeNull();
      await permit.release();
    }
    // A name that atLeast keeps closed is still in use.
    await (await semaphore.acquire({ atLeast: "1m" })).release();
    expect((await rejection(locks.acquire("n"))).code).toBe("INVALID_ARGUMENT");
  });

  it.each([
    [0, /^permits is 0; it must be a whole number from 1 to 2147483646$/],
    [1.5, /^permits is 1.5; it must be a whole number/],
    [-1, /^permits is -1/],
    [2 ** 31, /^permits is 2147483648; .* to 2147483646$/],
    [2 ** 31 - 1, /^permits is 2147483647; .* to 2147483646$/],
    [Number.NaN, /^permits is NaN/],
    [Number.POSITIVE_INFINITY, /^permits is Infinity/],
    ["4", /^permits is "4"/],
    [undefined, /^permits is undefined/],
    [null, /^permits is null/],
  ])("can't be %s", async (permits, message) => {
    const on = stage();
    const options = { permits: permits as number };
    const refused = refusal(() => on.locks.semaphore("s", options));
    expect(refused).toBeInstanceOf(InvalidArgumentError);
    expect(refused.message).toMatch(message);
    const resized = await rejection(
      on.locks.semaphore("s", { permits: 2 }).resize(permits as number),
    );
    expect(resized).toBeInstanceOf(InvalidArgumentError);
    expect(resized.message).toMatch(message);
  });

  it("may be as high as 2^31 - 2", async () => {
    const on = stage();
    const most = 2 ** 31 - 2;
    const wide = on.locks.semaphore("s", { permits: most });
    const lease = await wide.acquire({ permits: most });
    expect([lease.mode, lease.permits]).toEqual(["permits", most]);
    expect(await wide.tryAcquire()).toBeNull();
  });
});

describe("bad input of a semaphore", () => {
  const ways = {
    acquire: (semaphore: Semaphore, options: PermitOptions) => semaphore.acquire(options),
    tryAcquire: (semaphore: Semaphore, options: PermitOptions) => semaphore.tryAcquire(options),
    withPermits: (semaphore: Semaphore, options: PermitOptions) =>
      semaphore.withPermits(options, () => 1),
  };

  it.each([
    [{ permits: 0 }, /^permits is 0; it must be a whole number from 1 to 4$/],
    [{ permits: 1.5 }, /^permits is 1.5/],
    [{ permits: 5 }, /^permits is 5; it must be a whole number from 1 to 4$/],
    [{ permits: null }, /^permits is null/],
    [{ permits: "2" }, /^permits is "2"/],
    [{ mode: "shared" }, /no option "mode"/],
    [{ reentrant: true }, /no option "reentrant"/],
    [{ limit: 3 }, /no option "limit"/],
    [{ permit: 2 }, /no option "permit"; known: .*\bpermits\b/],
    [{ ttl: 1 }, /^ttl is 1/],
    [null, /options .* null/],
    [5, /options .* 5/],
    ["2", /options/],
    [[], /options .* an array/],
    [new AbortController().signal, /options .* a plain object/],
  ])("is refused: the options %j", async (options, message) => {
    for (const acquire of Object.values(ways)) {
      const on = stage();
      const refused = await rejection(
        acquire(on.locks.semaphore("s", { permits: 4 }), options as PermitOptions),
      );
      expect(refused).toBeInstanceOf(InvalidArgumentError);
      expect(refused.message).toMatch(message);
      expect(on.store.claims).toEqual([]);
    }
  });

  it("is refused: an option that only another call has", async () => {
    const on = stage();
    const semaphore = on.locks.semaphore("s", { permits: 4 });
    const waiting = await rejection(semaphore.tryAcquire({ wait: 5 } as object));
    expect(waiting.message).toMatch(/no option "wait"/);
    expect((await rejection(semaphore.acquire({ onLost: "return" } as object))).message).toMatch(
      /no option "onLost"/,
    );
    const onLost = await rejection(
      semaphore.withPermits({ onLost: "ignore" as "return" }, () => 1),
    );
    expect(onLost.message).toMatch(/^onLost is "ignore"/);
    const fn = await rejection(semaphore.withPermits({}, 5 as unknown as () => void));
    expect(fn.message).toBe("fn is 5; withPermits needs a function to run");
    expect(on.store.claims).toEqual([]);
  });

  it("is refused: a bad name or limit", () => {
    const on = stage();
    const make = (name: unknown, options: unknown) =>
      refusal(() => on.locks.semaphore(name as string, options as { permits: number }));
    expect(make("s", undefined).message).toBe(
      "the options of semaphore are undefined; they must be a plain object",
    );
    expect(make("s", 4).message).toMatch(/are 4; they must be a plain object/);
    expect(make("s", { permits: 4, limit: 4 }).message).toMatch(/no option "limit"/);
    expect(make("", { permits: 4 }).message).toMatch(/^the name is ""/);
    expect(make("a\n", { permits: 4 })).toBeInstanceOf(InvalidArgumentError);
  });
});

describe("resize", () => {
  it("to more permits wakes at once the waiters that fit, in their order", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const of = (who: string, permits = 2) => on(who).locks.semaphore("s", { permits });
    await of("A").acquire({ permits: 2 });
    const waiting = ["B", "C", "D"].map((who) => watch(of(who).acquire({ permits: 2 })));
    const last = watch(of("E").acquire());
    const semaphore = of("op");
    await semaphore.resize(6);
    await clock.advance(0);
    expect([...waiting, last].map((one) => one.outcome)).toEqual([
      "resolved",
      "resolved",
      "pending",
      "pending",
    ]);
    expect(semaphore.permits).toBe(6);
    expect((await on("A").locks.inspect("s"))?.limit).toBe(6);
    // Clients that know the new limit take part; those that know the old one get an error.
    await semaphore.resize(7);
    expect((await rejection(of("F").acquire())).message).toMatch(
      /in use as a semaphore of 7 permits and can't be taken as a semaphore of 2 permits/,
    );
    expect(await of("F", 7).tryAcquire()).toBeNull();
    // Those who waited before do not know the new limit, claim and renew as before, and are granted.
    await clock.advance(300_000);
    expect(waiting[2]!.outcome).toBe("pending");
    await semaphore.resize(9);
    await clock.advance(0);
    expect([waiting[2]!.outcome, last.outcome]).toEqual(["resolved", "resolved"]);
  });

  it("below what is in use takes nothing away, and grants nothing until enough was released", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const of = (who: string, permits: number) => on(who).locks.semaphore("s", { permits });
    const held = await Promise.all(["A", "B", "C"].map((who) => of(who, 3).acquire()));
    const early = watch(of("D", 3).acquire());
    const semaphore = of("op", 3);
    await semaphore.resize(1);
    const late = watch(of("E", 1).acquire());
    await clock.advance(120_000);
    expect(held.map((one) => one.state)).toEqual(["held", "held", "held"]);
    await held[0]!.release();
    await held[1]!.release();
    await clock.advance(60_000);
    expect([early.outcome, late.outcome]).toEqual(["pending", "pending"]);
    await held[2]!.release();
    await clock.advance(0);
    expect([early.outcome, late.outcome]).toEqual(["resolved", "pending"]);
    await (early.value as Lease).release();
    await clock.advance(0);
    expect(late.outcome).toBe("resolved");
  });

  it("below what a waiter needs ends its wait with a clear error, and those behind it go on", async () => {
    const { clock, on } = clients({ wait: "1h", ttl: "6s" });
    const of = (who: string, permits = 4) => on(who).locks.semaphore("s", { permits });
    const held = await of("A").acquire();
    const many = watch(of("M").acquire({ permits: 4 }));
    const behind = watch(of("B").acquire({ permits: 2 }));
    await clock.advance(100);
    expect([many.outcome, behind.outcome]).toEqual(["pending", "pending"]);
    await of("op").resize(3);
    await clock.advance(0);
    expect(behind.outcome).toBe("resolved");
    // The waiter learns it at its next renewal, or earlier.
    await clock.advance(2_000);
    expect(many.value).toBeInstanceOf(InvalidArgumentError);
    expect((many.value as Error).message).toBe(
      '"s" is in use as a semaphore of 3 permits and can\'t be taken as a semaphore of 4 permits; ' +
        "use the same number everywhere, or change it with resize",
    );
    const info = (await on("A").locks.inspect("s"))!;
    expect(info.waiters).toEqual([]);
    expect(info.holders.map(({ holder }) => holder)).toEqual(["A", "B"]);
    expect(held.state).toBe("held");
  });

  it("changes only this object if nobody uses the name, for the store keeps nothing of it", async () => {
    const { on } = clients();
    const semaphore = on("A").locks.semaphore("s", { permits: 2 });
    await semaphore.resize(5);
    expect([semaphore.permits, await on("A").locks.inspect("s")]).toEqual([5, null]);
    expect((await semaphore.acquire({ permits: 5 })).permits).toBe(5);
  });

  it("is refused for a lock, and the lock stays as it is", async () => {
    const { on } = clients();
    const lock = await on("A").locks.acquire("s", { mode: "shared" });
    const semaphore = on("A").locks.semaphore("s", { permits: 2 });
    const refused = await rejection(semaphore.resize(5));
    expect(refused).toBeInstanceOf(InvalidArgumentError);
    expect(refused.message).toMatch(/"s" is in use as a lock and can't be taken as a semaphore/);
    expect([semaphore.permits, lock.state]).toEqual([2, "held"]);
    expect((await on("B").locks.tryAcquire("s", { mode: "shared" }))?.mode).toBe("shared");
  });

  it("changes whether a waiter for many permits fits, without moving it in the queue", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const of = (who: string) => on(who).locks.semaphore("s", { permits: 3 });
    const held = await of("A").acquire();
    const all = watch(of("B").acquire({ permits: 3 }));
    const one = watch(of("C").acquire());
    await of("op").resize(4);
    await clock.advance(0);
    expect([all.outcome, one.outcome]).toEqual(["resolved", "pending"]);
    await held.release();
    await clock.advance(0);
    expect(one.outcome).toBe("resolved");
  });

  it("rejects when the store did not reply", async () => {
    const { on } = clients({ commandTimeout: "1s" });
    const { locks, store, clock } = on("A");
    const semaphore = locks.semaphore("s", { permits: 2 });
    store.resize = () => Promise.reject(new Error("connection reset"));
    expect((await rejection(semaphore.resize(3))).code).toBe("STORE_UNAVAILABLE");
    store.resize = () => new Promise(() => {});
    const hanging = rejection(semaphore.resize(3));
    await clock.advance(1_000);
    expect((await hanging).code).toBe("STORE_UNAVAILABLE");
    expect(semaphore.permits).toBe(2);
  });
});

describe("withPermits", () => {
  it("runs fn under its permits, releases them, and returns what fn returns", async () => {
    const on = stage();
    const semaphore = on.locks.semaphore("s", { permits: 3 });
    const value = await semaphore.withPermits({ permits: 2, note: "work" }, async (lease) => {
      const { holders } = (await on.locks.inspect("s"))!;
      expect(holders).toMatchObject([{ permits: 2, token: lease.token }]);
      return lease.permits;
    });
    expect(value).toBe(2);
    expect(await semaphore.withPermits(undefined, (lease) => lease.permits)).toBe(1);
    expect(on.store.inspect("default:s")).toBeNull();
  });

  it("rejects with the error of fn, and releases the permits", async () => {
    const on = stage();
    const semaphore = on.locks.semaphore("s", { permits: 3 });
    const mine = new Error("mine");
    const failing = semaphore.withPermits({}, () => {
      throw mine;
    });
    expect(await rejection(failing)).toBe(mine);
    expect(on.store.inspect("default:s")).toBeNull();
  });

  it("rejects with the loss and the value when a permit was lost, or returns the value if onLost says so", async () => {
    const on = stage({ ttl: "1s" });
    const semaphore = on.locks.semaphore("s", { permits: 3 });
    const stalls = (): string => {
      on.clock.stall(5_000);
      return "done";
    };
    const lost = (await rejection(semaphore.withPermits({}, stalls))) as LeaseLostError;
    expect(lost).toBeInstanceOf(LeaseLostError);
    expect([lost.reason, lost.value]).toEqual(["expired", "done"]);
    expect(await semaphore.withPermits({ onLost: "return" }, stalls)).toBe("done");
  });

  it("never runs more at the same time than there are permits", async () => {
    const { clock, on } = clients({ wait: "1h" });
    let running = 0;
    let most = 0;
    const all = Array.from({ length: 30 }, (_, i) => {
      const permits = (i % 3) + 1;
      return on(`c${i % 4}`)
        .locks.semaphore("s", { permits: 5 })
        .withPermits({ permits }, async () => {
          running += permits;
          most = Math.max(most, running);
          await new Promise<void>((done) => clock.after(100 + i, done));
          running -= permits;
        });
    });
    const done = watch(Promise.all(all));
    await clock.advance(5_000);
    expect([done.outcome, most, running]).toEqual(["resolved", 5, 0]);
    expect(await on("c0").locks.list()).toEqual([]);
  });
});
