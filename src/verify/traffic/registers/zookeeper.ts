import type { Fenced } from "../../../fence/fence.js";
import { type ZooKeeperTx, zookeeperFence } from "../../../fence/zookeeper.js";
import { parseStoreUrl } from "../../../stores/registry.js";
import { isCode } from "../../../stores/zookeeper/errors.js";
import { encodeName } from "../../../stores/zookeeper/layout.js";
import { openClientOf } from "../../../stores/zookeeper/open.js";
import { createPath } from "../../../stores/zookeeper/root.js";
import { type Cell, comparedCells, EMPTY_CELL } from "./compared.js";
import type { Cells, RegisterPlace } from "./register.js";

const SESSION_MS = 30_000;

/** One node for each resource, changed only if it is unchanged. */
export async function openZooKeeperCells({ url, space }: RegisterPlace): Promise<Cells> {
  const client = await openClientOf(parseStoreUrl(url), SESSION_MS);
  const root = `/register-${encodeName(space)}`;
  const fence = zookeeperFence(client, { root: `${root}-fence` });
  await createPath(client, root, {});
  const pathOf = (resource: string): string => `${root}/${encodeName(resource)}`;

  const read = async (resource: string): Promise<{ cell: Cell; version: number | null }> => {
    try {
      const { data, stat } = await client.getData(pathOf(resource));
      return { cell: JSON.parse(data.toString()) as Cell, version: stat.version };
    } catch (error) {
      if (isCode(error, "NO_NODE")) return { cell: EMPTY_CELL, version: null };
      throw error;
    }
  };

  /** Resolves to the cell from before. Without a lease, nothing is guarded. */
  const change = async (
    resource: string,
    lease: Fenced | null,
    next: (cell: Cell) => Cell,
  ): Promise<Cell> => {
    for (;;) {
      const { cell, version } = await read(resource);
      const [path, data] = [pathOf(resource), JSON.stringify(next(cell))];
      const tx: ZooKeeperTx =
        version === null
          ? [{ op: "create", path, data }]
          : [{ op: "setData", path, data, version }];
      try {
        if (lease !== null) await fence.guard(tx, resource, lease);
        await (lease === null ? client.multi(tx) : fence.commit(tx));
        return cell;
      } catch (error) {
        if (!isCode(error, "BAD_VERSION", "NODE_EXISTS")) throw error;
      }
    }
  };

  return comparedCells({
    read: async (resource) => (await read(resource)).cell,
    change,
    close: () => client.close(),
  });
}
