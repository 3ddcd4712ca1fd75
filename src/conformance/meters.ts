import assert from "node:assert/strict";
import { type MeterTake, MOST_METER_PRODUCT, type Records } from "../core/records.js";
import type { Bench, Case } from "./subject.js";

const HOUR_US = 3.6e9;
const CLIENTS = 5;

export async function recordsOf(bench: Bench): Promise<Records> {
  const { records, traits } = await bench.store();
  assert(records, `${traits.store} has records, or its traits say why not`);
  return records;
}

const takeOf = (more: Partial<MeterTake> = {}): MeterTake => ({
  key: "meter",
  units: 1,
  limit: 1,
  perUs: HOUR_US,
  burst: 1,
  ...more,
});

/** Units that come back in this time, and one more: clocks may count a little differently. */
const returnedIn = (us: number, { limit, perUs }: MeterTake): number =>
  Math.floor((us * 1.01 * limit) / perUs) + 1;

export const meterCases: readonly Omit<Case, "feature">[] = [
  {
    name: "a meter gives its burst at once, and then says how long to wait",
    async run(bench) {
      const records = await recordsOf(bench);
      const take = takeOf({ limit: 4, burst: 5 });
      const show = await records.take({ ...take, units: 0 });
      assert.deepEqual(show, { allowed: true, remaining: 5, retryAfterUs: 0, fullInUs: 0 });
      const sentAtMs = bench.nowMs;
      for (const [units, remaining] of [
        [2, 3],
        [0, 3],
        [3, 0],
      ] as const) {
        const answer = await records.take({ ...take, units });
        assert.deepEqual([answer.allowed, answer.retryAfterUs], [true, 0]);
        assert.equal(answer.remaining, remaining);
      }
      const refused = await (await recordsOf(bench)).take({ ...take, units: 2 });
      const passedUs = (bench.nowMs - sentAtMs) * 1_010 + 10_000;
      assert.deepEqual([refused.allowed, refused.remaining], [false, 0]);
      const isAbout = (us: number, whole: number): boolean => us <= whole && us > whole - passedUs;
      assert(isAbout(refused.retryAfterUs, HOUR_US / 2), `half an hour: ${refused.retryAfterUs}`);
      assert(isAbout(refused.fullInUs, 1.25 * HOUR_US), `75 minutes: ${refused.fullInUs}`);
      const other = await records.take({ ...take, key: "other", units: 5 });
      assert.equal(other.allowed, true);
    },
  },
  {
    name: "a meter gets its units back evenly",
    async run(bench) {
      const records = await recordsOf(bench);
      const perUs = bench.ttlMs * 200;
      const take = takeOf({ perUs, burst: 2, units: 2 });
      const sentAtMs = bench.nowMs;
      assert.equal((await records.take(take)).allowed, true);
      await bench.until("one unit is back", async () => {
        return (await records.take({ ...take, units: 1 })).allowed;
      });
      assert((bench.nowMs - sentAtMs) * 1_000 >= perUs - 5_000, "not before its time");
      await bench.until("it is full", async () => {
        const { fullInUs, remaining } = await records.take({ ...take, units: 0 });
        return fullInUs === 0 && remaining === 2;
      });
    },
  },
  {
    name: "a meter counts to the microsecond",
    virtualOnly: true,
    async run(bench) {
      const records = await recordsOf(bench);
      const take = takeOf({ limit: 3, perUs: 1_000_000, burst: 3, units: 3 });
      assert.deepEqual(await records.take(take), {
        allowed: true,
        remaining: 0,
        retryAfterUs: 0,
        fullInUs: 1_000_000,
      });
      await bench.pass(333);
      const refused = { allowed: false, remaining: 0, retryAfterUs: 334, fullInUs: 667_000 };
      assert.deepEqual(await records.take({ ...take, units: 1 }), refused);
      await bench.pass(1);
      const allowed = { allowed: true, remaining: 0, retryAfterUs: 0, fullInUs: 999_334 };
      assert.deepEqual(await records.take({ ...take, units: 1 }), allowed);
    },
  },
  {
    name: "many take from a meter at once: never more than it has",
    async run(bench) {
      const clients = await Promise.all(Array.from({ length: CLIENTS }, () => recordsOf(bench)));
      const take = takeOf({ limit: 100, perUs: bench.ttlMs * 1_000, burst: 20, units: 3 });
      const sentAtMs = bench.nowMs;
      let allowed = 0;
      const takeMany = async (records: Records): Promise<void> => {
        for (let i = 0; i < 10; i++) {
          if ((await records.take(take)).allowed) allowed += take.units;
        }
      };
      await Promise.all(clients.map(takeMany));
      const most = take.burst + returnedIn((bench.nowMs - sentAtMs) * 1_000, take);
      assert(allowed <= most, `${allowed} were taken, and there were ${most} at most`);
      assert(allowed >= 18, `${allowed} were taken of a burst of 20`);
    },
  },
  {
    name: "a meter takes other numbers from the take that gives them",
    async run(bench) {
      const records = await recordsOf(bench);
      const large = takeOf({ limit: 1_000, burst: 1_000, units: 1_000 });
      assert.equal((await records.take(large)).allowed, true);
      // A thousand units at two in an hour would take weeks: the meter is empty, and owes nothing.
      const small = takeOf({ limit: 2, burst: 2 });
      const { allowed, retryAfterUs, fullInUs } = await records.take(small);
      assert.equal(allowed, false);
      assert(retryAfterUs > 0 && retryAfterUs <= HOUR_US / 2, `half an hour: ${retryAfterUs}`);
      assert(fullInUs <= HOUR_US, `an hour: ${fullInUs}`);
      const peek = await records.take({ ...large, units: 0 });
      assert(peek.remaining >= 998, "under the first numbers again, two units are taken");
    },
  },
  {
    name: "a meter counts exactly up to the largest numbers",
    async run(bench) {
      const records = await recordsOf(bench);
      // Periods of a day and of 142 years.
      for (const [limit, perUs] of [
        [52_124, 8.64e10],
        [1, Math.floor(MOST_METER_PRODUCT / 2)],
      ] as const) {
        const take = takeOf({ key: `${perUs}`, limit, perUs, burst: limit });
        assert.equal((await records.take({ ...take, units: limit })).remaining, 0);
        const { allowed, retryAfterUs, fullInUs } = await records.take({ ...take, units: limit });
        assert.deepEqual([allowed, retryAfterUs], [false, fullInUs]);
        assert(fullInUs <= perUs && fullInUs > perUs * 0.99, `${fullInUs} of ${perUs}`);
      }
    },
  },
];
