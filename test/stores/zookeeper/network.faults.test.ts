import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { createLocks, type Locks } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { Network } from "../../../src/verify/lab/network.js";
import type { ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import type { ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { describePartitions, hostOf, hostsBut } from "../../support/cluster-faults.js";
import { describeWith } from "../../support/needs.js";
import { leaderOf, others } from "../../support/scene.js";
import { until } from "../../support/worker.js";
import { openClient } from "../../support/zookeeper.js";
import {
  addressOf,
  CONFIG,
  type Ensemble,
  SAFE_MS,
  Scene,
  serves,
} from "../../support/zookeeper-scene.js";

const NEEDS = ["zookeeper", "network", "network namespaces", "nft"] as const;

describeWith(NEEDS, "ZooKeeper and its clients in a network that breaks", () => {
  let lab: Lab;
  let network: Network;
  let three: Ensemble;
  beforeAll(async () => {
    lab = await Lab.open();
    network = await Network.open(lab, { hosts: 3 });
    three = await lab.zookeeper({ nodes: 3, sites: network.hosts, config: CONFIG });
  });
  afterAll(() => lab?.close());

  describePartitions(() => ({
    cluster: three,
    network,
    safeMs: SAFE_MS,
    repeatedRelease: [],
    open: (members, options) => Scene.open(three, members, options),
  }));

  test("a follower lags: what its clients are told of a name is never from before, nor after they reconnect", async () => {
    const leader = await leaderOf(three);
    for (const one of three.servers) await serves(one);
    const follower = others(three, leader)[0]!;
    const host = hostOf(network, follower);
    const locksAt = (servers: readonly ZooKeeperServer[]): Locks => {
      const store = zookeeperStore({ servers: servers.map(addressOf), root: "/lagging" });
      const locks = createLocks(store, { ttl: SAFE_MS, commandTimeout: 1_000 });
      onTestFinished(() => locks.close().catch(() => {}));
      return locks;
    };
    const [behind, ahead] = [locksAt([follower]), locksAt(others(three, follower))];
    const first = await ahead.acquire("name");
    const tokenOf = async (): Promise<bigint | undefined> =>
      (await behind.inspect("name"))?.holders[0]?.token;
    expect(await tokenOf()).toBe(first.token);
    const raw = await openClient({ servers: [addressOf(follower)] });
    const path = new Layout("/lagging").name("default:name");
    const before = (await raw.getChildren(path)).children;
    const cut = network.partition([host], hostsBut(network, host));
    onTestFinished(() => cut.heal());
    await cut.inject();
    await first.release();
    const second = await ahead.acquire("name");
    // The server's state: it does not know yet that it is cut off.
    expect((await raw.getChildren(path)).children).toEqual(before);
    expect(await tokenOf().catch(() => "unreachable")).not.toBe(first.token);
    await cut.heal();
    const seen: unknown[] = [];
    await until("it is told", async () => {
      seen.push(await tokenOf().catch(() => "unreachable"));
      return typeof seen.at(-1) !== "string";
    });
    expect(seen.at(-1)).toBe(second.token);
    expect(await second.release()).toBe("released");
  }, 60_000);

  test("a follower lags: it does not get a client that has seen more, which then reads nothing older", async () => {
    // The follower does not notice for 20 s that it is cut off.
    const config = { ...CONFIG, syncLimit: "100" };
    const own = await lab.zookeeper({ nodes: 3, sites: network.hosts, config });
    onTestFinished(() => Promise.all(own.servers.map((one) => one.kill())).then(() => {}));
    const leader = await leaderOf(own);
    for (const one of own.servers) await serves(one);
    const follower = others(own, leader)[0]!;
    const [toLeader, toFollower] = [await TcpProxy.open(leader), await TcpProxy.open(follower)];
    for (const one of [toLeader, toFollower]) onTestFinished(() => one.close());
    const client = await openClient({
      servers: [toLeader, toFollower].map(addressOf),
      sessionTimeoutMs: 30_000,
      requestTimeoutMs: 30_000,
      // Keeps the order of the servers.
      random: () => 0.999,
    });
    expect(client.connection?.server).toBe(addressOf(toLeader));
    const atFollower = await openClient({ servers: [addressOf(follower)] });
    const read = async (from: ZooKeeperClient): Promise<string> =>
      (await from.getData("/value")).data.toString();
    await client.create("/value", { data: "old" });
    await atFollower.sync("/");
    const host = hostOf(network, follower);
    const lagging = network.partition([host], hostsBut(network, host));
    onTestFinished(() => lagging.heal());
    await lagging.inject();
    await client.setData("/value", "new");
    await toLeader.cut().inject();
    await until("the client notices", () => client.state === "suspended");
    const reading = read(client);
    reading.catch(() => {});
    // At once each time: an attempt that the follower leaves without an answer takes a second or more.
    await until("the follower refuses it again and again", () => toFollower.connections > 3);
    expect([await read(atFollower), client.state]).toEqual(["old", "suspended"]);
    await lagging.heal();
    expect(await reading).toBe("new");
    expect(client.connection?.server).toBe(addressOf(toFollower));
  }, 60_000);
});
