import { getEventListeners } from "node:events";
import { setImmediate as turn } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import {
  AcquireTimeoutError,
  ClosedError,
  InvalidArgumentError,
  LeaseLostError,
  StaleTokenError,
} from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import type { Store, Traits } from "../../src/core/store.js";
import { readSequencer } from "../../src/fence/index.js";
import { memoryFence } from "../../src/fence/memory.js";
import { createLocks, type Locks } from "../../src/locks.js";
import type { MultiLease } from "../../src/primitives/multi.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { never, rejection, type Stage, stage, travel, watch } from "../core/helpers.js";
import { type Clients, clients, crash } from "./clients.js";

const ONE_BY_ONE: Partial<Traits> = { cannot: { "many-names": "one key at a time" } };

const claimedNames = ({ store }: Stage): string[][] =>
  store.claims.map(({ claim }) => claim.names.map((name) => name.replace("default:", "")));

/** A has x and waits for y, which B holds. */
async function waitingForY(
  { clock, on }: Clients,
  options: Parameters<Locks["acquireAll"]>[1] = {},
  traits: Partial<Traits> = {},
): Promise<{ y: Lease; all: { outcome: string; value: unknown } }> {
  const y = await on("B").locks.acquire("y");
  const all = watch(on("A", traits).locks.acquireAll(["y", "x"], options));
  await clock.advance(0);
  expect((await on("B").locks.inspect("x"))?.holders).toMatchObject([{ holder: "A" }]);
  expect((await on("B").locks.inspect("y"))?.waiters).toMatchObject([{ holder: "A" }]);
  return { y, all };
}

async function nothingOfA({ on }: Clients): Promise<void> {
  expect(await on("B").locks.inspect("x")).toBeNull();
  expect((await on("B").locks.inspect("y"))?.waiters ?? []).toEqual([]);
}

describe("acquireAll", () => {
  it.each(["abort", "timeout"])(
    "ends by %s though the store hangs, without waiting for the releases",
    async (how) => {
      const inner = memoryStore();
      let hangs = false;
      const store: Store = {
        ...delegate(inner),
        release: (releases) => (hangs ? never() : inner.release(releases)),
      };
      const other = createLocks(inner);
      const locks = createLocks(store, { commandTimeout: 3_000 });
      await other.acquire("y");
      const { signal, abort } = abortable();
      const wait = how === "timeout" ? 300 : 60_000;
      const all = rejection(locks.acquireAll(["x", "y"], { wait, signal }));
      while ((await other.inspect("y"))?.waiting !== 1) await turn();
      hangs = true;
      const fromMs = performance.now();
      if (how === "abort") abort();
      await all;
      expect(performance.now() - fromMs).toBeLessThan(2_000);
      hangs = false;
      await locks.close();
      await other.close();
    },
  );

  it("sorts the names by their UTF-8 bytes and folds duplicates", async () => {
    const on = stage({ holder: "A" });
    // In JavaScript's own order the emoji, a pair of surrogates, comes before the tilde.
    const names = ["b", "～", "a", "😀", "B", "a", "é", "b"];
    const all = await on.locks.acquireAll(names);
    expect(all.names).toEqual(["B", "a", "b", "é", "～", "😀"]);
    expect([...all.tokens.keys()]).toEqual(all.names);
    expect(names).toHaveLength(8);
    expect(claimedNames(on)).toEqual([all.names]);
    expect((await on.locks.list()).map(({ name }) => name)).toEqual(all.names);
  });

  it("takes them in one step when all are free, with tokens by name in that order", async () => {
    const on = stage({ holder: "A" });
    const all = await on.locks.acquireAll(["y", "x", "z"], { note: "transfer" });
    expect(on.store.claims).toHaveLength(1);
    expect([all.holder, all.mode, all.state]).toEqual(["A (transfer)", "exclusive", "held"]);
    const tokens = [...all.tokens.values()];
    expect(tokens).toEqual(tokens.toSorted());
    expect(new Set(tokens).size).toBe(3);
    for (const name of all.names) {
      const { holders } = (await on.locks.inspect(name))!;
      expect(holders).toMatchObject([{ holder: "A (transfer)", token: all.tokens.get(name) }]);
    }
    expect(await all.release()).toBe("released");
    expect(await on.locks.list()).toEqual([]);
    expect(on.clock.timers).toBe(0);
  });

  it("takes none with wait: 0 when one is busy, and says which", async () => {
    const { on } = clients();
    await on("B").locks.acquire("y");
    for (const traits of [{}, ONE_BY_ONE]) {
      const at = on(Object.keys(traits).join() || "plain", traits);
      const busy = (await rejection(
        at.locks.acquireAll(["z", "y", "x"], { wait: 0 }),
      )) as AcquireTimeoutError;
      expect(busy).toBeInstanceOf(AcquireTimeoutError);
      expect([busy.lockName, busy.waitMs, busy.holder]).toEqual(["y", 0, "B"]);
      expect((await at.locks.list()).map(({ name }) => name)).toEqual(["y"]);
    }
  });

  it("behaves as acquire for a single name: it has a ticket and is handed the name", async () => {
    const { clock, on } = clients();
    const y = await on("B").locks.acquire("y");
    const all = watch(on("A").locks.acquireAll(["y", "y"]));
    expect((await on("B").locks.inspect("y"))?.waiters).toHaveLength(1);
    await y.release();
    await clock.advance(0);
    expect((all.value as MultiLease).names).toEqual(["y"]);
    expect(claimedNames(on("A"))).toEqual([["y"]]);
  });

  it("takes them one by one, in order, when one is busy, and waits in that name's queue", async () => {
    const many = clients();
    const { y, all } = await waitingForY(many);
    expect(claimedNames(many.on("A"))).toEqual([["x", "y"], ["x"], ["y"]]);
    const behind = watch(many.on("C").locks.acquire("y"));
    await y.release();
    await many.clock.advance(0);
    expect([all.outcome, behind.outcome]).toEqual(["resolved", "pending"]);
    const got = all.value as MultiLease;
    expect([got.names, got.state]).toEqual([["x", "y"], "held"]);
    await got.release();
    await many.clock.advance(0);
    expect(behind.outcome).toBe("resolved");
  });

  it("takes them one by one from the start where the store can't take several", async () => {
    const on = stage({}, { traits: ONE_BY_ONE });
    const all = await on.locks.acquireAll(["c", "a", "b"]);
    expect(claimedNames(on)).toEqual([["a"], ["b"], ["c"]]);
    expect(all.state).toBe("held");
    expect(await all.release()).toBe("released");
    expect(await on.locks.list()).toEqual([]);
  });

  it("does not overtake waiters: a name with a queue is not free", async () => {
    const { clock, on } = clients({ wait: "1h" });
    const reader = await on("R").locks.acquire("y", { mode: "shared" });
    const writer = watch(on("W").locks.acquire("y"));
    const all = watch(on("A").locks.acquireAll(["x", "y"], { mode: "shared" }));
    await clock.advance(1_000);
    expect([writer.outcome, all.outcome]).toEqual(["pending", "pending"]);
    await reader.release();
    await clock.advance(0);
    expect([writer.outcome, all.outcome]).toEqual(["resolved", "pending"]);
    await (writer.value as Lease).release();
    await clock.advance(0);
    expect((all.value as MultiLease).mode).toBe("shared");
    expect(await on("B").locks.acquireAll(["x", "y"], { mode: "shared", wait: 0 })).toBeDefined();
  });

  it("retries when a reply is lost, and finds what it was granted", async () => {
    const on = stage();
    on.store.onClaim = (apply) => {
      on.store.onClaim = (again) => again();
      apply();
      return Promise.reject(new Error("connection reset"));
    };
    const all = watch(on.locks.acquireAll(["x", "y"]));
    await on.clock.advance(1_000);
    const got = all.value as MultiLease;
    expect(claimedNames(on)).toEqual([
      ["x", "y"],
      ["x", "y"],
    ]);
    for (const { name, holders } of await on.locks.list()) {
      expect(holders.map(({ token }) => token)).toEqual([got.tokens.get(name)]);
    }
  });

  it.each([
    [[], /^there are 0 names; there must be from 1 to 256$/],
    [Array.from({ length: 257 }, (_, i) => `n${i}`), /^there are 257 names; /],
    ["ab", /^the names are "ab"; they must be an array/],
    [null, /^the names are null/],
    [undefined, /^the names are undefined/],
    [["a", ""], /^the name is ""/],
    [["a", 5], /^the name is 5/],
    // biome-ignore lint/suspicious/noSparseArray: a hole is what is refused
    [[, "a"], /^the name is undefined/],
    [["a", "b\n"], /^the name is/],
    [new Set(["a"]), /^the names are a Set/],
  ])("refuses a bad list of names (%#)", async (names, message) => {
    const on = stage();
    const refused = await rejection(on.locks.acquireAll(names as string[]));
    expect(refused).toBeInstanceOf(InvalidArgumentError);
    expect(refused.message).toMatch(message);
    expect(on.store.claims).toEqual([]);
  });

  it("refuses unknown options, and takes up to 256 names", async () => {
    const on = stage();
    const refused = await rejection(on.locks.acquireAll(["a"], { reentrant: true } as object));
    expect(refused.message).toMatch(/no option "reentrant"/);
    expect((await rejection(on.locks.acquireAll(["a"], { wait: -1 }))).message).toMatch(/^wait/);
    expect((await rejection(on.locks.acquireAll(["a"], null as never))).code).toBe(
      "INVALID_ARGUMENT",
    );
    const names = Array.from({ length: 256 }, (_, i) => `n${i}`);
    const all = await on.locks.acquireAll(names);
    expect(all.tokens.size).toBe(256);
    await on.locks.close();
    expect(await rejection(on.locks.acquireAll(["a"]))).toBeInstanceOf(ClosedError);
  });
});

describe("the wait of acquireAll", () => {
  it("is one wait for all names; the error names the busy one and the full wait", async () => {
    const { clock, on } = clients();
    const x = await on("X").locks.acquire("x");
    await on("Y").locks.acquire("y");
    const all = watch(on("A").locks.acquireAll(["x", "y"], { wait: "2s" }));
    await clock.advance(1_500);
    await x.release();
    await clock.advance(499);
    expect(all.outcome).toBe("pending");
    expect((await on("B").locks.inspect("x"))?.holders).toMatchObject([{ holder: "A" }]);
    await clock.advance(1);
    const timeout = all.value as AcquireTimeoutError;
    expect(timeout).toBeInstanceOf(AcquireTimeoutError);
    expect([timeout.lockName, timeout.waitMs, timeout.holder]).toEqual(["y", 2_000, "Y"]);
    expect(timeout.message).toBe('"y" was still held by Y after waiting 2000 ms');
    expect(await on("B").locks.inspect("x")).toBeNull();
    expect((await on("B").locks.inspect("y"))?.waiters).toEqual([]);
  });

  it("still sends one claim for each other name when the first name took all of it", async () => {
    const { clock, on } = clients();
    const at = on("A");
    const x = await on("X").locks.acquire("x");
    const all = watch(at.locks.acquireAll(["x", "y"], { wait: "2s" }));
    await clock.advance(1_999);
    // The event loop is blocked between the grant of x and the claim of y.
    at.store.onPush = (deliver) => {
      deliver();
      clock.stall(5);
    };
    await x.release();
    await clock.advance(0);
    expect(all.outcome).toBe("resolved");
  });

  it("may be infinite", async () => {
    const many = clients();
    const { y, all } = await waitingForY(many, { wait: Number.POSITIVE_INFINITY });
    await many.clock.advance(86_400_000 / 24);
    expect(all.outcome).toBe("pending");
    await y.release();
    await many.clock.advance(0);
    expect(all.outcome).toBe("resolved");
  });

  it("ends when the caller's signal aborts, and nothing is left, not even a listener", async () => {
    const many = clients();
    const abort = new AbortController();
    const { all } = await waitingForY(many, { signal: abort.signal });
    abort.abort(new Error("enough"));
    await many.clock.advance(0);
    expect((all.value as Error).message).toBe("enough");
    await nothingOfA(many);
    expect(getEventListeners(abort.signal, "abort")).toEqual([]);

    const done = new AbortController();
    const { locks } = many.on("C", ONE_BY_ONE);
    await locks.acquireAll(["v", "w"], { signal: done.signal });
    expect(getEventListeners(done.signal, "abort")).toEqual([]);

    const claims = many.on("A").store.claims.length;
    const late = many.on("A").locks.acquireAll(["v", "w"], { signal: abort.signal });
    expect((await rejection(late)).message).toBe("enough");
    expect(many.on("A").store.claims).toHaveLength(claims);
  });

  it("begins again from the first name when an earlier one is released by force, and holds nothing meanwhile", async () => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const { y, all } = await waitingForY(many);
    await many.on("op").locks.forceRelease("x", { why: "stuck" });
    const x = await many.on("C").locks.acquire("x");
    await many.clock.advance(2_000);
    expect(all.outcome).toBe("pending");
    expect((await many.on("B").locks.inspect("x"))?.waiters).toMatchObject([{ holder: "A" }]);
    expect((await many.on("B").locks.inspect("y"))?.waiters).toEqual([]);
    await x.release();
    await y.release();
    await many.clock.advance(0);
    const lease = all.value as MultiLease;
    expect([lease.names, lease.state]).toEqual([["x", "y"], "held"]);
    expect(lease.tokens.get("x")).toBeGreaterThan(x.token);
  });

  it("begins again from the first name when an earlier one can't be renewed in time, within the same wait", async () => {
    const many = clients({ ttl: "6s", wait: "20s", commandTimeout: "1s" });
    const { y, all } = await waitingForY(many);
    const { store } = many.on("A");
    store.onRenew = () => Promise.reject(new Error("down"));
    await many.clock.advance(6_000);
    expect(all.outcome).toBe("pending");
    store.onRenew = (apply) => apply();
    await many.clock.advance(13_999);
    expect(all.outcome).toBe("pending");
    await many.clock.advance(1);
    expect(all.value).toMatchObject({ code: "ACQUIRE_TIMEOUT", lockName: "y", waitMs: 20_000 });
    await nothingOfA(many);
    await y.release();
  });

  it("ends when the caller's signal aborts, even if the reason is the loss of another lease", async () => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const outer = await many.on("op").locks.acquire("outer");
    const { all } = await waitingForY(many, { signal: outer.signal });
    await many.on("B").locks.forceRelease("outer", { why: "test" });
    await many.clock.advance(3_000);
    expect(all).toMatchObject({ outcome: "rejected", value: { lockName: "outer" } });
    await nothingOfA(many);
  });

  it("ends with the loss of an earlier name when no time is left to begin again", async () => {
    const many = clients({ ttl: "6s" });
    const a = many.on("A", ONE_BY_ONE);
    const all = watch(a.locks.acquireAll(["x", "y"], { wait: 0 }));
    // A has x, and the reply for y arrives only when x has expired.
    many.clock.stall(6_000);
    await many.clock.advance(0);
    expect(all.value).toMatchObject({ code: "LEASE_LOST", lockName: "x", reason: "expired" });
    await nothingOfA(many);
  });

  it("ends when the locks are closed, and nothing is left", async () => {
    for (const traits of [{}, ONE_BY_ONE]) {
      const many = clients();
      const { y, all } = await waitingForY(many, {}, traits);
      await many.on("A").locks.close();
      await many.clock.advance(0);
      expect(all.value).toBeInstanceOf(ClosedError);
      await nothingOfA(many);
      await y.release();
      expect(many.clock.timers).toBe(0);
    }
  });

  it.each([0, 1, 2, 3, 4, 5])(
    "ends when the locks are closed %i steps after the claim was sent",
    async (steps) => {
      const many = clients({ wait: "1h" });
      await many.on("B").locks.acquire("y");
      const all = watch(many.on("A").locks.acquireAll(["w", "x", "y"], { atLeast: "1h" }));
      for (let i = 0; i < steps; i++) await null;
      const closed = watch(many.on("A").locks.close());
      await many.clock.advance(60_000);
      expect([all.outcome, closed.outcome]).toEqual(["rejected", "resolved"]);
      expect(all.value).toMatchObject({ code: "CLOSED" });
      await nothingOfA(many);
      expect(await many.on("B").locks.inspect("w")).toBeNull();
    },
  );

  it("ends when a name is in use as something else, and the others are released", async () => {
    const { clock, on } = clients();
    const y = await on("B").locks.acquire("y");
    await on("B").locks.semaphore("z", { permits: 3 }).acquire();
    const all = watch(on("A").locks.acquireAll(["z", "y", "x"]));
    await clock.advance(100);
    expect(all.outcome).toBe("pending");
    await y.release();
    await clock.advance(0);
    expect((all.value as Error).message).toMatch(/^"z" is in use as a semaphore of 3 permits/);
    expect((await on("A").locks.list()).map(({ name }) => name)).toEqual(["z"]);
  });

  it("ends by expiry when its client crashed: leases and ticket", async () => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const { y } = await waitingForY(many);
    crash(many.on("A"));
    const x = watch(many.on("C").locks.acquire("x"));
    await y.release();
    const after = watch(many.on("C").locks.acquire("y"));
    await many.clock.advance(5_999);
    expect([x.outcome, after.outcome]).toEqual(["pending", "pending"]);
    await many.clock.advance(1);
    expect([x.outcome, after.outcome]).toEqual(["resolved", "resolved"]);
  });
});

describe("atLeast of several names", () => {
  it("keeps all of them closed after their release", async () => {
    const many = clients();
    const { y, all } = await waitingForY(many, { atLeast: "10s" });
    await many.clock.advance(4_000);
    await y.release();
    await many.clock.advance(0);
    await (all.value as MultiLease).release();
    // The time counts from each name's own grant.
    await many.clock.advance(5_999);
    expect(await many.on("B").locks.tryAcquire("x")).toBeNull();
    await many.clock.advance(1);
    expect(await many.on("B").locks.tryAcquire("x")).not.toBeNull();
    expect(await many.on("B").locks.tryAcquire("y")).toBeNull();
    await many.clock.advance(4_000);
    expect(await many.on("B").locks.tryAcquire("y")).not.toBeNull();
  });

  it.each<[string, (many: Clients, abort: AbortController) => Promise<void>]>([
    ["it times out", async ({ clock }) => clock.advance(20_000)],
    ["its signal aborts", async (_many, abort) => abort.abort()],
    ["it is closed", async ({ on }) => on("A").locks.close()],
    [
      "it is closed with grace",
      async ({ on, clock }) => {
        const closing = on("A").locks.close({ grace: "1s" });
        await clock.advance(1_000);
        await closing;
      },
    ],
    [
      "an earlier name is lost",
      async ({ on, clock }) => {
        on("A").store.onRenew = () => Promise.reject(new Error("down"));
        await clock.advance(25_000);
      },
    ],
  ])("leaves no name closed when %s before all are held", async (_how, end) => {
    const many = clients({ ttl: "6s", commandTimeout: "1s" });
    const abort = new AbortController();
    const options = { atLeast: "1h", wait: "20s", signal: abort.signal } as const;
    const { all } = await waitingForY(many, options);
    await end(many, abort);
    await many.clock.advance(0);
    expect(all.outcome).toBe("rejected");
    await nothingOfA(many);
    expect(await many.on("B").locks.tryAcquire("x")).not.toBeNull();
  });
});

describe("several names held as one", () => {
  it("are lost when any of them is: they have one signal and one state", async () => {
    const { clock, on } = clients({ ttl: "6s" });
    const all = await on("A").locks.acquireAll(["x", "y", "z"]);
    const { signal } = all;
    expect(all.signal).toBe(signal);
    await on("op").locks.forceRelease("y", { why: "stuck" });
    expect([all.state, signal.aborted]).toEqual(["held", false]);
    await clock.advance(2_000);
    expect([all.state, all.remainingMs, signal.aborted]).toEqual(["lost", 0, true]);
    const reason = signal.reason as LeaseLostError;
    expect(reason).toBeInstanceOf(LeaseLostError);
    expect([reason.lockName, reason.reason]).toEqual(["y", "revoked"]);
    expect(() => all.assertHeld()).toThrow(LeaseLostError);
    // The others run out by themselves, as a single lease would: work has that long to stop.
    await clock.advance(3_000);
    expect(await on("B").locks.tryAcquire("x")).toBeNull();
    await clock.advance(3_500);
    expect(await on("B").locks.inspect("x")).toBeNull();
    expect(await all.release()).toBe("lost");
    for (const name of ["x", "y", "z"]) {
      expect(await on("B").locks.tryAcquire(name)).not.toBeNull();
    }
  });

  it("have a signal that is aborted when it is first read after the loss", async () => {
    const on = stage({ ttl: "6s" });
    const all = await on.locks.acquireAll(["x", "y"]);
    on.clock.stall(10_000);
    expect(() => all.assertHeld()).toThrow(/the lease on "x"/);
    expect(all.signal.aborted).toBe(true);
    expect((all.signal.reason as LeaseLostError).reason).toBe("expired");
  });

  it("have the worst state and the shortest remaining time of them", async () => {
    const { clock, on } = clients({ ttl: "6s", commandTimeout: "1s", drift: { factor: 0, ms: 0 } });
    const at = on("A");
    const all = await at.locks.acquireAll(["x", "y"], { abortBefore: 0 });
    expect(all.remainingMs).toBe(6_000);
    at.store.onRenew = (apply, items) => {
      const answers = apply();
      return answers.map((answer, i) =>
        items[i]!.name === "default:y" ? { kind: "unknown", cause: new Error("stuck") } : answer,
      );
    };
    await clock.advance(3_000);
    expect([all.state, all.remainingMs, all.signal.aborted]).toEqual(["jeopardy", 3_000, false]);
    expect(() => all.assertHeld()).not.toThrow();
    at.store.onRenew = (apply) => apply();
    await clock.advance(1_000);
    expect(all.state).toBe("held");
    await all.release();
    expect([all.state, all.remainingMs, all.signal.aborted]).toEqual(["released", 0, false]);
    expect(() => all.assertHeld()).toThrow(LeaseLostError);
  });

  it("give a fence the token and floor of each name, and refuse other names", async () => {
    const { on } = clients();
    const fence = memoryFence();
    const reader = await on("R").locks.acquire("x", { mode: "shared" });
    const all = await on("A").locks.acquireAll(["x", "y"], { mode: "shared" });
    const x = all.of("x");
    expect(x).toEqual({ token: all.tokens.get("x"), floor: reader.token });
    expect(all.of("y")).toEqual({ token: all.tokens.get("y"), floor: all.tokens.get("y") });
    await fence.enter(undefined, "x", x);
    await fence.enter(undefined, "x", reader);
    await fence.guard(undefined, "x", x, { strict: true });
    await all.release();
    await reader.release();
    const later = await on("A").locks.acquireAll(["x", "y"]);
    await fence.enter(undefined, "x", later.of("x"));
    await expect(fence.guard(undefined, "x", x)).rejects.toBeInstanceOf(StaleTokenError);
    expect(() => all.of("z")).toThrow('"z" is none of the names that were acquired: "x", "y"');
    expect(() => all.of("z")).toThrow(InvalidArgumentError);
    expect(() => all.sequencer("z")).toThrow(InvalidArgumentError);
    const key = "sixteen bytes or more";
    const text = later.sequencer("x", { key });
    expect(readSequencer(text, { key })).toMatchObject({ name: "x", ...later.of("x") });
    await later.release();
    expect(() => later.sequencer("x")).toThrow(LeaseLostError);
  });

  it("are renewed together, also with another ttl", async () => {
    const { clock, on } = clients({ ttl: "6s", drift: { factor: 0, ms: 0 } });
    const all = await on("A").locks.acquireAll(["x", "y"], { renew: false, abortBefore: 0 });
    await clock.advance(1_000);
    await all.renew("20s");
    expect(all.remainingMs).toBe(20_000);
    expect(on("A").store.renewals.map(({ items }) => items.length)).toEqual([2]);
    const bad = await rejection(all.renew(-1));
    expect(bad).toBeInstanceOf(InvalidArgumentError);
    await on("op").locks.forceRelease("y", { why: "stuck" });
    const lost = (await rejection(all.renew())) as LeaseLostError;
    expect([lost.code, lost.lockName]).toEqual(["LEASE_LOST", "y"]);
  });

  it("are kept alive by the watchdog in one batch", async () => {
    const { clock, on } = clients({ ttl: "6s" });
    const all = await on("A").locks.acquireAll(["x", "y", "z"]);
    await clock.advance(600_000);
    expect(all.state).toBe("held");
    const { renewals } = on("A").store;
    expect(renewals.every(({ items }) => items.length === 3)).toBe(true);
  });

  it("count maxHold from the moment when all are held", async () => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const { y, all } = await waitingForY(many, { maxHold: "3s" });
    await many.clock.advance(60_000);
    await y.release();
    await many.clock.advance(0);
    const got = all.value as MultiLease;
    expect([got.state, got.remainingMs]).toEqual(["held", 3_000]);
    const { signal } = got;
    await many.clock.advance(2_999);
    expect(signal.aborted).toBe(false);
    await many.clock.advance(1);
    expect((signal.reason as LeaseLostError).reason).toBe("max-hold");

    const once = await many.on("C").locks.acquireAll(["v", "w"], { maxHold: "3s" });
    expect(once.remainingMs).toBe(3_000);
  });

  it("return from release what became of them", async () => {
    const { clock, on } = clients({ ttl: "6s", commandTimeout: "1s" });
    const at = on("A");
    const fine = await at.locks.acquireAll(["x", "y"]);
    const first = fine.release();
    expect(fine.release()).toBe(first);
    expect(await first).toBe("released");

    const unsure = await at.locks.acquireAll(["x", "y"]);
    at.store.onRelease = (apply, items) => (items[0]!.name === "default:x" ? never() : apply());
    const releasing = watch(unsure.release());
    await clock.advance(1_000);
    expect(releasing.value).toBe("unknown");
    expect(await on("B").locks.tryAcquire("y")).not.toBeNull();
    at.store.onRelease = (apply) => apply();
    await clock.advance(1_000);
    expect(await on("B").locks.tryAcquire("x")).not.toBeNull();

    const both = await at.locks.acquireAll(["v", "w"]);
    await on("op").locks.forceRelease("v", { why: "stuck" });
    at.store.onRelease = (apply, items) => (items[0]!.name === "default:w" ? never() : apply());
    const lost = watch(both.release());
    await clock.advance(1_000);
    expect(lost.value).toBe("lost");
  });

  it("are released by await using and by withAll, which reports a loss as withLock does", async () => {
    const on = stage({ ttl: "6s" });
    await (async () => {
      await using all = await on.locks.acquireAll(["x", "y"]);
      expect(all.state).toBe("held");
    })();
    expect(await on.locks.list()).toEqual([]);
    expect(await on.locks.withAll(["x", "y"], undefined, ({ names }) => names.length)).toBe(2);
    const mine = new Error("mine");
    const failing = on.locks.withAll(["x"], {}, () => {
      throw mine;
    });
    expect(await rejection(failing)).toBe(mine);
    const stalls = (): string => {
      on.clock.stall(10_000);
      return "done";
    };
    const lost = (await rejection(on.locks.withAll(["x", "y"], {}, stalls))) as LeaseLostError;
    expect([lost.code, lost.value]).toEqual(["LEASE_LOST", "done"]);
    expect(await on.locks.withAll(["x"], { onLost: "return" }, stalls)).toBe("done");
    expect(await on.locks.list()).toEqual([]);
    expect((await rejection(on.locks.withAll(["x"], {}, 5 as never))).message).toMatch(
      /^fn is 5; withAll needs a function/,
    );
    expect((await rejection(on.locks.withAll(["x"], null as never, stalls))).code).toBe(
      "INVALID_ARGUMENT",
    );
  });

  it("can be written as JSON, whatever they are called", async () => {
    const on = stage({ holder: "A" });
    const all = await on.locks.acquireAll(["__proto__", "constructor", "x"]);
    const { tokens, ...rest } = JSON.parse(JSON.stringify(all)) as ReturnType<MultiLease["toJSON"]>;
    expect(rest).toEqual({ holder: "A", mode: "exclusive" });
    expect(Object.entries(tokens)).toEqual(
      [...all.tokens].map(([name, token]) => [name, String(token)]),
    );
    expect(Object.keys(tokens)).toEqual(["__proto__", "constructor", "x"]);
    expect(all.of("__proto__").token).toBe(all.tokens.get("__proto__"));
  });
});

describe("two clients that take the same two names in opposite order", () => {
  it.each<[string, Partial<Traits>]>([
    ["in one step where they are free", {}],
    ["one by one", ONE_BY_ONE],
  ])("never wait for each other with acquireAll, %s: 1,000 rounds", async (_how, traits) => {
    const store = memoryStore();
    const seen = { ...delegate(store), traits: { ...store.traits, ...traits } };
    let inside = 0;
    let most = 0;
    let done = 0;
    const work = async (names: string[]): Promise<void> => {
      await using locks = createLocks(seen, { wait: "20s" });
      for (let i = 0; i < 1_000; i++) {
        const all = await locks.acquireAll(names);
        inside++;
        most = Math.max(most, inside);
        // Sometimes the other client comes while both are held, sometimes between the two, sometimes not at all.
        if (i % 3 > 0) await turn();
        inside--;
        await all.release();
        done++;
        if (i % 5 === 0) await turn();
      }
    };
    await Promise.all([work(["x", "y"]), work(["y", "x"])]);
    expect([done, most]).toEqual([2_000, 1]);
    expect(store.list("", 10)).toEqual([]);
  });

  it("never wait for each other under any delay of the answers", async () => {
    const { clock, on } = clients({ wait: "1h" });
    let done = 0;
    const work = async (who: string, names: string[]): Promise<void> => {
      const { locks, store } = on(who);
      let n = 0;
      store.onClaim = (apply) => {
        const delayMs = (n++ * 7) % 13;
        return new Promise((resolve) => {
          clock.after(delayMs, () => {
            const answer = apply();
            clock.after(delayMs, () => resolve(answer));
          });
        });
      };
      for (let i = 0; i < 100; i++) {
        const all = await locks.acquireAll(names);
        await new Promise<void>((go) => clock.after(i % 4, go));
        await all.release();
        done++;
      }
    };
    const both = watch(Promise.all([work("A", ["x", "y", "z"]), work("B", ["z", "y", "x"])]));
    await clock.advance(30_000);
    expect([both.outcome, done]).toEqual(["resolved", 200]);
  });

  it("leave no name closed by atLeast when they are refused, though releases overtake each other", async () => {
    const { clock, on } = clients({ ttl: "1s" });
    const [a, b] = [on("A", ONE_BY_ONE), on("B")];
    await b.locks.acquire("x", { renew: false });
    await b.locks.semaphore("y", { permits: 2 }).acquire();
    const all = watch(a.locks.acquireAll(["x", "y"], { atLeast: "1h", wait: "10s" }));
    await clock.advance(0);
    // A claims at B's expiry: the grant is pushed, and the reply arrives after the release was sent.
    a.store.onClaim = (apply, { names }) =>
      names[0]!.endsWith("x")
        ? travel(clock, { thereMs: 0, backMs: 20, lost: "no" }, apply)
        : apply();
    let releases = 0;
    a.store.onRelease = (apply) =>
      travel(clock, { thereMs: releases++ === 0 ? 100 : 1, backMs: 0, lost: "no" }, apply);
    await clock.advance(2_000);
    expect(all.value).toBeInstanceOf(InvalidArgumentError);
    expect(a.store.releases.map(({ items }) => items[0]?.unused)).toEqual([true, true, true]);
    expect(await b.locks.tryAcquire("x")).not.toBeNull();
  });

  it("do wait for each other with acquire, and deadlocks() reports it", async () => {
    const { clock, on } = clients({ wait: "2h" });
    const [a, b] = [on("A").locks, on("B").locks];
    const x = await a.acquire("x");
    await b.acquire("y");
    const forY = watch(a.acquire("y"));
    const forX = watch(b.acquire("x", { wait: "1h" }));
    await clock.advance(3_599_999);
    expect([forY.outcome, forX.outcome]).toEqual(["pending", "pending"]);
    expect(await on("op").locks.deadlocks()).toEqual([
      [
        { holder: "A", waitsFor: "y", waitingMs: 3_599_999, blockedBy: "B", holds: ["x"] },
        { holder: "B", waitsFor: "x", waitingMs: 3_599_999, blockedBy: "A", holds: ["y"] },
      ],
    ]);
    await clock.advance(1);
    expect(forX.value).toBeInstanceOf(AcquireTimeoutError);
    expect(await on("op").locks.deadlocks()).toEqual([]);
    expect(x.state).toBe("held");
  });
});

function abortable(): { signal: AbortSignal; abort(): void } {
  const controller = new AbortController();
  return { signal: controller.signal, abort: () => controller.abort() };
}
