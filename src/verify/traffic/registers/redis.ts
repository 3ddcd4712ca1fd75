import { type RedisTx, redisFence } from "../../../fence/redis.js";
import { connectionOf } from "../../../stores/redis/client.js";
import { openRedisClient } from "../../../stores/redis/open.js";
import { parseStoreUrl } from "../../../stores/registry.js";
import type { Cells, RegisterPlace } from "./register.js";

/** One hash for each resource: `value`, `unfenced`, `step`. */
export async function openRedisCells({ url, space }: RegisterPlace): Promise<Cells> {
  const client = await openRedisClient(parseStoreUrl(url));
  const fence = redisFence(client, { prefix: `${space}:fence:` });
  // Commands of the register's own, too, so that each of them is one step.
  const unguarded = redisFence(client, { prefix: `${space}:none:` });
  const keyOf = (resource: string): string => `${space}:cell:${resource}`;
  const run = async (resource: string, ...commands: string[][]): Promise<readonly unknown[]> => {
    const tx: RedisTx = { commands };
    await unguarded.guard(tx, resource, { token: 0n, floor: 0n });
    return unguarded.commit(tx);
  };
  return {
    async access(resource, lease, value) {
      const key = keyOf(resource);
      const tx: RedisTx = { commands: [["HINCRBY", key, "step", 1]] };
      if (value !== null) tx.commands.push(["HSET", key, "value", value]);
      await fence.guard(tx, resource, lease);
      return Number((await fence.commit(tx))[0]);
    },
    async count(resource) {
      return Number((await run(resource, ["HINCRBY", keyOf(resource), "step", "1"]))[0]);
    },
    async read(resource) {
      const key = keyOf(resource);
      const [value, unfenced] = await run(
        resource,
        ["HGET", key, "value"],
        ["HGET", key, "unfenced"],
      );
      return { value: Number(value ?? 0), unfenced: Number(unfenced ?? 0) };
    },
    async swap(resource, value) {
      const key = keyOf(resource);
      const [found] = await run(
        resource,
        ["HGET", key, "unfenced"],
        ["HSET", key, "unfenced", String(value)],
      );
      return Number(found ?? 0);
    },
    close: () => connectionOf(client).close(),
  };
}
