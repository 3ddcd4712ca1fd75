import { describe, expect, it } from "vitest";
import { LeaseLostError, StoreUnavailableError } from "../../src/core/errors.js";
import type { ClaimAnswer } from "../../src/core/store.js";
import { Deferred, never, rejection, stage, watch } from "./helpers.js";

describe("when the store stops replying", () => {
  it("a lost lease carries the error of its last renewal as cause", async () => {
    const on = stage({ ttl: "3s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.reject(new Error("connection reset"));
    await on.clock.advance(3_000);
    const { reason } = lease.signal;
    expect(reason).toBeInstanceOf(LeaseLostError);
    expect(reason.cause).toMatchObject({ message: "connection reset" });
  });

  it("a lease lost while the store hangs has that as cause, not a failure from before the last good renewal", async () => {
    const on = stage({ ttl: "3s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.reject(new Error("connection reset"));
    await on.clock.advance(1_100);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(3_000);
    expect(lease.state).toBe("held");
    on.store.onRenew = () => never();
    await on.clock.advance(3_000);
    expect(lease.signal.reason.cause).toBeInstanceOf(StoreUnavailableError);
    expect(lease.signal.reason.cause.message).toMatch(/gave no reply to the request to renew/);
  });

  it("withLock rejects as soon as the work has stopped: it does not wait for the release of a lost lease", async () => {
    const on = stage({ ttl: "3s" });
    const all = (): Promise<never> => never();
    const work = watch(
      on.locks.withLock("a", async ({ signal }) => {
        Object.assign(on.store, { onRenew: all, onRelease: all });
        await new Promise((_, reject) =>
          signal.addEventListener("abort", () => reject(signal.reason)),
        );
      }),
    );
    await on.clock.advance(2_700);
    expect([work.outcome, on.store.releases.length]).toEqual(["rejected", 1]);
    expect(work.value).toBeInstanceOf(LeaseLostError);
  });

  it("release() waits no longer than the lease lasts; the request is repeated after that", async () => {
    const on = stage({ ttl: "3s" });
    const lease = await on.locks.acquire("a");
    on.store.onRelease = () => never();
    const released = watch(lease.release());
    await on.clock.advance(2_600);
    expect(released.outcome).toBe("pending");
    await on.clock.advance(100);
    expect(released.value).toBe("unknown");
    on.store.onRelease = (apply) => apply();
    await on.clock.advance(300);
    expect(await on.locks.inspect("a")).toBeNull();
  });

  it.each([
    ["two seconds", {}, 2_000],
    ["commandTimeout, where that is shorter", { commandTimeout: "500ms" as const }, 500],
  ])(
    "an acquire without a wait gives the store %s, not the default of 5 s",
    async (_, options, ms) => {
      const on = stage(options);
      on.store.onClaim = () => never();
      const acquiring = watch(on.locks.tryAcquire("a"));
      await on.clock.advance(ms - 1);
      expect(acquiring.outcome).toBe("pending");
      await on.clock.advance(1);
      expect(acquiring.value).toBeInstanceOf(StoreUnavailableError);
    },
  );

  it("an acquire that waits longer gives the store its whole commandTimeout", async () => {
    const on = stage({ wait: "10s" });
    on.store.onClaim = () => never();
    const waiting = rejection(on.locks.acquire("a"));
    await on.clock.advance(4_999);
    expect(on.store.claims).toHaveLength(1);
    await on.clock.advance(5_001);
    expect(await waiting).toBeInstanceOf(StoreUnavailableError);
  });
});

it("with wait: 0, a reply that a busy event loop has not read yet is no outage", async () => {
  const on = stage();
  const reply = new Deferred<ClaimAnswer>();
  on.store.onClaim = () => reply.promise;
  const acquiring = watch(on.locks.tryAcquire("a"));
  on.clock.stall(3_000);
  await on.clock.advance(0);
  expect(acquiring.outcome).toBe("pending");
  reply.resolve({
    kind: "busy",
    name: "default:a",
    position: { ahead: 0, freeInMs: 9, holder: "b" },
  });
  await on.clock.advance(0);
  expect(acquiring).toEqual({ outcome: "resolved", value: null });
});

describe("the results of inspect and list", () => {
  it("have no internal numbers, have whole milliseconds, and can be written as JSON", async () => {
    const on = stage({ ttl: "30s" });
    const lease = await on.locks.acquire("a");
    watch(on.locks.acquire("a", { mode: "shared" }));
    await on.locks.semaphore("s", { permits: 4 }).acquire({ permits: 2 });
    await on.clock.advance(10.25);
    const [a, s] = await on.locks.list();
    expect(a).toMatchObject({ limit: null, holders: [{ permits: 1, heldMs: 10 }] });
    expect(a!.waiters).toMatchObject([{ permits: 1, waitingMs: 10 }]);
    expect(s).toMatchObject({ limit: 4, holders: [{ permits: 2 }] });
    const written = JSON.parse(JSON.stringify(await on.locks.inspect("a")));
    expect(written.holders[0]).toMatchObject({ token: String(lease.token), mode: "exclusive" });
    const [revoked] = await on.locks.forceRelease("a", { why: "a test" });
    expect(JSON.parse(JSON.stringify(revoked))).toMatchObject({ token: String(lease.token) });
    expect(JSON.stringify(await on.locks.inspect("a"))).toContain('"why":"a test"');
  });
});
