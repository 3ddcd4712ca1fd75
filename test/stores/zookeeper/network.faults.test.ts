import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { createLocks, type Locks } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { together } from "../../../src/verify/fault.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { type Host, Network } from "../../../src/verify/lab/network.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import type { ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import { expectUnavailable, leaderOf, others, queue } from "../../support/scene.js";
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

  const hostOf = (server: ZooKeeperServer): Host =>
    network.hosts.find(({ address }) => address === server.address)!;
  const hostsBut = (host: Host): Host[] => network.hosts.filter((one) => one !== host);

  test("the leader is cut off from the other servers but not from its clients: they use another, and the lease stays", async () => {
    const leader = await leaderOf(three);
    const scene = await Scene.open(three, [leader, leader], { ttl: SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const host = hostOf(leader);
    await scene.under(network.partition([host], hostsBut(host)), async () => {
      await scene.isRenewed(held);
      expect(await holder.look(held.op)).toBe(true);
      expect(await holder.release(held.op)).toBe("released");
      expect((await waiting.granted).token).toBeGreaterThan(held.token);
    });
    scene.expectNoLoss();
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 60_000);

  test.each([
    ["the leader", true],
    ["a follower", false],
  ])(
    "%s is cut off with its clients: they are notified in time, others get the name, and all is well after healing",
    async (_whom, leads) => {
      const leader = await leaderOf(three);
      const alone = leads ? leader : others(three, leader)[0]!;
      const host = hostOf(alone);
      const sites = [host, host, LOOPBACK];
      const scene = await Scene.open(three, [null, null, null], { sites });
      const [holder, waiter, other] = scene.workers as [Worker, Worker, Worker];
      const held = await holder.acquire("name");
      const waiting = await queue(waiter);
      const cut = network.partition([host], [...hostsBut(host), network.outside]);
      await scene.inject(cut);
      const [granted, lost] = await Promise.all([
        other.acquire("name"),
        scene.isLost(held),
        expectUnavailable(waiter, "free", 500),
      ]);
      expect(lost.reason).toBe("expired");
      await scene.expectRefused(held, granted);
      await scene.heal(cut);
      expect(await other.look(granted.op)).toBe(true);
      expect(await other.release(granted.op)).toBe("released");
      expect((await waiting.granted).token).toBeGreaterThan(granted.token);
      const free = await holder.acquire("free");
      expect(await holder.release(free.op)).toBe("released");
      await scene.ends(["S1", "S2", "S3", "S5", "S6", "S7", "L2", "L3"]);
    },
    90_000,
  );

  test("a follower lags: what its clients are told of a name is never from before, nor after they reconnect", async () => {
    const leader = await leaderOf(three);
    for (const one of three.servers) await serves(one);
    const follower = others(three, leader)[0]!;
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
    const cut = network.partition([hostOf(follower)], hostsBut(hostOf(follower)));
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

  test("no server reaches another: nobody holds longer than allowed, and all goes on when they do", async () => {
    const sites = [LOOPBACK, LOOPBACK, LOOPBACK];
    const scene = await Scene.open(three, [null, null, null], { sites });
    const [holder, waiter, other] = scene.workers as [Worker, Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const [a, b, c] = network.hosts as [Host, Host, Host];
    const apart = together(network.partition([a], [b, c]), network.partition([b], [c]));
    await scene.under(apart, async () => {
      await Promise.all([expectUnavailable(other, "free", 1_000), scene.isLost(held)]);
    });
    const granted = await waiting.granted;
    await scene.expectRefused(held, granted);
    expect(await waiter.release(granted.op)).toBe("released");
    await scene.ends(["S1", "S2", "S3", "S5", "S6", "S7", "L2", "L3"]);
  }, 90_000);
});
