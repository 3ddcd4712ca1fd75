import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { createLocks, type Lease, type Locks } from "../../../src/index.js";
import { zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { Liveness } from "../../../src/stores/zookeeper/liveness.js";
import { paused } from "../../../src/verify/faults/server.js";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { type Host, Network } from "../../../src/verify/lab/network.js";
import type { ZooKeeperOptions, ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import { type Reply, ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

const NEEDS = ["zookeeper", "network", "network namespaces", "nft"] as const;
const POLL_MS = 20;
const ROUNDS = 4;
const NODE = "/own";
const { clock } = systemRuntime();

/**
 * Rules that would be simpler: the moment that a reply is believed to prove; null if it proves nothing. Pings are
 * the only requests of these tests that are no writes, except for a `sync`, which is told apart by the test.
 */
const MUTANTS = {
  "any ping": ({ sentAtMs, isWrite }: Reply) => (isWrite ? null : sentAtMs),
  "any write": ({ sentAtMs, isWrite, succeeded }: Reply) =>
    isWrite && succeeded ? sentAtMs : null,
} as const;

describeWith(NEEDS, "the proof that a session of ZooKeeper lives, in a network that breaks", () => {
  let lab: Lab;
  let network: Network;
  beforeAll(async () => {
    lab = await Lab.open();
    network = await Network.open(lab, { hosts: 3 });
  });
  afterAll(() => lab?.close());

  const ensemble = async (
    options: ZooKeeperOptions = {},
  ): Promise<ServerCluster<ZooKeeperServer>> => {
    const cluster = await lab.zookeeper({ nodes: 3, sites: network.hosts, ...options });
    onTestFinished(async () => {
      for (const one of cluster.servers) {
        if (one.state === "paused") await one.resume();
        await one.kill();
      }
    });
    return cluster;
  };

  const addressOf = ({ address, port }: ZooKeeperServer): string => `${address}:${port}`;
  const hostOf = ({ address }: ZooKeeperServer): Host =>
    network.hosts.find((one) => one.address === address)!;

  async function roles({ servers }: ServerCluster<ZooKeeperServer>): Promise<{
    leader: ZooKeeperServer;
    follower: ZooKeeperServer;
  }> {
    const modes = await Promise.all(servers.map((one) => one.ask("srvr")));
    const withMode = (mode: string): ZooKeeperServer =>
      servers[modes.findIndex((text) => text.includes(`Mode: ${mode}`))]!;
    return { leader: withMode("leader"), follower: withMode("follower") };
  }

  /** Cuts the server off from the other servers, but not from its clients. */
  const cutOff = (server: ZooKeeperServer) => {
    const host = hostOf(server);
    const cut = network.partition(
      [host],
      network.hosts.filter((one) => one !== host),
    );
    onTestFinished(() => cut.heal());
    return cut;
  };

  async function open(
    servers: readonly ZooKeeperServer[],
    options: { sessionTimeoutMs: number; pingIntervalMs?: number },
  ): Promise<ZooKeeperClient> {
    const client = await ZooKeeperClient.open({
      servers: servers.map(addressOf),
      ...options,
      clock,
    });
    onTestFinished(() => client.close());
    return client;
  }

  /** A client at one server with an ephemeral node, and all that it was answered. */
  async function watched(server: ZooKeeperServer, timeoutMs: number, pingIntervalMs: number) {
    const client = await open([server], { sessionTimeoutMs: timeoutMs, pingIntervalMs });
    expect(client.sessionTimeoutMs).toBe(timeoutMs);
    const replies: Reply[] = [];
    client.on("replied", (reply) => replies.push(reply));
    await client.create(NODE, { mode: "ephemeral" });
    return { client, replies };
  }

  /** When the majority has deleted the node: the true moment is not later. */
  async function goneAtMs(client: ZooKeeperClient): Promise<number> {
    for (;;) {
      await client.sync("/").catch(() => {});
      const found = await client.exists(NODE).catch(() => null);
      if (found !== null && found.stat === null) return clock.elapsedMs();
      await sleep(POLL_MS);
    }
  }

  /** Until when the session was believed to live, by the rule. */
  function deadlineByRule(replies: readonly Reply[], timeoutMs: number): number {
    const liveness = new Liveness(timeoutMs);
    for (const reply of replies) liveness.replied(reply);
    return liveness.provedAtMs + timeoutMs;
  }

  function deadlineBy(
    proves: (reply: Reply) => number | null,
    replies: readonly Reply[],
    timeoutMs: number,
  ): number {
    const proved = replies.flatMap((reply) => proves(reply) ?? []);
    return Math.max(...proved) + timeoutMs;
  }

  test("at a follower that is cut off, neither a ping nor a write alone is a proof", async () => {
    // A follower tells its leader of touches every 500 ms, and notices after 5 s that it is gone.
    const config = { tickTime: "1000", syncLimit: "5", maxSessionTimeout: "60000" };
    const cluster = await ensemble({ timing: "default", config });
    const timeoutMs = 6_000;
    const { follower } = await roles(cluster);
    const others = cluster.servers.filter((one) => one !== follower);
    const caught = new Set<string>();
    for (let round = 0; round < ROUNDS && caught.size < 2; round++) {
      const { client, replies } = await watched(follower, timeoutMs, timeoutMs / 3);
      const majority = await open(others, { sessionTimeoutMs: 20_000 });
      const cut = cutOff(follower);
      // Shortly before the next ping: the leader has last heard of the session long ago.
      const before = replies.length;
      await until("a ping is answered", () => replies.length > before, 5_000);
      await sleep(timeoutMs / 3 - 200);
      await client.multi([{ op: "check", path: NODE }]);
      await cut.inject();
      const goneMs = await goneAtMs(majority);
      expect(deadlineByRule(replies, timeoutMs)).toBeLessThan(goneMs);
      for (const [name, proves] of Object.entries(MUTANTS)) {
        if (deadlineBy(proves, replies, timeoutMs) > goneMs) caught.add(name);
      }
      await cut.heal();
      await client.close();
      await until(
        "the follower is back",
        async () => {
          return (await follower.ask("srvr").catch(() => "")).includes("Mode: follower");
        },
        20_000,
      );
    }
    expect([...caught].sort()).toEqual(["any ping", "any write"]);
  }, 120_000);

  test("at a leader that slept through an election, neither a ping nor a sync is a proof", async () => {
    const cluster = await ensemble({ config: { maxSessionTimeout: "60000" } });
    const timeoutMs = 9_000;
    const caught = new Set<string>();
    // When it wakes up, it may notice the loss of its majority before it answers.
    for (let round = 0; round < ROUNDS && caught.size < 2; round++) {
      const { leader } = await roles(cluster);
      const others = cluster.servers.filter((one) => one !== leader);
      // With pings that are more frequent, the client gives up the connection before the leader wakes up.
      const { client, replies } = await watched(leader, timeoutMs, timeoutMs / 4);
      const majority = await open(others, { sessionTimeoutMs: 20_000 });
      const [cut, asleep] = [cutOff(leader), paused(leader)];
      onTestFinished(() => asleep.heal());
      await client.multi([{ op: "check", path: NODE }]);
      await Promise.all([cut.inject(), asleep.inject()]);
      await sleep(5_000);
      const sync = client.sync("/").then(
        ({ reply }) => reply,
        () => null,
      );
      await sleep(50);
      await asleep.heal();
      const goneMs = await goneAtMs(majority);
      expect(deadlineByRule(replies, timeoutMs)).toBeLessThan(goneMs);
      const synced = await sync;
      const besides = replies.filter((one) => one !== synced);
      if (deadlineBy(MUTANTS["any ping"], besides, timeoutMs) > goneMs) caught.add("any ping");
      if (synced !== null && synced.sentAtMs + timeoutMs > goneMs) caught.add("sync");
      await cut.heal();
      await client.close();
      await until(
        "all serve",
        async () => {
          const answers = await Promise.all(
            cluster.servers.map((one) => one.ask("srvr").catch(() => "")),
          );
          return answers.every((text) => text.includes("Mode: "));
        },
        20_000,
      );
    }
    expect([...caught].sort()).toEqual(["any ping", "sync"]);
  }, 150_000);

  test.each(["leader", "follower"] as const)(
    "a holder at a %s that is cut off is notified before another gets the name, with a higher token",
    async (role) => {
      const cluster = await ensemble({ config: { maxSessionTimeout: "60000" } });
      const alone = (await roles(cluster))[role];
      const others = cluster.servers.filter((one) => one !== alone);
      const locksAt = (servers: readonly ZooKeeperServer[]): Locks => {
        const store = zookeeperStore({ servers: servers.map(addressOf) });
        const locks = createLocks(store, { ttl: 2_000, wait: 20_000 });
        onTestFinished(() => locks.close().catch(() => {}));
        return locks;
      };
      const lease = await locksAt([alone]).acquire("name");
      const lost = new Promise<number>((resolve) => {
        lease.signal.addEventListener("abort", () => resolve(clock.elapsedMs()));
      });
      const waiting: Promise<[Lease, number]> = locksAt(others)
        .acquire("name")
        .then((next) => [next, clock.elapsedMs()]);
      await sleep(2_500);
      expect(lease.state, "it is renewed").toBe("held");
      const cut = cutOff(alone);
      await cut.inject();
      const [next, grantedAtMs] = await waiting;
      expect(await lost).toBeLessThan(grantedAtMs);
      expect(next.token).toBeGreaterThan(lease.token);
      await cut.heal();
      expect(await next.release()).toBe("released");
    },
    60_000,
  );
});
