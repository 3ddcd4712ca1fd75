import { describe, expect, it } from "vitest";
import { standardSeams } from "../../src/core/runtime.js";
import type { Duration } from "../../src/core/validate.js";
import { createLocksOn, type Locks } from "../../src/locks.js";
import type { OnceResult } from "../../src/primitives/once.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { FaultyStore, seededRandom, VirtualClock } from "../../src/testing.js";
import { Deferred, rejection, stage, watch } from "../core/helpers.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** Machines on one store, each with a link of its own. */
function machines(count: number) {
  const clock = new VirtualClock();
  const store = memoryStore({ clock: clock.forStore() });
  const all = Array.from({ length: count }, (_, i) => {
    const link = new FaultyStore(store, clock);
    const runtime = { clock, random: seededRandom(i + 1), seams: standardSeams };
    const options = { ttl: "30s", holder: `m${i + 1}`, commandTimeout: "1s" } as const;
    return { link, locks: createLocksOn(runtime, link, options) };
  });
  return { clock, store, all, locks: all.map((one) => one.locks) };
}

describe("once", () => {
  it("runs once per period, whichever machine calls, and tells the others who ran and when to call again", async () => {
    const { clock, locks } = machines(3);
    const ran: number[] = [];
    const run = (i: number, every: Duration = "1h"): Promise<OnceResult<number>> =>
      locks[i]!.once("report", { every, slack: 0 }, () => ran.push(i));
    const results = await Promise.all([run(0), run(1), run(2)]);
    expect(results).toEqual([
      { ran: true, value: 1 },
      { ran: false, holder: "m1", nextInMs: HOUR_MS },
      { ran: false, holder: "m1", nextInMs: HOUR_MS },
    ]);
    await clock.advance(HOUR_MS - 1);
    expect(await run(0)).toEqual({ ran: false, holder: "m1", nextInMs: 1 });
    await clock.advance(1);
    expect((await run(2)).ran).toBe(true);
    expect((await run(0)).ran).toBe(false);
    expect(ran).toEqual([0, 2]);
  });

  it("runs when it is called again after the time that it gave", async () => {
    const { clock, locks } = machines(2);
    await locks[0]!.once("report", { every: "1h" }, () => {});
    const busy = await locks[1]!.once("report", { every: "1h" }, () => {});
    expect(busy).toMatchObject({ ran: false });
    await clock.advance((busy as { nextInMs: number }).nextInMs);
    expect((await locks[1]!.once("report", { every: "1h" }, () => {})).ran).toBe(true);
  });

  it("runs every day at the same hour, though machines wake a little earlier or later", async () => {
    const { clock, locks } = machines(3);
    const runs: number[] = [];
    // Offsets from the hour, day by day: on each next day all wake earlier than the run of the day before.
    const wakes = [20_000, 30_000, 55_000, 0, 15_000, 5_000, -1_000, -5_000, -3_000];
    const startedAtMs = clock.elapsedMs() + 60_000;
    const calls = wakes
      .map((offMs, i) => ({ day: Math.floor(i / 3), machine: i % 3, offMs }))
      .map((one) => ({ ...one, atMs: startedAtMs + one.day * DAY_MS + one.offMs }))
      .sort((a, b) => a.atMs - b.atMs);
    for (const { atMs, machine, day } of calls) {
      await clock.advance(atMs - clock.elapsedMs());
      await locks[machine]!.once("backup", { every: "24h" }, () => runs.push(day));
    }
    expect(runs).toEqual([0, 1, 2]);
  });

  it("allows a slack of a tenth of the period, at most a minute, or what the option says", async () => {
    for (const [every, slack, openAtMs] of [
      ["24h", undefined, DAY_MS - 60_000],
      ["10m", undefined, 9 * 60_000],
      ["100s", undefined, 90_000],
      ["24h", "2h", 22 * HOUR_MS],
      ["24h", 0, DAY_MS],
    ] as const) {
      const { clock, locks } = machines(1);
      const run = () => locks[0]!.once("a", { every, slack }, () => {});
      expect((await run()).ran).toBe(true);
      await clock.advance(openAtMs - 1);
      expect((await run()).ran, `${every} ${slack}`).toBe(false);
      await clock.advance(1);
      expect((await run()).ran, `${every} ${slack}`).toBe(true);
    }
  });

  it("never overlaps with itself when fn takes longer than the period", async () => {
    const { clock, locks } = machines(2);
    const done = new Deferred<string>();
    const slow = watch(locks[0]!.once("a", { every: "1m" }, () => done.promise));
    for (let minute = 0; minute < 10; minute++) {
      await clock.advance(60_000);
      const other = await locks[1]!.once("a", { every: "1m" }, () => "too early");
      expect(other).toMatchObject({ ran: false, holder: "m1" });
      // While the lease is renewed, its end is the best estimate.
      expect((other as { nextInMs: number }).nextInMs).toBeLessThanOrEqual(30_000);
    }
    done.resolve("slow");
    await clock.advance(0);
    expect(slow.value).toEqual({ ran: true, value: "slow" });
    // The period counts from the start of the run, and is long over.
    expect(await locks[1]!.once("a", { every: "1m" }, () => 2)).toEqual({ ran: true, value: 2 });
  });

  it("rejects with the error of fn, and the period is used up", async () => {
    const { clock, locks } = machines(2);
    const mine = new Error("mine");
    const failing = locks[0]!.once("a", { every: "1h" }, () => {
      throw mine;
    });
    expect(await rejection(failing)).toBe(mine);
    const next = await locks[1]!.once("a", { every: "1h" }, () => {});
    expect(next).toMatchObject({ ran: false, holder: "m1" });
    await clock.advance(HOUR_MS);
    expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(true);
  });

  it("uses up the period also when the machine dies", async () => {
    const { clock, locks, all } = machines(2);
    locks[0]!.once("a", { every: "1h" }, () => new Promise(() => {}));
    await clock.advance(0);
    all[0]!.link.all = "hang";
    await clock.advance(HOUR_MS / 2);
    expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(false);
    await clock.advance(HOUR_MS / 2);
    expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(true);
  });

  it.each(["lose-reply", "fail-reply", 2_000] as const)(
    "does not close the name for a period when the reply to its claim is lost (%s)",
    async (fault) => {
      const { clock, locks, all, store } = machines(2);
      all[0]!.link.faults.claim = fault;
      let ran = false;
      const running = watch(
        locks[0]!.once("a", { every: "1h" }, () => {
          ran = true;
        }),
      );
      await clock.advance(5_000);
      expect(running).toMatchObject({ outcome: "rejected", value: { code: "STORE_UNAVAILABLE" } });
      expect(ran).toBe(false);
      expect(store.inspect("default:a")).toBeNull();
      expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(true);
    },
  );

  it('rejects with the loss and the value when the lease was lost, unless onLost is "return"', async () => {
    const { clock, locks } = machines(2);
    const slow = (): string => {
      clock.stall(60_000);
      return "done";
    };
    const lost = await rejection(locks[0]!.once("a", { every: "1h" }, slow));
    expect(lost).toMatchObject({ code: "LEASE_LOST", value: "done" });
    expect((await locks[1]!.once("a", { every: "1h" }, slow)).ran).toBe(false);
    const returned = await locks[0]!.once("b", { every: "1h", onLost: "return" }, slow);
    expect(returned).toEqual({ ran: true, value: "done" });
  });

  it("gives fn a lease like any other", async () => {
    const { locks } = machines(1);
    const options = { every: "1h", ttl: "10s", note: "nightly", maxHold: "5m" } as const;
    await locks[0]!.once("a", options, (lease) => {
      lease.assertHeld();
      expect(lease).toMatchObject({ name: "a", holder: "m1 (nightly)", mode: "exclusive" });
      expect(lease.remainingMs).toBeLessThan(10_000);
    });
  });

  it("runs again after the name was released by force", async () => {
    const { locks } = machines(2);
    await locks[0]!.once("a", { every: "1h" }, () => {});
    await locks[1]!.forceRelease("a", { why: "run it again" });
    expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(true);
  });

  it("ends the work when the locks are closed, and the period stays used", async () => {
    const { clock, locks } = machines(2);
    const run = watch(
      locks[0]!.once(
        "a",
        { every: "1h" },
        (lease) =>
          new Promise((_, reject) => {
            lease.signal.addEventListener("abort", () => reject(lease.signal.reason));
          }),
      ),
    );
    await clock.advance(0);
    await locks[0]!.close();
    await clock.advance(0);
    expect(run).toMatchObject({ outcome: "rejected", value: { reason: "closed" } });
    expect((await locks[1]!.once("a", { every: "1h" }, () => {})).ran).toBe(false);
    const closed = await rejection(locks[0]!.once("a", { every: "1h" }, () => {}));
    expect(closed.code).toBe("CLOSED");
  });

  it("does not run, and uses up nothing, when its signal aborts before it has begun", async () => {
    const { locks, store } = machines(1);
    const reason = new Error("enough");
    const options = { every: "1h", signal: AbortSignal.abort(reason) } as const;
    const running = locks[0]!.once("a", options, () => {
      throw new Error("ran");
    });
    expect(await rejection(running)).toBe(reason);
    expect(store.inspect("default:a")).toBeNull();
  });

  it("refuses bad arguments before anything is sent to the store", async () => {
    const on = stage();
    const fn = (): void => {};
    const bad: [string, unknown, unknown][] = [
      ["", { every: "1h" }, fn],
      ["a", undefined, fn],
      ["a", null, fn],
      ["a", {}, fn],
      ["a", { every: 0 }, fn],
      ["a", { every: -1 }, fn],
      ["a", { every: "daily" }, fn],
      ["a", { every: Number.POSITIVE_INFINITY }, fn],
      ["a", { every: "1h", slack: "2h" }, fn],
      ["a", { every: "1h", slack: -1 }, fn],
      ["a", { every: "1h", atLeast: "1h" }, fn],
      ["a", { every: "1h", wait: 1 }, fn],
      ["a", { every: "1h", mode: "shared" }, fn],
      ["a", { every: "1h", reentrant: true }, fn],
      ["a", { every: "1h", onLost: "ignore" }, fn],
      ["a", { every: "1h", each: 1 }, fn],
      ["a", { every: "1h" }, undefined],
      ["a", { every: "1h" }, "fn"],
    ];
    for (const [name, options, what] of bad) {
      const running = (on.locks as Locks).once(name, options as never, what as never);
      expect((await rejection(running)).code, JSON.stringify(options)).toBe("INVALID_ARGUMENT");
    }
    expect(on.store.claims).toEqual([]);
  });

  it("is refused on a store that can't keep a name closed", async () => {
    const on = stage({}, { traits: { cannot: { "at-least": "nothing outlives its session" } } });
    const error = await rejection(on.locks.once("a", { every: "1h" }, () => {}));
    expect(error.code).toBe("UNSUPPORTED");
    expect(error.message).toContain("nothing outlives its session");
  });
});
