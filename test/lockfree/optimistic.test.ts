import { Redis } from "ioredis";
import { Pool } from "pg";
import { createClient } from "redis";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import {
  ConflictStats,
  changing,
  etcdText,
  httpDocument,
  optimistic,
  postgresRow,
  redisText,
  sqliteRow,
  type VersionedPlace,
} from "../../src/lockfree/index.js";
import { optimisticOn } from "../../src/lockfree/optimistic.js";
import { openEtcdClient } from "../../src/stores/etcd/index.js";
import { seededRandom } from "../../src/testing/seeded-random.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { rejection, watch } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { freshFile, rawConnection } from "../support/sqlite.js";
import { startEtagServer } from "./etag-server.js";

test("writes again after a conflict, and counts them", async () => {
  let row = { count: 5, version: 1 };
  const stats = new ConflictStats();
  const attempts: number[] = [];
  const left = await optimistic({
    read: () => {
      const seen = row;
      // Somebody else is faster twice.
      if (attempts.length < 2) row = { ...row, version: row.version + 1 };
      return seen;
    },
    write: (seen, attempt) => {
      attempts.push(attempt);
      if (row.version !== seen.version) return false;
      row = { count: seen.count - 1, version: seen.version + 1 };
      return { left: row.count };
    },
    stats,
  });
  expect(left).toEqual({ left: 4 });
  expect(attempts).toEqual([1, 2, 3]);
  expect(stats).toMatchObject({ written: 1, givenUp: 0, attempts: 3, conflicts: 2 });
  expect(stats.conflictRate).toBeCloseTo(2 / 3);
});

test("gives up after the last attempt with a ConflictError", async () => {
  const stats = new ConflictStats();
  const backoff = { first: 0, max: 0 };
  const options = { read: () => 1, write: () => false as const, retries: 3, backoff, stats };
  expect(await rejection(optimistic({ ...options, resource: "stock 7" }))).toMatchObject({
    code: "CONFLICT",
    retryable: true,
    attempts: 4,
    resource: "stock 7",
  });
  expect(stats).toMatchObject({ written: 0, givenUp: 1, attempts: 4, conflicts: 4 });
});

test.each([
  ["by default", {}, [2, 4, 8, 16, 32, 64, 100, 100]],
  ["by choice", { backoff: { first: 10, max: 25 }, retries: 4 }, [10, 20, 25, 25]],
])("each pause is a random share of one that doubles: %s", async (_, options, longestMs) => {
  const clock = new VirtualClock();
  const drawn: number[] = [];
  const seeded = seededRandom(20);
  const random = {
    ...seeded,
    unit: () => {
      drawn.push(seeded.unit());
      return drawn.at(-1)!;
    },
  };
  const atMs: number[] = [];
  const never = {
    read: () => {
      atMs.push(clock.elapsedMs());
    },
    write: () => false as const,
  };
  const result = watch(optimisticOn({ clock, random }, { ...never, ...options }));
  await clock.advance(1_000);
  expect(result.value).toMatchObject({ code: "CONFLICT", attempts: longestMs.length + 1 });
  const pausesMs = atMs.slice(1).map((ms, i) => ms - atMs[i]!);
  expect(pausesMs).toHaveLength(longestMs.length);
  for (const [i, ms] of pausesMs.entries()) expect(ms).toBeCloseTo(drawn[i]! * longestMs[i]!, 6);
  expect(Math.min(...drawn)).toBeLessThan(0.3); // A half that is always waited for would show.
});

test("an error ends the loop, a signal ends the pause, and a falsy result is a result", async () => {
  const broken = { read: () => 1, write: () => Promise.reject(new Error("reply lost")) };
  expect((await rejection(optimistic(broken))).message).toBe("reply lost");
  for (const value of [0, "", null, undefined]) {
    expect(await optimistic({ read: () => 1, write: () => value })).toBe(value);
  }
  const controller = new AbortController();
  const pausing = optimistic({
    read: () => 1,
    write: () => false,
    backoff: { first: "1h", max: "1h" },
    signal: controller.signal,
  });
  controller.abort(new Error("enough"));
  expect((await rejection(pausing)).message).toBe("enough");
  const reading = new AbortController();
  const write = vi.fn(() => 1);
  const read = async () => reading.abort(new Error("too late"));
  const stopped = await rejection(optimistic({ read, write, signal: reading.signal }));
  expect(stopped.message).toBe("too late");
  expect(write).not.toHaveBeenCalled();
  expect((await rejection(optimistic({ read: 1, write: 2 } as never))).code).toBe(
    "INVALID_ARGUMENT",
  );
});

/** Many writers add one each: no update is lost. */
async function expectNoLostUpdate<Next>(
  place: () => VersionedPlace<unknown, Next>,
  add: (value: never) => Next,
  count: () => Promise<number>,
): Promise<void> {
  const stats = new ConflictStats();
  const writers = Array.from({ length: 5 }, async () => {
    const own = place();
    for (let i = 0; i < 5; i++) {
      const both = changing(own as VersionedPlace<never, Next>, async (value) => {
        await null;
        return add(value);
      });
      await optimistic({ ...both, retries: 1_000, stats });
    }
  });
  await Promise.all(writers);
  expect(await count()).toBe(25);
  expect(stats.written).toBe(25);
  expect(stats.conflicts).toBeGreaterThan(0);
}

test("a version column in SQLite: no update is lost", async () => {
  const file = freshFile();
  const db = await rawConnection(file);
  const other = await rawConnection(file);
  db.exec('PRAGMA journal_mode = WAL; CREATE TABLE "st ock" (item TEXT, count INTEGER, v INTEGER)');
  db.exec(`INSERT INTO "st ock" VALUES ('hat', 0, NULL), ('cap', 0, 1), ('cap', 0, 1)`);
  let turn = 0;
  const row = (item: string) =>
    sqliteRow<{ count: number }>(++turn % 2 ? db : other, "st ock", { item }, { column: "v" });
  const count = async () => (await row("hat").read())!.value.count;
  await expectNoLostUpdate(
    () => row("hat"),
    ({ count }: never) => ({ count: count + 1 }),
    count,
  );
  const none = changing(row("sock"), () => ({ count: 1 }));
  expect(await optimistic(none)).toBeNull();
  expect((await rejection(row("cap").read())).message).toMatch(/several rows/);
  const wrong = sqliteRow(db, "st ock", { item: "hat" });
  expect((await rejection(wrong.read())).message).toMatch(/no column "version"/);
});

test("a file that another connection keeps locked is waited for; errors of the data stay as they are", async () => {
  const file = freshFile();
  const db = await rawConnection(file);
  const other = await rawConnection(file);
  db.exec(
    "PRAGMA journal_mode = WAL; CREATE TABLE stock (item TEXT UNIQUE, count INTEGER, version INTEGER)",
  );
  db.exec("INSERT INTO stock VALUES ('hat', 1, 1), ('cap', 1, 1)");
  const hat = sqliteRow<{ count: number }>(db, "stock", { item: "hat" });
  other.exec("BEGIN IMMEDIATE");
  const adding = optimistic(changing(hat, (row) => ({ ...row, count: row.count + 1 })));
  await new Promise(setImmediate);
  other.exec("COMMIT");
  expect(await adding).toEqual({ item: "hat", count: 2, version: 2 });
  const change = (next: object) => rejection(optimistic(changing(hat, () => next as never)));
  expect(await change({ item: "cap" })).toMatchObject({ code: "ERR_SQLITE_ERROR" });
  expect((await change({ version: 7 })).message).toMatch(/counts the changes by itself/);
  expect((await change({ count: undefined })).message).toMatch(/leave it out, or write null/);
  expect((await hat.read())!.value).toEqual({ item: "hat", count: 2, version: 2 });
});

test("ETag and If-Match over HTTP: no update is lost, and a weak tag is refused", async () => {
  const { url } = await startEtagServer();
  const place = () => httpDocument(`${url}/counter`);
  await expectNoLostUpdate(
    place,
    (text: string | null) => String(Number(text) + 1),
    async () => Number((await place().read())!.value),
  );
  expect((await rejection(httpDocument(`${url}/weak`).read())).message).toMatch(/a weak ETag/);
});

test("HTTP: a status says whether the document may have been written", async () => {
  const { url } = await startEtagServer();
  const at = (status: number) => httpDocument(`${url}/status/${status}`);
  expect(await rejection(at(500).read())).toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
    message: expect.stringMatching(/answered a GET with 500: try again later/),
  });
  for (const status of [409, 412, 404]) expect(await at(status).write("1", '"1"')).toBe(false);
  const cases = [
    [404, null, false, /answered a PUT with 404: check the URL/],
    [403, '"1"', false, /answered a PUT with 403: check the URL/],
    [429, '"1"', true, /answered a PUT with 429: try again later/],
    [302, '"1"', false, /a redirect, which is not followed: .* may have been written/],
    [504, '"1"', false, /504\. the document .* may have been written/],
  ] as const;
  for (const [status, tag, retryable, message] of cases) {
    const refused = await rejection(at(status).write("1", tag));
    expect(refused).toMatchObject({ code: "STORE_UNAVAILABLE", retryable });
    expect(refused.message).toMatch(message);
  }
  // The page behind the redirect replies 200.
  const moved = await rejection(httpDocument(`${url}/moved`).write("1", '"1"'));
  expect(moved).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
  for (const wrong of ["counter", "ftp://a/b", url.replace("//", "//me:secret@")]) {
    expect(() => httpDocument(wrong)).toThrow(
      expect.objectContaining({
        code: "INVALID_ARGUMENT",
        message: expect.not.stringContaining("secret"),
      }),
    );
  }
});

describeWith(["redis"], "on Redis", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("a text: no update is lost, and its expiry stays", async () => {
    const server = await lab.redis();
    const client = new Redis(server.port, server.address);
    onTestFinished(() => client.disconnect());
    const place = () => redisText(client, "counter");
    await expectNoLostUpdate(
      place,
      (text: string | null) => String(Number(text) + 1),
      async () => Number(await client.get("counter")),
    );
    await client.set("counter", "7", "PX", 3_600_000);
    await optimistic(changing(place(), () => "8"));
    expect(await client.pttl("counter")).toBeGreaterThan(0);
    expect(await client.get("counter")).toBe("8");
    const other = createClient({ url: server.url });
    await other.connect();
    onTestFinished(() => other.destroy());
    const both = [redisText(client, "counter"), redisText(other, "counter")];
    expect(await Promise.all(both.map((one) => one.read()))).toEqual([
      { value: "8", version: "8" },
      { value: "8", version: "8" },
    ]);
    expect(await both[1]!.write("9", "8")).toBe("9");
    expect(await both[1]!.write("10", "8")).toBe(false);
    expect(await both[0]!.write("8", "9")).toBe("8");
    expect(await redisText(other, "new").write("1", null)).toBe("1");
    await client.hset("hash", "field", "1");
    for (const call of [
      redisText(client, "hash").read(),
      redisText(client, "hash").write("1", "0"),
    ]) {
      expect(await rejection(call)).toMatchObject({
        code: "INVALID_ARGUMENT",
        message: expect.stringContaining("does not hold a string: use another key"),
      });
    }
    // Not a conflict with others, which would be tried again for ever.
    await client.set("bytes", Buffer.from([0x61, 0xff]));
    expect(await rejection(redisText(client, "bytes").read())).toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining("holds bytes that are not UTF-8"),
    });
    const half = rejection(optimistic(changing(place(), () => "\ud83d")));
    expect(await half).toMatchObject({ code: "INVALID_ARGUMENT" });
    await client.set("sign", "1 \ufffd = é");
    expect(await optimistic(changing(redisText(client, "sign"), (text) => `${text}!`))).toBe(
      "1 \ufffd = é!",
    );
    const beaten = changing(place(), async (text) => {
      await client.incr("counter");
      return `${text}0`;
    });
    expect(await rejection(optimistic({ ...beaten, retries: 0 }))).toMatchObject({
      attempts: 1,
      resource: 'the key "counter"',
      message: expect.stringContaining("during the only attempt; nothing was written"),
    });
    expect(await client.get("counter")).toBe("9");
  });
});

describeWith(["etcd"], "on etcd", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("mod_revision: no update is lost", async () => {
    const { address, port } = (await lab.etcd()).servers[0]!;
    const client = await openEtcdClient({ endpoints: [`${address}:${port}`] });
    onTestFinished(() => client.close());
    const place = () => etcdText(client, "counter");
    await expectNoLostUpdate(
      place,
      (text: string | null) => String(Number(text) + 1),
      async () => Number((await place().read())!.value),
    );
    await client.txn({ success: [{ put: { key: "bytes", value: "a\ufffd" } }] });
    expect(await rejection(etcdText(client, "bytes").read())).toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining("holds bytes that are not UTF-8"),
    });
    const { id } = await client.leaseGrant(60);
    await client.txn({ success: [{ put: { key: "leased", value: "1", lease: id } }] });
    expect(await optimistic(changing(etcdText(client, "leased"), () => "2"))).toBe("2");
    expect([...(await client.leaseKeys(id))]).toEqual(["leased"]);
  });
});

describeWith(["postgres"], "on PostgreSQL", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("a version column: no update is lost, also where the server refuses to serialize", async () => {
    const server = await lab.postgres();
    await server.sql(
      `CREATE TABLE "st ock" (item text, count integer, version bigint);
       INSERT INTO "st ock" VALUES ('hat', 0, 9007199254740993)`,
    );
    for (const level of ["read committed", "serializable"]) {
      const options = `-c default_transaction_isolation=${level.replace(" ", "\\ ")}`;
      const pool = new Pool({ connectionString: server.url, max: 5, options });
      onTestFinished(() => pool.end());
      const row = () => postgresRow<{ count: number }>(pool, "st ock", { item: "hat" });
      await expectNoLostUpdate(
        row,
        (seen: { count: number }) => ({ ...seen, count: seen.count + 1 }),
        async () => (await row().read())!.value.count,
      );
      await server.sql('UPDATE "st ock" SET count = 0, version = version + 1');
    }
    expect(await server.sql('SELECT version FROM "st ock"')).toBe(String(9007199254740993n + 52n));
  });
});
