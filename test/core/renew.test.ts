import { describe, expect, it } from "vitest";
import { LeaseLostError, StoreUnavailableError } from "../../src/core/errors.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { Deferred, never, rejection, stage, watch } from "./helpers.js";

/** 10 s less drift (100 + 2 ms) less abortBefore (1 s). */
const GOOD_FOR = 8_898;
const down = (): never => {
  throw new Error("down");
};

describe("the deadline", () => {
  it("counts from the send of the claim, less drift and abortBefore", async () => {
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

  it("counts from the send of the renewal that was answered", async () => {
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
  ])("comes to the millisecond though the store %s", async (_how, answer) => {
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

  it("is kept by assertHeld when no timer could run", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.clock.stall(GOOD_FOR - 1);
    lease.assertHeld();
    on.clock.stall(1);
    expect(() => lease.assertHeld()).toThrow(LeaseLostError);
    expect([lease.state, lease.remainingMs, lease.signal.aborted]).toEqual(["lost", 0, true]);
  });

  it("a renewal is tried again while the lease is good, and an answer recovers it", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const heard: string[] = [];
    lease
      .on("jeopardy", () => heard.push("jeopardy"))
      .on("recovered", () => heard.push("recovered"));
    on.store.onRenew = down;
    await on.clock.advance(8_000);
    expect([lease.state, heard]).toEqual(["jeopardy", ["jeopardy"]]);
    expect(on.store.renewals.length).toBeGreaterThan(3);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(300);
    expect([lease.state, heard]).toEqual(["held", ["jeopardy", "recovered"]]);
    expect(lease.remainingMs).toBeGreaterThan(GOOD_FOR - 300);
  });

  it("a late answer counts from its own send; one older than the present proof not at all", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const answers: (() => void)[] = [];
    on.store.onRenew = (apply) => {
      const answer = apply();
      return new Promise((resolve) => answers.push(() => resolve(answer)));
    };
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

  it("a suspicion is lifted by a renewal sent after it, not by one already under way", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const answers: (() => void)[] = [];
    on.store.onRenew = (apply) => {
      const answer = apply();
      return new Promise((resolve) => answers.push(() => resolve(answer)));
    };
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

  it("nor by one whose answer is just being delivered when the suspicion is seen", async () => {
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

  it("an old attempt that fails after a newer one was answered is no news", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const old = new Deferred<readonly RenewAnswer[]>();
    on.store.onRenew = () => old.promise;
    await on.clock.advance(3_400);
    on.store.onRenew = (apply) => apply();
    await on.clock.advance(2_000);
    expect([lease.state, on.store.renewals.length]).toEqual(["held", 2]);
    const heard: unknown[] = [];
    lease.on("jeopardy", (cause) => heard.push(cause));
    old.reject(new Error("reset, at last"));
    await on.clock.advance(500);
    expect([lease.state, heard]).toEqual(["held", []]);
  });

  it("maxHold comes first if it is earlier, and says so; the lease is not released", async () => {
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

  it("a lease that expired long before its maxHold was lost by expiry", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { maxHold: "25s" });
    on.clock.stall(60_000);
    expect(lease.signal.reason).toMatchObject({ reason: "expired" });
  });
});

describe("lease.renew(ttl)", () => {
  it("without a ttl proves the lease anew", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await on.clock.advance(1_000);
    await lease.renew();
    expect(lease.remainingMs).toBe(GOOD_FOR);
    expect(on.store.renewals).toHaveLength(1);
  });

  it("longer: good for that from now, and the ttl of later renewals", async () => {
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
    "longer, to %s after %d ms: never ends the lease that it is to extend",
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

  it("longer, of unknown outcome: leaves the old deadline", async () => {
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

  it("shorter: the deadline comes nearer at once, and stays there if the outcome is unknown", async () => {
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

  it("shorter, of unknown outcome: the release is retried for as long as the store may keep the old ttl", async () => {
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

  it("shorter, and proved: the release is retried for the shorter ttl", async () => {
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

  it("shorter: an older, longer renewal that is answered late does not undo it", async () => {
    const on = stage({ ttl: "30s" });
    const lease = await on.locks.acquire("a");
    const answers: (() => void)[] = [];
    on.store.onRenew = (apply) => {
      const answer = apply();
      return new Promise((resolve) => answers.push(() => resolve(answer)));
    };
    await on.clock.advance(10_100);
    expect(answers).toHaveLength(1);
    lease.renew("5s").catch(() => {});
    await on.clock.advance(0);
    expect(answers).toHaveLength(2);
    // The store now ends it in 5 s; only the answer to the older renewal, of 30 s, comes through.
    answers[0]!();
    await on.clock.advance(0);
    expect(on.store.inspect("default:a")!.holders[0]!.expiresInMs).toBe(5_000);
    expect(lease.remainingMs).toBeLessThan(5_000);
  });

  it("longer: an older, shorter renewal that the store hears late is not overlooked", async () => {
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

  it("lost: rejects with the loss, and so do those who asked with it", async () => {
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

  it("unknown: rejects as unavailable; the lease is in jeopardy, tried again, and recovers", async () => {
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

  it("after release and after loss: rejects and sends nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await lease.release();
    expect(await rejection(lease.renew())).toBeInstanceOf(LeaseLostError);
    const other = await on.locks.acquire("a");
    on.clock.stall(60_000);
    expect(await rejection(other.renew("1h"))).toBeInstanceOf(LeaseLostError);
    expect(on.store.renewals).toEqual([]);
  });

  it("released meanwhile: rejects, and leaves no timer", async () => {
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

  it("bad ttls are refused and change nothing", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    for (const bad of [0, -1, "1d", Number.NaN, Number.POSITIVE_INFINITY, null, "19ms"]) {
      expect((await rejection(lease.renew(bad as number))).code).toBe("INVALID_ARGUMENT");
    }
    expect(lease.remainingMs).toBe(GOOD_FOR);
    expect(on.store.renewals).toEqual([]);
  });
});
