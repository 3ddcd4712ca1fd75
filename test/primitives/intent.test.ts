import { channel } from "node:diagnostics_channel";
import { describe, expect, it, onTestFinished } from "vitest";
import { LeaseLostError, StoreUnavailableError } from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import { memoryFence } from "../../src/fence/memory.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { never, refusal, rejection, stage, watch } from "../core/helpers.js";

const RUN = { onUnavailable: "run" } as const;
const CORRECTNESS = { purpose: "correctness", fenced: true } as const;

/** The events that are published while the test runs. */
function collectEvents(event: string): object[] {
  const all: object[] = [];
  const listener = (fields: unknown): void => void all.push(fields as object);
  channel(`holdfast:${event}`).subscribe(listener);
  onTestFinished(() => void channel(`holdfast:${event}`).unsubscribe(listener));
  return all;
}

/** A store that is down from the start. */
function down(options = {}) {
  const on = stage({ wait: 0, ...options });
  on.store.onClaim = () => Promise.reject(new Error("connection refused"));
  on.store.onRelease = () => Promise.reject(new Error("connection refused"));
  return on;
}

describe("purpose", () => {
  const faulty = {
    ...delegate(memoryStore()),
    traits: {
      ...memoryStore().traits,
      store: "shaky",
      grantsTwiceAfter: ["a failover", "a disk that lies"],
    },
  };

  it("correctness is refused without a fence; the message says why, by which faults of the store, and what to do", () => {
    const error = refusal(() => createLocks(faulty, { purpose: "correctness" }));
    expect(error.code).toBe("UNSUPPORTED");
    expect(error.message).toContain("a holder that is paused past its lease goes on writing");
    expect(error.message).toContain("The store (shaky) can also grant a name twice");
    expect(error.message).toContain("a failover; a disk that lies");
    expect(error.message).toContain("fenced: true");
    const sound = refusal(() => createLocks(memoryStore(), { purpose: "correctness" }));
    expect(sound.code).toBe("UNSUPPORTED");
    expect(sound.message).not.toContain("twice");
  });

  it("correctness is allowed on every store when the resource checks tokens", () => {
    createLocks(faulty, CORRECTNESS);
    createLocks(memoryStore(), CORRECTNESS);
    createLocks(faulty, { purpose: "efficiency" });
    createLocks(faulty);
  });
});

describe('onUnavailable "run"', () => {
  it("runs fn without the lock when the store is down, with a lease that says so", async () => {
    const on = down({ ...RUN, holder: "me" });
    const unprotected = collectEvents("unprotected");
    const [lost, released] = [collectEvents("lost"), collectEvents("released")];
    const result = await on.locks.withLock("a", { mode: "shared", note: "it" }, async (lease) => {
      expect(lease).toMatchObject({ name: "a", token: 0n, floor: 0n, state: "lost", permits: 1 });
      // The lease has the mode, the name and the holder that the call asked for.
      expect([lease.mode, lease.holder]).toEqual(["shared", "me (it)"]);
      expect(lease.remainingMs).toBe(0);
      expect(lease.toJSON()).toEqual({
        name: "a",
        token: "0",
        floor: "0",
        holder: "me (it)",
        mode: "shared",
      });
      const error = refusal(() => lease.assertHeld());
      expect(error).toBeInstanceOf(LeaseLostError);
      expect(error.message).toContain('onUnavailable is "run"');
      expect(error.cause).toBeInstanceOf(StoreUnavailableError);
      expect((await rejection(lease.renew())).code).toBe("LEASE_LOST");
      expect(lease.on("lost", () => {}).off("lost", () => {})).toBe(lease);
      expect(await lease.release()).toBe("lost");
      await lease[Symbol.asyncDispose]();
      await on.clock.advance(3_600_000);
      expect(lease.signal.aborted).toBe(false);
      return 7;
    });
    expect(result).toBe(7);
    expect(unprotected).toMatchObject([
      {
        store: "memory",
        mode: "shared",
        name: "a",
        holder: "me (it)",
        cause: expect.stringContaining("connection refused"),
      },
    ]);
    expect([lost, released]).toEqual([[], []]);
  });

  it("can be set or unset for one call", async () => {
    const ran = () => "ran";
    expect(await down().locks.withLock("a", RUN, ran)).toBe("ran");
    expect((await rejection(down().locks.withLock("a", ran))).code).toBe("STORE_UNAVAILABLE");
    const unsaid = down(RUN).locks.withLock("a", { onUnavailable: "throw" }, ran);
    expect((await rejection(unsaid)).code).toBe("STORE_UNAVAILABLE");
  });

  it("waits as long as it would for the lock, in case the store comes back", async () => {
    const on = down({ ...RUN, wait: "10s", commandTimeout: "1s" });
    const run = watch(on.locks.withLock("a", (lease) => lease.token));
    await on.clock.advance(9_000);
    expect(run.outcome).toBe("pending");
    await on.clock.advance(2_000);
    expect(run.value).toBe(0n);
    const back = watch(on.locks.withLock("a", (lease) => lease.token > 0n));
    await on.clock.advance(3_000);
    on.store.onClaim = (apply) => apply();
    on.store.onRelease = (apply) => apply();
    await on.clock.advance(1_000);
    expect(back.value).toBe(true);
  });

  it("waits as long when the store does not reply at all", async () => {
    const on = down({ ...RUN, commandTimeout: "1s" });
    on.store.onClaim = () => never();
    const run = watch(on.locks.withLock("a", (lease) => lease.token));
    await on.clock.advance(999);
    expect(run.outcome).toBe("pending");
    await on.clock.advance(1);
    expect(run.value).toBe(0n);
  });

  it("does not run fn while another holds the name, on bad input, or after an abort or close", async () => {
    const on = stage({ ...RUN, wait: "1s" });
    const held = await on.locks.acquire("a");
    const fn = (): never => {
      throw new Error("ran");
    };
    const waiting = watch(on.locks.withLock("a", fn));
    const once = await rejection(on.locks.withLock("a", { wait: 0 }, fn));
    await on.clock.advance(1_000);
    expect(once.code).toBe("ACQUIRE_TIMEOUT");
    expect(waiting).toMatchObject({ outcome: "rejected", value: { code: "ACQUIRE_TIMEOUT" } });
    const reason = new Error("enough");
    const signal = AbortSignal.abort(reason);
    expect(await rejection(on.locks.withLock("a", { signal }, fn))).toBe(reason);
    await held.release();
    for (const [name, options] of [
      ["", {}],
      ["a", { ttl: -1 }],
      ["a", { weight: 1 }],
      ["a", null],
      ["a", { onUnavailable: "maybe" }],
    ] as [string, object][]) {
      const error = await rejection(on.locks.withLock(name, options, fn));
      expect(error.code, JSON.stringify(options)).toBe("INVALID_ARGUMENT");
    }
    const permits = await on.locks.semaphore("s", { permits: 2 }).acquire();
    expect((await rejection(on.locks.withLock("s", fn))).code).toBe("INVALID_ARGUMENT");
    await permits.release();
    await on.locks.close();
    expect((await rejection(on.locks.withLock("a", fn))).code).toBe("CLOSED");
  });

  it("does not run fn when the store says for sure that it can't be used", async () => {
    const on = stage(RUN);
    const refused = new StoreUnavailableError("a newer format", { retryable: false });
    on.store.onClaim = () => {
      throw refused;
    };
    expect(await rejection(on.locks.withLock("a", () => "ran"))).toBe(refused);
  });

  it("runs fn once, and rejects once with what fn throws, whatever that is", async () => {
    for (const on of [down(RUN), stage(RUN)]) {
      for (const error of [new Error("mine"), new StoreUnavailableError("fn's own store")]) {
        let ran = 0;
        const run = on.locks.withLock("a", () => {
          ran++;
          throw error;
        });
        expect(await rejection(run)).toBe(error);
        expect(ran).toBe(1);
      }
    }
  });

  it("does not apply to a lease that is lost because the store goes away later", async () => {
    const on = stage({ ...RUN, ttl: "10s" });
    const leases: Lease[] = [];
    const run = watch(
      on.locks.withLock("a", async (lease) => {
        leases.push(lease);
        await new Promise((_, reject) => {
          lease.signal.addEventListener("abort", () => reject(lease.signal.reason));
        });
      }),
    );
    on.store.onRenew = () => never();
    await on.clock.advance(60_000);
    expect(run).toMatchObject({ outcome: "rejected", value: { code: "LEASE_LOST" } });
    expect(leases).toHaveLength(1);
  });

  it("is for withLock only: acquire gives a lease or an error", async () => {
    const on = down(RUN);
    expect((await rejection(on.locks.acquire("a"))).code).toBe("STORE_UNAVAILABLE");
    expect((await rejection(on.locks.tryAcquire("a"))).code).toBe("STORE_UNAVAILABLE");
    const once = on.locks.once("a", { every: "1h" }, () => "ran");
    expect((await rejection(once)).code).toBe("STORE_UNAVAILABLE");
    const all = on.locks.withAll(["a", "b"], {}, () => "ran");
    expect((await rejection(all)).code).toBe("STORE_UNAVAILABLE");
  });

  it("is refused together with correctness: for all locks, and for a call", async () => {
    const refused = refusal(() => createLocks(memoryStore(), { ...CORRECTNESS, ...RUN }));
    const on = stage(CORRECTNESS);
    const call = await rejection(on.locks.withLock("a", RUN, () => "ran"));
    for (const error of [refused, call]) {
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain('purpose "correctness" forbids');
    }
    expect(on.store.claims).toEqual([]);
  });

  it("is refused with a fence, which needs a token, unless the call unsets it", async () => {
    const fence = memoryFence();
    const on = stage(RUN);
    for (const refused of [
      on.locks.withLock("a", { fence }, () => "ran"),
      stage().locks.withLock("a", { fence, ...RUN }, () => "ran"),
    ]) {
      const error = await rejection(refused);
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain("a fence needs a token");
    }
    expect(on.store.claims).toEqual([]);
    const guarded = { fence, onUnavailable: "throw" } as const;
    expect(await on.locks.withLock("a", guarded, () => "ran")).toBe("ran");
  });
});
