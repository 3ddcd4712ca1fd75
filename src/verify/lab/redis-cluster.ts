import { setTimeout as sleep } from "node:timers/promises";
import type { Lab } from "./lab.js";
import { freePort } from "./ports.js";
import type { RedisOptions, RedisServer } from "./redis.js";
import { until } from "./until.js";

const UP_MS = 10_000;
/** Longer than any fault of a server in a run. */
const MOVE_MS = 20_000;
const STEP_PAUSE_MS = 50;
const PRIMARIES = 3;

/** Starts a Redis Cluster of three primaries, each with `replicas` replicas; resolves when it serves. */
export async function startRedisCluster(
  lab: Lab,
  { replicas = 0, ...options }: RedisOptions & { readonly replicas?: number } = {},
): Promise<readonly RedisServer[]> {
  const servers = await Promise.all(
    Array.from({ length: PRIMARIES * (1 + replicas) }, async () => {
      // The default bus port is 10,000 above the first port, where another server may listen.
      const bus = String(await freePort());
      const config = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": "2000",
        "cluster-port": bus,
        ...options.config,
      };
      return lab.redis({ ...options, config });
    }),
  );
  const addresses = servers.map(({ address, port }) => `${address}:${port}`);
  await servers[0]!.cli(
    "--cluster",
    "create",
    ...addresses,
    "--cluster-replicas",
    String(replicas),
    "--cluster-yes",
  );
  await clusterIsUp(servers);
  await until("every replica is connected to its primary", UP_MS, async () => {
    const roles = await Promise.all(servers.map((server) => server.cli("role")));
    const isConnected = (role: string): boolean => linesOf(role)[3] === "connected";
    return roles.filter(isConnected).length === PRIMARIES * replicas;
  });
  return servers;
}

/** Resolves when every running node reports that the cluster serves all slots. */
export async function clusterIsUp(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    await until("the cluster is up", UP_MS, async () =>
      (await server.cli("cluster", "info")).includes("cluster_state:ok"),
    );
  }
}

/** Assigns slots that no node serves any more, as after a takeover during a move, to a node; ends moves of slots. */
export async function repairCluster(servers: readonly RedisServer[]): Promise<void> {
  const one = servers[0]!;
  await one.cli("--cluster", "fix", `${one.address}:${one.port}`, "--cluster-yes");
  await clusterIsUp(servers);
}

/** The node that serves a slot. */
export async function ownerOfSlot(
  servers: readonly RedisServer[],
  slot: string,
): Promise<RedisServer> {
  for (const one of servers) {
    const ranges = (await ownLine(one)).slice(8);
    const has = (range: string): boolean => {
      const [from, to = from] = range.split("-").map(Number);
      return from! <= Number(slot) && Number(slot) <= to!;
    };
    if (ranges.some(has)) return one;
  }
  throw new Error(`nobody has slot ${slot}`);
}

/** The id of the node that this one replicates; "-" if it is a primary. */
export async function primaryIdOf(server: RedisServer): Promise<string> {
  return (await ownLine(server))[3]!;
}

/** The node's own line in CLUSTER NODES, as words. */
async function ownLine(server: RedisServer): Promise<readonly string[]> {
  const lines = linesOf(await server.cli("cluster", "nodes"));
  return lines.find((line) => line.includes("myself"))!.split(" ");
}

/**
 * Moves a slot key by key, as redis-cli does, with a pause after the first key. A node may be down, hang or
 * refuse a step for a while, so each step is repeated until it succeeds: scripts on a slot that stays half
 * moved would be refused for ever (TRYAGAIN).
 */
export async function moveSlot(
  servers: readonly RedisServer[],
  slot: string,
  source: RedisServer,
  target: RedisServer,
  halfway: () => Promise<void>,
): Promise<void> {
  const untilMs = performance.now() + MOVE_MS;
  const cli = (server: RedisServer, ...args: readonly string[]): Promise<string> =>
    succeeds(untilMs, () => server.cli(...args));
  const [from, to] = [await cli(source, "cluster", "myid"), await cli(target, "cluster", "myid")];
  await cli(target, "cluster", "setslot", slot, "importing", from);
  await cli(source, "cluster", "setslot", slot, "migrating", to);
  const keysLeft = async (): Promise<string[]> =>
    linesOf(await cli(source, "cluster", "getkeysinslot", slot, "100"))
      .sort()
      .reverse();
  const { address, port } = target;
  let keys = await keysLeft();
  for (let isFirst = true; keys.length > 0; keys = await keysLeft()) {
    for (const key of keys) {
      // After a timeout, the target may have the key already; the source's is the one in use.
      await cli(source, "migrate", address, String(port), key, "0", "5000", "replace");
      if (isFirst) await halfway();
      isFirst = false;
    }
  }
  for (const one of [target, source, ...servers]) {
    await cli(one, "cluster", "setslot", slot, "node", to);
  }
}

/** Whether a slot is half moved. */
export async function hasOpenSlots(servers: readonly RedisServer[]): Promise<boolean> {
  const lines = await Promise.all(servers.map(ownLine));
  return lines.some((words) => words.some((word) => word.startsWith("[")));
}

/** Repeats the step until it succeeds; rejects with its last error after `untilMs`. */
async function succeeds<T>(untilMs: number, step: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await step();
    } catch (error) {
      if (performance.now() > untilMs) throw error;
      await sleep(STEP_PAUSE_MS);
    }
  }
}

const linesOf = (text: string): string[] => text.split("\n").filter((line) => line !== "");
