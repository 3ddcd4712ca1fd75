import { Redis } from "ioredis";
import pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import type { Awaitable } from "../../src/core/awaitable.js";
import type { MeterTake, TakeAnswer } from "../../src/core/records.js";
import type { Store } from "../../src/core/store.js";
import { type RateLimiterOptions, rateLimiter } from "../../src/lockfree/index.js";
import { createLocksOn } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { postgresStore } from "../../src/stores/postgres/index.js";
import { redisStore } from "../../src/stores/redis/index.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { seededRandom } from "../../src/testing/seeded-random.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { Deferred, refusal, rejection, stage, travel, watch } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { GcraModel } from "./gcra-model.js";
import { describeOnStores, urlOf } from "./stores.js";

/** So slow that nothing comes back during a test. */
const SLOW = { limit: 10, per: "1h" } as const;
const UNIT_MS = 360_000;

describeOnStores((start) => {
  test("all clients of a name share its units, and a refused take takes nothing", async () => {
    const open = start();
    const [one, other] = [await open(), await open()].map((it) => rateLimiter(it, "mail", SLOW));
    expect(await one!.take(0)).toEqual({
      allowed: true,
      remaining: 10,
      retryAfterMs: 0,
      fullInMs: 0,
      unavailable: false,
    });
    expect(await one!.take(7)).toMatchObject({ allowed: true, remaining: 3, retryAfterMs: 0 });
    const refused = await other!.take(5);
    expect(refused).toMatchObject({ allowed: false, remaining: 3, unavailable: false });
    expect(refused.retryAfterMs).toBeLessThanOrEqual(2 * UNIT_MS);
    expect(refused.retryAfterMs).toBeGreaterThan(UNIT_MS);
    expect(await other!.take(3)).toMatchObject({ allowed: true, remaining: 0 });
    const empty = await one!.take();
    expect(empty).toMatchObject({ allowed: false, remaining: 0 });
    expect(empty.fullInMs).toBeLessThanOrEqual(10 * UNIT_MS);
    expect(empty.fullInMs).toBeGreaterThan(9 * UNIT_MS);
  });

  test("other names and other namespaces have units of their own", async () => {
    const open = start();
    const [locks, foreign] = [await open(), await open({ namespace: "foreign" })];
    const options = { limit: 1, per: "1h" } as const;
    const limiters = [
      rateLimiter(locks, "a", options),
      rateLimiter(locks, "b", options),
      rateLimiter(foreign, "a", options),
    ];
    for (const limiter of limiters) expect((await limiter.take()).allowed).toBe(true);
    for (const limiter of limiters) expect((await limiter.take()).allowed).toBe(false);
  });

  test("calls at the same time take the burst exactly", async () => {
    const open = start();
    const limiters = [await open(), await open()].map((locks) =>
      rateLimiter(locks, "busy", { ...SLOW, burst: 25 }),
    );
    const takes = Array.from({ length: 60 }, (_, i) => limiters[i % 2]!.take());
    const allowed = (await Promise.all(takes)).filter((result) => result.allowed);
    const remaining = allowed.map((result) => result.remaining).sort((a, b) => a - b);
    expect(remaining).toEqual(Array.from({ length: 25 }, (_, i) => i));
  });

  test("waitFor takes what comes back, and not before its time", async () => {
    const limiter = rateLimiter(await start()(), "slow", { limit: 10, per: "1s", burst: 2 });
    const fromMs = performance.now();
    await limiter.take(2);
    const results = await Promise.all([limiter.waitFor(1), limiter.waitFor(2)]);
    expect(results.map(({ allowed }) => allowed)).toEqual([true, true]);
    // Three units of 100 ms each, by the clock of the store: clocks may differ by a little.
    expect(performance.now() - fromMs).toBeGreaterThan(280);
  });

  test("calls of waitFor at the same time with wait: 0 take what is there", async () => {
    const limiter = rateLimiter(await start()(), "now", { ...SLOW, burst: 5 });
    const calls = Array.from({ length: 8 }, () => limiter.waitFor(1, { wait: 0 }));
    const results = await Promise.allSettled(calls);
    expect(results.map(({ status }) => status)).toEqual([
      ...Array.from({ length: 5 }, () => "fulfilled"),
      ...Array.from({ length: 3 }, () => "rejected"),
    ]);
    for (const result of results.slice(5)) {
      expect(result).toMatchObject({ reason: { code: "RATE_LIMITED" } });
    }
  });
});

/** How many requests `times` takes cost, one after the other, once everything is set up. */
async function requestsFor(times: number, store: Store, count: () => number): Promise<number> {
  const locks = createLocksOn({}, store, { namespace: "counted" });
  onTestFinished(() => locks.close());
  const limiter = rateLimiter(locks, "mail", SLOW);
  await limiter.take();
  const before = count();
  for (let i = 0; i < times; i++) await limiter.take();
  return count() - before;
}

describeWith(["redis"], "Redis", () => {
  test("a take is one command", async () => {
    const client = new Redis(await urlOf("redis"));
    onTestFinished(() => client.disconnect());
    const sent = vi.spyOn(client, "sendCommand");
    expect(await requestsFor(5, redisStore(client), () => sent.mock.calls.length)).toBe(5);
  });
});

describeWith(["postgres"], "PostgreSQL", () => {
  test("a take is one statement", async () => {
    const pool = new pg.Pool({ connectionString: await urlOf("postgres") });
    onTestFinished(() => pool.end());
    const sent = vi.spyOn(pg.Client.prototype, "query");
    onTestFinished(() => sent.mockRestore());
    const store = postgresStore(pool);
    expect(await requestsFor(5, store, () => sent.mock.calls.length)).toBe(5);
  });
});

test("replies are those of the algorithm, to the microsecond", async () => {
  const random = seededRandom(20);
  const pick = (from: number, to: number): number =>
    from + Math.floor(random.unit() * (to - from + 1));
  let refusals = 0;
  for (let round = 0; round < 50; round++) {
    const clock = new VirtualClock();
    const locks = createLocksOn({ clock }, memoryStore({ clock: clock.forStore() }));
    const perMs = pick(1, 5_000);
    const numbers = { limit: pick(1, 50), burst: pick(1, 30) };
    const limiter = rateLimiter(locks, "name", { ...numbers, per: perMs });
    const model = new GcraModel({ ...numbers, perUs: perMs * 1_000 });
    for (let step = 0; step < 40; step++) {
      await clock.advance(random.unit() < 0.3 ? 0 : pick(0, Math.ceil(perMs / 3)));
      const units = pick(0, numbers.burst);
      const { unavailable, ...result } = await limiter.take(units);
      expect(unavailable).toBe(false);
      expect(result, `round ${round}, step ${step}`).toEqual(
        model.take(units, BigInt(Math.round(clock.elapsedMs() * 1_000))),
      );
      if (!result.allowed) refusals++;
    }
    await locks.close();
  }
  expect(refusals).toBeGreaterThan(200);
});

type Reply = (apply: () => TakeAnswer, clock: VirtualClock) => Awaitable<TakeAnswer>;

function staged(options: RateLimiterOptions, wait = 10_000, reply: Reply = (apply) => apply()) {
  const { clock, locks, store } = stage({ wait });
  let takes = 0;
  const take = (request: MeterTake) => {
    takes++;
    return reply(() => store.inner.records!.take(request) as TakeAnswer, clock);
  };
  Object.assign(store, { records: { take } });
  onTestFinished(() => locks.close());
  return { clock, locks, limiter: rateLimiter(locks, "name", options), takes: () => takes };
}

const SECONDS = { limit: 1, per: "1s", burst: 3 } as const;

test("waitFor serves the callers of a process in order, and asks the store once for each wait", async () => {
  const { clock, limiter, takes } = staged(SECONDS);
  await limiter.take(3);
  const large = watch(limiter.waitFor(3));
  const small = watch(limiter.waitFor(1));
  await clock.advance(2_999);
  expect([large.outcome, small.outcome]).toEqual(["pending", "pending"]);
  await clock.advance(1);
  expect([large.outcome, small.outcome]).toEqual(["resolved", "pending"]);
  await clock.advance(999);
  expect(small.outcome).toBe("pending");
  await clock.advance(1);
  expect(small.value).toMatchObject({ allowed: true, remaining: 0 });
  // One refused and one allowed for each of the two, after the first of all.
  expect(takes()).toBe(5);
  expect(clock.timers).toBe(0);
});

test("10,000 calls of waitFor wait at most", async () => {
  const { limiter } = staged(SECONDS);
  await limiter.take(3);
  const waits = Array.from({ length: 10_001 }, () =>
    watch(limiter.waitFor(1, { wait: Number.POSITIVE_INFINITY })),
  );
  expect(await rejection(limiter.waitFor(1))).toMatchObject({ code: "QUEUE_FULL" });
  expect(waits.filter(({ outcome }) => outcome !== "pending")).toEqual([]);
});

test("waitFor rejects at once when the units can't come within the wait", async () => {
  const { clock, limiter } = staged(SECONDS, 1_500);
  await limiter.take(3);
  const late = watch(limiter.waitFor(2));
  await clock.advance(0);
  expect(late.value).toMatchObject({
    code: "RATE_LIMITED",
    limiter: "name",
    retryAfterMs: 2_000,
    retryable: true,
  });
  const never = watch(limiter.waitFor(1, { wait: 0 }));
  await clock.advance(0);
  expect(never.value).toMatchObject({ code: "RATE_LIMITED", retryAfterMs: 1_000 });
  const justInTime = watch(limiter.waitFor(1, { wait: 1_000 }));
  await clock.advance(1_000);
  expect(justInTime.outcome).toBe("resolved");
  expect(clock.timers).toBe(0);
});

test("a caller that waits behind others gives up when its own wait is over", async () => {
  const { clock, limiter } = staged(SECONDS);
  await limiter.take(3);
  const first = watch(limiter.waitFor(3));
  const second = watch(limiter.waitFor(1, { wait: 2_000 }));
  await clock.advance(1_999);
  expect(second.outcome).toBe("pending");
  await clock.advance(1);
  // The units of its own: one came back after a second, though the first waits for three.
  expect(second.value).toMatchObject({ code: "RATE_LIMITED", retryAfterMs: 0 });
  expect((second.value as Error).message).toMatch(/this call for 1 units.*earlier calls/);
  const third = watch(limiter.waitFor(3, { wait: 0 }));
  await clock.advance(0);
  expect(third.value).toMatchObject({ code: "RATE_LIMITED", retryAfterMs: 1_000 });
  expect(first.outcome).toBe("pending");
  await clock.advance(1_000);
  expect(first.outcome).toBe("resolved");
});

test("a wait behind a request without a reply ends as an outage: rejected, or allowed by choice", async () => {
  const clock = new VirtualClock();
  const faulty = new FaultyStore(memoryStore({ clock: clock.forStore() }), clock);
  const locks = createLocksOn({ clock }, faulty, { commandTimeout: "5s" });
  onTestFinished(() => locks.close());
  const take = () => new Promise<never>(() => {});
  Object.assign(faulty, { records: { ...faulty.records!, take } });
  for (const [onUnavailable, expected] of [
    ["throw", { code: "STORE_UNAVAILABLE" }],
    ["allow", { allowed: true, unavailable: true }],
  ] as const) {
    const limiter = rateLimiter(locks, "name", { ...SECONDS, onUnavailable });
    const first = watch(limiter.waitFor(1));
    const behind = watch(limiter.waitFor(1, { wait: 2_000 }));
    await clock.advance(2_000);
    expect(behind.value).toMatchObject(expected);
    expect(first.outcome).toBe("pending");
    await clock.advance(3_000);
    expect(first.value).toMatchObject(expected);
  }
});

test("a call whose wait is over takes its turn if a reply ends the call before it, and gives up if that one waits", async () => {
  const slow: Reply = (apply, clock) =>
    travel(clock, { thereMs: 50, backMs: 50, lost: "no" }, apply);
  const { clock, limiter } = staged(SECONDS, 10_000, slow);
  const calls = [
    [2, 0],
    [1, 0],
    [1, 5_000],
    [1, 0],
  ].map(([units, wait]) => watch(limiter.waitFor(units, { wait: wait! })));
  await clock.advance(300);
  const outcomes = calls.map(({ outcome }) => outcome);
  expect(outcomes).toEqual(["resolved", "resolved", "pending", "rejected"]);
  expect(calls[3]!.value).toMatchObject({ code: "RATE_LIMITED", retryable: true });
  await clock.advance(1_000);
  expect(calls[2]!.outcome).toBe("resolved");
  expect(clock.timers).toBe(0);
});

test.each([
  [300, 250],
  [0, 2_000],
])(
  "of many calls with a wait of %i ms, none outlasts it by more than %i ms",
  async (wait, moreMs) => {
    const slow: Reply = (apply, clock) =>
      travel(clock, { thereMs: 100, backMs: 100, lost: "no" }, apply);
    const { clock, limiter } = staged({ ...SECONDS, burst: 100 }, 10_000, slow);
    const calls = Array.from({ length: 50 }, () => watch(limiter.waitFor(1, { wait })));
    await clock.advance(wait + moreMs);
    const taken = calls.filter(({ outcome }) => outcome === "resolved").length;
    expect(taken).toBeGreaterThanOrEqual(Math.floor((wait + moreMs) / 200));
    // One whose turn came just before has a request under way.
    expect(calls.filter(({ outcome }) => outcome === "pending").length).toBeLessThanOrEqual(1);
    expect(calls.at(-1)!.value).toMatchObject({ code: "RATE_LIMITED", retryable: true });
  },
);

test("a call behind does not take a stopped process for a silent store", async () => {
  const replied = new Deferred<void>();
  const slow: Reply = async (apply) => replied.promise.then(apply);
  const { clock, limiter } = staged(SECONDS, 10_000, slow);
  const first = watch(limiter.waitFor(1));
  const behind = watch(limiter.waitFor(1, { wait: 1_000 }));
  clock.stall(4_000);
  await clock.advance(0);
  replied.resolve();
  await clock.advance(0);
  expect([first.outcome, behind.value]).toMatchObject(["resolved", { allowed: true }]);
});

test.each([
  [0, 2_000],
  [1_000, 1_000],
  [10_000, 5_000],
])(
  "the first in line with a wait of %i ms ends after %i ms without a reply",
  async (wait, endsMs) => {
    const { clock, limiter } = staged(SECONDS, 10_000, () => new Promise<never>(() => {}));
    const call = watch(limiter.waitFor(1, { wait }));
    await clock.advance(endsMs - 1);
    expect(call.outcome).toBe("pending");
    await clock.advance(1);
    expect(call.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
    expect(clock.timers).toBe(0);
  },
);

test("close ends all waits, and leaves no timer", async () => {
  const { clock, limiter, locks } = staged(SECONDS);
  await limiter.take(3);
  const { signal } = new AbortController();
  const waits = [limiter.waitFor(3, { signal }), limiter.waitFor(1)].map(watch);
  await clock.advance(10);
  await locks.close();
  await clock.advance(0);
  expect(waits.map(({ value }) => value)).toMatchObject([{ code: "CLOSED" }, { code: "CLOSED" }]);
  expect(clock.timers).toBe(0);
});

test("waitFor ends with the reason of its signal, first in line or behind, and takes nothing", async () => {
  const { clock, limiter, takes } = staged(SECONDS);
  await limiter.take(3);
  const [first, behind] = [new AbortController(), new AbortController()];
  const waiting = watch(limiter.waitFor(1, { signal: first.signal }));
  const next = watch(limiter.waitFor(1, { signal: behind.signal }));
  const last = watch(limiter.waitFor(1));
  await clock.advance(500);
  behind.abort(new Error("not any more"));
  await clock.advance(0);
  expect([waiting.outcome, next.value, last.outcome]).toEqual([
    "pending",
    new Error("not any more"),
    "pending",
  ]);
  first.abort(new Error("enough"));
  await clock.advance(0);
  expect(waiting.value).toEqual(new Error("enough"));
  await clock.advance(500);
  expect(last.value).toMatchObject({ allowed: true, remaining: 0 });
  const asked = takes();
  const aborted = AbortSignal.abort(new Error("before"));
  expect((await rejection(limiter.waitFor(1, { signal: aborted }))).message).toBe("before");
  expect(takes()).toBe(asked);
  expect(clock.timers).toBe(0);
});

test("an outage rejects, or is allowed and marked, by choice; waitFor likewise", async () => {
  const clock = new VirtualClock();
  const faulty = new FaultyStore(memoryStore({ clock: clock.forStore() }), clock);
  const locks = createLocksOn({ clock }, faulty, { commandTimeout: "1s" });
  const closed = rateLimiter(locks, "name", SECONDS);
  const open = rateLimiter(locks, "name", { ...SECONDS, onUnavailable: "allow" });
  const records = faulty.records!;
  const refuse = () => Promise.reject(new Error("connection refused"));
  const hang = () => new Promise<never>(() => {});
  for (const take of [refuse, hang]) {
    Object.assign(faulty, { records: { ...records, take } });
    const limiters = [
      rateLimiter(locks, "name", SECONDS),
      rateLimiter(locks, "name", { ...SECONDS, onUnavailable: "allow" }),
    ] as const;
    const results = limiters.flatMap((it) => [watch(it.take(2)), watch(it.waitFor(2))]);
    await clock.advance(1_000);
    const [taken, waited, takenOpen, waitedOpen] = results;
    expect(taken!.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
    expect(waited!.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
    const allowed = {
      allowed: true,
      remaining: 3,
      retryAfterMs: 0,
      fullInMs: 0,
      unavailable: true,
    };
    expect([takenOpen!.value, waitedOpen!.value]).toEqual([allowed, allowed]);
  }
  expect((await closed.take(3)).allowed).toBe(true);
  expect(await open.take(1)).toMatchObject({ allowed: false, unavailable: false });
  await locks.close();
  // A limiter that is closed is no outage.
  expect(await rejection(open.take(1))).toMatchObject({ code: "CLOSED" });
});

test.each([
  [undefined, /options/],
  [{}, /limit/],
  [{ limit: 0, per: "1m" }, /limit is 0/],
  [{ limit: 1.5, per: "1m" }, /limit is 1.5/],
  [{ limit: "5", per: "1m" }, /limit is "5"/],
  [{ limit: 5 }, /per is undefined/],
  [{ limit: 5, per: 0 }, /per is 0/],
  [{ limit: 5, per: "1 fortnight" }, /per/],
  [{ limit: 5, per: "1m", burst: 0 }, /burst is 0/],
  [{ limit: 5, per: "1m", burst: Number.POSITIVE_INFINITY }, /burst/],
  [{ limit: 5, per: "1m", onUnavailable: "ignore" }, /onUnavailable/],
  [{ limit: 5, per: "1m", bust: 5 }, /bust/],
  [{ limit: 1_000_000_000, per: "24h" }, /together.*at most/],
])("the options %j are refused", (options, message) => {
  const { locks } = staged(SECONDS);
  const error = refusal(() => rateLimiter(locks, "name", options as RateLimiterOptions));
  expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect(error.message).toMatch(message);
});

test("bad arguments of calls are refused before the store is asked", async () => {
  const { locks, limiter, takes } = staged(SECONDS);
  expect(refusal(() => rateLimiter(locks, "", SECONDS))).toMatchObject({
    code: "INVALID_ARGUMENT",
  });
  const calls = [
    limiter.take(4),
    limiter.take(-1),
    limiter.take(0.5),
    limiter.take(Number.NaN),
    limiter.waitFor(4),
    limiter.waitFor(1, { wait: -1 }),
    limiter.waitFor(1, { wat: 1 } as object),
  ];
  for (const call of calls) {
    expect(await rejection(call)).toMatchObject({ code: "INVALID_ARGUMENT" });
  }
  expect(takes()).toBe(0);
});

test("a store without meters is refused, with the reason", () => {
  const { locks, store } = stage();
  const { cannot } = store.traits;
  store.traits = { ...store.traits, cannot: { ...cannot, records: "it has no room" } };
  const error = refusal(() => rateLimiter(locks, "name", SECONDS));
  expect(error).toMatchObject({ code: "UNSUPPORTED" });
  expect(error.message).toMatch(/rateLimiter needs records.*it has no room/);
});
