import type { Random } from "../../core/random.js";
import { ZOOKEEPER_TRAITS } from "../../stores/zookeeper/index.js";
import { Layout } from "../../stores/zookeeper/layout.js";
import { TcpProxy } from "../faults/proxy.js";
import { FalseClock } from "../lab/clock.js";
import { Disk } from "../lab/disk.js";
import type { Lab } from "../lab/lab.js";
import { lackingRight } from "../lab/rights.js";
import { LOOPBACK, type Site } from "../lab/server.js";
import { connectionKinds, WORKER_KINDS } from "../runner/kinds.js";
import type { LeftOut, Target } from "../runner/target.js";
import type { Connections } from "../traffic/protocol.js";
import { leaderOf, networkKinds, openHosts } from "./clusters.js";
import { bringBack, DISK_FULL, wayThrough } from "./servers.js";
import {
  clusterKinds,
  type Equipment,
  ISOLATED,
  ISOLATION_FAULTS,
  isolationKinds,
  memberKinds,
  type ZooKeeperCluster,
} from "./zookeeper-faults.js";

const TTLS_MS = [700, 1_200, 2_000];
/** A session lives for this much longer than the ttl: it has 1.7 ttls, in whole ticks. */
const LONGER_MS = 0.7 * Math.max(...TTLS_MS) + 400;
const DISK_MB = 96;
/** So often that the container of a name goes between two claims, and its sequence numbers begin again. */
const CONTAINER_CHECK_MS = 300;
/** Four seconds until a member without the others stops answering, in which sessions end elsewhere. */
const CONFIG = { syncLimit: "20", maxSessionTimeout: "60000" };

export async function zookeeperTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  return openTarget(lab, isClocked, [LOOPBACK], (cluster, more) => ({
    name: "zookeeper",
    about: "one ZooKeeper server",
    kinds: memberKinds(cluster, more),
  }));
}

/** Three members, each on its own host where network namespaces are available. */
export async function zookeeperClusterTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const { network, leftOut } = await openHosts(lab, 3, ISOLATION_FAULTS);
  const sites = network?.hosts ?? [LOOPBACK, LOOPBACK, LOOPBACK];
  return openTarget(lab, isClocked, sites, (cluster, more) => ({
    name: "zookeeper-cluster",
    about: "a ZooKeeper ensemble of three servers",
    kinds: [
      ...memberKinds(cluster, more),
      ...clusterKinds(cluster),
      ...(network === null ? [] : networkKinds(cluster, network, ISOLATED)),
      ...(network === null ? [] : isolationKinds(cluster, network)),
    ],
    leftOut,
  }));
}

async function openTarget(
  lab: Lab,
  isClocked: boolean,
  places: readonly Site[],
  describe: (
    cluster: ZooKeeperCluster,
    equipment: Equipment,
  ) => Pick<Target, "name" | "about" | "kinds"> & { readonly leftOut?: readonly LeftOut[] },
): Promise<Target> {
  const noDisk = lackingRight("loop mounts");
  const disk = noDisk === null ? await Disk.open(lab, { sizeMb: DISK_MB }) : null;
  const clocks: FalseClock[] = [];
  const sites: Site[] = [];
  for (const [i, place] of places.entries()) {
    const site = i === places.length - 1 ? (disk?.site(place) ?? place) : place;
    if (isClocked) clocks.push(await FalseClock.open(lab, `the clock of zookeeper-${i + 1}`));
    sites.push(clocks[i]?.site(site) ?? site);
  }
  const cluster = await lab.zookeeper({
    nodes: places.length === 1 ? 1 : 3,
    sites,
    config: CONFIG,
    containerCheckMs: CONTAINER_CHECK_MS,
  });
  const { leftOut = [], kinds, ...about } = describe(cluster, { clocks, disk });
  return {
    ...about,
    isOurs: true,
    url: cluster.url,
    ttlsMs: TTLS_MS,
    cannot: ZOOKEEPER_TRAITS.cannot,
    longestHoldTtls: 4,
    // Shorter than a third of the shortest ttl, when a waiter that got no push would find its grant.
    handoverMs: 220,
    limits: {
      freeMs: 3_000 + LONGER_MS,
      orphanMs: 1_000 + LONGER_MS,
      electionMs: 5_000,
      healMs: 8_000 + LONGER_MS,
    },
    kinds: [...WORKER_KINDS, ...connectionKinds("connection"), ...kinds],
    leftOut: [...leftOut, ...(noDisk === null ? [] : [{ name: DISK_FULL, because: noDisk }])],
    drawConnections,
    openWay: async (client) => {
      const proxies = await Promise.all(cluster.servers.map((one) => TcpProxy.open(one)));
      return wayThrough(proxies, { lab, client, isClocked }, (hosts) => `zookeeper://${hosts}`);
    },
    versions: async () => {
      const answer = await cluster.servers[0]!.ask("srvr");
      return { zookeeper: /^Zookeeper version: ([^,-]+)/m.exec(answer)?.[1] ?? "unknown" };
    },
    leftOf: async (names) => {
      const containers = names.map((name) => `${new Layout().name(name)}/`);
      const leader = cluster.servers.length === 1 ? cluster.servers[0]! : await leaderOf(cluster);
      const ephemerals = (await leader.ask("dump")).split("\n").map((line) => line.trim());
      return ephemerals.filter((node) => containers.some((one) => node.startsWith(one)));
    },
    commands: () => commandsOf(cluster),
    recover: () => recover(cluster),
    async [Symbol.asyncDispose]() {
      await Promise.all(cluster.servers.map((one) => one.kill()));
      await disk?.close();
    },
  };
}

async function commandsOf({ servers }: ZooKeeperCluster): Promise<number> {
  const counts = await Promise.all(servers.map((one) => one.commands()));
  return counts.reduce((sum, count) => sum + count, 0);
}

function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.5) return [{ locks: 1 }];
  if (which < 0.75) return [{ locks: 2 }];
  return [{ locks: 1, lazy: true }, { locks: 1 }];
}

async function recover(cluster: ZooKeeperCluster): Promise<void> {
  await Promise.all(cluster.servers.map((one) => bringBack(one)));
  await leaderOf(cluster);
}
