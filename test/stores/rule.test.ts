import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { type Awaitable, type Claim, LOCK_LIMIT, type Store } from "../../src/core/store.js";
import { MemoryStore } from "../../src/stores/memory.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { sqliteStore } from "../../src/stores/sqlite/index.js";

const YEAR_MS = 365 * 24 * 3_600_000;
const WALL_MS = Date.UTC(2030, 0, 1);

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A clock whose two hands are set by hand. */
class Hands {
  elapsedMs = 1_000_000;
  wallMs = WALL_MS;

  readonly clock = { nowMs: () => this.elapsedMs, wallMs: () => this.wallMs };

  pass(ms: number): void {
    this.elapsedMs += ms;
    this.wallMs += ms;
  }
}

async function sqliteOn({ clock }: Hands): Promise<Store> {
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

/** One has run it and given it back; the name stays closed for 10 s. */
async function closed(store: Store) {
  expect((await store.claim(claim("first", 10_000), () => {})).kind).toBe("granted");
  expect(await store.release([{ name: "job", grantId: "first" }])).toEqual(["released"]);
  return {
    ask: async () => (await store.claim(claim("next"), () => {})).kind,
    opensInMs: async () => (await store.inspect("job"))?.holders[0]?.expiresInMs,
  };
}

describe.each<[string, (hands: Hands) => Store | Promise<Store>]>([
  ["memory", ({ clock }) => new MemoryStore(clock)],
  ["SQLite", sqliteOn],
])("atLeast on %s", (_, open) => {
  it.each([1_000, YEAR_MS])(
    "closes no longer than asked, though the wall clock was %i ms ahead at the grant",
    async (aheadMs) => {
      const hands = new Hands();
      hands.wallMs += aheadMs;
      const { ask, opensInMs } = await closed(await open(hands));
      hands.wallMs -= aheadMs;
      hands.pass(9_999);
      expect(await opensInMs()).toBe(1);
      expect(await ask()).toBe("busy");
      hands.pass(1);
      expect(await opensInMs()).toBeUndefined();
      expect(await ask()).toBe("granted");
    },
  );

  it("is not shortened by a wall clock that goes back for a moment", async () => {
    const hands = new Hands();
    const { ask } = await closed(await open(hands));
    hands.wallMs -= YEAR_MS;
    expect(await ask()).toBe("busy");
    hands.wallMs += YEAR_MS;
    hands.pass(9_999);
    expect(await ask()).toBe("busy");
  });
});

describe("atLeast after a restart of the machine", () => {
  it("goes on by the wall clock", async () => {
    const hands = new Hands();
    const { ask, opensInMs } = await closed(await sqliteOn(hands));
    hands.elapsedMs = 500;
    hands.wallMs += 4_000;
    expect(await opensInMs()).toBe(6_000);
    expect(await ask()).toBe("busy");
    hands.pass(6_000);
    expect(await ask()).toBe("granted");
  });

  it("counts at most once more, where the wall clock was set back too", async () => {
    const hands = new Hands();
    hands.wallMs += YEAR_MS;
    const { ask, opensInMs } = await closed(await sqliteOn(hands));
    hands.wallMs -= YEAR_MS;
    hands.elapsedMs = 500;
    expect(await opensInMs()).toBe(10_000);
    expect(await ask()).toBe("busy");
    hands.pass(9_999);
    expect(await ask()).toBe("busy");
    hands.pass(1);
    expect(await ask()).toBe("granted");
  });
});

describe.each<[string, (hands: Hands) => Store | Promise<Store>]>([
  ["memory", ({ clock }) => new MemoryStore(clock)],
  ["SQLite", sqliteOn],
])("a handover on %s to a lease that ends before waiters renew their tickets", (_, open) => {
  /** `holder` has the name for 60 s, and these wait for it with these ttls. */
  async function startQueue(ttls: Record<string, number>) {
    const hands = new Hands();
    const store = await open(hands);
    const told: string[] = [];
    await store.claim({ ...claim("holder"), ttlMs: 60_000 }, () => {});
    for (const [grantId, ttlMs] of Object.entries(ttls)) {
      await store.claim({ ...claim(grantId), ttlMs, queue: true }, ({ kind }) =>
        told.push(`${grantId}: ${kind}`),
      );
    }
    const release = (grantId: string): Awaitable<unknown> =>
      store.release([{ name: "job", grantId, unused: true }]);
    const renew = (grantId: string, ttlMs: number): Awaitable<unknown> =>
      store.renew([{ name: "job", grantId, seq: 2, ttlMs }]);
    return { hands, told, release, renew };
  }

  it("makes those of the first three look that renew later", async () => {
    const ttls = { a: 10_000, b: 30_001, c: 30_000, d: 60_000, e: 60_000 };
    const { told, release } = await startQueue(ttls);
    await release("holder");
    expect(told).toEqual(["a: granted", "b: look", "d: look"]);
  });

  it("counts what is left of the lease: a ticket that is handed over keeps its expiry", async () => {
    const { hands, told, release } = await startQueue({ a: 10_000, b: 10_000 });
    hands.pass(6_000);
    await release("holder");
    expect(told).toEqual(["a: granted"]);
    const late = await startQueue({ a: 10_000, b: 10_000 });
    late.hands.pass(7_000);
    await late.renew("b", 10_000);
    await late.release("holder");
    expect(late.told).toEqual(["a: granted", "b: look"]);
  });

  it("makes nobody look whom the answer tells", async () => {
    const { hands, told, renew } = await startQueue({ a: 10_000, b: 60_000, c: 60_000 });
    await renew("holder", 5_000);
    hands.pass(5_000);
    await renew("b", 60_000);
    expect(told).toEqual(["a: granted", "c: look"]);
  });

  it("makes nobody look with equal ttls", async () => {
    const { told, release } = await startQueue({ a: 60_000, b: 60_000, c: 60_000 });
    await release("holder");
    expect(told).toEqual(["a: granted"]);
  });
});
