import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { Cluster, Redis } from "ioredis";
import { Pool } from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import {
  changing,
  etcdText,
  httpDocument,
  optimistic,
  postgresRow,
  redisText,
  type VersionedPlace,
} from "../../src/lockfree/index.js";
import { openEtcdClient } from "../../src/stores/etcd/index.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { until } from "../../src/verify/lab/until.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { quiet } from "../support/redis.js";
import { freshFile, rawConnection } from "../support/sqlite.js";
import { startEtagServer } from "./etag-server.js";

const PROCESSES = 5;
const TIMES = 30;
const ADDER = fileURLToPath(new URL("adder.mjs", import.meta.url));
const TABLE =
  "CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER, version BIGINT); INSERT INTO stock VALUES ('hat', 0, 0)";

async function startAdder(kind: string, target: string) {
  const child = spawn(process.execPath, [ADDER, kind, target, String(TIMES)], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  let out = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    out += text;
  });
  await once(child.stdout, "data");
  return async (): Promise<{ written: number; conflicts: number }> => {
    child.stdin.write("go\n");
    expect(await once(child, "close")).toEqual([0, null]);
    return JSON.parse(out.split("\n")[1]!);
  };
}

/** Processes add at the same time; every addition is there afterwards, and they have met. */
async function expectAllAdded(
  kind: string,
  target: string,
  count: () => Promise<unknown>,
): Promise<void> {
  const adders = await Promise.all(
    Array.from({ length: PROCESSES }, () => startAdder(kind, target)),
  );
  const stats = await Promise.all(adders.map((go) => go()));
  const sum = (of: "written" | "conflicts"): number => stats.reduce((all, one) => all + one[of], 0);
  expect(sum("written")).toBe(PROCESSES * TIMES);
  expect(sum("conflicts")).toBeGreaterThan(0);
  expect(Number(await count())).toBe(PROCESSES * TIMES);
}

/**
 * The write is executed, its reply is lost: that is no conflict, and the change is made once.
 * `request` is a text that the bytes of the write contain.
 */
async function expectUnknownOutcome<Value, Next>(
  place: VersionedPlace<Value, Next>,
  proxies: readonly TcpProxy[],
  request: string,
  change: (value: Value) => Next,
  isWritten: () => Promise<boolean>,
): Promise<void> {
  await place.read();
  const faults = proxies.map((proxy) => proxy.loseReply({ when: request, silent: true }));
  let changes = 0;
  const both = changing(place, async (value) => {
    if (changes++ === 0) await Promise.all(faults.map((fault) => fault.inject()));
    return change(value);
  });
  const refused = rejection(optimistic(both));
  // The reply may follow long after the write. Healed before it is lost, the proxy would deliver it.
  const replyIsLost = () => faults.some(({ struck }) => struck > 0);
  await until("the reply to the write is lost", 10_000, async () => {
    return replyIsLost() && (await isWritten());
  });
  await Promise.all(faults.map((fault) => fault.heal()));
  expect(await refused).toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: false,
    message: expect.stringMatching(/may have been written: read it before/),
  });
  expect(changes).toBe(1);
  expect(await isWritten()).toBe(true);
}

async function proxyOf(target: { address: string; port: number; url?: string }) {
  const proxy = await TcpProxy.open(target);
  onTestFinished(() => proxy.close());
  return proxy;
}

const addToText = (text: string | null): string => String(Number(text) + 1);

test("SQLite: processes lose no update", async () => {
  const file = freshFile();
  const db = await rawConnection(file);
  db.exec(`PRAGMA journal_mode = WAL; ${TABLE}`);
  const count = async () =>
    (db.prepare("SELECT count FROM stock").get() as { count: number }).count;
  await expectAllAdded("sqlite", file, count);
});

test("HTTP: processes lose no update, and a lost reply is no conflict", async () => {
  const server = await startEtagServer();
  await expectAllAdded("http", server.url, async () => server.text());
  const proxy = await proxyOf(server);
  const place = httpDocument(`http://${proxy.address}:${proxy.port}/`);
  const isWritten = async () => server.text() === String(PROCESSES * TIMES + 1);
  await expectUnknownOutcome(place, [proxy], "PUT", addToText, isWritten);
});

describeWith(["redis", "etcd", "postgres"], "on servers", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("PostgreSQL: processes lose no update, and a lost reply is no conflict", async () => {
    const server = await lab.postgres();
    await server.sql(TABLE);
    const count = () => server.sql("SELECT count FROM stock");
    await expectAllAdded("postgres", server.url, count);
    const proxy = await proxyOf(server);
    const pool = new Pool({ connectionString: proxy.url, max: 1 });
    pool.on("error", () => {});
    onTestFinished(() => pool.end());
    const place = postgresRow<{ count: number }>(pool, "stock", { item: "hat" });
    const isWritten = async () => (await count()) === String(PROCESSES * TIMES + 1);
    const increment = ({ count }: { count: number }) => ({ count: count + 1 });
    await expectUnknownOutcome(place, [proxy], "UPDATE", increment, isWritten);
  });

  test("etcd: processes lose no update, and a lost reply is no conflict", async () => {
    const server = (await lab.etcd()).servers[0]!;
    const endpoint = `${server.address}:${server.port}`;
    const direct = await openEtcdClient({ endpoints: [endpoint] });
    const count = async () => (await etcdText(direct, "counter").read())!.value;
    await expectAllAdded("etcd", endpoint, count);
    const proxy = await proxyOf(server);
    const client = await openEtcdClient({ endpoints: [`${proxy.address}:${proxy.port}`] });
    onTestFinished(() => void Promise.all([direct.close(), client.close()]));
    const isWritten = async () => (await count()) === String(PROCESSES * TIMES + 1);
    await expectUnknownOutcome(
      etcdText(client, "counter"),
      [proxy],
      "counter",
      addToText,
      isWritten,
    );
  });

  test("Redis: processes lose no update, and a script that ioredis repeats is no conflict", async () => {
    const server = await lab.redis();
    const direct = new Redis(server.url);
    await expectAllAdded("redis", server.url, () => direct.get("counter"));
    const proxy = await proxyOf(server);
    const client = quiet(new Redis(proxy.url));
    onTestFinished(() => void [direct, client].map((one) => one.disconnect()));
    const isWritten = async () => (await direct.get("counter")) === String(PROCESSES * TIMES + 1);
    await expectUnknownOutcome(
      redisText(client, "counter"),
      [proxy],
      "counter",
      addToText,
      isWritten,
    );
  });

  test("a cluster of Redis: the same", async () => {
    const servers = await startRedisCluster(lab);
    const nodes = servers.map(({ address, port }) => ({ host: address, port }));
    const direct = new Cluster(nodes);
    await expectAllAdded("cluster", JSON.stringify(nodes), () => direct.get("counter"));
    const proxies = await Promise.all(servers.map(proxyOf));
    const natMap = Object.fromEntries(
      servers.map(({ address, port }, i) => [
        `${address}:${port}`,
        { host: proxies[i]!.address, port: proxies[i]!.port },
      ]),
    );
    const behind = proxies.map(({ address, port }) => ({ host: address, port }));
    const client = quiet(new Cluster(behind, { natMap }));
    onTestFinished(() => void [direct, client].map((one) => one.disconnect()));
    const isWritten = async () => (await direct.get("counter")) === String(PROCESSES * TIMES + 1);
    await expectUnknownOutcome(
      redisText(client, "counter"),
      proxies,
      "counter",
      addToText,
      isWritten,
    );
  });
});
