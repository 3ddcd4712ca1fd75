import { describe, expect, it } from "vitest";
import { ClosedError, LeaseLostError, StoreUnavailableError } from "../src/core/errors.js";
import type { Lease } from "../src/core/lease.js";
import { LAST_REPLY_MS } from "../src/core/reply-timeout.js";
import type { ClaimAnswer, ReleaseAnswer } from "../src/core/store.js";
import { memoryFence } from "../src/fence/memory.js";
import { Deferred, fixedRandom, never, rejection, stage, watch } from "./core/helpers.js";

describe("release", () => {
  it("returns what became of the lease, can be called again and never rejects", async () => {
    const on = stage({ ttl: "10s", commandTimeout: "1s" });
    const lease = await on.locks.acquire("a");
    const [first, second] = [lease.release(), lease.release()];
    expect(first).toBe(second);
    expect(await first).toBe("released");
    expect(on.store.releases).toHaveLength(1);

    const late = await on.locks.acquire("a");
    on.clock.stall(60_000);
    expect(await late.release()).toBe("lost");

    const unsure = await on.locks.acquire("a");
    on.store.onRelease = () => never();
    const releasing = watch(unsure.release());
    expect(unsure.state).toBe("released");
    await on.clock.advance(1_000);
    expect(releasing.value).toBe("unknown");

    on.store.onRelease = () => Promise.reject(new Error("down"));
    expect(await (await on.locks.acquire("b")).release()).toBe("unknown");
    on.store.onRelease = () => [{ kind: "lost", reason: "expired" }];
    const gone = await on.locks.acquire("c");
    expect(await gone.release()).toBe("lost");
    expect([gone.state, gone.signal.aborted]).toEqual(["lost", true]);
  });

  it("that failed is retried, and does not touch the next holder", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRelease = (apply) => {
      apply();
      return Promise.reject<readonly ReleaseAnswer[]>(new Error("answer lost"));
    };
    expect(await lease.release()).toBe("unknown");
    const next = await on.locks.acquire("a");
    on.store.onRelease = (apply) => apply();
    await on.clock.advance(5_000);
    expect(on.store.releases.length).toBe(2);
    expect(next.state).toBe("held");
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
  });

  it("happens by itself at the end of await using", async () => {
    const on = stage();
    await (async () => {
      await using lease = await on.locks.acquire("a");
      expect(lease.state).toBe("held");
    })();
    expect(on.store.inspect("default:a")).toBeNull();
  });
});

describe("withLock", () => {
  it("returns what fn returns, and releases", async () => {
    const on = stage();
    expect(await on.locks.withLock("a", (lease) => lease.name)).toBe("a");
    expect(await on.locks.withLock("a", { ttl: "1s" }, async () => 5)).toBe(5);
    expect(on.store.inspect("default:a")).toBeNull();
    expect(on.clock.timers).toBe(0);
  });

  it("rejects with the error of fn, also when the release fails or the lease was lost", async () => {
    const on = stage({ ttl: "1s", commandTimeout: 100 });
    const mine = new Error("mine");
    const failing = (): never => {
      throw mine;
    };
    expect(await rejection(on.locks.withLock("a", failing))).toBe(mine);
    const stalled = on.locks.withLock("a", () => {
      on.clock.stall(5_000);
      return failing();
    });
    expect(await rejection(stalled)).toBe(mine);
    on.store.onRelease = () => Promise.reject(new Error("down"));
    expect(await rejection(on.locks.withLock("b", failing))).toBe(mine);
  });

  it("rejects with the loss when fn threw our own abort, which becomes the cause", async () => {
    const on = stage({ ttl: "1s" });
    on.store.onRenew = () => never();
    const abortable = (lease: Lease): Promise<never> =>
      new Promise((_, reject) => {
        lease.signal.addEventListener("abort", () =>
          reject(new DOMException("This operation was aborted", "AbortError")),
        );
      });
    const running = watch(on.locks.withLock("a", abortable));
    await on.clock.advance(1_000);
    expect(running.value).toBeInstanceOf(LeaseLostError);
    expect(running.value).toMatchObject({ reason: "expired", cause: { name: "AbortError" } });
  });

  it('rejects with the loss and fn\'s value when the lease was lost though fn succeeded, unless onLost is "return"', async () => {
    const on = stage({ ttl: "1s" });
    const slow = (): string => {
      on.clock.stall(5_000);
      return "done";
    };
    const error = await rejection(on.locks.withLock("a", slow));
    expect(error).toBeInstanceOf(LeaseLostError);
    expect(error).toMatchObject({ value: "done", reason: "expired" });
    expect(await on.locks.withLock("a", { onLost: "return" }, slow)).toBe("done");
  });

  it("enters the fence first, and does not run fn if that took longer than the lease is good for", async () => {
    const on = stage({ ttl: "1s" });
    const entered: unknown[] = [];
    let ran = 0;
    const fence = {
      enter: async (_tx: undefined, resource: string, lease: { token: bigint }) => {
        entered.push([resource, lease.token]);
        if (entered.length === 3) on.clock.stall(5_000);
      },
    };
    const token = await on.locks.withLock("a", { fence }, (lease) => lease.token);
    await on.locks.withLock("a", { fence, resource: "r" }, () => ran++);
    expect(entered).toEqual([
      ["a", token],
      ["r", token + 1n],
    ]);
    expect(await rejection(on.locks.withLock("a", { fence }, () => ran++))).toBeInstanceOf(
      LeaseLostError,
    );
    expect(ran).toBe(1);
  });

  it("rejects with the loss while the fence gives no reply, and frees the name", async () => {
    const on = stage({ ttl: "1s" });
    const fence = { enter: () => never<void>() };
    const options = { fence, maxHold: "10s" } as const;
    const running = watch(on.locks.withLock("a", options, () => "ran"));
    await on.clock.advance(9_999);
    expect(running.outcome).toBe("pending");
    await on.clock.advance(1);
    expect(running).toMatchObject({
      outcome: "rejected",
      value: { code: "LEASE_LOST", reason: "max-hold" },
    });
    expect(on.store.inspect("default:a")).toBeNull();
    on.store.onRenew = () => never();
    const expired = watch(on.locks.withLock("b", { fence }, () => "ran"));
    await on.clock.advance(1_000);
    expect(expired.value).toMatchObject({ code: "LEASE_LOST", reason: "expired" });
    expect(on.clock.timers).toBe(0);
  });
});

describe("close", () => {
  it("releases every lease, rejects waiters, closes the store and leaves no timer", async () => {
    const on = stage({ wait: "1h" });
    const leases = await Promise.all(["a", "b", "c"].map((name) => on.locks.acquire(name)));
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(100);
    await on.locks.close();
    await on.clock.advance(0);
    expect(leases.map((lease) => lease.state)).toEqual(["lost", "lost", "lost"]);
    expect(waiting.value).toBeInstanceOf(ClosedError);
    expect(await on.store.list("", 10)).toEqual([]);
    expect(on.store.closedAtMs).toBe(on.clock.elapsedMs());
    expect(on.clock.timers).toBe(0);
  });

  it("can be called again, and refuses every call afterwards", async () => {
    const on = stage();
    expect(on.locks.close()).toBe(on.locks.close());
    await on.locks.close();
    for (const promise of [
      on.locks.acquire("a"),
      on.locks.tryAcquire("a"),
      on.locks.withLock("a", () => 1),
      on.locks.inspect("a"),
      on.locks.list(),
      on.locks.forceRelease("a", { why: "x" }),
    ]) {
      expect(await rejection(promise)).toBeInstanceOf(ClosedError);
    }
  });

  it("takes no longer than one request's timeout when the store hangs, and leaves no timer", async () => {
    const on = stage({ wait: "1h", commandTimeout: "2s" });
    await Promise.all(["a", "b"].map((name) => on.locks.acquire(name)));
    watch(on.locks.acquire("a"));
    on.store.onRelease = () => never();
    const closing = watch(on.locks.close());
    await on.clock.advance(2_000);
    expect(closing.outcome).toBe("resolved");
    expect(on.clock.timers).toBe(0);
  });

  it("waits for a release that is already under way before it closes the store", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRelease = (apply) =>
      new Promise((resolve, reject) =>
        on.clock.after(100, () =>
          Number.isNaN(on.store.closedAtMs) ? resolve(apply()) : reject(new Error("closed")),
        ),
      );
    const releasing = watch(lease.release());
    const closing = watch(on.locks.close());
    await on.clock.advance(5_000);
    expect([releasing.value, closing.outcome]).toEqual(["released", "resolved"]);
    expect(on.store.inspect("default:a")).toBeNull();
    expect(on.clock.timers).toBe(0);
  });

  it("waits likewise for the release of the ticket of a waiter that was just aborted", async () => {
    const other = stage({}, { random: fixedRandom(0.5, "other") });
    await other.locks.acquire("a");
    const on = stage({ wait: "1h" }, { clock: other.clock, inner: other.store.inner });
    const abort = new AbortController();
    watch(on.locks.acquire("a", { signal: abort.signal }));
    const releasing = new Deferred<void>();
    on.store.onRelease = (apply) => releasing.promise.then(apply);
    abort.abort();
    const closing = watch(on.locks.close());
    await on.clock.advance(10);
    expect(on.store.closedAtMs).toBeNaN();
    releasing.resolve();
    await on.clock.advance(0);
    expect(closing.outcome).toBe("resolved");
    await other.locks.close();
    expect(on.clock.timers).toBe(0);
  });

  it("releases what a claim has made that arrives after its release, as it may on another connection", async () => {
    const on = stage({ ttl: "60s" });
    const released = new Deferred<void>();
    let hasClosed = false;
    on.store.onClaim = async (apply) => {
      await released.promise;
      return new Promise((resolve) => void on.clock.after(100, () => resolve(apply())));
    };
    on.store.onRelease = async (apply) => {
      if (hasClosed) throw new Error("the pool has ended");
      released.resolve();
      return apply();
    };
    const waiting = watch(on.locks.acquire("a"));
    const closing = on.locks.close().then(() => {
      hasClosed = true;
    });
    await Promise.all([closing, on.clock.advance(LAST_REPLY_MS)]);
    expect(waiting.value).toBeInstanceOf(ClosedError);
    expect(on.store.inspect("default:a")).toBeNull();
    expect(on.clock.timers).toBe(0);
  });

  it("leaves no timer when a claim gets its reply afterwards", async () => {
    const on = stage({ wait: "1h" });
    const late = new Deferred<void>();
    on.store.onClaim = (apply) => late.promise.then(apply);
    watch(on.locks.acquire("a"));
    await Promise.all([on.locks.close(), on.clock.advance(LAST_REPLY_MS)]);
    on.store.onRelease = () => Promise.reject(new Error("the connection is closed"));
    late.resolve();
    await on.clock.advance(0);
    const tries = on.store.releases.length;
    await on.clock.advance(1_000);
    expect(on.store.releases).toHaveLength(tries);
    expect(on.clock.timers).toBe(0);
  });

  it("leaves no timer when more renewals were due than fit into one batch", async () => {
    const on = stage({ ttl: "10s" });
    await Promise.all(Array.from({ length: 600 }, (_, i) => on.locks.acquire(`n${i}`)));
    let closing: Promise<void> | undefined;
    on.store.onRenew = (apply) => {
      closing ??= on.locks.close();
      return apply();
    };
    await on.clock.advance(3_400);
    await closing;
    expect(on.clock.timers).toBe(0);
  });

  it("aborts the signal of work that still runs under a lease", async () => {
    const on = stage();
    const work = new Deferred<string>();
    let signal: AbortSignal | undefined;
    const running = watch(
      on.locks.withLock("a", (lease) => {
        signal = lease.signal;
        return work.promise;
      }),
    );
    await on.clock.advance(10);
    await on.locks.close();
    // From here on others can have the name: the work must not go on as if it held it.
    expect(signal!.aborted).toBe(true);
    work.resolve("done");
    await on.clock.advance(0);
    expect(running.outcome).toBe("rejected");
  });

  it("releases and ends a lease also when that lease's own listener calls it", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    let closing: Promise<void> | undefined;
    lease.on("jeopardy", () => {
      closing = on.locks.close();
    });
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.clock.advance(4_000);
    await closing;
    expect(lease.signal.aborted).toBe(true);
    expect(on.store.inspect("default:a")).toBeNull();
    expect(on.clock.timers).toBe(0);
  });
});

describe("withLock's arguments", () => {
  it("refuse options after the function, instead of ignoring them", async () => {
    const on = stage();
    const calls = on.locks as unknown as Record<string, (...args: unknown[]) => Promise<unknown>>;
    for (const [call, name] of [
      ["withLock", "a"],
      ["withAll", ["a"]],
    ] as const) {
      await expect(
        calls[call]!.call(on.locks, name, () => "ran", { wait: 0 }),
      ).rejects.toMatchObject({
        code: "INVALID_ARGUMENT",
        message: `${call} takes its options before the function`,
      });
    }
    expect(on.store.claims).toHaveLength(0);
  });
});

describe("the fence of a call", () => {
  it("is checked before anything is sent to the store", async () => {
    const on = stage();
    const bad = [{ fence: null }, { fence: {} }, { resource: "r" }, { fence: { enter: 1 } }];
    for (const options of bad) {
      const running = on.locks.withLock("a", options as never, () => "unfenced");
      await expect(running).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
    }
    const gpu = on.locks.semaphore("gpu", { permits: 2 });
    for (const options of bad) {
      for (const running of [
        gpu.withPermits(options as never, () => "unfenced"),
        on.locks.withAll(["a"], options as never, () => "unfenced"),
      ])
        await expect(running).rejects.toMatchObject({ code: "INVALID_ARGUMENT" });
    }
    expect(on.store.claims).toHaveLength(0);
    expect(await on.locks.withLock("a", undefined, () => "done")).toBe("done");
  });

  it("is entered by withAll for each name, and by withPermits", async () => {
    const on = stage();
    const fence = memoryFence();
    const before = await on.locks.withAll(["a", "b"], { fence }, async (all) => {
      for (const name of all.names)
        expect(await fence.highest(undefined, name)).toBe(all.of(name).token);
      return all.of("b");
    });
    const gpu = on.locks.semaphore("gpu", { permits: 2 });
    await gpu.withPermits({ fence, resource: "r" }, async (lease) => {
      expect(await fence.highest(undefined, "r")).toBe(lease.floor);
    });
    await gpu.withPermits({ fence }, async (lease) => {
      expect(await fence.highest(undefined, "gpu")).toBe(lease.floor);
    });
    await fence.reset(undefined, "b", 10n ** 18n);
    await expect(fence.guard(undefined, "b", before)).rejects.toMatchObject({
      code: "STALE_TOKEN",
    });
    const refused = on.locks.withAll(["a", "b"], { fence }, () => "ran");
    await expect(refused).rejects.toMatchObject({ code: "STALE_TOKEN", resource: "b" });
    expect(await on.locks.list()).toEqual([]);
  });
});

describe("a release that has to be retried", () => {
  it("is sent one request at a time, though the store hangs", async () => {
    const on = stage({ ttl: "60s", commandTimeout: "5s" });
    const lease = await on.locks.acquire("a");
    on.store.onRelease = () => new Promise(() => {});
    const releasing = lease.release();
    await on.clock.advance(60_000);
    expect(await releasing).toBe("unknown");
    expect(on.store.releases.length).toBeLessThan(15);
  });

  it("is retried once per interval, however many late replies ask for it", async () => {
    const on = stage({ ttl: "60s", commandTimeout: "1s", retry: { pause: "200ms", jitter: 0 } });
    const answers: Deferred<ClaimAnswer>[] = [];
    on.store.onClaim = () => {
      const answer = new Deferred<ClaimAnswer>();
      answers.push(answer);
      return answer.promise;
    };
    on.store.onRelease = () => Promise.reject(new Error("down"));
    const waiting = watch(on.locks.acquire("a", { wait: "5s" }));
    await on.clock.advance(6_000);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    expect(answers.length).toBeGreaterThan(2);
    for (const answer of answers) answer.reject(new Error("down"));
    await on.clock.advance(0);
    const before = on.store.releases.length;
    await on.clock.advance(10_000);
    const repeated = on.store.releases.length - before;
    expect([repeated > 40, repeated <= 50]).toEqual([true, true]);
  });

  it("is sent once more if it became necessary again while a request for it was in flight", async () => {
    const on = stage({ ttl: "60s", commandTimeout: "5s", retry: { pause: "200ms", jitter: 0 } });
    const answer = new Deferred<ClaimAnswer>();
    on.store.onClaim = () => answer.promise;
    on.store.onRelease = () => Promise.reject(new Error("down"));
    const waiting = watch(on.locks.acquire("a", { wait: "1s" }));
    await on.clock.advance(1_050);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    const inFlight = new Deferred<readonly ReleaseAnswer[]>();
    on.store.onRelease = () => inFlight.promise;
    await on.clock.advance(200);
    // The claim reaches the store after that request, then fails, and the release that follows fails too.
    on.store.onRelease = () => Promise.reject(new Error("down"));
    answer.reject(new Error("down"));
    await on.clock.advance(0);
    const before = on.store.releases.length;
    on.store.onRelease = (apply) => apply();
    inFlight.resolve([{ kind: "lost", reason: "expired" }]);
    await on.clock.advance(1_000);
    expect(on.store.releases.length - before).toBe(1);
  });

  it("is given up by close when it hangs, and leaves no timer", async () => {
    const on = stage({ ttl: "60s", commandTimeout: "5s" });
    const lease = await on.locks.acquire("a");
    on.store.onRelease = () => new Promise(() => {});
    const releasing = lease.release();
    await on.clock.advance(6_000);
    expect(await releasing).toBe("unknown");
    await on.locks.close();
    expect(on.clock.timers).toBe(0);
  });

  it("leaves no timer when it is for a claim that was granted after close", async () => {
    const on = stage({ ttl: "60s", commandTimeout: "5s" });
    const answer = new Deferred<ClaimAnswer>();
    on.store.onClaim = () => answer.promise;
    const waiting = watch(on.locks.acquire("a"));
    const closing = on.locks.close();
    await on.clock.advance(LAST_REPLY_MS);
    on.store.onRelease = () => new Promise(() => {});
    await closing;
    const grant = { token: 1n, floor: 1n, ttlMs: 60_000, seq: 1, handedOver: false };
    answer.resolve({ kind: "granted", grants: [grant] });
    await on.clock.advance(0);
    expect(waiting.value).toBeInstanceOf(ClosedError);
    expect(on.store.releases.length).toBeGreaterThan(0);
    expect(on.clock.timers).toBe(0);
  });
});
