import type { Random } from "../../core/random.js";
import { fault } from "../fault.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import { paused } from "../faults/server.js";
import { FalseClock } from "../lab/clock.js";
import { Disk } from "../lab/disk.js";
import type { Lab } from "../lab/lab.js";
import type { RedisServer } from "../lab/redis.js";
import { lackingRight } from "../lab/rights.js";
import { LOOPBACK } from "../lab/server.js";
import { connectionKinds, EXCLUSION, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Way } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import { DEAF, EVICTED, prepare, serverKinds, USER } from "./redis-faults.js";
import {
  bringBack,
  clockKind,
  DISK_FULL,
  diskKind,
  LONG,
  LOST_DATA,
  ONCE,
  wayThrough,
} from "./servers.js";

const TTLS_MS = [900, 1_500, 2_500];
const DATABASE = 2;
const LINK_CUT = "replica link cut";
const RESTARTED_EMPTY = "server restarted empty";
/** The size of the disk for the append-only file, which is rewritten when it has grown to a part of that. */
const DISK_MB = 48;
const REWRITTEN = { "auto-aof-rewrite-min-size": "8mb" };

export const CONNECTION_KINDS: readonly FaultKind[] = [
  ...connectionKinds("connection", DEAF),
  ...connectionKinds("commands"),
  ...connectionKinds("subscription", DEAF),
];

/** One server that syncs every write; workers use a user and a database of their own. */
export async function redisTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const clock = isClocked ? await FalseClock.open(lab, "the server's clock") : null;
  const noDisk = lackingRight("loop mounts");
  const disk = noDisk === null ? await Disk.open(lab, { sizeMb: DISK_MB }) : null;
  const onDisk = disk?.site() ?? LOOPBACK;
  const site = clock?.site(onDisk) ?? onDisk;
  const server = await lab.redis({ persistence: "always", config: REWRITTEN, site });
  await prepare(server);
  const place = { address: server.address, port: server.port };
  return {
    ...COMMON,
    name: "redis",
    about: "one Redis server with appendfsync always",
    url: `${server.url}/${DATABASE}`,
    kinds: [
      ...WORKER_KINDS,
      ...CONNECTION_KINDS,
      ...serverKinds(() => server),
      ...(disk === null ? [] : [diskKind(disk, server, () => prepare(server))]),
      {
        name: RESTARTED_EMPTY,
        hits: "server",
        weight: 0.5,
        lasts: ONCE,
        breaks: EXCLUSION,
        because: "what was granted is forgotten, and granted again",
        // The server can't be started on a full disk.
        excludes: [DISK_FULL],
        make: () =>
          fault(`${server.name} is restarted empty`, async () => {
            await server.wipe();
            await prepare(server);
          }),
      },
      clockKind(clock, [LOST_DATA, RESTARTED_EMPTY, EVICTED]),
    ],
    leftOut: noDisk === null ? [] : [{ name: DISK_FULL, because: noDisk }],
    openWay: (client) => openWay(lab, client, [place], `/${DATABASE}`, isClocked),
    versions: () => versionsOf(server),
    leftOf: (names) => leftOf([server], names),
    commands: () => server.commands(),
    recover: () => recover([server]),
    async [Symbol.asyncDispose]() {
      await server.kill();
      await disk?.close();
    },
  };
}

/** A primary and a replica: a grant counts when both have it, so a failover keeps it. */
export async function redisReplicaTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  let primary = await lab.redis({ persistence: "always" });
  let replica = await lab.redis({ persistence: "always", replicaOf: primary });
  await replica.synced();
  await prepare(primary);
  await prepare(replica);
  // The address leads to the present primary, as a virtual address would; the runner's own connection, too.
  const place = { address: primary.address, port: primary.port };
  const runners = await TcpProxy.open(place, { kindOf: redisConnectionKind });
  let changes: Promise<void> = Promise.resolve();
  // One after another: a second failover in the middle of the first would make a server the replica of itself.
  const inTurn = (change: () => Promise<void>): Promise<void> => {
    changes = changes.catch(() => {}).then(change);
    return changes;
  };
  const swap = async (): Promise<void> => {
    await primary.kill();
    await replica.promote();
    place.port = replica.port;
    [primary, replica] = [replica, primary];
    await replica.start();
    // Users are not replicated: without this, no worker could log in after the next failover.
    await prepare(replica);
    await replica.follow(primary);
  };
  return {
    ...COMMON,
    name: "redis-replica",
    about: "a Redis primary and a replica, replicas=1, failed over by address",
    url: `redis://${runners.address}:${runners.port}/${DATABASE}?replicas=1`,
    kinds: [
      ...WORKER_KINDS,
      ...CONNECTION_KINDS,
      ...serverKinds(() => primary).filter(({ name }) => name !== LOST_DATA),
      {
        name: "failover to the replica",
        hits: "cluster",
        lasts: ONCE,
        make: () => fault("failover to the replica", () => inTurn(swap)),
      },
      {
        name: LINK_CUT,
        hits: "cluster",
        lasts: LONG,
        make: () => {
          let cut: RedisServer | null = null;
          return fault(
            "the link to the replica is cut",
            () =>
              inTurn(async () => {
                cut = replica;
                await replica.detach();
              }),
            // In a failover meanwhile, it became the primary.
            () => inTurn(async () => (cut === replica ? replica.follow(primary) : undefined)),
          );
        },
      },
      {
        name: "replica paused",
        hits: "cluster",
        lasts: LONG,
        make: () => paused(replica),
      },
    ],
    openWay: (client) => openWay(lab, client, [place], `/${DATABASE}?replicas=1`, isClocked),
    versions: () => versionsOf(primary),
    leftOf: (names) => leftOf([primary], names),
    // The sum of both: after a failover, the count of the other server is unrelated to the one
    // before.
    commands: async () => (await primary.commands()) + (await replica.commands()),
    async recover() {
      await recover([primary, replica]);
      await replica.synced();
    },
    [Symbol.asyncDispose]: () => runners.close(),
  };
}

export const COMMON = {
  isOurs: true,
  ttlsMs: TTLS_MS,
  limits: {},
  drawConnections,
  async [Symbol.asyncDispose]() {},
};

function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.4) return [{ locks: 1 }];
  if (which < 0.55) return [{ locks: 2, library: "ioredis" }];
  if (which < 0.7) return [{ locks: 2, library: "redis" }];
  if (which < 0.85) return [{ locks: 1 }, { locks: 1 }];
  return [
    { locks: 1, lazy: true },
    { locks: 1, library: "redis" },
  ];
}

async function openWay(
  lab: Lab,
  client: string,
  places: readonly { readonly address: string; readonly port: number }[],
  rest: string,
  isClocked: boolean,
): Promise<Way> {
  const proxies = await Promise.all(
    places.map((place) => TcpProxy.open(place, { kindOf: redisConnectionKind })),
  );
  return wayThrough(
    proxies,
    { lab, client, isClocked },
    (hosts) => `redis://${USER}:${USER}@${hosts}${rest}`,
  );
}

/** Keys of these names. That of a queue is kept for longer than the queue, so that its expiry is seldom moved. */
export async function leftOf(
  servers: readonly RedisServer[],
  names: readonly string[],
  database = DATABASE,
): Promise<readonly string[]> {
  const [namespace] = names[0]!.split(":");
  const left = servers.map(async (server) => {
    const db = ["-n", String(database)];
    const keys = (await server.cli(...db, "--scan", "--pattern", `*${namespace}:*`)).split("\n");
    const found: string[] = [];
    for (const key of keys.filter((key) => names.some((name) => key.endsWith(`:${name}`)))) {
      const isQueue = key.includes("}q:");
      if (!isQueue || (await server.cli(...db, "pttl", key)) === "-1") found.push(key);
    }
    return found;
  });
  return (await Promise.all(left)).flat();
}

export async function recover(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    await bringBack(server);
    await prepare(server);
  }
}

export async function versionsOf(server: RedisServer): Promise<Record<string, string>> {
  const version = /redis_version:(\S+)/.exec(await server.cli("info", "server"))?.[1];
  return { "redis-server": version ?? "unknown" };
}
