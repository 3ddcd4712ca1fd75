import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Lease } from "../../src/core/lease.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { runs } from "../support/chance.js";
import { fixedRandom, type Journey, type Stage, stage, travel } from "./helpers.js";

const SLICE_MS = 100;

const journey = (most: number): fc.Arbitrary<Journey> =>
  fc.record({
    thereMs: fc.oneof(fc.integer({ min: 0, max: 20 }), fc.integer({ min: 0, max: most })),
    backMs: fc.oneof(fc.integer({ min: 0, max: 20 }), fc.integer({ min: 0, max: most })),
    lost: fc.oneof(
      { arbitrary: fc.constant("no" as const), weight: 6 },
      { arbitrary: fc.constant("request" as const), weight: 1 },
      { arbitrary: fc.constant("answer" as const), weight: 3 },
    ),
  });

/** Gives the journeys in turn, endlessly. */
function inTurn(all: readonly Journey[]): () => Journey {
  let next = 0;
  return () => all[next++ % all.length]!;
}

/** In order, as over one connection: no request arrives before an earlier one. */
function inOrder(on: Stage, way: () => Journey): () => Journey {
  let lastAtMs = 0;
  return () => {
    const one = way();
    const nowMs = on.clock.elapsedMs();
    lastAtMs = Math.max(lastAtMs, nowMs + one.thereMs);
    return { ...one, thereMs: lastAtMs - nowMs };
  };
}

function throughNetwork(on: Stage, ways: readonly Journey[], ordered: boolean): void {
  const way = ordered ? inOrder(on, inTurn(ways)) : inTurn(ways);
  on.store.onClaim = (apply) => travel(on.clock, way(), apply);
  on.store.onRenew = (apply) => travel(on.clock, way(), apply);
  on.store.onRelease = (apply) => travel(on.clock, way(), apply);
  on.store.onPush = (deliver) => {
    const { backMs, lost } = way();
    if (lost === "no") on.clock.after(backMs, deliver);
  };
}

const holds = (lease: Lease): boolean => lease.state === "held" || lease.state === "jeopardy";

describe.each([
  ["delays and loses", true],
  ["delays, loses and reorders", false],
])("on a network that %s", (_how, ordered) => {
  it("a lease never says held after the store has ended it, whatever renewals are requested", async () => {
    const step = fc.oneof(
      fc.record({ ttl: fc.constant(0), afterMs: fc.integer({ min: 0, max: 1_500 }) }),
      fc.record({
        ttl: fc.constantFrom(300, 1_000, 3_000, 10_000),
        afterMs: fc.integer({ min: 0, max: 600 }),
      }),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(journey(1_500), { minLength: 1, maxLength: 12 }),
        fc.array(step, { minLength: 1, maxLength: 10 }),
        fc.constantFrom(1_000, 3_000),
        async (ways, steps, ttl) => {
          const on = stage({ ttl, commandTimeout: 800 });
          const lease = await on.locks.acquire("a");
          throughNetwork(on, ways, ordered);
          const check = (): void => {
            if (!holds(lease)) return;
            const holders = on.store.inspect("default:a")?.holders ?? [];
            expect(holders.map((one) => one.token)).toEqual([lease.token]);
          };
          for (const one of steps) {
            for (let ms = 0; ms < one.afterMs; ms += SLICE_MS) {
              await on.clock.advance(SLICE_MS);
              check();
            }
            if (one.ttl > 0) lease.renew(one.ttl).catch(() => {});
          }
          while (holds(lease) && on.clock.elapsedMs() < 16_000) {
            await on.clock.advance(SLICE_MS);
            check();
          }
        },
      ),
      runs(300),
    );
  });

  it("there is one holder at a time, tokens rise, every wait ends, and nothing is left behind", async () => {
    const user = fc.record({
      startMs: fc.integer({ min: 0, max: 2_000 }),
      holdMs: fc.integer({ min: 0, max: 1_500 }),
      waitMs: fc.constantFrom(0, 200, 2_000, 5_000),
      ttl: fc.constantFrom(200, 1_000, 3_000),
      abortMs: fc.option(fc.integer({ min: 0, max: 3_000 }), { freq: 3 }),
      closeMs: fc.option(fc.integer({ min: 0, max: 4_000 }), { freq: 3 }),
      ways: fc.array(journey(400), { minLength: 1, maxLength: 8 }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(user, { minLength: 2, maxLength: 5 }), async (users) => {
        const clock = new VirtualClock();
        const inner = memoryStore({ clock: clock.forStore() });
        const leases: Lease[] = [];
        let unsettled = users.length;
        const stages = users.map((one, i) => {
          const random = fixedRandom(0.3, `id-${i}`);
          const on = stage({ commandTimeout: 500, ttl: one.ttl }, { clock, inner, random });
          throughNetwork(on, one.ways, ordered);
          const abort = new AbortController();
          if (one.abortMs !== null) clock.after(one.startMs + one.abortMs, () => abort.abort());
          if (one.closeMs !== null) clock.after(one.closeMs, () => void on.locks.close());
          clock.after(one.startMs, () => {
            const startedMs = clock.elapsedMs();
            on.locks
              .acquire("a", { wait: one.waitMs, signal: abort.signal })
              .then(
                (lease) => {
                  leases.push(lease);
                  clock.after(one.holdMs, () => void lease.release());
                },
                () => {},
              )
              .finally(() => {
                unsettled--;
                const most = Math.max(one.waitMs, 500) + 300;
                expect(clock.elapsedMs() - startedMs).toBeLessThanOrEqual(most);
              });
          });
          return on;
        });
        while (clock.elapsedMs() < 13_000) {
          await clock.advance(SLICE_MS);
          const holders = leases.filter(holds);
          expect(holders.length).toBeLessThanOrEqual(1);
          for (const lease of holders) {
            for (const other of leases) expect(other.token).toBeLessThanOrEqual(lease.token);
          }
        }
        expect(unsettled).toBe(0);
        expect(new Set(leases.map((lease) => lease.token)).size).toBe(leases.length);
        // One ttl after the last release nothing is in the store, and no timer is left.
        await clock.advance(8_000);
        expect(inner.inspect("default:a")).toBeNull();
        const closing = Promise.all(stages.map((on) => on.locks.close()));
        await clock.advance(1_000);
        await closing;
        expect(clock.timers).toBe(0);
      }),
      runs(120),
    );
  });
});
