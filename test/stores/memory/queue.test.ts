import { expect, test } from "vitest";
import type { StoreClock } from "../../../src/core/clock.js";
import { type Claim, LOCK_LIMIT } from "../../../src/core/store.js";
import { MemoryStore } from "../../../src/stores/memory/index.js";
import { Rule } from "../../../src/stores/rule.js";
import type { ClaimRecord, Claims } from "../../../src/stores/shared/claim-record.js";
import { seededRandom } from "../../../src/testing/seeded-random.js";

const claimOf = (grantId: string, seq = 1): Claim => ({
  names: ["name"],
  grantId,
  seq,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: 1_000,
  atLeastMs: 0,
  holder: grantId,
  queue: true,
});

const ignore = (): void => {};

test("claims, renewals and releases cost the same however long the queue is", () => {
  let reads = 0;
  class CountingRule extends Rule {
    constructor(claims: Claims, clock: StoreClock) {
      const inOrder = claims.inOrder.bind(claims) as (name: string) => readonly ClaimRecord[];
      claims.inOrder = (name) =>
        new Proxy(inOrder(name), {
          get: (records, key) => {
            if (typeof key === "string" && /^\d+$/.test(key)) reads++;
            return Reflect.get(records, key);
          },
        });
      super(claims, clock);
    }
  }
  const store = new MemoryStore({ nowMs: () => 0, wallMs: () => 0 }, CountingRule);
  const waiters = 3_000;
  for (let i = 0; i <= waiters; i++) store.claim(claimOf(`id ${i}`), ignore);
  const renewals = Array.from({ length: waiters }, (_, i) => ({
    name: "name",
    grantId: `id ${i + 1}`,
    seq: 2,
    ttlMs: 1_000,
  }));
  store.renew(renewals);
  store.release(renewals);
  // Three requests for each waiter, of a few binary searches each.
  expect(reads / waiters).toBeLessThan(3 * 100);
});

test("each reply gives the ticket's place, whatever was granted, released or expired before it", () => {
  const random = seededRandom(12);
  const pick = (many: number): number => Math.floor(random.unit() * many);
  let nowMs = 0;
  const store = new MemoryStore({ nowMs: () => nowMs, wallMs: () => nowMs });
  const ids = Array.from({ length: 40 }, (_, i) => `id ${i}`);
  let tickets = 0;
  for (let seq = 1; seq <= 4_000; seq++) {
    const grantId = ids[pick(ids.length)]!;
    nowMs += pick(20);
    if (pick(3) === 0) {
      store.release([{ name: "name", grantId }]);
      continue;
    }
    const [answer] =
      pick(2) === 0
        ? [store.claim(claimOf(grantId, seq), ignore)]
        : store.renew([{ name: "name", grantId, seq, ttlMs: 1_000 }]);
    if (answer?.kind !== "queued") continue;
    tickets++;
    const queue = store.inspect("name")!.waiters.map(({ holder }) => holder);
    const expected = queue.indexOf(grantId);
    // Expired tickets in the middle of the queue still count.
    expect(answer.position.ahead).toBeGreaterThanOrEqual(expected);
    expect(answer.position.ahead - expected).toBeLessThanOrEqual(ids.length - queue.length);
  }
  expect(tickets).toBeGreaterThan(1_000);
});
