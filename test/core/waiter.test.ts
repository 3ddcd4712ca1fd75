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
import { createLocksOn } from "../../src/core/locks.js";
import { type ClaimAnswer, MOST_WAITERS, type ReleaseAnswer } from "../../src/core/store.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { Deferred, fixedRandom, never, rejection, stage, watch } from "./helpers.js";

describe("waiting", () => {
  it("is pushed the moment that the name is free, without asking again", async () => {
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

  it("a handed-over grant counts from the ask that its ticket rests on", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    const first = await on.locks.acquire("a");
    const waiting = on.locks.acquire("a");
    const sentMs = on.clock.elapsedMs();
    await on.clock.advance(2_000);
    await first.release();
    const lease = await waiting;
    expect(lease.remainingMs).toBe(sentMs + 8_898 - on.clock.elapsedMs());
  });

  it("and not from a later one that the store has not heard of", async () => {
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

  it("comes first when it came first, one after the other", async () => {
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

  it("asks at the holder's expiry when nobody tells it", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a", { renew: false });
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(9_999);
    expect(waiting.outcome).toBe("pending");
    await on.clock.advance(2);
    expect(waiting.outcome).toBe("resolved");
  });

  it("a push that names an unknown ask is no grant", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    const grant = { token: 99n, floor: 99n, ttlMs: 10_000, seq: 77, handedOver: true };
    on.store.claims[1]!.push({ kind: "granted", grant });
    await on.clock.advance(0);
    expect(waiting.outcome).toBe("pending");
    expect(on.store.claims).toHaveLength(3);
  });

  it("pushes to look become one batch of renewals, however many wait", async () => {
    const on = stage({ ttl: "10s", wait: "1m" });
    await on.locks.acquire("a");
    for (let i = 0; i < 3; i++) watch(on.locks.acquire("a"));
    for (const { push } of on.store.claims.slice(1)) push({ kind: "look" });
    for (const { push } of on.store.claims.slice(1)) push({ kind: "look" });
    await on.clock.advance(0);
    expect(on.store.renewals.map(({ items }) => items.length)).toEqual([3]);
    expect(on.store.claims).toHaveLength(4);
  });

  it("a push to look that overtakes the answer to the claim is not forgotten", async () => {
    const on = stage({ ttl: "30s", wait: "1m" });
    const holder = await on.locks.acquire("a");
    const late = new Deferred<ClaimAnswer>();
    let answer: ClaimAnswer | undefined;
    on.store.onClaim = (apply) => {
      answer = apply();
      return late.promise;
    };
    const waiting = watch(on.locks.acquire("a"));
    // It is handed over, and only told to look; the answer says that it waits.
    on.store.onPush = () => on.store.claims[1]!.push({ kind: "look" });
    await holder.release();
    await on.clock.advance(10);
    expect(on.store.renewals).toEqual([]);
    late.resolve(answer!);
    await on.clock.advance(10);
    expect(waiting.outcome).toBe("resolved");
  });

  it("and looks once", async () => {
    const on = stage({ ttl: "30s", wait: "1m" });
    await on.locks.acquire("a", { ttl: "1m" });
    on.store.onClaim = (apply) => Promise.resolve(apply());
    const waiting = watch(on.locks.acquire("a"));
    on.store.claims[1]!.push({ kind: "look" });
    await on.clock.advance(5_000);
    expect(on.store.renewals).toHaveLength(1);
    expect(waiting.outcome).toBe("pending");
  });

  it("polls with growing pauses where the store can't push", async () => {
    const on = stage({ wait: "1m", poll: { jitter: 0 } }, { traits: { waiting: "polled" } });
    await on.locks.acquire("a");
    watch(on.locks.acquire("a"));
    await on.clock.advance(5_000);
    const times = on.store.claims.slice(1).map((one) => one.atMs - 1_000);
    expect(times).toEqual([0, 50, 150, 350, 750, 1_550, 2_550, 3_550, 4_550]);
  });
});

describe("the end of a wait", () => {
  it("busy: a timeout that names the holder, and the ticket is gone", async () => {
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
  ])("a store that %s: unavailable, never a timeout", async (_how, answer) => {
    const on = stage({ wait: "1s", commandTimeout: "5s" });
    on.store.onClaim = answer;
    for (const wait of ["1s", 0] as const) {
      const waiting = watch(on.locks.acquire("a", { wait }));
      await on.clock.advance(5_000);
      expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
      expect(waiting.value).toMatchObject({ retryable: true });
    }
  });

  it("busy, and the event loop too: the timer fires before the reply is read, and it is a timeout", async () => {
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

  it("busy at first, then down: unavailable", async () => {
    const on = stage({ wait: "1s" });
    await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    await on.clock.advance(500);
    on.store.onRelease = () => never();
    await on.clock.advance(800);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
  });

  it("down at first, then granted: a retry finds its own grant", async () => {
    const on = stage({ ttl: "10s" });
    let asks = 0;
    on.store.onClaim = (apply) => {
      const answer = apply();
      return ++asks === 1 ? Promise.reject(new Error("reset")) : answer;
    };
    const acquiring = on.locks.acquire("a");
    await on.clock.advance(200);
    const lease = await acquiring;
    expect(on.store.inspect("default:a")!.holders.map((one) => one.token)).toEqual([lease.token]);
    const [first, second] = on.store.claims;
    expect(second!.claim.grantId).toBe(first!.claim.grantId);
    expect([first!.claim.seq, second!.claim.seq]).toEqual([1, 2]);
    // The deadline counts from the ask that was answered.
    expect(lease.remainingMs).toBe(second!.atMs + 8_898 - on.clock.elapsedMs());
  });

  it("what can't succeed is not tried again", async () => {
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

  it("aborted: rejects with the signal's reason at once, and gives the ticket back", async () => {
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

  it("aborted before: nothing is asked", async () => {
    const on = stage();
    const signal = AbortSignal.abort(new Error("before"));
    expect((await rejection(on.locks.acquire("a", { signal }))).message).toBe("before");
    expect(on.store.claims).toEqual([]);
  });

  it("aborted by who hears that it asks: not overlooked", async () => {
    const on = stage({ wait: "1h" });
    await on.locks.acquire("a");
    const abort = new AbortController();
    const hear = (): void => abort.abort(new Error("at once"));
    subscribe("holdfast:asked", hear);
    const waiting = watch(on.locks.acquire("a", { signal: abort.signal }));
    unsubscribe("holdfast:asked", hear);
    await on.clock.advance(1_000);
    expect(waiting.outcome).toBe("rejected");
  });

  it("a claim granted after it was given up is given back", async () => {
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

  it("a removal that fails is owed, and tried again until one ttl is over", async () => {
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
  it("refuses one more waiter with the number of those before it, and takes it when one has left", async () => {
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
    // Whoever asks once is no waiter.
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

describe("a grant that comes too late", () => {
  it("is no lease: asked again while there is time, and nobody hears of a loss", async () => {
    const on = stage({ ttl: "1s", wait: "1m", commandTimeout: "10s" });
    let asks = 0;
    on.store.onClaim = (apply) => {
      const answer = apply();
      if (++asks > 1) return answer;
      return new Promise((resolve) => on.clock.after(2_000, () => resolve(answer)));
    };
    const lost: unknown[] = [];
    const hear = (fields: unknown): void => void lost.push(fields);
    subscribe("holdfast:lost", hear);
    const acquiring = watch(on.locks.acquire("a"));
    await on.clock.advance(2_500);
    unsubscribe("holdfast:lost", hear);
    expect(acquiring.outcome).toBe("resolved");
    expect(asks).toBe(2);
    expect(lost).toEqual([]);
  });

  it("from a store in this process that is always too slow: an error in time, not an endless loop", async () => {
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

describe("several names in one step", () => {
  it("an ask of unknown outcome that granted some is given up when the rest is gone", async () => {
    const on = stage({ ttl: "10s", wait: "1m", holder: "me" });
    let asks = 0;
    on.store.onClaim = (apply, claim) => {
      const answer = apply();
      if (claim.names.length > 1 && ++asks === 1) return Promise.reject(new Error("reset"));
      return answer;
    };
    const acquiring = watch(on.locks.acquireAll(["a", "b"]));
    await on.clock.advance(0);
    // Granted both, and nobody knows. One is taken away before it is asked again.
    on.store.inner.revoke("default:b", { holder: "x", why: "y" });
    const other = { ...on.store.claims[0]!.claim, names: ["default:b"], grantId: "another" };
    on.store.inner.claim(other, () => {});
    await on.clock.advance(1_000);
    expect(acquiring.outcome).toBe("pending");
    // It goes on one by one, with the first name and no second grant of it.
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
    expect(on.store.inspect("default:b")!.waiters).toHaveLength(1);
    await on.store.inner.release([{ name: "default:b", grantId: "another" }]);
    await on.clock.advance(0);
    expect(acquiring.outcome).toBe("resolved");
  });

  it("an ask under way when an earlier one is answered busy is given up", async () => {
    const on = stage({ ttl: "1h", wait: "10s", commandTimeout: "1s", holder: "me" });
    const held = await on.locks.acquire("b");
    const late = new Deferred<void>();
    on.store.onClaim = (apply, claim) => {
      if (claim.names.length === 1) return apply();
      const answer = apply();
      // The first is answered late, the second is granted, and its answer is lost.
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

  it("a late answer takes back only names that are not held", async () => {
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

describe("a grant that is revoked before its waiter has seen it", () => {
  /** The first ask was granted, its answer is late, and the grant is revoked meanwhile. */
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

  it("is asked for again under another id, and late answers about the old one count for nothing", async () => {
    const { on, late, acquiring } = await revokedUnseen();
    // Unanswered, it asks again, and is told; the name is free, so another id has it at once.
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

  it("also when the late answer comes while the name is waited for under the other id", async () => {
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

describe("a claim that reaches the store after its id was given up", () => {
  it.each(["granted", "failed"] as const)("and is %s: is released again", async (how) => {
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
    // Its session is gone, and its ticket with it: it asks under another id.
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

describe("a waiter that hears nothing for one ttl, but may be heard", () => {
  const ttlMs = 10_000;
  const commandTimeoutMs = 4_000;

  /** Two clients of one store; the way from the store to the deaf one can go wrong. */
  function deafened(wait: number) {
    const on = stage({ ttl: ttlMs, wait: "1h", holder: "other" });
    const link = new FaultyStore(on.store, on.clock);
    const options = { ttl: ttlMs, wait, commandTimeout: commandTimeoutMs, holder: "deaf" };
    const deaf = createLocksOn({ ...on.runtime, random: fixedRandom(0.5, "DEAF") }, link, options);
    const has = (): readonly string[] => {
      const info = on.store.inspect("default:a");
      return [...(info?.holders ?? []), ...(info?.waiters ?? [])].map(({ holder }) => holder);
    };
    return { ...on, link, deaf, has };
  }

  it("lets go of a ticket that was made a grant: another has the name within two ttl", async () => {
    const { clock, locks, link, deaf, has } = deafened(600_000);
    const first = await locks.acquire("a");
    const waiting = watch(deaf.acquire("a"));
    await clock.advance(0);
    const other = watch(locks.acquire("a"));
    const heard = link.sent.renew;
    link.all = "lose-reply";
    link.faults.push = "hold";
    while (link.sent.renew === heard) await clock.advance(100);
    await first.release();
    expect(has()).toEqual(["deaf", "other"]);
    await clock.advance(2 * ttlMs);
    expect(other.outcome).toBe("resolved");
    await (other.value as Lease).release();
    // It does not come back to hold what it does not know of.
    await clock.advance(10 * ttlMs);
    expect(has()).toEqual([]);
    expect(waiting.outcome).toBe("pending");
  });

  it.each(["none", 4 * ttlMs] as const)(
    "also where looks are answered, and claims are not: a claim costs others one ttl (late: %s)",
    async (fault) => {
      const { clock, locks, link, deaf } = deafened(600_000);
      link.faults = { ...link.faults, claim: "lose-reply", renew: fault, push: "hold" };
      const waiting = watch(deaf.acquire("a"));
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

  it("also where it is so far behind that it only renews", async () => {
    const { clock, locks, link, deaf } = deafened(600_000);
    const ahead = Array.from({ length: 5 }, () => locks.acquire("a"));
    await clock.advance(0);
    watch(deaf.acquire("a"));
    await clock.advance(0);
    link.all = "lose-reply";
    link.faults.push = "hold";
    await clock.advance(2 * ttlMs);
    expect(link.sent.claim).toBe(1);
    // Looks are answered, and claims are not.
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
    "has its lock soon after the store answers again, and asks no more than before (%s)",
    async (fault) => {
      for (const queued of [true, false]) {
        const { clock, locks, link, deaf } = deafened(600_000);
        const first = queued ? await locks.acquire("a") : null;
        link.faults.push = "hold";
        if (!queued) link.all = fault;
        const waiting = watch(deaf.acquire("a"));
        await clock.advance(100);
        link.all = fault;
        await first?.release();
        await clock.advance(2 * ttlMs);
        const before = link.sent.claim + link.sent.renew;
        await clock.advance(10 * ttlMs);
        // One that hangs is waited for; after one that failed there is a pause of 150 ms.
        const pauseMs = fault === "refuse" || fault === "fail-reply" ? 150 : commandTimeoutMs;
        const asked = link.sent.claim + link.sent.renew - before;
        expect(asked).toBeGreaterThan(0);
        expect(asked).toBeLessThanOrEqual((10 * ttlMs) / pauseMs + 1);
        expect(waiting.outcome).toBe("pending");
        link.all = "none";
        await clock.advance(commandTimeoutMs + 200);
        expect(waiting.outcome).toBe("resolved");
        expect((waiting.value as Lease).state).toBe("held");
      }
    },
  );

  it("is down to whoever waits: a wait that ends in it is no timeout", async () => {
    const { clock, locks, link, deaf, has } = deafened(45_000);
    await locks.acquire("a");
    const waiting = watch(deaf.acquire("a"));
    await clock.advance(100);
    link.all = "lose-reply";
    link.faults.push = "hold";
    await clock.advance(45_000);
    expect(waiting.value).toBeInstanceOf(StoreUnavailableError);
    expect(has()).toEqual(["other"]);
    await clock.advance(600_000);
    expect(link.sent.renew).toBeLessThan(20);
  });

  it("answers that come late make no lease of what ran out, and take none away", async () => {
    const { clock, locks, link, deaf, store } = deafened(600_000);
    link.all = 2.5 * ttlMs;
    const waiting = watch(deaf.acquire("a"));
    const other = watch(locks.acquire("a"));
    await clock.advance(2 * ttlMs + 100);
    expect(other.outcome).toBe("resolved");
    // "Granted", to an ask of long ago.
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
    "a store whose every answer comes %d ttl late gives it nothing, and others the name, again and again",
    async (late) => {
      const { clock, locks, link, deaf } = deafened(3_600_000);
      link.all = late * ttlMs;
      link.faults.push = "hold";
      const waiting = watch(deaf.acquire("a"));
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

  it("a process that was stopped goes on with the answer that waits for it", async () => {
    const { clock, locks, link, deaf } = deafened(600_000);
    const first = await locks.acquire("a");
    const waiting = watch(deaf.acquire("a"));
    await clock.advance(100);
    const heard = link.sent.renew;
    link.faults.renew = 50;
    while (link.sent.renew === heard) await clock.advance(10);
    clock.stall(2 * ttlMs);
    link.all = "none";
    await clock.advance(100);
    await first.release();
    await clock.advance(0);
    expect(waiting.outcome).toBe("resolved");
  });
});
