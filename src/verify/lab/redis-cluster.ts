import type { Lab } from "./lab.js";
import { freePort } from "./ports.js";
import type { RedisOptions, RedisServer } from "./redis.js";
import { until } from "./until.js";

const UP_MS = 10_000;

/** A Redis Cluster of three primaries, ready to serve. */
export async function startRedisCluster(
  lab: Lab,
  options: RedisOptions = {},
): Promise<readonly RedisServer[]> {
  const servers = await Promise.all(
    [1, 2, 3].map(async () => {
      // Its other port is 10,000 above the first, if nothing is said, where anything may be.
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
  await servers[0]!.cli("--cluster", "create", ...addresses, "--cluster-yes");
  await clusterIsUp(servers);
  return servers;
}

/** Resolves when every node that runs says that the cluster serves all slots. */
export async function clusterIsUp(servers: readonly RedisServer[]): Promise<void> {
  for (const server of servers) {
    await until("the cluster is up", UP_MS, async () =>
      (await server.cli("cluster", "info")).includes("cluster_state:ok"),
    );
  }
}

/** The node that serves a slot. */
export async function ownerOfSlot(
  servers: readonly RedisServer[],
  slot: string,
): Promise<RedisServer> {
  for (const one of servers) {
    const nodes = linesOf(await one.cli("cluster", "nodes"));
    const ranges = nodes
      .find((line) => line.includes("myself"))!
      .split(" ")
      .slice(8);
    const has = (range: string): boolean => {
      const [from, to = from] = range.split("-").map(Number);
      return from! <= Number(slot) && Number(slot) <= to!;
    };
    if (ranges.some(has)) return one;
  }
  throw new Error(`nobody has slot ${slot}`);
}

/** Moves a slot key by key, as redis-cli does it, with a rest after the first key. */
export async function moveSlot(
  servers: readonly RedisServer[],
  slot: string,
  source: RedisServer,
  target: RedisServer,
  halfway: () => Promise<void>,
): Promise<void> {
  const [from, to] = [await source.cli("cluster", "myid"), await target.cli("cluster", "myid")];
  await target.cli("cluster", "setslot", slot, "importing", from);
  await source.cli("cluster", "setslot", slot, "migrating", to);
  const keys = linesOf(await source.cli("cluster", "getkeysinslot", slot, "100"))
    .sort()
    .reverse();
  for (const key of keys) {
    await source.cli("migrate", target.address, String(target.port), key, "0", "5000");
    if (key === keys[0]) await halfway();
  }
  for (const one of [target, source, ...servers]) {
    await one.cli("cluster", "setslot", slot, "node", to);
  }
}

const linesOf = (text: string): string[] => text.split("\n").filter((line) => line !== "");
