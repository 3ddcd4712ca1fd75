import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { describe, expect, it } from "vitest";
import { StaleTokenError } from "../../src/core/errors.js";
import type { AcquireOptions } from "../../src/core/options.js";
import type { ClaimAnswer } from "../../src/core/store.js";
import { Deferred, never, rejection, watch } from "../core/helpers.js";
import { clients } from "./clients.js";

const FOREVER = { wait: Number.POSITIVE_INFINITY };

/** The first claim hangs, the second is granted; the first gets its reply much later. */
async function withLateClaim(options: AcquireOptions) {
  const { clock, on } = clients({
    ttl: 30_000,
    commandTimeout: 1_000,
    retry: { pause: 100, jitter: 0 },
  });
  const [a, b] = [on("a"), on("b")];
  const late = new Deferred<ClaimAnswer>();
  a.store.onClaim = (apply) => (a.store.claims.length === 1 ? late.promise : apply());
  const acquiring = a.locks.acquire("n", { wait: 20_000, ...options });
  await clock.advance(2_000);
  return { clock, a, b, late, lease: await acquiring };
}

describe("a claim that fails long after a later claim was granted", () => {
  it.each<[string, AcquireOptions, number]>([
    ["maxHold", { maxHold: 5_000 }, 5_000],
    ["abortBefore", { abortBefore: 10_000 }, 19_000],
  ])("does not free the name while work stops that %s has told to stop", async (...test) => {
    const [, options, afterMs] = test;
    const { clock, a, b, late, lease } = await withLateClaim(options);
    const next = watch(b.locks.acquire("n", FOREVER));
    if (options.abortBefore !== undefined) a.store.onRenew = () => never();
    await clock.advance(afterMs);
    expect(lease.state).toBe("lost");
    late.reject(new Error("ETIMEDOUT"));
    await clock.advance(1);
    expect(next.outcome).toBe("pending");
  });

  it("does not free the name during the grace of a close", async () => {
    const { clock, a, b, late } = await withLateClaim({});
    const next = watch(b.locks.acquire("n", FOREVER));
    const closed = watch(a.locks.close({ grace: 10_000 }));
    await clock.advance(1_000);
    late.reject(new Error("ETIMEDOUT"));
    await clock.advance(1);
    expect([closed.outcome, next.outcome]).toEqual(["pending", "pending"]);
  });

  it("does not close the name again when it reaches the store after the end of atLeast", async () => {
    const { clock, on } = clients({
      ttl: 30_000,
      commandTimeout: 1_000,
      retry: { pause: 100, jitter: 0 },
    });
    const [a, b] = [on("a"), on("b")];
    const late = new Deferred<void>();
    a.store.onClaim = (apply) => (a.store.claims.length === 1 ? late.promise.then(apply) : apply());
    const acquiring = a.locks.acquire("n", { wait: 20_000, atLeast: 5_000 });
    await clock.advance(2_000);
    await (await acquiring).release();
    await clock.advance(10_000);
    late.resolve();
    await clock.advance(10);
    expect(await b.locks.tryAcquire("n")).not.toBeNull();
  });
});

describe("the grace of a close", () => {
  it("holds the name though the lease would run out before", async () => {
    const { clock, on } = clients({ ttl: 30_000 });
    await on("a").locks.acquire("n", { renew: false });
    await clock.advance(25_000);
    const next = watch(on("b").locks.acquire("n", FOREVER));
    const closed = watch(on("a").locks.close({ grace: 14_000 }));
    await clock.advance(10_000);
    expect([closed.outcome, next.outcome]).toEqual(["pending", "pending"]);
    await clock.advance(4_001);
    expect([closed.outcome, next.outcome]).toEqual(["resolved", "resolved"]);
  });

  it("holds the name though it is longer than the ttl", async () => {
    const { clock, on } = clients({ ttl: 30_000 });
    await on("a").locks.acquire("n");
    const next = watch(on("b").locks.acquire("n", FOREVER));
    const closed = watch(on("a").locks.close({ grace: 100_000 }));
    await clock.advance(99_000);
    expect([closed.outcome, next.outcome]).toEqual(["pending", "pending"]);
    await clock.advance(1_001);
    expect(next.outcome).toBe("resolved");
  });
});

describe("a period in which nobody ran", () => {
  it("is not used up when the wall clock ran ahead during the claim", async () => {
    const { clock, on } = clients({ ttl: 30_000 });
    on("a").store.onClaim = async (apply) => {
      clock.jumpWall(1_000);
      return apply();
    };
    const running = on("a").locks.once("n", { every: "1h" }, () => "a");
    expect(await rejection(running)).toMatchObject({ code: "LEASE_LOST" });
    expect(await on("b").locks.once("n", { every: "1h" }, () => "b")).toMatchObject({ value: "b" });
  });

  it("is not used up though the release is refused for longer than the ttl", async () => {
    const { clock, on } = clients({ ttl: 30_000, commandTimeout: 1_000 });
    const { store, locks } = on("a");
    store.onClaim = (apply) => {
      apply();
      return Promise.reject(new Error("reset"));
    };
    store.onRelease = () => Promise.reject(new Error("down"));
    expect(await rejection(locks.once("n", { every: "24h" }, () => 1))).toMatchObject({
      code: "STORE_UNAVAILABLE",
    });
    await clock.advance(40_000);
    store.onRelease = (apply) => apply();
    await clock.advance(1_000);
    expect(await on("b").locks.once("n", { every: "24h" }, () => 2)).toMatchObject({ ran: true });
  });
});

it("a listener that releases a lease which is being released causes no second request", async () => {
  const { on } = clients({ ttl: 30_000 });
  const { locks, store } = on("a");
  const work = locks.withLock("n", { reentrant: true }, async (lease) => {
    const inner = await locks.acquire("n", { reentrant: true });
    inner.on("lost", () => void lease.release());
    return lease.release();
  });
  expect(await work).toBe("released");
  expect(store.releases).toHaveLength(1);
});

it("a subscriber of the event granted can't abort the wait any more", async () => {
  const { clock, on } = clients({ ttl: 10_000 });
  const held = await on("b").locks.acquire("n");
  const abort = new AbortController();
  const acquiring = watch(on("a").locks.acquire("n", { ...FOREVER, signal: abort.signal }));
  await clock.advance(1);
  const onGranted = (): void => abort.abort(new Error("too late"));
  subscribe("holdfast:granted", onGranted);
  await held.release();
  await clock.advance(20_000);
  unsubscribe("holdfast:granted", onGranted);
  expect(acquiring).toMatchObject({ outcome: "resolved", value: { state: "held" } });
});

it("acquireAll notices that a name had expired when its grant arrived, and starts again", async () => {
  const { clock, on } = clients({ ttl: 10_000 });
  const a = on("a");
  a.store.traits = { ...a.store.traits, cannot: { "many-names": "for a test" } };
  const x = await on("b").locks.acquire("x");
  await on("b").locks.acquire("y");
  const all = watch(a.locks.acquireAll(["x", "y"], FOREVER));
  await clock.advance(1);
  // The grant is pushed in this turn, in which the event loop is blocked.
  void x.release();
  clock.stall(11_000);
  await clock.advance(60_000);
  expect(all).toMatchObject({ outcome: "resolved", value: { state: "held" } });
});

it("a refusal by the fence leaves the name free, whatever atLeast says: fn never ran", async () => {
  const { on } = clients();
  const refused = new StaleTokenError("n", 1n, 2n);
  const fence = { enter: () => Promise.reject(refused) };
  const options = { fence, atLeast: "1h" } as const;
  expect(await rejection(on("a").locks.withLock("n", options, () => "ran"))).toBe(refused);
  expect(await on("b").locks.tryAcquire("n")).not.toBeNull();
});

describe("resigning", () => {
  it("does not return the old leadership to a campaign() that is called meanwhile", async () => {
    const { clock, on } = clients({ ttl: 30_000 });
    const election = on("a").locks.election("n");
    await election.campaign();
    const other = watch(on("b").locks.election("n").campaign());
    await clock.advance(1);
    const resigned = election.resign();
    const again = watch(election.campaign());
    await resigned;
    await clock.advance(1);
    expect([other.outcome, again.outcome]).toEqual(["resolved", "pending"]);
  });

  it("aborts the stop signal of work that releases its own lease", async () => {
    const { clock, on } = clients({ ttl: 30_000 });
    let stopped: unknown;
    const running = on("a")
      .locks.election("n")
      .runAsLeader(async (lease, stop) => {
        await lease.release();
        stopped = stop.reason;
      });
    await clock.advance(1);
    await running;
    expect(stopped).toMatchObject({ name: "AbortError" });
  });
});
