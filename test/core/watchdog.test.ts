import { describe, expect, it } from "vitest";
import type { Lease } from "../../src/core/lease.js";
import type { Awaitable, RenewAnswer } from "../../src/core/store.js";
import { Deferred, fixedRandom, never, type Stage, stage, watch } from "./helpers.js";

async function hold(on: Stage, count: number, options = {}): Promise<Lease[]> {
  return Promise.all(
    Array.from({ length: count }, (_, i) => on.locks.acquire(`name-${i}`, options)),
  );
}

describe("renewals go in batches", () => {
  it("10,000 leases of 10 s cost at most 20 requests a second, of at most 256 leases each", async () => {
    const on = stage({ ttl: "10s" });
    // Granted over the course of a second.
    const leases: Lease[] = [];
    for (let i = 0; i < 10_000; i++) {
      leases.push(await on.locks.acquire(`name-${i}`));
      if (i % 100 === 99) await on.clock.advance(10);
    }
    await on.clock.advance(10_000);
    on.store.renewals.length = 0;
    const from = on.clock.elapsedMs();
    await on.clock.advance(20_000);
    expect(on.store.renewals.length / 20).toBeLessThanOrEqual(20);
    expect(Math.max(...on.store.renewals.map((one) => one.items.length))).toBeLessThanOrEqual(256);
    // Each was renewed about once in a third of its ttl, and not much more often.
    const each = on.store.renewedBetween(from, from + 20_000) / 10_000;
    expect(each).toBeGreaterThanOrEqual(5);
    expect(each).toBeLessThanOrEqual(7);
    expect(leases.every((lease) => lease.state === "held")).toBe(true);
    await on.locks.close();
    expect(on.clock.timers).toBe(0);
  });

  it("leases that fall due together are one request, up to 256 of them", async () => {
    for (const [count, commands] of [
      [1, 1],
      [256, 1],
      [257, 2],
    ] as const) {
      const on = stage({ ttl: "10s" });
      await hold(on, count);
      await on.clock.advance(3_400);
      expect(on.store.renewals).toHaveLength(commands);
      expect(on.store.renewals.reduce((sum, one) => sum + one.items.length, 0)).toBe(count);
    }
  });

  it("no lease is left out or sent twice when more than 500 are due at once", async () => {
    const on = stage({ ttl: "10s" });
    await hold(on, 1_300);
    await on.clock.advance(3_400);
    const sent = on.store.renewals.flatMap((one) => one.items.map((item) => item.name));
    expect(sent).toHaveLength(1_300);
    expect(new Set(sent).size).toBe(1_300);
  });

  it("leases of different ttls share a batch only when they are due together, and each keeps its ttl", async () => {
    const on = stage({ ttl: "10s" });
    await on.locks.acquire("short", { ttl: "3s" });
    await on.locks.acquire("long", { ttl: "30s" });
    await on.clock.advance(10_000);
    const items = on.store.renewals.flatMap((one) => one.items);
    expect(
      items.filter((one) => one.name === "default:short").every((one) => one.ttlMs === 3_000),
    ).toBe(true);
    expect(items.filter((one) => one.name === "default:long").map((one) => one.ttlMs)).toEqual([
      30_000,
    ]);
  });

  it("a lease is renewed when between 7/24 and 8/24 of its ttl have passed", async () => {
    for (const unit of [0, 0.25, 0.5, 0.999]) {
      const on = stage({ ttl: "24s" }, { random: fixedRandom(unit) });
      const from = on.clock.elapsedMs();
      await on.locks.acquire("a");
      await on.clock.advance(8_000);
      expect(on.store.renewals).toHaveLength(1);
      const after = on.store.renewals[0]!.atMs - from;
      expect(after).toBeGreaterThan(7_000 - 1e-6);
      expect(after).toBeLessThanOrEqual(8_000);
    }
  });

  it("two processes that started together do not renew at the same moment", async () => {
    const times = [0.1, 0.6].map(async (unit) => {
      const on = stage({ ttl: "24s" }, { random: fixedRandom(unit) });
      await on.locks.acquire("a");
      await on.clock.advance(60_000);
      return on.store.renewals.map((one) => one.atMs);
    });
    const [one, other] = await Promise.all(times);
    expect(one!.length).toBeGreaterThan(5);
    for (const atMs of one!) {
      for (const otherAtMs of other!) expect(Math.abs(atMs - otherAtMs)).toBeGreaterThan(100);
    }
  });
});

describe("renewals never run in a hot loop", () => {
  const answers: Record<string, (apply: () => readonly RenewAnswer[]) => unknown> = {
    answers: (apply) => apply(),
    "answers later": (apply) => Promise.resolve().then(apply),
    rejects: () => Promise.reject(new Error("down")),
    throws: () => {
      throw new Error("down");
    },
    "says unknown": (apply) => apply().map(() => ({ kind: "unknown", cause: "stuck" })),
    "leaves answers out": () => [],
    hangs: () => never(),
  };
  const most: Record<string, number> = { answers: 4, "answers later": 4, hangs: 7 };

  for (const ttl of [20, 50, 100, 1_000]) {
    it.each(Object.keys(answers))(`with a ttl of ${ttl} ms, on a store that %s`, async (how) => {
      const on = stage({ ttl, retry: { pause: 1, jitter: 0 } });
      const retrying = stage({ ttl });
      for (const { store, locks, clock } of [retrying, on]) {
        await locks.acquire("a");
        store.onRenew = (apply) => answers[how]!(apply) as readonly RenewAnswer[];
        await clock.advance(ttl);
        expect(store.renewals.length).toBeGreaterThanOrEqual(2);
        const limit = most[how] ?? (store === on.store ? ttl : 12);
        expect(store.renewals.length).toBeLessThanOrEqual(limit);
      }
    });
  }

  it("calling assertHeld again and again while the clock is in doubt sends one renewal at a time", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => never();
    on.clock.jumpWall(60_000);
    for (let i = 0; i < 100; i++) {
      expect(() => lease.assertHeld()).toThrow("frozen");
      if (i % 10 === 0) await on.clock.advance(0);
    }
    const sent = on.store.renewals.reduce((sum, one) => sum + one.items.length, 0);
    expect(sent).toBe(1);
  });
});

describe("renewal and release are single flight", () => {
  it("a released lease is not renewed, even when it was in line for the next batch", async () => {
    const on = stage({ ttl: "10s" });
    const leases = await hold(on, 300);
    let goes: Lease | undefined;
    on.store.onRenew = (apply, items) => {
      const now = new Set(items.map((item) => item.name));
      goes ??= leases.find((lease) => !now.has(`default:${lease.name}`));
      goes!.release();
      return apply();
    };
    await on.clock.advance(60_000);
    const sent = on.store.renewals.flatMap((one) => one.items.map((item) => item.name));
    expect(new Set(sent).size).toBe(299);
    expect(sent).not.toContain(`default:${goes!.name}`);
    expect(leases.filter((lease) => lease.state === "held")).toHaveLength(299);
  });

  it("a reply to a renewal after the release changes nothing, and starts no timer", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const late = new Deferred<readonly RenewAnswer[]>();
    on.store.onRenew = (apply) => {
      late.resolve(apply());
      return new Promise((resolve) => on.clock.after(500, () => resolve(late.promise)));
    };
    await on.clock.advance(3_400);
    expect(on.store.renewals).toHaveLength(1);
    expect(await lease.release()).toBe("released");
    const received: string[] = [];
    lease.on("lost", () => received.push("lost")).on("recovered", () => received.push("recovered"));
    await on.clock.advance(60_000);
    expect(lease.state).toBe("released");
    expect(lease.remainingMs).toBe(0);
    expect(on.store.inspect("default:a")).toBeNull();
    expect([received, on.store.renewals.length, on.clock.timers]).toEqual([[], 1, 0]);
  });

  it("a renewal that reaches the store after the release does not bring the lease back", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = (apply) =>
      new Promise((resolve) => on.clock.after(500, () => resolve(apply())));
    await on.clock.advance(3_400);
    await lease.release();
    const next = await on.locks.acquire("a");
    await on.clock.advance(600);
    expect(on.store.inspect("default:a")!.holders.map((one) => one.token)).toEqual([next.token]);
    expect([lease.state, next.state]).toEqual(["released", "held"]);
  });

  it("the loss is reported once, however many replies say so", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    const waiting: (() => void)[] = [];
    on.store.onRenew = () =>
      new Promise((resolve) => {
        waiting.push(() => resolve([{ kind: "lost", reason: "revoked" }]));
      });
    let losses = 0;
    lease.on("lost", (error) => {
      losses++;
      expect(error.reason).toBe("revoked");
    });
    await on.clock.advance(8_000);
    expect(waiting.length).toBeGreaterThan(1);
    for (const answer of waiting) answer();
    await on.clock.advance(60_000);
    expect(losses).toBe(1);
    expect(lease.signal.aborted).toBe(true);
    expect(on.clock.timers).toBe(0);
  });
});

describe("renew: false", () => {
  it("sends no renewal, and the lease ends at its deadline", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a", { renew: false });
    await on.clock.advance(8_897);
    expect(lease.state).toBe("held");
    await on.clock.advance(1);
    expect(lease.state).toBe("lost");
    expect(lease.signal.reason.reason).toBe("expired");
    expect(on.store.renewals).toEqual([]);
    expect(on.clock.timers).toBe(0);
  });
});

describe("a failure does not spread", () => {
  it("one lease of a batch that can't be renewed is in jeopardy alone", async () => {
    const on = stage({ ttl: "10s" });
    const leases = await hold(on, 3);
    on.store.onRenew = (apply, items) =>
      apply().map((answer, i) =>
        items[i]!.name === "default:name-1" ? { kind: "unknown", cause: new Error("row") } : answer,
      );
    await on.clock.advance(3_400);
    expect(leases.map((lease) => lease.state)).toEqual(["held", "jeopardy", "held"]);
    await on.clock.advance(20_000);
    expect(leases.map((lease) => lease.state)).toEqual(["held", "lost", "held"]);
  });

  it.each([
    ["nothing", undefined],
    ["a symbol", Symbol("x")],
    ["an object without a prototype", Object.create(null)],
    ["an error without a message", Object.assign(new Error("x"), { message: undefined })],
    ["an error whose message is no text", Object.assign(new Error("x"), { message: { a: 1 } })],
  ])("a store that rejects with %s counts as failed, like any other", async (_what, odd) => {
    const on = stage({ ttl: "10s", wait: "1s", logger: { debug() {}, info() {}, warn() {} } });
    const lease = await on.locks.acquire("a");
    for (const fail of [
      () => Promise.reject(odd),
      () => {
        throw odd;
      },
    ]) {
      on.store.onRenew = fail;
      await on.clock.advance(3_400);
      expect(lease.state).toBe("jeopardy");
      on.store.onRenew = (apply) => apply();
      await on.clock.advance(300);
      expect(lease.state).toBe("held");
      on.store.onClaim = fail;
      const acquiring = watch(on.locks.acquire("b"));
      await on.clock.advance(1_500);
      expect(acquiring.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
      on.store.onClaim = (apply) => apply();
    }
    on.store.onRelease = () => Promise.reject(odd);
    expect(await lease.release()).toBe("unknown");
  });

  it("a logger that throws stops no renewal and loses no lease", async () => {
    const uncaught: unknown[] = [];
    const before = process.rawListeners("uncaughtException");
    process.removeAllListeners("uncaughtException");
    const collect = (error: unknown): void => void uncaught.push(error);
    process.on("uncaughtException", collect).on("unhandledRejection", collect);
    try {
      // Throws as a logger that writes JSON does: a token is a bigint.
      const json = (message: string, fields: object): void => {
        if (!message.endsWith("asked")) JSON.stringify(fields);
      };
      const on = stage({ ttl: "10s", logger: { debug: json, info: json, warn: json } });
      const lease = await Promise.race([
        on.locks.acquire("a", { wait: 0 }),
        on.clock.advance(1_000).then(() => null),
      ]);
      expect(lease?.state).toBe("held");
      await on.clock.advance(60_000).catch(() => {});
      expect(lease?.state).toBe("held");
      expect(on.store.renewals.length).toBeGreaterThan(15);
      expect(await lease?.release()).toBe("released");
    } finally {
      process.off("uncaughtException", collect).off("unhandledRejection", collect);
      for (const one of before) process.on("uncaughtException", one as () => void);
    }
  });
});

describe.each([
  ["at once", <T>(answers: T): Awaitable<T> => answers],
  ["later", <T>(answers: T): Awaitable<T> => Promise.resolve(answers)],
])("a reply with too few or too many answers, given %s", (_when, reply) => {
  it("a renewal without an answer has an unknown outcome, and the others are renewed", async () => {
    const on = stage({ ttl: "10s" });
    const leases = await hold(on, 3);
    on.store.onRenew = (apply) => reply(apply().slice(0, -1));
    await on.clock.advance(3_400);
    // The order within a batch is not promised.
    expect(leases.map((lease) => lease.state).sort()).toEqual(["held", "held", "jeopardy"]);
    on.store.onRenew = (apply) => reply(apply());
    await on.clock.advance(1_100);
    expect(leases.map((lease) => lease.state)).toEqual(["held", "held", "held"]);
  });

  it.each([
    ["no answer", []],
    ["no list", undefined as never],
  ])(
    "a lease that is only ever renewed with %s is lost at its deadline",
    async (_what, answers) => {
      const on = stage({ ttl: "10s" });
      const [lease] = await hold(on, 1);
      on.store.onRenew = () => reply(answers);
      await on.clock.advance(10_000);
      expect(lease!.state).toBe("lost");
      expect(lease!.signal.reason.cause.message).toMatch(/fewer answers/);
    },
  );

  it("surplus answers are ignored", async () => {
    const on = stage({ ttl: "10s" });
    const leases = await hold(on, 3);
    on.store.onRenew = (apply) => reply([...apply(), { kind: "lost", reason: "expired" }]);
    on.store.onRelease = (apply) => reply([...apply(), { kind: "lost", reason: "expired" }]);
    await on.clock.advance(20_000);
    expect(leases.map((lease) => lease.state)).toEqual(["held", "held", "held"]);
    expect(await leases[0]!.release()).toBe("released");
  });

  it.each([
    ["no answer", []],
    ["no list", undefined as never],
  ])(
    "a release with %s has an unknown outcome, and is retried until there is an answer",
    async (_what, answers) => {
      const on = stage({ ttl: "10s" });
      const [lease] = await hold(on, 1);
      on.store.onRelease = () => reply(answers);
      expect(await lease!.release()).toBe("unknown");
      await on.clock.advance(1_000);
      expect(on.store.inspect("default:name-0")?.holders).toHaveLength(1);
      expect(on.store.releases.length).toBeGreaterThan(2);
      on.store.onRelease = (apply) => reply(apply());
      await on.clock.advance(1_000);
      expect(on.store.inspect("default:name-0")).toBeNull();
      const sent = on.store.releases.length;
      await on.clock.advance(10_000);
      expect(on.store.releases).toHaveLength(sent);
      on.store.onRelease = () => reply(answers);
      await hold(on, 1);
      await on.locks.close();
      expect(on.clock.timers).toBe(0);
    },
  );
});
