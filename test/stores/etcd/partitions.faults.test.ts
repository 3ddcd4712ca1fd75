import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { Keys } from "../../../src/stores/etcd/keys.js";
import { type EtcdClient, openEtcdClient } from "../../../src/stores/etcd/rpc/client.js";
import { EtcdSessionPort } from "../../../src/stores/etcd/session-port.js";
import { Transactions } from "../../../src/stores/etcd/transactions.js";
import { Session } from "../../../src/stores/shared/sessions/session.js";
import { paused } from "../../../src/verify/faults/server.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { Network } from "../../../src/verify/lab/network.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import { describePartitions, hostOf, hostsBut } from "../../support/cluster-faults.js";
import { type EtcdCluster, makeLeader, SAFE_MS, Scene } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { leaderOf, others } from "../../support/scene.js";
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

  describePartitions(() => ({
    cluster: three,
    network,
    safeMs: SAFE_MS,
    repeatedRelease: ["lost"],
    open: (members, options) => Scene.open(three, members, options),
    keepLeading: (member) => makeLeader(three, member),
  }));

  test("a leader that slept through an election replies to a keepalive: that proves nothing", async () => {
    const leader = await leaderOf(three);
    const host = hostOf(network, leader);
    const [own, next] = await Promise.all([open([leader]), open(others(three, leader))]);
    const clock = systemRuntime().clock;
    const keys = new Keys();
    // Long enough that a proof has a second: dropped packets are sent again in that time.
    const port = new EtcdSessionPort(own, new Transactions(own), clock, keys);
    const session = await Session.begin(port, clock, 5_000);
    await session.prove();
    const deadlineMs = session.deadlineMs;
    const fromMs = machineMs();
    const [apart, asleep] = [network.partition([host], hostsBut(network, host)), paused(leader)];
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
