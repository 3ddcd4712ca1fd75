import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import {
  ConflictStats,
  changing,
  etcdText,
  httpDocument,
  optimistic,
  redisText,
  sqliteRow,
  type VersionedPlace,
} from "../../src/lockfree/index.js";
import { openEtcdClient } from "../../src/stores/etcd/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { freshFile, rawConnection } from "../support/sqlite.js";

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

test("ETag and If-Match over HTTP: no update is lost, and a weak tag is refused", async () => {
  let document: { text: string; tag: number } | null = null;
  const server = createServer(async (request, response) => {
    if (request.url === "/weak") return void response.setHeader("etag", 'W/"1"').end("1");
    if (request.url === "/down") return void response.writeHead(500).end();
    if (request.method === "GET") {
      if (document === null) return void response.writeHead(404).end("nothing");
      return void response.setHeader("etag", `"${document.tag}"`).end(document.text);
    }
    let text = "";
    for await (const chunk of request) text += chunk;
    const { "if-match": tag, "if-none-match": none } = request.headers;
    const fits = document === null ? none === "*" : tag === `"${document.tag}"`;
    if (!fits) return void response.writeHead(412).end();
    document = { text, tag: (document?.tag ?? 0) + 1 };
    response.writeHead(204).end();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const place = () => httpDocument(`${url}/counter`);
  await expectNoLostUpdate(
    place,
    (text: string | null) => String(Number(text) + 1),
    async () => Number((await place().read())!.value),
  );
  expect((await rejection(httpDocument(`${url}/weak`).read())).message).toMatch(/a weak ETag/);
  expect(await rejection(httpDocument(`${url}/down`).read())).toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
  });
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
  });
});
