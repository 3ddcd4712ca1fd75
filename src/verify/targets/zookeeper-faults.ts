import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../../core/random.js";
import { type Fault, fault, together } from "../fault.js";
import { paused } from "../faults/server.js";
import type { FalseClock } from "../lab/clock.js";
import type { ServerCluster } from "../lab/cluster.js";
import type { Disk } from "../lab/disk.js";
import type { Network } from "../lab/network.js";
import type { ZooKeeperServer } from "../lab/zookeeper.js";
import { type FaultKind, jumpMs, mostlyHolding } from "../runner/kinds.js";
import { cutOff, hostOf, leaderOf, onLeader, onMember } from "./clusters.js";
import { bringBack, DISK_FULL, LONG, ONCE, RESTARTED, SHORT } from "./servers.js";

export type ZooKeeperCluster = ServerCluster<ZooKeeperServer>;

/** The clocks of all servers, none without libfaketime, and the disk of the last one. */
export interface Equipment {
  readonly clocks: readonly FalseClock[];
  readonly disk: Disk | null;
}

/** From a moment to longer than any session, so that sessions end at the leader while a cut-off member answers. */
export const ISOLATED = { min: 0.7, max: 8 };
/** A server answers only with a majority, which may take another fault's end. */
const BACK_MS = 5_000;
const RETRY_MS = 100;

const STOPPED = "server restarted";
const LEADER_KILLED = "leader killed";
const MAJORITY_KILLED = "majority killed and restarted";

/** Faults of any server. ZooKeeper promises everything under all of them. */
export function memberKinds(
  cluster: ZooKeeperCluster,
  { clocks, disk }: Equipment,
): readonly FaultKind[] {
  const { servers } = cluster;
  const pick = <T>(random: Random, from: readonly T[]): T =>
    from[Math.floor(random.unit() * from.length)]!;
  const kind = (
    name: string,
    lasts: FaultKind["lasts"],
    make: FaultKind["make"],
    more: Partial<FaultKind> = {},
  ): FaultKind => ({ name, hits: "server", lasts, make, ...more });
  const full = disk?.full();
  const onDisk = servers.at(-1)!;
  return [
    kind("server paused", LONG, (_member, random) => pausedIfRunning(pick(random, servers))),
    kind(RESTARTED, SHORT, (_member, random) => lost(cluster, async () => [pick(random, servers)])),
    kind(STOPPED, ONCE, (_member, random) => stopped(cluster, pick(random, servers))),
    kind(
      "server clock jumps",
      LONG,
      (_member, random) => {
        if (clocks.length === 0) return null;
        const clockByMs = jumpMs(random);
        return { ...pick(random, clocks).jump(clockByMs), clockByMs };
      },
      { needsClock: true },
    ),
    ...(full === undefined
      ? []
      : [
          kind(
            DISK_FULL,
            { min: 0.3, max: 1.5 },
            () =>
              fault(
                `the disk of ${onDisk.name} is full`,
                () => full.inject(),
                async () => {
                  await full.heal();
                  // A server that could not write its log does not work again by itself.
                  await onDisk.kill();
                  await back(cluster);
                },
              ),
            // The server can't be started on a full disk.
            { weight: 0.5, excludes: [RESTARTED, STOPPED, LEADER_KILLED, MAJORITY_KILLED] },
          ),
        ]),
  ];
}

export function clusterKinds(cluster: ZooKeeperCluster): readonly FaultKind[] {
  const { servers } = cluster;
  const kind = (
    name: string,
    make: FaultKind["make"],
    more: Partial<FaultKind> = {},
  ): FaultKind => ({ name, hits: "cluster", lasts: LONG, make, ...more });
  return [
    kind(LEADER_KILLED, () => lost(cluster, async () => [await leaderOf(cluster)])),
    kind("leader paused", () => onLeader(cluster, "the leader is paused", pausedIfRunning)),
    kind(
      MAJORITY_KILLED,
      (_member, random) => {
        const left = Math.floor(random.unit() * servers.length);
        return lost(cluster, async () => servers.filter((_, i) => i !== left));
      },
      { weight: 0.5 },
    ),
    kind(
      "majority paused",
      (_member, random) => {
        const left = Math.floor(random.unit() * servers.length);
        return together(...servers.filter((_, i) => i !== left).map(pausedIfRunning));
      },
      { weight: 0.5 },
    ),
  ];
}

const WITH_FOLLOWER = "worker left with an isolated follower";
const WITH_LEADER = "worker left with the isolated leader";
const FOLLOWER_ISOLATED = "follower isolated from the members";
export const ISOLATION_FAULTS: readonly string[] = [FOLLOWER_ISOLATED, WITH_FOLLOWER, WITH_LEADER];

/** A server that is cut off from the others answers pings and reads for a while, though sessions end elsewhere. */
export function isolationKinds(cluster: ZooKeeperCluster, network: Network): readonly FaultKind[] {
  const { servers } = cluster;
  const followerOf = async (random: Random): Promise<ZooKeeperServer> => {
    const leader = await leaderOf(cluster);
    const followers = servers.filter((one) => one !== leader);
    return followers[Math.floor(random.unit() * followers.length)]!;
  };
  const isolated = (one: ZooKeeperServer): Fault => cutOff(network, hostOf(network, one));
  /** The worker is connected to that server already when it is cut off. */
  const leftWith = (
    name: string,
    choose: (random: Random) => Promise<ZooKeeperServer>,
  ): FaultKind => ({
    name,
    hits: "cluster",
    lasts: ISOLATED,
    make: (member, random) =>
      onMember(`${member.client}: ${name}`, async () => {
        const one = await choose(random);
        const { proxies } = member.way;
        const cuts = proxies.filter((_, i) => servers[i] !== one).map((proxy) => proxy.cut());
        const settled = fault("the worker has settled", async () => {
          await sleep(SETTLED_MS);
          await mostlyHolding(member, random);
        });
        return together(...cuts, settled, isolated(one));
      }),
  });
  return [
    {
      name: FOLLOWER_ISOLATED,
      hits: "cluster",
      lasts: ISOLATED,
      make: (_member, random) =>
        onMember("a follower is isolated", async () => isolated(await followerOf(random))),
    },
    leftWith(WITH_FOLLOWER, followerOf),
    leftWith(WITH_LEADER, () => leaderOf(cluster)),
  ];
}

/** A client that lost its server finds the one that it can reach, and takes locks there. */
const SETTLED_MS = 400;

/** Another fault may have stopped it. */
const pausedIfRunning = (server: ZooKeeperServer): Fault => {
  const one = paused(server);
  return fault(
    one.name,
    () => (server.state === "running" ? one.inject() : undefined),
    () => one.heal(),
  );
};

/** Kills servers. Healing brings all servers back, because none answers without a majority. */
function lost(cluster: ZooKeeperCluster, choose: () => Promise<readonly ZooKeeperServer[]>): Fault {
  return fault(
    "servers killed",
    async () => {
      const chosen = await choose();
      await Promise.all(chosen.map((one) => one.kill()));
    },
    () => back(cluster),
  );
}

/** Ends the server regularly, and starts it again. */
const stopped = (cluster: ZooKeeperCluster, server: ZooKeeperServer): Fault =>
  fault(`${server.name} restarted`, async () => {
    if (server.state === "running") await server.stop();
    await back(cluster);
  });

/** Another fault may end a server while it starts; such a server is started again. */
async function back({ servers }: ZooKeeperCluster): Promise<void> {
  const untilMs = performance.now() + BACK_MS;
  const start = async (one: ZooKeeperServer): Promise<void> => {
    while (performance.now() < untilMs) {
      if (
        await bringBack(one).then(
          () => true,
          () => false,
        )
      )
        return;
      await sleep(RETRY_MS);
    }
  };
  await Promise.race([Promise.all(servers.map(start)), sleep(BACK_MS)]);
}
