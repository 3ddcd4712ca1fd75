import { setTimeout as pause } from "node:timers/promises";
import { Pool } from "pg";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { RecordWrite } from "../../../src/core/records.js";
import type { PostgresStore } from "../../../src/stores/postgres/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";
import { compareRecordsWithRule } from "../../support/records-comparison.js";

const HOUR_MS = 3_600_000;
const TAKE = { key: "key", units: 1, limit: 1, perUs: HOUR_MS * 1_000, burst: 1 };

const writeOf = (key: string, more: Partial<RecordWrite> = {}): RecordWrite => ({
  key,
  value: "value",
  version: `version of ${key}`,
  keepMs: HOUR_MS,
  condition: { kind: "absent" },
  ...more,
});

describeWith(["postgres"], "records on PostgreSQL", () => {
  let lab: Lab;
  let server: PostgresServer;
  let stores: readonly PostgresStore[];
  let pool: Pool;

  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    stores = [await byPool(server.url), await byPool(server.url)];
    pool = new Pool({ connectionString: server.url, max: 2 });
  });
  afterAll(async () => {
    for (const store of stores ?? []) await store.close();
    await pool?.end();
    await lab.close();
  });

  async function meterOf(key: string) {
    const sql = "SELECT since, used, expires FROM holdfast.meters WHERE key = $1";
    const [row] = (await pool.query(sql, [key])).rows;
    if (row === undefined) return null;
    const [sinceUs, usedUnits, fullAtUs] = [row.since, row.used, row.expires].map(Number);
    return { sinceUs: sinceUs!, usedUnits: usedUnits!, fullAtUs: fullAtUs! };
  }

  test("reply like the rule in TypeScript", { timeout: 120_000 }, async () => {
    const met = await compareRecordsWithRule(
      {
        clients: stores.map(({ records }) => records),
        pass: pause,
        nowUs: () => Math.floor((performance.timeOrigin + performance.now()) * 1_000),
        meterOf,
      },
      ruleRuns(6, 0, 15),
    );
    for (const [what, times] of Object.entries(met)) expect(times, what).toBeGreaterThan(2);
  });

  test("a clock that was set back keeps no record and no meter for longer than its time", async () => {
    const [{ records }] = stores as [PostgresStore, PostgresStore];
    const ahead = "expires = expires + 10 * $2::bigint";
    const leftMs = async (key: string): Promise<number> => {
      const sql = "SELECT expires FROM holdfast.records WHERE key = $1";
      return Number((await pool.query(sql, [key])).rows[0].expires) / 1_000 - Date.now();
    };
    for (const [key, request] of [
      ["ahead when read", (key: string) => records.read(key)],
      ["ahead when written", (key: string) => records.write(writeOf(key, { version: "other" }))],
    ] as const) {
      await records.write(writeOf(key));
      const sql = `UPDATE holdfast.records SET ${ahead} WHERE key = $1`;
      await pool.query(sql, [key, HOUR_MS * 1_000]);
      await request(key);
      expect(await leftMs(key)).toBeLessThan(HOUR_MS + 1_000);
    }
    const take = { ...TAKE, key: "ahead", perUs: 1_000_000 };
    await records.take(take);
    const sql = `UPDATE holdfast.meters SET since = since + 10 * $2::bigint, ${ahead} WHERE key = $1`;
    await pool.query(sql, ["ahead", HOUR_MS * 1_000]);
    expect((await records.take(take)).retryAfterUs).toBeLessThanOrEqual(1_000_000);
  });

  test("many clients insert, expire and take under the same keys at once, and none gets an error", async () => {
    const { length } = await Promise.all(
      Array.from({ length: 200 }, async (_, i) => {
        const { records } = stores[i % 2]!;
        const key = `busy ${i % 3}`;
        const token = BigInt(i);
        const condition = i % 5 === 0 ? ({ kind: "token", token } as const) : writeOf("").condition;
        await records.write(writeOf(key, { version: `busy ${i}`, keepMs: 1, condition }));
        return records.take({ ...TAKE, key, limit: 1_000_000, burst: 2 });
      }),
    );
    expect(length).toBe(200);
  });

  test("a stricter isolation level is refused", async () => {
    const options = "-c default_transaction_isolation=serializable";
    const store = await byPool(server.url, {}, { options });
    await expect(store.records.write(writeOf("strict"))).rejects.toThrow("read committed");
    await expect(store.records.take(TAKE)).rejects.toThrow("read committed");
    await expect(store.records.read("strict")).rejects.toThrow("read committed");
    await store.close();
  });
});
