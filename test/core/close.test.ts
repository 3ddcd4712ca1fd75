import { describe, expect, it } from "vitest";
import type { Lease } from "../../src/core/lease.js";
import type { Store } from "../../src/core/store.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { seededRandom } from "../../src/testing/seeded-random.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { Deferred, never, type Stage, stage, watch } from "./helpers.js";

interface Pace {
  /** The travel time of a request, a reply or a push. */
  readonly ms: () => number;
  /** Requests and replies are immediate, and only pushes take time. */
  readonly pushesOnly: boolean;
}

/** Two clients of one store: `mine` closes, `other` goes on. */
function clients(seed: number, pace: Pace | null): { mine: Stage; other: Stage; inner: Store } {
  const clock = new VirtualClock();
  const inner = memoryStore({ clock: clock.forStore() });
  const [mine, other] = ["mine", "other"].map((holder, i) => {
    const random = seededRandom(2 * seed + i);
    const on = stage({ holder, ttl: "2s", commandTimeout: "1s" }, { clock, inner, random });
    if (pace !== null) slowDown(on, pace);
    return on;
  }) as [Stage, Stage];
  return { mine, other, inner };
}

/** Requests arrive in their order, as over one connection. */
function slowDown(on: Stage, { ms, pushesOnly }: Pace): void {
  on.store.onPush = (deliver) => void on.clock.after(ms(), deliver);
  if (pushesOnly) return;
  let arrivesAtMs = 0;
  const travel = <T>(apply: () => T): Promise<T> =>
    new Promise((resolve) => {
      const nowMs = on.clock.elapsedMs();
      arrivesAtMs = Math.max(arrivesAtMs, nowMs + ms());
      on.clock.after(arrivesAtMs - nowMs, () => {
        const answer = apply();
        on.clock.after(ms(), () => resolve(answer));
      });
    });
  on.store.onClaim = travel;
  on.store.onRenew = travel;
  on.store.onRelease = travel;
}

const NAMES = ["a", "b", "c"];

async function closeAtAnyMoment(seed: number, pace: Pace | null): Promise<void> {
  const { mine, other, inner } = clients(seed, pace);
  const { clock } = mine;
  const { unit } = seededRandom(seed + 1_000_000);
  const upTo = (most: number): number => Math.floor(unit() * most);
  const abort = new AbortController();
  const leases: Lease[] = [];
  let closed = false;
  let unsettled = 0;

  const use = (on: Stage): void => {
    const name = NAMES[upTo(NAMES.length)]!;
    const mode = unit() < 0.4 ? "shared" : "exclusive";
    const signal = unit() < 0.2 ? abort.signal : undefined;
    const options = { mode, wait: "5s", signal } as const;
    const holdMs = upTo(300);
    const work = async (lease?: Lease): Promise<void> => {
      if (on === mine) {
        expect(closed, `seed ${seed}: fn runs after close`).toBe(false);
        if (lease !== undefined) leases.push(lease);
      }
      await new Promise<void>((resolve) => void clock.after(holdMs, resolve));
    };
    const { locks } = on;
    const { mode: _, ...permits } = options;
    const uses = [
      () => locks.withLock(name, options, work),
      () => locks.withAll(NAMES.slice(upTo(2)), options, () => work()),
      () =>
        locks
          .semaphore("s", { permits: 3 })
          .withPermits({ ...permits, permits: 1 + upTo(3) }, work),
      () =>
        locks.acquire(name, options).then(async (lease) => {
          await work(lease);
          await lease.renew().catch(() => {});
          if (unit() < 0.5) await lease.release();
        }),
    ];
    unsettled++;
    uses[upTo(uses.length)]!()
      .catch(() => {})
      .finally(() => unsettled--);
  };

  for (let i = 4 + upTo(8); i > 0; i--) clock.after(upTo(400), () => use(mine));
  for (let i = upTo(3); i > 0; i--) clock.after(upTo(400), () => use(other));
  if (unit() < 0.3) clock.after(upTo(500), () => abort.abort());
  const grace = unit() < 0.3 ? upTo(200) : 0;
  const closing = new Promise<void>((done) => {
    clock.after(upTo(500), () => done(mine.locks.close({ grace })));
  }).then(() => {
    closed = true;
    const holders = [...NAMES, "s"].flatMap((name) => mine.store.inspect(`default:${name}`) ?? []);
    const left = holders.flatMap((info) => [...info.holders, ...info.waiters]);
    expect(
      left.filter((one) => one.holder === "mine"),
      `seed ${seed}: left behind`,
    ).toEqual([]);
  });
  await Promise.all([closing, clock.advance(2_500)]);
  for (const lease of leases) expect(["lost", "released"]).toContain(lease.state);
  await clock.advance(6_000);
  expect(unsettled, `seed ${seed}: unsettled`).toBe(0);
  await Promise.all([other.locks.close(), clock.advance(2_000)]);
  const next = stage({ ttl: "2s" }, { clock, inner, random: seededRandom(seed + 2_000_000) });
  for (const name of NAMES) expect(await next.locks.tryAcquire(name)).not.toBeNull();
  await next.locks.close();
  expect(clock.timers, `seed ${seed}: timers`).toBe(0);
}

const SEEDS = 120;

describe.each([
  ["answers at once", null],
  ["answers at once and pushes later", true],
  ["takes its time", false],
])("closing at any moment, with locks of every mode, on a store that %s", (_which, pushesOnly) => {
  it("leaves nothing held, and no work begins after it has ended", async () => {
    for (let seed = 0; seed < SEEDS; seed++) {
      const { unit } = seededRandom(seed + 3_000_000);
      const ms = (): number => Math.floor(unit() * 40);
      await closeAtAnyMoment(seed, pushesOnly === null ? null : { ms, pushesOnly });
    }
  });
});

describe("an abort signal that many waiters share", () => {
  it("ends all of them without a grant, though each that leaves the queue lets the next move up", async () => {
    const on = stage({ wait: "1m" });
    const held = await on.locks.acquire("a", { mode: "shared" });
    const abort = new AbortController();
    const { signal } = abort;
    const waits = [
      watch(on.locks.acquire("a", { signal })),
      watch(on.locks.acquire("a", { signal, mode: "shared" })),
      watch(on.locks.acquire("a", { signal, mode: "shared" })),
    ];
    await on.clock.advance(0);
    abort.abort(new Error("enough"));
    await on.clock.advance(0);
    for (const wait of waits) {
      expect(wait).toMatchObject({ outcome: "rejected", value: { message: "enough" } });
    }
    expect(on.store.inspect("default:a")).toMatchObject({ holders: [{}], waiters: [] });
    await held.release();
    await on.locks.close();
  });
});

describe("after close", () => {
  it("release and withLock end although the store hangs", async () => {
    const on = stage({ ttl: "1s", commandTimeout: "2s" });
    const lease = await on.locks.acquire("a");
    const work = new Deferred<string>();
    const done = watch(on.locks.withLock("b", () => work.promise));
    await on.clock.advance(0);
    on.store.onRenew = () => never();
    on.store.onRelease = () => never();
    await on.clock.advance(5_000);
    expect(lease.state).toBe("lost");
    const closing = watch(on.locks.close());
    await on.clock.advance(5_000);
    expect(closing.outcome).toBe("resolved");
    const released = watch(lease.release());
    work.resolve("value");
    await on.clock.advance(0);
    expect(released).toMatchObject({ outcome: "resolved", value: "lost" });
    expect(done).toMatchObject({ outcome: "rejected", value: { code: "LEASE_LOST" } });
    expect(on.clock.timers).toBe(0);
  });
});

describe("the grace of a close", () => {
  it("is shortened by a later close with a shorter grace, and by nothing else", async () => {
    const on = stage();
    await on.locks.acquire("a");
    const first = on.locks.close({ grace: "1m" });
    const closing = watch(first);
    expect(on.locks.close()).toBe(first);
    on.locks.close({ grace: "2m" });
    await on.clock.advance(10_000);
    expect(closing.outcome).toBe("pending");
    on.locks.close({ grace: "5s" });
    await on.clock.advance(4_999);
    expect(closing.outcome).toBe("pending");
    await on.clock.advance(1);
    expect(closing.outcome).toBe("resolved");
    expect(on.store.inspect("default:a")).toBeNull();
    expect(on.clock.timers).toBe(0);
  });

  it("leaves no timer when the machine slept past its end and the work ended first", async () => {
    const on = stage();
    const lease = await on.locks.acquire("a");
    const closing = on.locks.close({ grace: "1s" });
    await on.clock.advance(0);
    on.clock.stall(1_500);
    await lease.release();
    await closing;
    expect(on.clock.timers).toBe(0);
  });

  it("ends at once when a later close has a grace of 0", async () => {
    const on = stage();
    const lease = await on.locks.acquire("a");
    const closing = watch(on.locks.close({ grace: "1m" }));
    await on.clock.advance(0);
    expect(lease.signal.aborted).toBe(true);
    on.locks.close({ grace: 0 });
    await on.clock.advance(0);
    expect(closing.outcome).toBe("resolved");
    expect(on.clock.timers).toBe(0);
  });
});
