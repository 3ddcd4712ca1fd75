import { Pool } from "pg";
import { onTestFinished, test } from "vitest";
import { openEtcdClient } from "../../src/stores/etcd/rpc/client.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { ZooKeeperClient } from "../../src/zookeeper/index.js";
import { describeWith } from "../support/needs.js";
import { expectFenceSaves, PAUSED_TIMEOUT_MS, type Scene } from "./paused.js";

async function openLab(): Promise<Lab> {
  const lab = await Lab.open();
  onTestFinished(() => lab.close());
  return lab;
}

async function inPostgres(): Promise<Scene> {
  const { url: where } = await (await openLab()).postgres();
  const pool = new Pool({ connectionString: where });
  onTestFinished(() => pool.end());
  await pool.query("CREATE TABLE counter (id integer, value integer, fence_token bigint)");
  await pool.query("INSERT INTO counter VALUES (1, 0)");
  return {
    where,
    value: async () => (await pool.query("SELECT value FROM counter")).rows[0].value,
  };
}

async function inEtcd(): Promise<Scene> {
  const [server] = (await (await openLab()).etcd()).servers;
  const where = `${server!.address}:${server!.port}`;
  const client = await openEtcdClient({ endpoints: [where] });
  onTestFinished(() => client.close());
  const key = "number";
  await client.txn({ success: [{ put: { key, value: "0" } }] });
  return { where, value: async () => Number((await client.range({ key })).kvs[0]!.value) };
}

async function inZooKeeper(): Promise<Scene> {
  const [server] = (await (await openLab()).zookeeper()).servers;
  const where = `${server!.address}:${server!.port}`;
  const client = await ZooKeeperClient.open({ servers: [where] });
  onTestFinished(() => client.close());
  await client.create("/number", { data: "0" });
  return { where, value: async () => Number((await client.getData("/number")).data.toString()) };
}

// Not among the quick tests, because of the servers that it starts.
describeWith(["postgres", "etcd", "zookeeper"], "holders that are paused past their lease", () => {
  test.each([
    ["postgres", inPostgres],
    ["postgres-row", inPostgres],
    ["etcd", inEtcd],
    ["etcd-txn", inEtcd],
    ["zookeeper", inZooKeeper],
  ] as const)(
    "lose no update behind a fence in %s, and lose some without it",
    {
      timeout: PAUSED_TIMEOUT_MS,
    },
    (kind, open) => expectFenceSaves(kind, open),
  );
});
