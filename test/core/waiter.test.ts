import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { describe, expect, it } from "vitest";
import {
  AcquireTimeoutError,
  InvalidArgumentError,
  QueueFullError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import { type ClaimAnswer, MOST_WAITERS, type ReleaseAnswer } from "../../src/core/store.js";
import { createLocksOn } from "../../src/locks.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { Deferred, fixedRandom, never, rejection, stage, watch } from "./helpers.js";

describe("a waiter", () => {
  it("is granted the name the moment that it is free, without another claim", async () => {
    const on = stage({ ttl: "30s" });
    const first = await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(1_000);
    expect([waiting.outcome, on.store.claims.length]).toEqual(["pending", 2]);
    await first.release();
    await on.clock.advance(0);
    expect(waiting.outcome).toBe("resolved");
    expect(on.store.claims).toHaveLength(2);
  });

  it("is not told of a loss when its grant arrives twice, and requests overtake each other", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    const first = await on.locks.acquire("a");
    const reply = new Deferred<ClaimAnswer>();
    on.store.onClaim = (apply) => {
      apply();
      return reply.promise;
    };
    const waiting = on.locks.acquire("a");
    await first.release();
    // By a push; the reply to the claim is still on its way.
    const lease = await waiting;
    const { token } = lease;
    // The release is slow, and whatever is released after it is not.
    on.store.onRelease = (apply) => {
      on.store.onRelease = (later) => later();
      return new Promise((resolve) => on.clock.after(100, () => resolve(apply())));
    };
    const released = lease.release();
    const grant = { token, floor: token, ttlMs: 10_000, seq: 1, handedOver: false };
    reply.resolve({ kind: "granted", grants: [grant] });
    await on.clock.advance(200);
    expect(await released).toBe("released");
  });

  it("has its lease counted from the request that its ticket rests on, when the name is handed over", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    const first = await on.locks.acquire("a");
    const waiting = on.locks.acquire("a");
    const sentMs = on.clock.elapsedMs();
    await on.clock.advance(2_000);
    await first.release();
    const lease = await waiting;
    expect(lease.remainingMs).toBe(sentMs + 8_898 - on.clock.elapsedMs());
  });

  it("does not count its lease from a later request that the store has not received", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    const first = await on.locks.acquire("a", { ttl: "1m" });
    const waiting = on.locks.acquire("a");
    const sentMs = on.clock.elapsedMs();
    on.store.onRenew = () => never();
    await on.clock.advance(6_000);
    expect(on.store.renewals.flatMap((one) => one.items.map((item) => item.seq))).toContain(2);
    await first.release();
    const lease = await waiting;
    expect(lease.remainingMs).toBe(sentMs + 8_898 - on.clock.elapsedMs());
  });

  it("keeps its ticket alive for as long as it waits", async () => {
    const on = stage({ ttl: "1s", wait: Number.POSITIVE_INFINITY });
    const holder = await on.locks.acquire("a", { ttl: "1h" });
    const waiting = on.locks.acquire("a");
    await on.clock.advance(60_000);
    expect(on.store.inspect("default:a")!.waiters).toHaveLength(1);
    expect(on.store.claims.length).toBeLessThanOrEqual(3);
    await holder.release();
    expect((await waiting).state).toBe("held");
  });

  it("is served in the order of arrival", async () => {
    const on = stage({ wait: "1h" });
    const holder = await on.locks.acquire("a");
    const order: number[] = [];
    const all = Array.from({ length: 20 }, async (_, i) => {
      const lease = await on.locks.acquire("a");
      order.push(i);
      await lease.release();
    });
    await on.clock.advance(10);
    await holder.release();
    await Promise.all(all);
    expect(order).toEqual(Array.from({ length: 20 }, (_, i) => i));
  });

  it("claims when the holder's lease expires, if no push arrives", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a", { renew: false });
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(9_999);
    expect(waiting.outcome).toBe("pending");
    await on.clock.advance(2);
    expect(waiting.outcome).toBe("resolved");
  });

  it("is not granted the name by a push that names an unknown request", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    const grant = { token: 99n, floor: 99n, ttlMs: 10_000, seq: 77, handedOver: true };
    on.store.claims[1]!.push({ kind: "granted", grant });
    await on.clock.advance(0);
    expect(waiting.outcome).toBe("pending");
    expect(on.store.claims).toHaveLength(3);
  });

  it("that is notified checks its ticket; all notified waiters share one batch of renewals", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a");
    for (let i = 0; i < 3; i++) watch(on.locks.acquire("a"));
    for (const { push } of on.store.claims.slice(1)) push({ kind: "look" });
    for (const { push } of on.store.claims.slice(1)) push({ kind: "look" });
    await on.clock.advance(0);
    expect(on.store.renewals.map(({ items }) => items.length)).toEqual([3]);
    expect(on.store.claims).toHaveLength(4);
  });

  it("that is notified before the reply to its claim arrives still checks its ticket", async () => {
    const on = stage({ ttl: "30s", wait: "1m" });
    const holder = await on.locks.acquire("a");
    const late = new Deferred<ClaimAnswer>();
    let answer: ClaimAnswer | undefined;
    on.store.onClaim = (apply) => {
      answer = apply();
      return late.promise;
    };
    const waiting = watch(on.locks.acquire("a"));
    // The name is handed over, but the push only says to check; the reply to the claim says "waiting".
    on.store.onPush = () => on.store.claims[1]!.push({ kind: "look" });
    await holder.release();
    await on.clock.advance(10);
    expect(on.store.renewals).toEqual([]);
    late.resolve(answer!);
    await on.clock.advance(10);
    expect(waiting.outcome).toBe("resolved");
  });

  it("that is notified before the reply to its claim arrives sends one renewal, not more", async () => {
    const on = stage({ ttl: "30s", wait: "1m" });
    await on.locks.acquire("a", { ttl: "1m" });
    on.store.onClaim = (apply) => Promise.resolve(apply());
    const waiting = watch(on.locks.acquire("a"));
    on.store.claims[1]!.push({ kind: "look" });
    await on.clock.advance(5_000);
    expect(on.store.renewals).toHaveLength(1);
    expect(waiting.outcome).toBe("pending");
  });

  it("polls at growing intervals where the store can't push", async () => {
    const on = stage({ wait: "1m", poll: { jitter: 0 } }, { traits: { waiting: "polled" } });
    await on.locks.acquire("a");
    watch(on.locks.acquire("a"));
    await on.clock.advance(5_000);
    const times = on.store.claims.slice(1).map((one) => one.atMs - 1_000);
    expect(times).toEqual([0, 50, 150, 350, 750, 1_550, 2_550, 3_550, 4_550]);
  });

  it("gets the name soon after a shorter lease has ended, though it was far behind in the queue", async () => {
    const on = stage({ ttl: "1m", wait: "2m" });
    await on.locks.acquire("a", { ttl: "1s", renew: false });
    const first = [1, 2, 3].map(() => watch(on.locks.acquire("a", { wait: 300 })));
    const last = watch(on.locks.acquire("a"));
    await on.clock.advance(2_000);
    expect(first.map(({ outcome }) => outcome)).toEqual(["rejected", "rejected", "rejected"]);
    expect(last.outcome).toBe("resolved");
  });

  it("far behind in the queue of a short lease does not poll as often as that lease is renewed", async () => {
    const on = stage({ ttl: "1m", wait: "2m" });
    await on.locks.acquire("a", { ttl: "1s" });
    const many = 200;
    for (let i = 0; i < many; i++) void on.locks.acquire("a").catch(() => {});
    await on.clock.advance(0);
    const fromMs = on.clock.elapsedMs();
    await on.clock.advance(20_000);
    // The first three claim, and the holder renews, about once in a second.
    expect(on.store.renewedBetween(fromMs, fromMs + 20_000)).toBeLessThan(5 * many);
    await on.locks.close();
  });
});

describe("the end of a wait", () => {
  it("by a timeout: the error names the holder, and the ticket is gone", async () => {
    const on = stage({ wait: "1s" });
    await on.locks.acquire("a", { note: "first" });
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(999);
    expect(waiting.outcome).toBe("pending");
    await on.clock.advance(1);
    expect(waiting.value).toBeInstanceOf(AcquireTimeoutError);
    expect((waiting.value as Error).message).toMatch(/"a" was still held by .*\(first\).* 1000 ms/);
    expect(on.store.inspect("default:a")!.waiters).toEqual([]);
  });

  it.each([
    ["hangs", () => never<ClaimAnswer>()],
    ["rejects", () => Promise.reject(new Error("down"))],
  ])("when the store %s: the error is unavailable, never a timeout", async (_how, answer) => {
    const on = stage({ wait: "1s", commandTimeout: "5s" });
    on.store.onClaim = answer;
    for (const wait of ["1s", 0] as const) {
      const waiting = watch(on.locks.acquire("a", { wait }));
      await on.clock.advance(5_000);
      expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
      expect(waiting.value).toMatchObject({ retryable: true });
    }
  });

  it("when the event loop was too busy to read the reply: a timeout", async () => {
    const on = stage({ wait: "1s" });
    await on.locks.acquire("a");
    const read = new Deferred<void>();
    on.store.onClaim = (apply) => {
      const answer = apply();
      return read.promise.then(() => answer);
    };
    on.store.onRelease = (apply) => {
      const answers = apply();
      return read.promise.then(() => answers);
    };
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(1_000);
    read.resolve();
    await on.clock.advance(1);
    expect(waiting.value).toBeInstanceOf(AcquireTimeoutError);
  });

  it("when the name was busy at first and then the store went down: unavailable", async () => {
    const on = stage({ wait: "1s" });
    await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(500);
    on.store.onRelease = () => never();
    await on.clock.advance(800);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
  });

  it("when the first reply was lost: a retry finds its own grant", async () => {
    const on = stage({ ttl: "10s" });
    let claims = 0;
    on.store.onClaim = (apply) => {
      const answer = apply();
      return ++claims === 1 ? Promise.reject(new Error("reset")) : answer;
    };
    const acquiring = on.locks.acquire("a");
    await on.clock.advance(200);
    const lease = await acquiring;
    expect(on.store.inspect("default:a")!.holders.map((one) => one.token)).toEqual([lease.token]);
    const [first, second] = on.store.claims;
    expect(second!.claim.grantId).toBe(first!.claim.grantId);
    expect([first!.claim.seq, second!.claim.seq]).toEqual([1, 2]);
    // The deadline counts from the claim that got a reply.
    expect(lease.remainingMs).toBe(second!.atMs + 8_898 - on.clock.elapsedMs());
  });

  it("when the store refuses the claim for good: it is not retried", async () => {
    const on = stage({ wait: "1h" });
    on.store.onClaim = () => Promise.reject(new UnsupportedError("never"));
    expect(await rejection(on.locks.acquire("a"))).toBeInstanceOf(UnsupportedError);
    on.store.onClaim = () => ({ kind: "mismatch", name: "default:name", limit: 4 });
    const error = await rejection(on.locks.acquire("a"));
    expect(error).toBeInstanceOf(InvalidArgumentError);
    expect(error.message).toContain("a semaphore of 4 permits");
    expect(on.store.claims).toHaveLength(2);
    await on.clock.advance(60_000);
    expect(on.clock.timers).toBe(0);
  });

  it("by an abort: rejects with the signal's reason at once, and releases the ticket", async () => {
    const on = stage({ wait: "1h" });
    await on.locks.acquire("a");
    const abort = new AbortController();
    const waiting = watch(on.locks.acquire("a", { signal: abort.signal }));
    await on.clock.advance(100);
    const reason = new Error("enough");
    abort.abort(reason);
    await on.clock.advance(0);
    expect(waiting.value).toBe(reason);
    expect(on.store.inspect("default:a")!.waiters).toEqual([]);
  });

  it("by a signal that aborted before: nothing is claimed", async () => {
    const on = stage();
    const signal = AbortSignal.abort(new Error("before"));
    expect((await rejection(on.locks.acquire("a", { signal }))).message).toBe("before");
    expect(on.store.claims).toEqual([]);
  });

  it("by a subscriber of the event asked that aborts the signal: the wait ends", async () => {
    const on = stage({ wait: "1h" });
    await on.locks.acquire("a");
    const abort = new AbortController();
    const onEvent = (): void => abort.abort(new Error("at once"));
    subscribe("holdfast:asked", onEvent);
    const waiting = watch(on.locks.acquire("a", { signal: abort.signal }));
    unsubscribe("holdfast:asked", onEvent);
    await on.clock.advance(1_000);
    expect(waiting.outcome).toBe("rejected");
  });

  it("a claim that is granted after the wait ended is released", async () => {
    const on = stage({ wait: "1s" });
    const late = new Deferred<void>();
    on.store.onClaim = (apply) => late.promise.then(apply);
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(1_500);
    expect(waiting.outcome).toBe("rejected");
    late.resolve();
    await on.clock.advance(0);
    expect(on.store.inspect("default:a")).toBeNull();
    await on.clock.advance(60_000);
    expect(on.clock.timers).toBe(0);
  });

  it("a release of the ticket that fails is retried until one ttl is over", async () => {
    const on = stage({ ttl: "10s", wait: "1s" });
    await on.locks.acquire("a", { ttl: "1h" });
    const waiting = watch(on.locks.acquire("a"));
    on.store.onRelease = () => Promise.reject<readonly ReleaseAnswer[]>(new Error("down"));
    await on.clock.advance(2_000);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    expect(on.store.inspect("default:a")!.waiters).toHaveLength(1);
    on.store.onRelease = (apply) => apply();
    await on.clock.advance(200);
    expect(on.store.inspect("default:a")!.waiters).toEqual([]);
    const tries = on.store.releases.length;
    await on.clock.advance(60_000);
    expect(on.store.releases).toHaveLength(tries);
  });
});

describe("a queue that is full", () => {
  it("refuses one more waiter and says how many wait, and takes it when one has left", async () => {
    const on = stage({ wait: "1m" });
    const held = await on.locks.acquire("a");
    const ticket = { ...on.store.claims[0]!.claim, queue: true, ttlMs: 3_600_000 };
    for (let i = 0; i < MOST_WAITERS; i++) {
      on.store.inner.claim({ ...ticket, grantId: `ticket ${i}` }, () => {});
    }
    const full = await rejection(on.locks.acquire("a"));
    expect(full).toBeInstanceOf(QueueFullError);
    expect(full).toMatchObject({ code: "QUEUE_FULL", retryable: true, lockName: "a" });
    expect(full).toMatchObject({ waiting: MOST_WAITERS });
    expect(full.message).toContain('"a" has 5000 waiters already');
    // A caller that does not wait takes no place in the queue.
    expect(await on.locks.tryAcquire("a")).toBeNull();
    on.store.inner.release([{ name: "default:a", grantId: "ticket 7" }]);
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(0);
    expect(waiting.outcome).toBe("pending");
    expect(on.store.inspect("default:a")).toMatchObject({ waiting: MOST_WAITERS });
    await on.locks.close();
    expect(held.state).toBe("lost");
    expect(on.clock.timers).toBe(0);
  });
});

describe("a grant whose reply comes too late", () => {
  it("is no lease: the waiter claims again while there is time, and no loss is reported", async () => {
    const on = stage({ ttl: "1s", wait: "1m", commandTimeout: "10s" });
    let claims = 0;
    on.store.onClaim = (apply) => {
      const answer = apply();
      if (++claims > 1) return answer;
      return new Promise((resolve) => on.clock.after(2_000, () => resolve(answer)));
    };
    const lost: unknown[] = [];
    const onEvent = (fields: unknown): void => void lost.push(fields);
    subscribe("holdfast:lost", onEvent);
    const acquiring = watch(on.locks.acquire("a"));
    await on.clock.advance(2_500);
    unsubscribe("holdfast:lost", onEvent);
    expect(acquiring.outcome).toBe("resolved");
    expect(claims).toBe(2);
    expect(lost).toEqual([]);
  });

  it("on a store in this process that is always too slow: an error in time, not an endless loop", async () => {
    const on = stage({ ttl: 20, wait: 200 }, { random: fixedRandom(0) });
    on.store.onClaim = (apply) => {
      const answer = apply();
      on.clock.stall(25);
      if (on.store.claims.length > 1_000) throw new Error("endless");
      return answer;
    };
    const acquiring = watch(on.locks.acquire("a"));
    await on.clock.advance(1_000);
    expect(acquiring.value).toBeInstanceOf(StoreUnavailableError);
    expect((acquiring.value as Error).message).not.toContain("endless");
    expect(on.store.claims.length).toBeLessThan(20);
  });
});

describe("a claim of several names in one step", () => {
  it("whose outcome was unknown and which had been granted is released when one of the names is busy now", async () => {
    const on = stage({ ttl: "10s", wait: "1m", holder: "me" });
    let claims = 0;
    on.store.onClaim = (apply, claim) => {
      const answer = apply();
      if (claim.names.length > 1 && ++claims === 1) return Promise.reject(new Error("reset"));
      return answer;
    };
    const acquiring = watch(on.locks.acquireAll(["a", "b"]));
    await on.clock.advance(0);
    // Both are granted, and the reply is lost. One is revoked before the claim is retried.
    on.store.inner.revoke("default:b", { holder: "x", why: "y" });
    const other = { ...on.store.claims[0]!.claim, names: ["default:b"], grantId: "another" };
    on.store.inner.claim(other, () => {});
    await on.clock.advance(1_000);
    expect(acquiring.outcome).toBe("pending");
    // acquireAll goes on one by one: the first name has one grant, not two.
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
    expect(on.store.inspect("default:b")!.waiters).toHaveLength(1);
    await on.store.inner.release([{ name: "default:b", grantId: "another" }]);
    await on.clock.advance(0);
    expect(acquiring.outcome).toBe("resolved");
  });

  it("that is still in flight is released when an earlier one gets the reply busy", async () => {
    const on = stage({ ttl: "1h", wait: "10s", commandTimeout: "1s", holder: "me" });
    const held = await on.locks.acquire("b");
    const late = new Deferred<void>();
    on.store.onClaim = (apply, claim) => {
      if (claim.names.length === 1) return apply();
      const answer = apply();
      // The reply to the first claim is late; the second claim is granted, and its reply is lost.
      return on.store.claims.length === 2 ? late.promise.then(() => answer) : never();
    };
    const acquiring = watch(on.locks.acquireAll(["a", "b"]));
    await on.clock.advance(500);
    await held.release();
    await on.clock.advance(1_000);
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
    late.resolve();
    await on.clock.advance(1_000);
    expect(acquiring.outcome).toBe("resolved");
  });

  it("that gets a late reply releases only the names that are not held", async () => {
    const on = stage({ ttl: "10s", wait: "1m", commandTimeout: "1s" });
    const late = new Deferred<ClaimAnswer>();
    on.store.onClaim = (apply) => {
      const answer = apply();
      return on.store.claims.length === 1 ? late.promise : answer;
    };
    const acquiring = watch(on.locks.acquireAll(["a", "b"]));
    await on.clock.advance(1_500);
    expect(acquiring.outcome).toBe("resolved");
    on.store.inner.revoke("default:a", { holder: "x", why: "y" });
    await on.clock.advance(3_500);
    const all = acquiring.value as { state: string };
    expect(all.state).toBe("lost");
    const another = {
      floor: 2n ** 60n,
      token: 2n ** 60n,
      ttlMs: 10_000,
      seq: 1,
      handedOver: false,
    };
    const { token } = on.store.inspect("default:b")!.holders[0]!;
    late.resolve({ kind: "granted", grants: [another, { ...another, token, floor: token }] });
    await on.clock.advance(0);
    expect(on.store.releases.flatMap(({ items }) => items.map(({ name }) => name))).toEqual([
      "default:a",
    ]);
    expect(on.store.inspect("default:b")!.holders).toHaveLength(1);
  });
});

describe("a grant that is revoked before its waiter has received it", () => {
  /** The first claim is granted, its reply is late, and the grant is revoked meanwhile. */
  async function revokedUnseen() {
    const on = stage({ ttl: "10s", wait: "1m", commandTimeout: "1s", holder: "me" });
    const late = new Deferred<void>();
    on.store.onClaim = (apply) => {
      const answer = apply();
      return on.store.claims.length === 1 ? late.promise.then(() => answer) : answer;
    };
    const acquiring = watch(on.locks.acquire("a"));
    await on.clock.advance(500);
    on.store.inner.revoke("default:a", { holder: "x", why: "y" });
    return { on, late, acquiring };
  }

  it("is claimed again under another id, and late replies for the old id are ignored", async () => {
    const { on, late, acquiring } = await revokedUnseen();
    // The retry learns that the grant was revoked; the name is free, so another id has it at once.
    await on.clock.advance(1_000);
    const ids = on.store.claims.map(({ claim }) => claim.grantId);
    expect(ids[1]).toBe(ids[0]);
    expect(ids[2]).not.toBe(ids[0]);
    const lease = acquiring.value as Lease;
    expect(lease.state).toBe("held");
    late.resolve();
    await on.clock.advance(60_000);
    expect(lease.state).toBe("held");
    expect(on.store.inspect("default:a")!.holders.map(({ token }) => token)).toEqual([lease.token]);
  });

  it("is claimed again also when the late reply comes during the wait under the other id", async () => {
    const { on, late, acquiring } = await revokedUnseen();
    const other = { ...on.store.claims[0]!.claim, grantId: "another", holder: "other" };
    on.store.inner.claim(other, () => {});
    await on.clock.advance(1_000);
    late.resolve();
    await on.clock.advance(1_000);
    expect(acquiring.outcome).toBe("pending");
    on.store.inner.release([{ name: "default:a", grantId: "another" }]);
    await on.clock.advance(0);
    expect(acquiring.outcome).toBe("resolved");
  });
});

describe("a claim that reaches the store after its id was replaced", () => {
  it.each(["granted", "failed"] as const)("is released again when it is %s", async (how) => {
    const on = stage(
      { ttl: "10s", wait: "1m", commandTimeout: "1s" },
      { traits: { liveness: "session" } },
    );
    const held = await on.locks.acquire("a", { ttl: "1h" });
    const late = new Deferred<void>();
    on.store.onClaim = (apply) => {
      if (on.store.claims.length !== 2) return apply();
      return late.promise.then(() => {
        const answer = apply();
        if (how === "failed") throw new Error("connection reset");
        return answer;
      });
    };
    const acquiring = watch(on.locks.acquire("a"));
    await on.clock.advance(2_000);
    // The session is gone, and the ticket with it: the waiter claims under another id.
    const [first] = on.store.claims.slice(-1);
    on.store.inner.release([{ name: "default:a", grantId: first!.claim.grantId }]);
    await on.clock.advance(4_000);
    expect(on.store.claims.at(-1)!.claim.grantId).not.toBe(first!.claim.grantId);
    await held.release();
    await on.clock.advance(0);
    await (acquiring.value as Lease).release();
    late.resolve();
    await on.clock.advance(0);
    expect(on.store.inspect("default:a")).toBeNull();
  });
});

describe("a waiter that gets no reply for one ttl, while the store may receive its requests", () => {
  const ttlMs = 10_000;
  const commandTimeoutMs = 4_000;

  /** Two clients of one store; replies and pushes to one of them can be lost or late. */
  function withFaultyLink(wait: number) {
    const on = stage({ ttl: ttlMs, wait: "1h", holder: "other" });
    const link = new FaultyStore(on.store, on.clock);
    const options = { ttl: ttlMs, wait, commandTimeout: commandTimeoutMs, holder: "cut off" };
    const cutOff = createLocksOn(
      { ...on.runtime, random: fixedRandom(0.5, "CUTOFF") },
      link,
      options,
    );
    const has = (): readonly string[] => {
      const info = on.store.inspect("default:a");
      return [...(info?.holders ?? []), ...(info?.waiters ?? [])].map(({ holder }) => holder);
    };
    return { ...on, link, cutOff, has };
  }

  it("stops extending a ticket that became a grant: another client has the name within two ttl", async () => {
    const { clock, locks, link, cutOff, has } = withFaultyLink(600_000);
    const first = await locks.acquire("a");
    const waiting = watch(cutOff.acquire("a"));
    await clock.advance(0);
    const other = watch(locks.acquire("a"));
    const before = link.sent.renew;
    link.all = "lose-reply";
    link.faults.push = "hold";
    while (link.sent.renew === before) await clock.advance(100);
    await first.release();
    expect(has()).toEqual(["cut off", "other"]);
    await clock.advance(2 * ttlMs);
    expect(other.outcome).toBe("resolved");
    await (other.value as Lease).release();
    // The waiter does not come back to hold a name without knowing it.
    await clock.advance(10 * ttlMs);
    expect(has()).toEqual([]);
    expect(waiting.outcome).toBe("pending");
  });

  it.each(["none", 4 * ttlMs] as const)(
    "delays others by one ttl at most when only its claims get no reply (renewals late by: %s)",
    async (fault) => {
      const { clock, locks, link, cutOff } = withFaultyLink(600_000);
      link.faults = { ...link.faults, claim: "lose-reply", renew: fault, push: "hold" };
      const waiting = watch(cutOff.acquire("a"));
      await clock.advance(0);
      for (let i = 0; i < 10; i++) {
        const other = watch(locks.acquire("a"));
        await clock.advance(2 * ttlMs + commandTimeoutMs + 200);
        expect([i, other.outcome]).toEqual([i, "resolved"]);
        await (other.value as Lease).release();
      }
      await clock.advance(600_000);
      expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    },
  );

  it("stops extending also when it is so far behind that it only renews", async () => {
    const { clock, locks, link, cutOff } = withFaultyLink(600_000);
    const ahead = Array.from({ length: 5 }, () => locks.acquire("a"));
    await clock.advance(0);
    watch(cutOff.acquire("a"));
    await clock.advance(0);
    link.all = "lose-reply";
    link.faults.push = "hold";
    await clock.advance(2 * ttlMs);
    expect(link.sent.claim).toBe(1);
    // Renewals get replies, and claims do not.
    link.faults.renew = "none";
    for (const one of ahead) await (await one).release();
    for (let i = 0; i < 5; i++) {
      const other = watch(locks.acquire("a"));
      await clock.advance(2 * ttlMs);
      expect([i, other.outcome]).toEqual([i, "resolved"]);
      await (other.value as Lease).release();
    }
  });

  it.each(["lose-reply", "hang", "refuse", "fail-reply"] as const)(
    "has its lock soon after the store replies again, and sends no more requests than before (%s)",
    async (fault) => {
      for (const queued of [true, false]) {
        const { clock, locks, link, cutOff } = withFaultyLink(600_000);
        const first = queued ? await locks.acquire("a") : null;
        link.faults.push = "hold";
        if (!queued) link.all = fault;
        const waiting = watch(cutOff.acquire("a"));
        await clock.advance(100);
        link.all = fault;
        await first?.release();
        await clock.advance(2 * ttlMs);
        const before = link.sent.claim + link.sent.renew;
        await clock.advance(10 * ttlMs);
        // A request that hangs is waited for; after one that failed there is a pause of 150 ms.
        const pauseMs = fault === "refuse" || fault === "fail-reply" ? 150 : commandTimeoutMs;
        const requests = link.sent.claim + link.sent.renew - before;
        expect(requests).toBeGreaterThan(0);
        expect(requests).toBeLessThanOrEqual((10 * ttlMs) / pauseMs + 1);
        expect(waiting.outcome).toBe("pending");
        link.all = "none";
        await clock.advance(commandTimeoutMs + 200);
        expect(waiting.outcome).toBe("resolved");
        expect((waiting.value as Lease).state).toBe("held");
      }
    },
  );

  it("rejects as unavailable when its wait ends, not with a timeout", async () => {
    const { clock, locks, link, cutOff, has } = withFaultyLink(45_000);
    await locks.acquire("a");
    const waiting = watch(cutOff.acquire("a"));
    await clock.advance(100);
    link.all = "lose-reply";
    link.faults.push = "hold";
    await clock.advance(45_000);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    expect(has()).toEqual(["other"]);
    await clock.advance(600_000);
    expect(link.sent.renew).toBeLessThan(20);
  });

  it("makes no lease of an expired grant when replies come late, and loses no lease by them", async () => {
    const { clock, locks, link, cutOff, store } = withFaultyLink(600_000);
    link.all = 2.5 * ttlMs;
    const waiting = watch(cutOff.acquire("a"));
    const other = watch(locks.acquire("a"));
    await clock.advance(2 * ttlMs + 100);
    expect(other.outcome).toBe("resolved");
    // The reply "granted" arrives, for a claim of long ago.
    await clock.advance(ttlMs);
    expect(waiting.outcome).toBe("pending");
    link.all = "none";
    await clock.advance(commandTimeoutMs + 200);
    await (other.value as Lease).release();
    await clock.advance(0);
    const lease = waiting.value as Lease;
    await clock.advance(10 * ttlMs);
    expect(lease.state).toBe("held");
    expect(store.inspect("default:a")!.holders.map(({ token }) => token)).toEqual([lease.token]);
  });

  it.each([1.1, 1.5, 2.5])(
    "gets nothing from a store that replies %d ttl late, and others get the name, again and again",
    async (late) => {
      const { clock, locks, link, cutOff } = withFaultyLink(3_600_000);
      link.all = late * ttlMs;
      link.faults.push = "hold";
      const waiting = watch(cutOff.acquire("a"));
      await clock.advance(0);
      for (let i = 0; i < 20; i++) {
        const other = watch(locks.acquire("a"));
        await clock.advance(3 * ttlMs);
        expect([i, other.outcome]).toEqual([i, "resolved"]);
        await (other.value as Lease).release();
      }
      expect(waiting.outcome).toBe("pending");
    },
  );

  it("uses the reply that arrived while its process was stopped", async () => {
    const { clock, locks, link, cutOff } = withFaultyLink(600_000);
    const first = await locks.acquire("a");
    const waiting = watch(cutOff.acquire("a"));
    await clock.advance(100);
    const before = link.sent.renew;
    link.faults.renew = 50;
    while (link.sent.renew === before) await clock.advance(10);
    clock.stall(2 * ttlMs);
    link.all = "none";
    await clock.advance(100);
    await first.release();
    await clock.advance(0);
    expect(waiting.outcome).toBe("resolved");
  });
});
