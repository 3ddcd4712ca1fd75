import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { Keys } from "../../../src/stores/etcd/keys.js";
import { type EtcdClient, openEtcdClient } from "../../../src/stores/etcd/rpc/client.js";
import { EtcdSessionPort } from "../../../src/stores/etcd/session-port.js";
import { Transactions } from "../../../src/stores/etcd/transactions.js";
import { Session } from "../../../src/stores/shared/sessions/session.js";
import { together } from "../../../src/verify/fault.js";
import { paused } from "../../../src/verify/faults/server.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { type Host, Network } from "../../../src/verify/lab/network.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { type EtcdCluster, makeLeader, SAFE_MS, Scene } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { expectUnavailable, leaderOf, others, queue } from "../../support/scene.js";
import { until } from "../../support/worker.js";

const NEEDS = ["etcd", "network", "network namespaces", "nft"] as const;

describeWith(NEEDS, "etcd in a network that breaks", () => {
  let lab: Lab;
  let network: Network;
  let three: EtcdCluster;
  beforeAll(async () => {
    lab = await Lab.open();
    network = await Network.open(lab, { hosts: 3 });
    // As is usual by now: a member that comes back does not depose the leader of the others.
    const flags = { "pre-vote": "true" };
    three = await lab.etcd({ nodes: 3, sites: network.hosts, flags });
  });
  afterAll(() => lab?.close());

  const hostOf = (server: EtcdServer): Host =>
    network.hosts.find(({ address }) => address === server.address)!;
  const hostsBut = (host: Host): Host[] => network.hosts.filter((one) => one !== host);

  test("the leader is cut off from the other members but not from its clients: they use another, and the lease stays", async () => {
    const leader = await leaderOf(three);
    const scene = await Scene.open(three, [leader, leader], { ttl: SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    await makeLeader(three, leader);
    const host = hostOf(leader);
    await scene.under(network.partition([host], hostsBut(host)), async () => {
      await scene.isRenewed(held);
      expect(await holder.look(held.op)).toBe(true);
      expect(await holder.release(held.op)).toBe("released");
      scene.expectSoon(held, await waiting.granted);
    });
    scene.expectNoLoss();
    await scene.ends(["S1", "S2", "S7", "L3"]);
  });

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
      if (leads) await makeLeader(three, alone);
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
  );

  test("no member reaches another: nobody holds longer than allowed, and all goes on when they do", async () => {
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
  });

  test("a leader that slept through an election replies to a keepalive: that proves nothing", async () => {
    const leader = await leaderOf(three);
    const host = hostOf(leader);
    const [own, next] = await Promise.all([open([leader]), open(others(three, leader))]);
    const clock = systemRuntime().clock;
    const keys = new Keys();
    // Long enough that a proof has a second: dropped packets are sent again in that time.
    const port = new EtcdSessionPort(own, new Transactions(own), clock, keys);
    const session = await Session.begin(port, clock, 5_000);
    await session.prove();
    const deadlineMs = session.deadlineMs;
    const fromMs = machineMs();
    const [apart, asleep] = [network.partition([host], hostsBut(host)), paused(leader)];
    for (const one of [apart, asleep]) onTestFinished(() => one.heal());
    await Promise.all([apart.inject(), asleep.inject()]);
    // The others count a whole ttl from then on, and receive nothing from the sleeper.
    await until("another one leads", async () => (await leaderOf(three)) !== leader);
    await sleep(fromMs + 2_650 - machineMs());
    await asleep.heal();
    const kept = own.leaseKeepAlive(session.id);
    const proof = session.prove().then(
      () => "proved",
      ({ message }) => message,
    );
    await sleep(50);
    await apart.heal();
    // The server's flaw: another leader has known of the lease for two seconds.
    expect(await kept).toMatchObject({ ttlS: 5 });
    const { term } = await next.range({ key: "a" });
    expect((await kept).term).toBeLessThan(term);
    expect(await proof).not.toBe("proved");
    expect(session.deadlineMs).toBe(deadlineMs);
    await until("it runs out", async () => {
      return (await next.range({ key: keys.session(session.id) })).count === 0;
    });
    expect(clock.elapsedMs()).toBeGreaterThan(session.deadlineMs);
  });
});

async function open(members: readonly EtcdServer[]): Promise<EtcdClient> {
  const endpoints = members.map(({ address, port }) => `${address}:${port}`);
  const client = await openEtcdClient({ endpoints });
  onTestFinished(() => client.close());
  return client;
}
