import { describe, expect, it } from "vitest";
import { LeaseLostError, StoreUnavailableError } from "../../src/core/errors.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { Deferred, never, rejection, stage, watch } from "./helpers.js";

/** 10 s less drift (100 + 2 ms) less abortBefore (1 s). */
const GOOD_FOR = 8_898;
const down = (): never => {
  throw new Error("down");
};

/** Renewals are carried out at once; each function that is added delivers the reply to one of them. */
function holdReplies({ store }: ReturnType<typeof stage>): (() => void)[] {
  const deliver: (() => void)[] = [];
  store.onRenew = (apply) => {
    const answer = apply();
    return new Promise((resolve) => deliver.push(() => resolve(answer)));
  };
  return deliver;
}

describe("the deadline of a lease", () => {
  it("counts from when the claim was sent, less drift and abortBefore", async () => {
    const on = stage({ ttl: "10s" });
    on.store.onClaim = (apply) => {
      const answer = apply();
      return new Promise((resolve) => on.clock.after(700, () => resolve(answer)));
    };
    const acquiring = on.locks.acquire("a");
    await on.clock.advance(700);
    const lease = await acquiring;
    expect(lease.remainingMs).toBe(GOOD_FOR - 700);
  });

  it("counts from when the renewal that got a reply was sent", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = (apply) => {
      const answer = apply();
      return new Promise((resolve) => on.clock.after(900, () => resolve(answer)));
    };
    await on.clock.advance(4_300);
    expect(on.store.renewals).toHaveLength(1);
    const sent = on.store.renewals[0]!.atMs;
    expect(lease.remainingMs).toBeCloseTo(sent + GOOD_FOR - on.clock.elapsedMs(), 6);
  });

  it.each([
    ["hangs", () => never<readonly RenewAnswer[]>()],
    ["rejects", () => Promise.reject(new Error("down"))],
    ["throws", down],
  ])("comes on time, to the millisecond, though the store %s", async (_how, answer) => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    let lostAt = Number.NaN;
    let jeopardyAt = Number.NaN;
    const from = on.clock.elapsedMs();
    lease.signal.addEventListener("abort", () => {
      lostAt = on.clock.elapsedMs() - from;
    });
    lease.on("jeopardy", () => {
      jeopardyAt = on.clock.elapsedMs() - from;
    });
    on.store.onRenew = answer;
    await on.clock.advance(30_000);
    expect(lostAt).toBe(GOOD_FOR);
    expect(jeopardyAt).toBeLessThan(10_000 * (1 / 3 + 1 / 6) + 1);
    expect(lease.signal.reason).toBeInstanceOf(LeaseLostError);
    expect(lease.signal.reason).toMatchObject({ reason: "expired", token: lease.token });
    expect(on.clock.timers).toBe(0);
  });

  it("is checked by assertHeld even when no timer could run", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.clock.stall(GOOD_FOR - 1);
    lease.assertHeld();
    on.clock.stall(1);
    expect(() => lease.assertHeld()).toThrow(LeaseLostError);
    expect([lease.state, lease.remainingMs, lease.signal.aborted]).toEqual(["lost", 0, true]);
  });

  it("a renewal is retried while the lease is good, and a reply makes the lease held again", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const received: string[] = [];
    lease
      .on("jeopardy", () => received.push("jeopardy"))
      .on("recovered", () => received.push("recovered"));
    on.store.onRenew = down;
    await on.clock.advance(8_000);
    expect([lease.state, received]).toEqual(["jeopardy", ["jeopardy"]]);
    expect(on.store.renewals.length).toBeGreaterThan(3);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(300);
    expect([lease.state, received]).toEqual(["held", ["jeopardy", "recovered"]]);
    expect(lease.remainingMs).toBeGreaterThan(GOOD_FOR - 300);
  });

  it("a late reply counts from its own request; a reply older than the latest proof counts for nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const answers = holdReplies(on);
    await on.clock.advance(7_500);
    const sent = on.store.renewals.map((one) => one.atMs);
    expect(sent.length).toBeGreaterThanOrEqual(3);
    answers[1]!();
    await on.clock.advance(0);
    expect(lease.remainingMs).toBeCloseTo(sent[1]! + GOOD_FOR - on.clock.elapsedMs(), 6);
    answers[0]!();
    await on.clock.advance(0);
    expect(lease.remainingMs).toBeCloseTo(sent[1]! + GOOD_FOR - on.clock.elapsedMs(), 6);
    answers[2]!();
    await on.clock.advance(0);
    expect(lease.remainingMs).toBeCloseTo(sent[2]! + GOOD_FOR - on.clock.elapsedMs(), 6);
  });

  it("a doubt about the clock is lifted by a renewal sent after it, not by one already in flight", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const answers = holdReplies(on);
    await on.clock.advance(3_400);
    on.clock.jumpWall(3_600_000);
    expect(() => lease.assertHeld()).toThrow("frozen");
    await on.clock.advance(0);
    answers[0]!();
    await on.clock.advance(0);
    expect(() => lease.assertHeld()).toThrow("frozen");
    for (let i = 1; i < answers.length; i++) answers[i]!();
    await on.clock.advance(5_000);
    for (let i = 1; i < answers.length; i++) answers[i]!();
    await on.clock.advance(0);
    lease.assertHeld();
    expect(lease.state).toBe("held");
  });

  it("a doubt about the clock is not lifted by a renewal whose reply arrives in the same moment", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    let answer = (): void => {};
    on.store.onRenew = (apply) => {
      const answers = apply();
      return new Promise((resolve) => {
        answer = () => resolve(answers);
      });
    };
    await on.clock.advance(3_400);
    on.store.onRenew = () => never();
    on.clock.jumpWall(3_600_000);
    answer();
    expect(() => lease.assertHeld()).toThrow("frozen");
    await on.clock.advance(0);
    expect(() => lease.assertHeld()).toThrow("frozen");
  });

  it("an old renewal that fails after a newer one succeeded changes nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const old = new Deferred<readonly RenewAnswer[]>();
    on.store.onRenew = () => old.promise;
    await on.clock.advance(3_400);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(2_000);
    expect([lease.state, on.store.renewals.length]).toEqual(["held", 2]);
    const received: unknown[] = [];
    lease.on("jeopardy", (cause) => received.push(cause));
    old.reject(new Error("reset, at last"));
    await on.clock.advance(500);
    expect([lease.state, received]).toEqual(["held", []]);
  });

  it("maxHold ends the lease if it comes first, with that reason; the lease is not released", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { maxHold: "25s" });
    await on.clock.advance(24_999);
    expect(lease.state).toBe("held");
    await on.clock.advance(1);
    expect(lease.signal.reason).toMatchObject({ reason: "max-hold" });
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
    const sent = on.store.renewals.length;
    await on.clock.advance(10_000);
    expect(on.store.renewals).toHaveLength(sent);
    expect(on.store.inspect("default:a")).toBeNull();
  });

  it("a lease that expired long before its maxHold is lost as expired", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { maxHold: "25s" });
    on.clock.stall(60_000);
    expect(lease.signal.reason).toMatchObject({ reason: "expired" });
  });
});

describe("lease.renew(ttl)", () => {
  it("without a ttl proves the lease again", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await on.clock.advance(1_000);
    await lease.renew();
    expect(lease.remainingMs).toBe(GOOD_FOR);
    expect(on.store.renewals).toHaveLength(1);
  });

  it("with a longer ttl makes the lease good for that from now, and later renewals use it", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await lease.renew("1m");
    expect(lease.remainingMs).toBe(60_000 - 602 - 6_000);
    await on.clock.advance(17_400);
    expect(on.store.renewals).toHaveLength(1);
    await on.clock.advance(2_600);
    expect(on.store.renewals).toHaveLength(2);
    expect(on.store.renewals[1]!.items[0]!.ttlMs).toBe(60_000);
  });

  it.each([
    ["1m", 5_000],
    ["1m", 8_000],
    ["1h", 0],
    ["1h", 3_000],
  ] as const)(
    "with a longer ttl (%s, after %d ms) never ends the lease that it is to extend",
    async (ttl, after) => {
      const on = stage({ ttl: "10s" });
      const lease = await on.locks.acquire("a", { renew: false });
      await on.clock.advance(after);
      const before = lease.remainingMs;
      const renewing = watch(lease.renew(ttl));
      expect(lease.state).toBe("held");
      expect(lease.remainingMs).toBe(before);
      await on.clock.advance(0);
      expect(renewing.outcome).toBe("resolved");
      expect(lease.remainingMs).toBeGreaterThan(50_000);
    },
  );

  it("with a longer ttl and an unknown outcome leaves the old deadline", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { renew: false });
    on.store.onRenew = () => never();
    const renewing = watch(lease.renew("30s"));
    await on.clock.advance(GOOD_FOR - 1);
    expect(lease.state).toBe("held");
    expect(renewing.value).toBeInstanceOf(StoreUnavailableError);
    await on.clock.advance(1);
    expect(lease.state).toBe("lost");
  });

  it("with a longer ttl is repeated before the old deadline if its reply is lost", async () => {
    const on = stage({ ttl: "1s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => never();
    const renewing = watch(lease.renew("1m"));
    await on.clock.advance(100);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(1_000);
    expect(renewing.outcome).toBe("resolved");
    expect(lease.remainingMs).toBeGreaterThan(50_000);
  });

  it("with a shorter ttl brings the deadline nearer at once, and there it stays if the outcome is unknown", async () => {
    const on = stage({ ttl: "10s", commandTimeout: 500 });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => never();
    const renewing = watch(lease.renew("1s"));
    expect(lease.remainingMs).toBe(1_000 - 12 - 100);
    await on.clock.advance(500);
    expect(renewing.value).toBeInstanceOf(StoreUnavailableError);
    expect(lease.remainingMs).toBe(1_000 - 12 - 100 - 500);
    await on.clock.advance(388);
    expect(lease.state).toBe("lost");
  });

  it("with a shorter ttl and an unknown outcome: a release is retried for as long as the store may keep the old ttl", async () => {
    const on = stage({ ttl: "10m", commandTimeout: 500 });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => never();
    on.store.onRelease = () => Promise.reject(new Error("down"));
    const renewing = watch(lease.renew("1s"));
    expect(await lease.release()).toBe("unknown");
    await on.clock.advance(5_000);
    expect(renewing.value).toBeInstanceOf(LeaseLostError);
    expect(on.store.inspect("default:a")!.holders).toHaveLength(1);
    on.store.onRelease = (apply) => apply();
    await on.clock.advance(1_000);
    expect(on.store.inspect("default:a")).toBeNull();
  });

  it("with a shorter ttl, once proved: a release is retried for the shorter ttl", async () => {
    const on = stage({ ttl: "10m" });
    const lease = await on.locks.acquire("a");
    await lease.renew("1s");
    on.store.onRelease = () => Promise.reject(new Error("down"));
    expect(await lease.release()).toBe("unknown");
    await on.clock.advance(2_000);
    const tries = on.store.releases.length;
    await on.clock.advance(60_000);
    expect(on.store.releases).toHaveLength(tries);
  });

  it("with a shorter ttl is not undone by a late reply to an older, longer renewal", async () => {
    const on = stage({ ttl: "30s" });
    const lease = await on.locks.acquire("a");
    const answers = holdReplies(on);
    await on.clock.advance(10_100);
    expect(answers).toHaveLength(1);
    lease.renew("5s").catch(() => {});
    await on.clock.advance(0);
    expect(answers).toHaveLength(2);
    // The store now ends the lease in 5 s; only the reply to the older renewal, of 30 s, arrives.
    answers[0]!();
    await on.clock.advance(0);
    expect(on.store.inspect("default:a")!.holders[0]!.expiresInMs).toBe(5_000);
    expect(lease.remainingMs).toBeLessThan(5_000);
  });

  it("with a longer ttl takes into account an older, shorter renewal that reaches the store late", async () => {
    const on = stage({ ttl: "30s" });
    const lease = await on.locks.acquire("a");
    const held: (() => void)[] = [];
    on.store.onRenew = (apply) => new Promise((resolve) => held.push(() => resolve(apply())));
    lease.renew("5s").catch(() => {});
    await on.clock.advance(100);
    on.store.onRenew = (apply) => apply();
    await lease.renew("30s");
    held[0]!();
    on.store.onRenew = () => never();
    await on.clock.advance(0);
    const inStore = on.store.inspect("default:a")!.holders[0]!.expiresInMs;
    expect(lease.remainingMs).toBeLessThan(inStore);
  });

  it("rejects with the loss if the lease is lost, as all pending calls do", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.resolve([{ kind: "lost", reason: "superseded" }]);
    const errors = await Promise.all([rejection(lease.renew()), rejection(lease.renew("20s"))]);
    for (const error of errors) {
      expect(error).toBeInstanceOf(LeaseLostError);
      expect(error).toMatchObject({ reason: "superseded" });
    }
    expect(await rejection(lease.renew())).toMatchObject({ reason: "superseded" });
    expect(on.clock.timers).toBe(0);
  });

  it("with an unknown outcome rejects as unavailable; the lease is in jeopardy, is renewed again, and recovers", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.reject(new Error("reset by peer"));
    const error = await rejection(lease.renew());
    expect(error).toBeInstanceOf(StoreUnavailableError);
    expect(error.message).toContain("reset by peer");
    expect(error).toMatchObject({ retryable: true });
    expect(lease.state).toBe("jeopardy");
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(300);
    expect(lease.state).toBe("held");
  });

  it("after release or loss rejects and sends nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await lease.release();
    expect(await rejection(lease.renew())).toBeInstanceOf(LeaseLostError);
    const other = await on.locks.acquire("a");
    on.clock.stall(60_000);
    expect(await rejection(other.renew("1h"))).toBeInstanceOf(LeaseLostError);
    expect(on.store.renewals).toEqual([]);
  });

  it("rejects when the lease is released meanwhile, and leaves no timer", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => never();
    const renewing = watch(lease.renew());
    await on.clock.advance(10);
    await lease.release();
    await on.clock.advance(0);
    expect(renewing.value).toBeInstanceOf(LeaseLostError);
    expect(on.clock.timers).toBe(0);
  });

  it("resolves with a reply that a stopped process reads after the timeout", async () => {
    const on = stage({ ttl: "1m", commandTimeout: "1s" });
    const lease = await on.locks.acquire("a");
    const deliver = holdReplies(on);
    const renewing = watch(lease.renew());
    await on.clock.advance(0);
    on.clock.stall(5_000);
    await on.clock.advance(0);
    deliver[0]!();
    await on.clock.advance(0);
    expect(renewing.outcome).toBe("resolved");
    const silent = watch(lease.renew());
    await on.clock.advance(1_000);
    expect(silent.value).toBeInstanceOf(StoreUnavailableError);
  });

  it("refuses a bad ttl and changes nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    for (const bad of [0, -1, "1d", Number.NaN, Number.POSITIVE_INFINITY, null, "19ms"]) {
      expect((await rejection(lease.renew(bad as number))).code).toBe("INVALID_ARGUMENT");
    }
    expect(lease.remainingMs).toBe(GOOD_FOR);
    expect(on.store.renewals).toEqual([]);
  });
});

describe("a store that says that a grant is gone", () => {
  it.each([true, false])("has a renewal sent to it at once (renew: %s)", async (renew) => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { renew });
    on.store.onRenew = () => [{ kind: "lost", reason: "expired" }];
    on.store.claims[0]!.push({ kind: "lost" });
    await on.clock.advance(0);
    expect(lease.state).toBe("lost");
    expect(on.store.renewals.map(({ atMs }) => atMs)).toEqual([on.clock.elapsedMs()]);
  });

  it("is not believed without that: the push may be about a former grant", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.claims[0]!.push({ kind: "lost" });
    await on.clock.advance(0);
    expect(lease.state).toBe("held");
  });

  it("disturbs neither a waiter nor a lease that is over", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    on.store.claims[1]!.push({ kind: "lost" });
    await on.clock.advance(0);
    expect(on.store.renewals).toEqual([]);
    await lease.release();
    on.store.claims[0]!.push({ kind: "lost" });
    await on.clock.advance(0);
    expect(on.store.renewals).toEqual([]);
    expect(waiting.outcome).toBe("resolved");
  });
});
