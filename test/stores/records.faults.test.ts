import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import type { RecordWrite } from "../../src/core/records.js";
import type { Store } from "../../src/core/store.js";
import { SCRIPTS } from "../../src/stores/redis/scripts.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { until } from "../../src/verify/lab/until.js";
import { describeWith } from "../support/needs.js";
import { byPool } from "../support/postgres.js";
import { byIoredis, byNodeRedis } from "../support/redis.js";

const HOUR_MS = 3_600_000;
const TAKE = { key: "key", units: 3, limit: 1, perUs: HOUR_MS * 1_000, burst: 4 };
const WRITTEN = { kind: "written" };

let versions = 0;

const writeOf = (condition: RecordWrite["condition"]): RecordWrite => {
  const version = `version-${++versions}`;
  return { key: "key", value: `of ${version}`, version, keepMs: HOUR_MS, condition };
};

/** Sends the same write until it is answered, as a client does that got no reply. */
async function send(store: Store, write: RecordWrite): Promise<unknown> {
  let answer: unknown;
  await until("the write is answered", 20_000, async () => {
    answer = await Promise.resolve(store.records!.write(write)).catch(() => undefined);
    return answer !== undefined;
  });
  return answer;
}

/** Every write loses its first reply. */
async function writesOnce(store: Store, proxy: TcpProxy, isWrite: (b: Buffer) => boolean) {
  await store.records!.read("key");
  const first = writeOf({ kind: "absent" });
  const second = writeOf({ kind: "version", version: first.version });
  const third = writeOf({ kind: "token", token: 7n });
  for (const write of [first, second, third]) {
    const fault = proxy.loseReply({ when: isWrite });
    await fault.inject();
    expect(await send(store, write)).toEqual(WRITTEN);
    expect(fault.struck).toBe(1);
    await fault.heal();
    expect(await store.records!.read("key")).toMatchObject({ version: write.version });
  }
  const record = { value: third.value, version: third.version, token: 7n };
  expect(await store.records!.write(first)).toEqual({ kind: "refused", record });
}

describeWith(["redis"], "records on Redis under faults", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab.close());

  test.each([
    ["ioredis, which sends again by itself", byIoredis],
    ["node-redis", byNodeRedis],
  ])("a write whose reply is lost is executed once: %s", { timeout: 60_000 }, async (_, open) => {
    const proxy = await TcpProxy.open(await lab.redis());
    onTestFinished(() => proxy.close());
    const store = await open(proxy.url);
    await writesOnce(store, proxy, (request) => request.includes(SCRIPTS.writeRecord.sha));
    await store.close();
  });

  test("a server that is killed and started again has its records and meters", {
    timeout: 60_000,
  }, async () => {
    const server: RedisServer = await lab.redis({ persistence: "always" });
    const store = await byIoredis(server.url);
    const write = writeOf({ kind: "token", token: 2n ** 63n - 1n });
    await store.records.write(write);
    expect((await store.records.take(TAKE)).allowed).toBe(true);
    await server.kill();
    await server.start();
    // The scripts are no longer known to the server.
    expect(await send(store, write)).toEqual(WRITTEN);
    const stale = await store.records.write(writeOf({ kind: "token", token: 2n ** 63n - 2n }));
    expect(stale).toMatchObject({ kind: "refused", record: { version: write.version } });
    expect(await store.records.take(TAKE)).toMatchObject({ allowed: false, remaining: 1 });
    await store.close();
  });
});

describeWith(["postgres"], "records on PostgreSQL under faults", () => {
  let lab: Lab;
  let server: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
  });
  afterAll(() => lab.close());

  test("a write whose reply is lost is executed once", { timeout: 60_000 }, async () => {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const store = await byPool(proxy.url);
    await writesOnce(store, proxy, (request) => request.includes("write_record"));
    await store.close();
  });

  test("a server that is killed and started again has its records", {
    timeout: 60_000,
  }, async () => {
    // Nothing is written before the crash that did not have to be.
    const fragile = await lab.postgres({ config: { wal_writer_delay: "10000ms" } });
    const store = await byPool(fragile.url);
    const first = writeOf({ kind: "absent" });
    await store.records.write(first);
    const write = writeOf({ kind: "version", version: first.version });
    await store.records.write(write);
    await fragile.kill();
    await fragile.start();
    expect(await send(store, write)).toEqual(WRITTEN);
    expect(await store.records.read("key")).toMatchObject({ version: write.version });
    expect((await store.records.write(first)).kind).toBe("refused");
    await store.close();
  });

  test("later requests delete what is over", { timeout: 60_000 }, async () => {
    const schema = "deletion";
    const store = await byPool(server.url, { schema });
    const { records } = store;
    const count = async (table: string): Promise<string> =>
      server.sql(`SELECT count(*) FROM ${schema}.${table}`);
    const rows = "FROM generate_series(1, 900) AS i";
    await server.sql(`INSERT INTO ${schema}.records SELECT 'old ' || i, 0, 1, 1, '', '' ${rows}`);
    await server.sql(`INSERT INTO ${schema}.meters SELECT 'old ' || i, 1, 1, 1 ${rows}`);
    const write = { ...writeOf({ kind: "absent" }), key: "new" };
    for (const [table, request] of [
      ["records", () => records.write(write)],
      ["meters", () => records.take({ ...TAKE, key: "new" })],
    ] as const) {
      for (let i = 0; i < 4; i++) {
        await Promise.all(Array.from({ length: 256 }, (): Promise<unknown> => request()));
      }
      await records.deletion;
      expect(await count(table)).toBe("1");
    }
    await store.close();
  });
});
