import type { Random } from "../../core/random.js";
import { Keys } from "../../stores/etcd/keys.js";
import { type FlawName, flawsOf } from "../../stores/etcd/versions.js";
import { type Fault, fault } from "../fault.js";
import { GrpcProxy } from "../faults/grpc-proxy.js";
import { killed, paused } from "../faults/server.js";
import type { ServerCluster } from "../lab/cluster.js";
import type { EtcdServer } from "../lab/etcd.js";
import type { Lab } from "../lab/lab.js";
import { until } from "../lab/until.js";
import { connectionKinds, EXCLUSION, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Way } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import { LEADER_MS, leaderOf, networkKinds, onLeader, openHosts } from "./clusters.js";
import { ONCE, wayThrough } from "./servers.js";

const SHORT = { min: 0.05, max: 0.5 };
const LONG = { min: 0.2, max: 1.5 };
const KILLED = "member killed and restarted";
const LEADER_KILLED = "leader killed";

type EtcdCluster = ServerCluster<EtcdServer>;

export async function etcdTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const cluster = await lab.etcd();
  return targetOn(lab, isClocked, cluster, {
    name: "etcd",
    about: "one etcd server",
    kinds: memberKinds(cluster),
  });
}

/** Three members, each on its own host where network namespaces are available. */
export async function etcdClusterTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const { network, leftOut } = await openHosts(lab, 3);
  const sites = network === null ? {} : { sites: network.hosts };
  const cluster = await lab.etcd({ nodes: 3, ...sites });
  const { names: flaws } = flawsOf(await versionOf(cluster), cluster.servers.length);
  return targetOn(lab, isClocked, cluster, {
    name: "etcd-cluster",
    about: "an etcd cluster of three members",
    kinds: [
      ...memberKinds(cluster),
      ...clusterKinds(cluster),
      ...(network === null ? [] : networkKinds(cluster, network, LONG)),
    ].map((kind) => withFlaws(kind, flaws)),
    leftOut,
  });
}

function targetOn(
  lab: Lab,
  isClocked: boolean,
  cluster: EtcdCluster,
  { kinds, ...about }: Pick<Target, "name" | "about" | "kinds" | "leftOut">,
): Target {
  return {
    ...about,
    isOurs: true,
    url: cluster.url,
    ttlsMs: [2_000, 3_000, 4_000],
    limits: { electionMs: 3_000, healMs: 8_000 },
    kinds: [
      ...WORKER_KINDS,
      ...["connection", "calls", "watch", "keepalive"].flatMap((only) => connectionKinds(only)),
      ...kinds,
    ],
    drawConnections,
    openWay: (client) => openWay(lab, client, cluster, isClocked),
    versions: async () => ({ etcd: await versionOf(cluster) }),
    commands: async () => {
      const counts = await Promise.all(cluster.servers.map((one) => one.commands()));
      return counts.reduce((sum, count) => sum + count, 0);
    },
    leftOf: async (names) => {
      const beginnings = names.map((name) => new Keys().name(name).key);
      const [namespace] = names[0]!.split(":");
      const { key } = new Keys().names(`${namespace}:`);
      const keys = await cluster.servers[0]!.ctl("get", key, "--prefix", "--keys-only");
      return keys.split("\n").filter((one) => beginnings.some((name) => one.startsWith(name)));
    },
    recover: () => recover(cluster),
    async [Symbol.asyncDispose]() {},
  };
}

async function versionOf({ servers }: EtcdCluster): Promise<string> {
  const status = await servers[0]!.ctl("endpoint", "status", "--write-out=fields");
  return /"Version" : "([^"]+)"/.exec(status)?.[1] ?? "unknown";
}

function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.5) return [{ locks: 1 }];
  if (which < 0.75) return [{ locks: 2 }];
  return [{ locks: 1, lazy: true }, { locks: 1 }];
}

async function openWay(
  lab: Lab,
  client: string,
  { servers }: EtcdCluster,
  isClocked: boolean,
): Promise<Way> {
  const proxies = await Promise.all(servers.map((server) => GrpcProxy.open(server)));
  return wayThrough(proxies, { lab, client, isClocked }, (hosts) => `etcd://${hosts}`);
}

async function recover(cluster: EtcdCluster): Promise<void> {
  for (const one of cluster.servers) if (one.state === "paused") await one.resume();
  await Promise.all(cluster.servers.map((one) => one.start()));
  await leaderOf(cluster);
  await disarmed(cluster);
}

/** Disarms the alarm by any member that replies: the alarm belongs to the cluster. */
async function disarmed({ servers }: EtcdCluster): Promise<void> {
  await until("the alarm is disarmed", LEADER_MS, async () => {
    for (const one of servers.filter(({ state }) => state === "running")) {
      if (
        await one.ctl("alarm", "disarm").then(
          () => true,
          () => false,
        )
      )
        return true;
    }
    return false;
  });
}

const SPACE_USED_UP = "space used up";

/** The same kind, with the promises that a cluster with these flaws does not keep under it. */
export function withFlaws(kind: FaultKind, flaws: readonly FlawName[]): FaultKind {
  if (HANGS.includes(kind.name) && flaws.includes("revokes living leases")) {
    return { ...kind, ...REVOKES_LIVING };
  }
  // A member that is killed soon after this fault may come back with claims that the others refused, for
  // good: nothing holds on such servers, in later runs either.
  if (kind.name === SPACE_USED_UP && flaws.includes("brings back refused claims")) {
    return { ...kind, excludes: [KILLED, LEADER_KILLED] };
  }
  return kind;
}

const MEMBER_PAUSED = "member paused";
const LEADER_PAUSED = "leader paused";
/** Faults after which a leader that hung comes back. */
const HANGS: readonly string[] = [MEMBER_PAUSED, LEADER_PAUSED];

const REVOKES_LIVING = {
  breaks: EXCLUSION,
  because:
    "before etcd 3.4.31 and 3.5.13, a leader that hung and comes back ends leases that are alive (etcd issue 15247)",
} as const;

function memberKinds(cluster: EtcdCluster): readonly FaultKind[] {
  const { servers } = cluster;
  const pick = (random: Random): EtcdServer => servers[Math.floor(random.unit() * servers.length)]!;
  const kind = (
    name: string,
    lasts: FaultKind["lasts"],
    make: (server: EtcdServer) => Fault,
  ): FaultKind => ({
    name,
    hits: "server",
    lasts,
    make: (_member, random) => make(pick(random)),
  });
  return [
    kind(MEMBER_PAUSED, LONG, (one) => paused(one)),
    kind(KILLED, SHORT, (one) => killed(one)),
    kind("history compacted", ONCE, (one) =>
      fault(`${one.name} compacts its history`, async () => {
        const status = await one.ctl("endpoint", "status", "--write-out=fields");
        await one.ctl("compact", /"Revision" : (\d+)/.exec(status)![1]!);
      }),
    ),
    // Held leases stay, because renewing and releasing a lease take no space.
    kind(SPACE_USED_UP, LONG, (one) =>
      fault(
        "the alarm NOSPACE is raised",
        // Another fault may have stopped that member; the alarm belongs to the cluster.
        () => (servers.find(({ state }) => state === "running") ?? one).raiseNoSpace(),
        () => disarmed(cluster),
      ),
    ),
    kind("member defragmented", ONCE, (one) =>
      fault(`${one.name} is defragmented`, () => one.ctl("defrag")),
    ),
  ];
}

function clusterKinds(cluster: EtcdCluster): readonly FaultKind[] {
  return [
    {
      name: LEADER_KILLED,
      hits: "cluster",
      lasts: LONG,
      make: () => onLeader(cluster, "the leader is killed", (leader) => killed(leader)),
    },
    {
      name: LEADER_PAUSED,
      hits: "cluster",
      lasts: LONG,
      make: () => onLeader(cluster, "the leader is paused", (leader) => paused(leader)),
    },
    {
      name: "leader moved",
      hits: "cluster",
      lasts: ONCE,
      make: (_member, random) =>
        fault("another member is made the leader", async () => {
          const leader = await cluster.leader();
          const others = cluster.servers.filter((one) => one !== leader);
          const next = others[Math.floor(random.unit() * others.length)]!;
          const status = await next.ctl("endpoint", "status", "--write-out=fields");
          const id = BigInt(/"MemberID" : (\d+)/.exec(status)![1]!).toString(16);
          await leader.ctl("move-leader", id);
        }),
    },
    {
      name: "member removed and added",
      hits: "cluster",
      weight: 0.5,
      lasts: ONCE,
      make: (_member, random) => {
        const one = cluster.servers[Math.floor(random.unit() * cluster.servers.length)]!;
        return fault(`${one.name} is removed and joins anew`, () => one.wipe());
      },
    },
  ];
}
