import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../../core/random.js";
import { type Fault, fault } from "../faults/fault.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import { killed, paused } from "../faults/server.js";
import { FalseClock } from "../lab/clock.js";
import type { Lab } from "../lab/lab.js";
import type { RedisServer } from "../lab/redis.js";
import { clusterIsUp, moveSlot, ownerOfSlot, startRedisCluster } from "../lab/redis-cluster.js";
import {
  connectionKinds,
  EXCLUSION,
  type FaultKind,
  jumpMs,
  WORKER_KINDS,
} from "../runner/kinds.js";
import type { Target, Way } from "../runner/target.js";
import type { Connections } from "../traffic/protocol.js";

const SHORT = { min: 0.05, max: 0.7 };
const LONG = { min: 0.2, max: 2 };
const ONCE = { min: 0.01, max: 0.01 };
const TTLS_MS = [900, 1_500, 2_500];
const USER = "app";
const DATABASE = 2;
const SLOTS = 16_384;
const LOST_DATA = "server loses its data";
const NO_SELECT = "right to select taken";

const DEAF = {
  breaks: ["L4"],
  because: "a waiter that can't be told of its turn may go to the end of the queue",
} as const;
const CONNECTION_KINDS: readonly FaultKind[] = [
  ...connectionKinds("connection", DEAF),
  ...connectionKinds("commands"),
  ...connectionKinds("subscription", DEAF),
];

/** One server that syncs every write; workers use a user and a database of their own. */
export async function redisTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const clock = isClocked ? await FalseClock.open(lab, "the server's clock") : null;
  const site = clock === null ? {} : { site: clock.site() };
  const server = await lab.redis({ persistence: "always", ...site });
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
      ...(clock === null ? [] : [clockKind(clock)]),
    ],
    openWay: (client) => openWay(lab, client, [place], `/${DATABASE}`, isClocked),
    versions: () => versionsOf(server),
    commands: () => server.commands(),
    recover: () => recover([server]),
  };
}

/** A primary and a replica: a grant counts when both have it, and a failover keeps it. */
export async function redisReplicaTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  let primary = await lab.redis({ persistence: "always" });
  let replica = await lab.redis({ persistence: "always", replicaOf: primary });
  await replica.synced();
  await prepare(primary);
  await prepare(replica);
  // The address leads to whichever is the primary, as a virtual address would.
  const place = { address: primary.address, port: primary.port };
  const failOver = async (): Promise<void> => {
    await primary.kill();
    await replica.promote();
    place.port = replica.port;
    [primary, replica] = [replica, primary];
    await replica.start();
    // Users are not replicated: without this nobody could log in after the next failover.
    await prepare(replica);
    await replica.follow(primary);
  };
  return {
    ...COMMON,
    name: "redis-replica",
    about: "a Redis primary and a replica, replicas=1, failed over by address",
    get url() {
      return `redis://${place.address}:${place.port}/${DATABASE}?replicas=1`;
    },
    kinds: [
      ...WORKER_KINDS,
      ...CONNECTION_KINDS,
      ...serverKinds(() => primary).filter(({ name }) => name !== LOST_DATA),
      {
        name: "failover to the replica",
        hits: "cluster",
        lasts: ONCE,
        make: () => fault("failover to the replica", failOver),
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
    commands: () => primary.commands(),
    async recover() {
      await recover([primary, replica]);
      await replica.synced();
    },
  };
}

/** Three primaries. All workers reach a node by the same proxy, whose port the node announces. */
export async function redisClusterTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const servers = await startRedisCluster(lab, { persistence: "always" });
  const proxies = await Promise.all(
    servers.map(async (server) => {
      const proxy = await TcpProxy.open(server, { kindOf: redisConnectionKind });
      await server.cli("config", "set", "cluster-announce-port", String(proxy.port));
      await prepare(server);
      return proxy;
    }),
  );
  const nodes = proxies.map(({ address, port }) => `${address}:${port}`).join(",");
  const one = (random: Random): RedisServer => servers[Math.floor(random.unit() * 3)]!;
  return {
    ...COMMON,
    name: "redis-cluster",
    about: "a Redis Cluster of three primaries with appendfsync always",
    url: `redis://${nodes}?cluster`,
    limits: { electionMs: 4_000, healMs: 9_000 },
    drawConnections: (random) =>
      random.unit() < 0.6 ? [{ locks: 1 }] : [{ locks: 2, library: "ioredis" }],
    kinds: [
      ...WORKER_KINDS,
      ...CONNECTION_KINDS,
      // A cluster has one database.
      ...serverKinds(one).filter(({ name }) => name !== NO_SELECT),
      {
        name: "slot moved",
        hits: "cluster",
        weight: 2,
        lasts: SHORT,
        make: (_member, random, forMs) => slotMoved(servers, random, forMs),
      },
    ],
    openWay: async (client) => {
      const clock = isClocked ? await FalseClock.open(lab, `${client}'s clock`) : null;
      return {
        url: `redis://${USER}:${USER}@${nodes}?cluster`,
        proxies,
        ...(clock === null ? {} : { clock, site: clock.site() }),
        close: async () => {},
      };
    },
    versions: () => versionsOf(servers[0]!),
    commands: async () => {
      const counts = await Promise.all(servers.map((server) => server.commands()));
      return counts.reduce((sum, count) => sum + count, 0);
    },
    async recover() {
      await recover(servers);
      await clusterIsUp(servers);
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(proxies.map((proxy) => proxy.close()));
    },
  };
}

const COMMON = {
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
  const clock = isClocked ? await FalseClock.open(lab, `${client}'s clock`) : null;
  const hosts = proxies.map(({ address, port }) => `${address}:${port}`).join(",");
  return {
    url: `redis://${USER}:${USER}@${hosts}${rest}`,
    proxies,
    ...(clock === null ? {} : { clock, site: clock.site() }),
    close: async () => {
      await Promise.all(proxies.map((proxy) => proxy.close()));
    },
  };
}

/** A user whose rights can be taken without hitting the lab or the runner. */
async function prepare(server: RedisServer): Promise<void> {
  await server.cli("acl", "setuser", USER, "on", `>${USER}`, "~*", "&*", "+@all");
}

async function recover(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    if (server.state === "paused") await server.resume();
    if (server.state === "down") await server.start();
    await prepare(server);
  }
}

async function versionsOf(server: RedisServer): Promise<Record<string, string>> {
  const version = /redis_version:(\S+)/.exec(await server.cli("info", "server"))?.[1];
  return { "redis-server": version ?? "unknown" };
}

function serverKinds(server: (random: Random) => RedisServer): readonly FaultKind[] {
  const kind = (
    name: string,
    lasts: FaultKind["lasts"],
    make: (server: RedisServer, random: Random, forMs: number) => Fault,
    more: Partial<FaultKind> = {},
  ): FaultKind => ({
    name,
    hits: "server",
    lasts,
    make: (_member, random, forMs) => make(server(random), random, forMs),
    ...more,
  });
  return [
    kind("server paused", LONG, (one) => paused(one)),
    kind("server killed and restarted", SHORT, (one) => restartedWithRights(one)),
    kind(LOST_DATA, ONCE, (one) => dataLost(one), {
      weight: 0.5,
      breaks: EXCLUSION,
      because: "what was granted is forgotten, and granted again",
    }),
    kind("scripts flushed", ONCE, (one) =>
      fault(`${one.name} has its scripts flushed`, () => one.cli("script", "flush")),
    ),
    kind("memory full", LONG, (one) => configured(one, "maxmemory", "1mb", "0")),
    kind("slow command", SHORT, (one, _random, forMs) => slowed(one, forMs)),
    kind("connections killed", ONCE, (one) =>
      fault(`${one.name} kills its connections`, async () => {
        await one.cli("client", "kill", "type", "normal");
        await one.cli("client", "kill", "type", "pubsub");
      }),
    ),
    kind("right to subscribe taken", LONG, (one) => rightTaken(one, "subscribe", "pubsub"), DEAF),
    kind(NO_SELECT, LONG, (one) => rightTaken(one, "select", "normal")),
  ];
}

/** The user is not in the append-only file. */
const restartedWithRights = (server: RedisServer): Fault => {
  const dead = killed(server);
  return fault(
    dead.name,
    () => dead.inject(),
    async () => {
      await dead.heal();
      await prepare(server);
    },
  );
};

/** As a restart without persistence does, or a failover to an empty replica. */
const dataLost = (server: RedisServer): Fault =>
  fault(`${server.name} loses its data`, () => server.cli("flushall"));

const configured = (server: RedisServer, name: string, value: string, usual: string): Fault =>
  fault(
    `${server.name} has ${name} ${value}`,
    () => server.cli("config", "set", name, value),
    () => server.cli("config", "set", name, usual),
  );

/** A script of somebody else's that keeps the server busy. */
const slowed = (server: RedisServer, forMs: number): Fault =>
  fault(`${server.name} busy with another's script`, () => {
    const turns = Math.round(forMs * 20_000);
    // Not waited for: the server answers nobody meanwhile.
    server
      .cli("eval", `local n = 0 for i = 1, ${turns} do n = n + i end return n`, "0")
      .catch(() => {});
  });

function rightTaken(server: RedisServer, command: string, connections: string): Fault {
  return fault(
    `${USER} may not ${command} at ${server.name}`,
    async () => {
      await server.cli("acl", "setuser", USER, `-${command}`);
      await server.cli("client", "kill", "type", connections, "user", USER).catch(() => {});
    },
    () => server.cli("acl", "setuser", USER, `+${command}`),
  );
}

function clockKind(clock: FalseClock): FaultKind {
  return {
    name: "server clock jumps",
    hits: "server",
    weight: 0.5,
    lasts: LONG,
    breaks: EXCLUSION,
    because: "leases end by the server's clock: one that is set ahead ends them early",
    excludes: [LOST_DATA],
    make: (_member, random) => {
      const clockByMs = jumpMs(random);
      return { ...clock.jump(clockByMs), clockByMs };
    },
  };
}

function slotMoved(servers: readonly RedisServer[], random: Random, forMs: number): Fault {
  const slot = Math.floor(random.unit() * SLOTS);
  const to = Math.floor(random.unit() * servers.length);
  return fault("a slot is moved", async () => {
    const used = await slotInUse(servers, slot);
    const source = await ownerOfSlot(servers, used);
    const target = servers[to] === source ? servers[(to + 1) % servers.length]! : servers[to]!;
    await moveSlot(servers, used, source, target, () => sleep(forMs / 2));
  });
}

/** A slot with keys in it, if there is one. */
async function slotInUse(servers: readonly RedisServer[], fallback: number): Promise<string> {
  for (const server of servers) {
    const key = await server.cli("randomkey").catch(() => "");
    if (key !== "") return server.cli("cluster", "keyslot", key);
  }
  return String(fallback);
}
