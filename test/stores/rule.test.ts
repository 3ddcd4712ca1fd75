import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { type Awaitable, type Claim, LOCK_LIMIT, type Store } from "../../src/core/store.js";
import { MemoryStore } from "../../src/stores/memory/index.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { sqliteStore } from "../../src/stores/sqlite/index.js";

const YEAR_MS = 365 * 24 * 3_600_000;
const WALL_MS = Date.UTC(2030, 0, 1);

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A clock whose elapsed and wall time are set by the test. */
class ManualClock {
  elapsedMs = 1_000_000;
  wallMs = WALL_MS;

  readonly clock = { nowMs: () => this.elapsedMs, wallMs: () => this.wallMs };

  pass(ms: number): void {
    this.elapsedMs += ms;
    this.wallMs += ms;
  }
}

async function sqliteOn({ clock }: ManualClock): Promise<Store> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-rule-test-"));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  const db = await openSqlite(join(folder, "locks.db"));
  const store = sqliteStore(db, { clock });
  cleanups.push(() => store.close());
  return store;
}

const claim = (grantId: string, atLeastMs = 0): Claim => ({
  names: ["job"],
  grantId,
  seq: 1,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: 1_000,
  atLeastMs,
  holder: grantId,
  queue: false,
});

/** The name was held and released; atLeast keeps it closed for 10 s. */
async function closed(store: Store) {
  expect((await store.claim(claim("first", 10_000), () => {})).kind).toBe("granted");
  expect(await store.release([{ name: "job", grantId: "first" }])).toEqual(["released"]);
  return {
    tryClaim: async () => (await store.claim(claim("next"), () => {})).kind,
    opensInMs: async () => (await store.inspect("job"))?.holders[0]?.expiresInMs,
  };
}

describe.each<[string, (time: ManualClock) => Store | Promise<Store>]>([
  ["memory", ({ clock }) => new MemoryStore(clock)],
  ["SQLite", sqliteOn],
])("atLeast on %s", (_, open) => {
  it.each([1_000, YEAR_MS])(
    "keeps a name closed for no longer than requested, though the wall clock was %i ms ahead at the grant",
    async (aheadMs) => {
      const time = new ManualClock();
      time.wallMs += aheadMs;
      const { tryClaim, opensInMs } = await closed(await open(time));
      time.wallMs -= aheadMs;
      time.pass(9_999);
      expect(await opensInMs()).toBe(1);
      expect(await tryClaim()).toBe("busy");
      time.pass(1);
      expect(await opensInMs()).toBeUndefined();
      expect(await tryClaim()).toBe("granted");
    },
  );

  it("is not shortened by a wall clock that goes back for a moment", async () => {
    const time = new ManualClock();
    const { tryClaim } = await closed(await open(time));
    time.wallMs -= YEAR_MS;
    expect(await tryClaim()).toBe("busy");
    time.wallMs += YEAR_MS;
    time.pass(9_999);
    expect(await tryClaim()).toBe("busy");
  });
});

describe("atLeast after a restart of the machine", () => {
  it("goes on counting by the wall clock", async () => {
    const time = new ManualClock();
    const { tryClaim, opensInMs } = await closed(await sqliteOn(time));
    time.elapsedMs = 500;
    time.wallMs += 4_000;
    expect(await opensInMs()).toBe(6_000);
    expect(await tryClaim()).toBe("busy");
    time.pass(6_000);
    expect(await tryClaim()).toBe("granted");
  });

  it("may count a second time, at most, where the wall clock was set back too", async () => {
    const time = new ManualClock();
    time.wallMs += YEAR_MS;
    const { tryClaim, opensInMs } = await closed(await sqliteOn(time));
    time.wallMs -= YEAR_MS;
    time.elapsedMs = 500;
    expect(await opensInMs()).toBe(10_000);
    expect(await tryClaim()).toBe("busy");
    time.pass(9_999);
    expect(await tryClaim()).toBe("busy");
    time.pass(1);
    expect(await tryClaim()).toBe("granted");
  });
});

describe.each<[string, (time: ManualClock) => Store | Promise<Store>]>([
  ["memory", ({ clock }) => new MemoryStore(clock)],
  ["SQLite", sqliteOn],
])(
  "on %s, the first three waiters are notified to check when a holder expires before they renew",
  (_, open) => {
    /** `holder` has the name for 60 s, and these wait for it, each with its ttl. */
    async function startQueue(ttls: Record<string, number>, atLeastMs = 0) {
      const time = new ManualClock();
      const store = await open(time);
      const pushed: string[] = [];
      await store.claim({ ...claim("holder", atLeastMs), ttlMs: 60_000 }, () => {});
      for (const [grantId, ttlMs] of Object.entries(ttls)) {
        await store.claim({ ...claim(grantId), ttlMs, queue: true }, ({ kind }) =>
          pushed.push(`${grantId}: ${kind}`),
        );
      }
      const release = (grantId: string, unused = true): Awaitable<unknown> =>
        store.release([{ name: "job", grantId, unused }]);
      const renew = (grantId: string, ttlMs: number, seq = 2): Awaitable<unknown> =>
        store.renew([{ name: "job", grantId, seq, ttlMs }]);
      return { time, store, pushed, release, renew };
    }

    describe("because it was granted by a handover", () => {
      it("except those that renew sooner", async () => {
        const ttls = { a: 10_000, b: 30_001, c: 30_000, d: 60_000, e: 60_000 };
        const { pushed, release } = await startQueue(ttls);
        await release("holder");
        expect(pushed).toEqual(["a: granted", "b: look", "d: look"]);
      });

      it("by what is left of its lease: a ticket that is handed over keeps its expiry", async () => {
        const { time, pushed, release } = await startQueue({ a: 10_000, b: 10_000 });
        time.pass(6_000);
        await release("holder");
        expect(pushed).toEqual(["a: granted"]);
        const late = await startQueue({ a: 10_000, b: 10_000 });
        late.time.pass(7_000);
        await late.renew("b", 10_000);
        await late.release("holder");
        expect(late.pushed).toEqual(["a: granted", "b: look"]);
      });

      it("except one that learns it from the reply to its own request", async () => {
        const { time, pushed, renew } = await startQueue({ a: 10_000, b: 60_000, c: 60_000 });
        await renew("holder", 5_000);
        pushed.length = 0;
        time.pass(5_000);
        await renew("b", 60_000);
        expect(pushed).toEqual(["a: granted", "c: look"]);
      });

      it("and nobody is notified with equal ttls", async () => {
        const { pushed, release } = await startQueue({ a: 60_000, b: 60_000, c: 60_000 });
        await release("holder");
        expect(pushed).toEqual(["a: granted"]);
      });
    });

    describe("because it renewed to a shorter ttl", () => {
      it("except those that renew sooner", async () => {
        const ttls = { a: 30_001, b: 30_000, c: 60_000, d: 60_000 };
        const { pushed, renew } = await startQueue(ttls);
        await renew("holder", 10_000);
        expect(pushed).toEqual(["a: look", "c: look"]);
      });

      it("also when it claims again with a shorter ttl", async () => {
        const { pushed, store } = await startQueue({ a: 60_000 });
        await store.claim({ ...claim("holder"), seq: 2, ttlMs: 1_000 }, () => {});
        expect(pushed).toEqual(["a: look"]);
      });

      it("not counting tickets that have expired", async () => {
        const ttls = { dead1: 5_000, dead2: 5_000, dead3: 5_000, a: 60_000, b: 60_000, c: 60_000 };
        const { time, pushed, renew } = await startQueue({ ...ttls, d: 60_000 });
        time.pass(5_000);
        await renew("holder", 10_000);
        expect(pushed).toEqual(["a: look", "b: look", "c: look"]);
      });

      it("and nobody if the renewal was overtaken by a later one", async () => {
        const { pushed, renew } = await startQueue({ a: 60_000 });
        await renew("holder", 60_000, 3);
        await renew("holder", 1_000, 2);
        expect(pushed).toEqual([]);
      });

      it("and nobody at renewals to the same ttl or a longer one", async () => {
        const { time, pushed, renew } = await startQueue({ a: 600_000 });
        time.pass(20_000);
        await renew("holder", 60_000);
        await renew("holder", 90_000, 3);
        expect(pushed).toEqual([]);
      });

      it("and nobody if atLeast keeps the name closed for longer", async () => {
        const { pushed, renew } = await startQueue({ a: 600_000 }, 90_000);
        await renew("holder", 10_000);
        expect(pushed).toEqual([]);
      });
    });

    describe("because it was released, and atLeast keeps the name closed", () => {
      it("except those that renew sooner", async () => {
        const ttls = { a: 30_001, b: 30_000, c: 60_000, d: 60_000 };
        const { pushed, release } = await startQueue(ttls, 10_000);
        await release("holder", false);
        expect(pushed).toEqual(["a: look", "c: look"]);
      });

      it("and nobody if the lease would have expired sooner", async () => {
        const { time, pushed, release } = await startQueue({ a: 600_000 }, 90_000);
        time.pass(1_000);
        await release("holder", false);
        expect(pushed).toEqual([]);
      });
    });

    it("only if no other holder expires sooner still", async () => {
      const time = new ManualClock();
      const store = await open(time);
      const pushed: string[] = [];
      const shared = { permits: 1, limit: 2 };
      await store.claim({ ...claim("long"), ...shared, ttlMs: 60_000 }, () => {});
      await store.claim({ ...claim("short"), ...shared, ttlMs: 10_000 }, () => {});
      await store.claim(
        { ...claim("a"), ...shared, permits: 2, ttlMs: 600_000, queue: true },
        ({ kind }) => pushed.push(`a: ${kind}`),
      );
      const renew = (grantId: string, ttlMs: number): Awaitable<unknown> =>
        store.renew([{ name: "job", grantId, seq: 2, ttlMs }]);
      await renew("long", 11_000);
      expect(pushed).toEqual([]);
      await renew("long", 9_000);
      expect(pushed).toEqual(["a: look"]);
      await store.release([{ name: "job", grantId: "long" }]);
      expect(pushed).toEqual(["a: look"]);
    });
  },
);
