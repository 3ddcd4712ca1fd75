import { expect, onTestFinished, test } from "vitest";
import type { StoreClock } from "../../../src/core/clock.js";
import type { RecordWrite, StoredRecord } from "../../../src/core/records.js";
import { openSqlite, type SqliteStore, sqliteStore } from "../../../src/stores/sqlite/index.js";
import { ruleRuns } from "../../support/chance.js";
import { compareRecordsWithRule } from "../../support/records-comparison.js";
import { freshFile, rawConnection } from "../../support/sqlite.js";

/** A wall clock that the test sets. */
class SetClock implements StoreClock {
  ms = Date.UTC(2030, 0, 1);
  readonly nowMs = (): number => performance.now();
  readonly wallMs = (): number => this.ms;
}

async function open(file: string, clock: StoreClock): Promise<SqliteStore> {
  const store = sqliteStore(await openSqlite(file), { closeDatabase: true, clock });
  onTestFinished(() => store.close());
  return store;
}

let versions = 0;

const writeOf = (key: string, keepMs: number, more: Partial<RecordWrite> = {}): RecordWrite => ({
  key,
  value: `value of ${key}`,
  version: `version-${++versions}`,
  keepMs,
  condition: { kind: "absent" },
  ...more,
});

const recordOf = ({ value, version }: RecordWrite): StoredRecord => ({ value, version, token: 0n });

const count = async (file: string, table: string): Promise<number> => {
  const db = await rawConnection(file);
  return (db.prepare(`SELECT count(*) AS n FROM ${table}`).get() as { n: number }).n;
};

test("replies like the rule", { timeout: 60_000 }, async () => {
  const clock = new SetClock();
  const file = freshFile();
  const clients = [await open(file, clock), await open(file, clock)];
  const met = await compareRecordsWithRule(
    {
      clients: clients.map(({ records }) => records),
      pass: (ms) => {
        clock.ms += ms;
      },
      nowUs: () => clock.ms * 1_000,
    },
    ruleRuns(20),
  );
  const { exact: _, ...others } = met;
  for (const [what, times] of Object.entries(others)) expect(times, what).toBeGreaterThan(10);
});

test("records and meters are there after all processes have ended", async () => {
  const clock = new SetClock();
  const file = freshFile();
  const first = await open(file, clock);
  const write = writeOf("key", 60_000);
  await first.records.write(write);
  const take = { key: "key", units: 5, limit: 1, perUs: 1_000_000, burst: 5 };
  await first.records.take(take);
  first.close();
  clock.ms += 2_000;
  const second = await open(file, clock);
  expect(await second.records.read("key")).toEqual(recordOf(write));
  expect(await second.records.take(take)).toMatchObject({ allowed: false, remaining: 2 });
});

test("a clock that is set back keeps no record and no meter for longer than its time from then on", async () => {
  const clock = new SetClock();
  const hour = 3_600_000;
  // The clock is a year ahead.
  clock.ms += 365 * 24 * hour;
  const { records } = await open(freshFile(), clock);
  const [read, written] = [writeOf("read", hour), writeOf("written", hour)];
  for (const write of [read, written]) await records.write(write);
  const take = { key: "key", units: 1, limit: 1, perUs: 1_000_000, burst: 1 };
  expect((await records.take(take)).allowed).toBe(true);

  clock.ms -= 365 * 24 * hour;
  expect(await records.read("read")).toEqual(recordOf(read));
  const late = writeOf("written", hour);
  expect(await records.write(late)).toEqual({ kind: "refused", record: recordOf(written) });
  expect(await records.take(take)).toMatchObject({ allowed: false, retryAfterUs: 1_000_000 });

  clock.ms += 1_000;
  expect((await records.take(take)).allowed).toBe(true);
  clock.ms += hour - 1_001;
  expect(await records.read("read")).toEqual(recordOf(read));
  clock.ms += 1;
  expect(await records.read("read")).toBeNull();
  expect(await records.write(late)).toEqual({ kind: "written" });
});

test("later writes delete what is over, a few rows at a time", async () => {
  const clock = new SetClock();
  const file = freshFile();
  const { records } = await open(file, clock);
  const take = { units: 1, limit: 1, perUs: 1_000, burst: 1 };
  for (let i = 0; i < 40; i++) {
    await records.write(writeOf(`old ${i}`, 10));
    await records.take({ ...take, key: `old ${i}` });
  }
  clock.ms += 10;
  await records.write(writeOf("new 0", 60_000));
  expect(await count(file, "holdfast_records")).toBe(37);
  for (let i = 1; i < 10; i++) await records.write(writeOf(`new ${i}`, 60_000));
  for (let i = 0; i < 10; i++) await records.take({ ...take, key: `new ${i}` });
  expect(await count(file, "holdfast_records")).toBe(10);
  expect(await count(file, "holdfast_meters")).toBe(10);
});

test("a refused take that changes nothing writes nothing", async () => {
  const clock = new SetClock();
  const file = freshFile();
  const { records } = await open(file, clock);
  const take = { key: "key", units: 1, limit: 1, perUs: 3.6e9, burst: 1 };
  await records.take(take);
  const db = await rawConnection(file);
  const version = (): unknown => db.prepare("PRAGMA data_version").get();
  const before = version();
  for (let i = 0; i < 3; i++) expect((await records.take(take)).allowed).toBe(false);
  expect(version()).toEqual(before);
});

test("a file that an earlier version has made gets the tables", async () => {
  const clock = new SetClock();
  const file = freshFile();
  const old = await open(file, clock);
  old.close();
  const db = await rawConnection(file);
  db.exec("DROP TABLE holdfast_records; DROP TABLE holdfast_meters");
  db.close();
  const { records } = await open(file, clock);
  const write = writeOf("key", 60_000);
  await records.write(write);
  expect(await records.read("key")).toEqual(recordOf(write));
});

test("a file that a newer version has changed meanwhile is refused", async () => {
  const file = freshFile();
  const { records } = await open(file, new SetClock());
  (await rawConnection(file)).exec("UPDATE holdfast_meta SET format = 99");
  await expect(records.write(writeOf("key", 60_000))).rejects.toThrow("format 99");
});
