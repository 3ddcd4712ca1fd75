import { type EtcdTx, etcdFence } from "../../../fence/etcd.js";
import type { Fenced } from "../../../fence/fence.js";
import { openEtcdClientOf } from "../../../stores/etcd/open.js";
import { modifiedAt } from "../../../stores/etcd/rpc/compare.js";
import { parseStoreUrl } from "../../../stores/registry.js";
import { type Cell, comparedCells, EMPTY_CELL } from "./compared.js";
import type { Cells, RegisterPlace } from "./register.js";

/** One key for each resource, changed only if it is unchanged. */
export async function openEtcdCells({ url, space }: RegisterPlace): Promise<Cells> {
  const client = await openEtcdClientOf(parseStoreUrl(url));
  const fence = etcdFence(client, { prefix: `${space}/fence/` });
  const keyOf = (resource: string): string => `${space}/cell/${resource}`;

  const read = async (resource: string): Promise<{ cell: Cell; revision: bigint }> => {
    const { kvs } = await client.range({ key: keyOf(resource) });
    const cell = kvs[0] === undefined ? EMPTY_CELL : (JSON.parse(kvs[0].value) as Cell);
    return { cell, revision: kvs[0]?.modRevision ?? 0n };
  };

  /** Resolves to the cell from before. Without a lease, nothing is guarded. */
  const change = async (
    resource: string,
    lease: Fenced | null,
    next: (cell: Cell) => Cell,
  ): Promise<Cell> => {
    for (;;) {
      const { cell, revision } = await read(resource);
      const key = keyOf(resource);
      const tx: EtcdTx = {
        compare: [modifiedAt(key, revision)],
        success: [{ put: { key, value: JSON.stringify(next(cell)) } }],
      };
      if (lease !== null) await fence.guard(tx, resource, lease);
      const { succeeded } = await (lease === null ? client.txn(tx) : fence.commit(tx));
      if (succeeded) return cell;
    }
  };

  return comparedCells({
    read: async (resource) => (await read(resource)).cell,
    change,
    close: () => client.close(),
  });
}
