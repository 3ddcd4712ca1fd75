import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../../core/random.js";
import { type Fault, fault } from "../fault.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import type { Lab } from "../lab/lab.js";
import type { RedisServer } from "../lab/redis.js";
import {
  clusterIsUp,
  hasOpenSlots,
  moveSlot,
  ownerOfSlot,
  primaryIdOf,
  repairCluster,
  startRedisCluster,
} from "../lab/redis-cluster.js";
import { until } from "../lab/until.js";
import { EXCLUSION, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import { COMMON, CONNECTION_KINDS, leftOf, recover, versionsOf } from "./redis.js";
import { NO_SELECT, prepare, serverKinds, USER } from "./redis-faults.js";
import { ONCE, SHORT, wayThrough } from "./servers.js";

const SLOTS = 16_384;
const SLOT_MOVED = "slot moved";
/** Redis gives up a requested failover after five seconds. */
const FAILOVER_MS = 8_000;

/** A primary and its replica; they change places in a failover. */
interface Shard {
  primary: RedisServer;
  replica: RedisServer;
}

/**
 * Three primaries, each with a replica. All workers reach a node by the same proxy, whose port the
 * node announces. No replica takes over by itself: otherwise a server that hangs or is killed for a
 * moment would lose grants, under faults that must cost none.
 */
export async function redisClusterTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const servers = await startRedisCluster(lab, {
    persistence: "always",
    replicas: 1,
    config: { "cluster-replica-no-failover": "yes" },
  });
  const proxies = await Promise.all(
    servers.map(async (server) => {
      const proxy = await TcpProxy.open(server, { kindOf: redisConnectionKind });
      await server.cli("config", "set", "cluster-announce-port", String(proxy.port));
      await prepare(server);
      return proxy;
    }),
  );
  const nodes = proxies.map(({ address, port }) => `${address}:${port}`).join(",");
  const shards = await shardsOf(servers);
  let moved = Promise.resolve();
  /** Two moves of one slot at the same time would scatter its keys. */
  const oneAtATime = (move: () => Promise<void>): Promise<void> => {
    const moving = moved.then(move);
    moved = moving.catch(() => {});
    return moving;
  };
  const pick = (random: Random): Shard => shards[Math.floor(random.unit() * shards.length)]!;
  const primaries = (): readonly RedisServer[] => shards.map(({ primary }) => primary);
  return {
    ...COMMON,
    name: "redis-cluster",
    about: "a Redis Cluster of three primaries with appendfsync always, each with a replica",
    url: `redis://${nodes}?cluster`,
    limits: { electionMs: 4_000, healMs: 9_000 },
    drawConnections: (random) =>
      random.unit() < 0.6 ? [{ locks: 1 }] : [{ locks: 2, library: "ioredis" }],
    kinds: [
      ...WORKER_KINDS,
      // Nodes announce the proxies to all clients, the runner included.
      ...CONNECTION_KINDS.map((kind) => ({ ...kind, hitsRunner: true })),
      // A cluster has only one database.
      ...serverKinds((random) => pick(random).primary).filter(({ name }) => name !== NO_SELECT),
      ...failoverKinds(pick),
      {
        name: SLOT_MOVED,
        hits: "cluster",
        weight: 2,
        lasts: SHORT,
        make: (_member, random, forMs) =>
          fault("a slot is moved", () =>
            oneAtATime(() => moveSomeSlot(primaries(), random, forMs)),
          ),
      },
    ],
    openWay: async (client) => {
      const url = `redis://${USER}:${USER}@${nodes}?cluster`;
      const way = await wayThrough(proxies, { lab, client, isClocked }, () => url);
      // All workers share the proxies.
      return { ...way, close: async () => {} };
    },
    versions: () => versionsOf(servers[0]!),
    leftOf: (names) => leftOf(primaries(), names, 0),
    commands: async () => {
      // The sum of all servers, because after a failover the other server of a shard counts on.
      const counts = await Promise.all(servers.map((server) => server.commands()));
      return counts.reduce((sum, count) => sum + count, 0);
    },
    async recover() {
      await recover(servers);
      await clusterIsUp(servers).catch(() => repairCluster(servers));
      if (await hasOpenSlots(servers)) await repairCluster(servers);
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(proxies.map((proxy) => proxy.close()));
    },
  };
}

/** Finds the shards by what each replica reports about itself: the other nodes learn of a change a little later. */
async function shardsOf(servers: readonly RedisServer[]): Promise<readonly Shard[]> {
  const ids = await Promise.all(servers.map((server) => server.cli("cluster", "myid")));
  const primaryIds = await Promise.all(servers.map(primaryIdOf));
  return servers.flatMap((replica, i) => {
    const primary = servers[ids.indexOf(primaryIds[i]!)];
    return primary === undefined ? [] : [{ primary, replica }];
  });
}

function failoverKinds(pick: (random: Random) => Shard): readonly FaultKind[] {
  const kind = (
    name: string,
    make: (shard: Shard) => Fault,
    more: Partial<FaultKind> = {},
  ): FaultKind => ({
    name,
    hits: "cluster",
    lasts: ONCE,
    // A slot that is being moved when its server changes its role would stay half moved.
    excludes: [SLOT_MOVED],
    make: (_member, random) => make(pick(random)),
    ...more,
  });
  return [
    kind("replica made the primary", (shard) => handedOver(shard)),
    kind("primary killed, its replica takes over", (shard) => takenOver(shard), {
      lasts: SHORT,
      breaks: EXCLUSION,
      because: "replication is asynchronous: the replica may lack the last grants",
    }),
  ];
}

/** The old primary waits until its replica has all data, so no grant is lost. */
const handedOver = (shard: Shard): Fault =>
  fault(`${shard.replica.name} is made the primary`, async () => {
    const { primary, replica } = shard;
    const handOver = async (): Promise<void> => {
      // A replica refuses while its connection to the primary is not up yet.
      await until(`${replica.name} takes part in a failover`, FAILOVER_MS, () =>
        replica.cli("cluster", "failover").then(
          () => true,
          () => false,
        ),
      );
      await becomesPrimary(replica);
    };
    // A busy server may give up the first request.
    await handOver().catch(handOver);
    Object.assign(shard, { primary: replica, replica: primary });
  });

const takenOver = (shard: Shard): Fault => {
  const { primary, replica } = shard;
  return fault(
    `${primary.name} is killed, and ${replica.name} takes over`,
    async () => {
      await primary.kill();
      await replica.cli("cluster", "failover", "takeover");
      await becomesPrimary(replica);
      Object.assign(shard, { primary: replica, replica: primary });
    },
    async () => {
      await primary.start();
      await prepare(primary);
    },
  );
};

/** Rejects if the failover was given up, for instance because the primary did not reply. */
const becomesPrimary = (replica: RedisServer): Promise<void> =>
  until(`${replica.name} is a primary`, FAILOVER_MS, async () =>
    (await replica.cli("role").catch(() => "")).startsWith("master"),
  );

async function moveSomeSlot(
  servers: readonly RedisServer[],
  random: Random,
  forMs: number,
): Promise<void> {
  const slot = await slotInUse(servers, Math.floor(random.unit() * SLOTS));
  const to = Math.floor(random.unit() * servers.length);
  const source = await ownerOfSlot(servers, slot);
  const target = servers[to] === source ? servers[(to + 1) % servers.length]! : servers[to]!;
  await moveSlot(servers, slot, source, target, () => sleep(forMs / 2));
}

/** A slot that has keys, if there is one. */
async function slotInUse(servers: readonly RedisServer[], fallback: number): Promise<string> {
  for (const server of servers) {
    const key = await server.cli("randomkey").catch(() => "");
    if (key !== "") return server.cli("cluster", "keyslot", key);
  }
  return String(fallback);
}
