import type { EventEmitter } from "node:events";
import { postgresFence } from "../../../fence/postgres.js";
import type { PostgresTx } from "../../../postgres/tx.js";
import { openPool } from "../../../stores/postgres/open.js";
import { parseStoreUrl } from "../../../stores/registry.js";
import type { Cells, RegisterPlace } from "./register.js";

/** Where a worker is paused in a transaction, the server ends the transaction, so that others can go on. */
const IDLE = "SET idle_in_transaction_session_timeout = '2s'";
const TABLE =
  "CREATE TABLE IF NOT EXISTS register (resource text PRIMARY KEY, value integer NOT NULL DEFAULT 0, unfenced integer NOT NULL DEFAULT 0, step integer NOT NULL DEFAULT 0)";
const STEP = `INSERT INTO register (resource, value, step) VALUES ($1, coalesce($2::integer, 0), 1)
ON CONFLICT (resource) DO UPDATE SET step = register.step + 1, value = coalesce($2::integer, register.value)
RETURNING step`;
const SWAP = `UPDATE register SET unfenced = $2 FROM (SELECT unfenced AS found FROM register WHERE resource = $1 FOR UPDATE) AS old
WHERE resource = $1 RETURNING found`;

/** The part of a pool of `pg` that a register uses. */
interface Pool extends Pick<PostgresTx, "query"> {
  connect(): Promise<PostgresTx & EventEmitter & { release(failure?: Error): void }>;
  end(): Promise<void>;
}

/** One row for each resource. */
export async function openPostgresCells({ url, space }: RegisterPlace): Promise<Cells> {
  const client = await openPool(parseStoreUrl(url));
  const fence = postgresFence(client);
  const pool = client as unknown as Pool;
  const nameOf = (resource: string): string => `${space}:${resource}`;
  const query = async (text: string, values: unknown[]): Promise<Record<string, number>> =>
    (await pool.query(text, values)).rows[0] as Record<string, number>;
  // Workers make it together, and PostgreSQL lets one of them fail.
  await pool.query(TABLE).catch(() => {});
  return {
    async access(resource, lease, value) {
      const tx = await pool.connect();
      // When the server ends the session, the pending or the next statement fails, too.
      const ignore = (): void => {};
      tx.on("error", ignore);
      let failure: Error | undefined;
      try {
        await tx.query(IDLE);
        await tx.query("BEGIN");
        await fence.guard(tx, nameOf(resource), lease);
        const { rows } = await tx.query(STEP, [nameOf(resource), value]);
        await tx.query("COMMIT");
        return (rows[0] as { step: number }).step;
      } catch (error) {
        await tx.query("ROLLBACK").catch((lost: Error) => {
          failure = lost;
        });
        throw error;
      } finally {
        tx.off("error", ignore);
        tx.release(failure);
      }
    },
    count: async (resource) => (await query(STEP, [nameOf(resource), null]))["step"]!,
    async read(resource) {
      const { value, unfenced } = await query("SELECT * FROM register WHERE resource = $1", [
        nameOf(resource),
      ]);
      return { value: value!, unfenced: unfenced! };
    },
    swap: async (resource, value) => (await query(SWAP, [nameOf(resource), value]))["found"]!,
    close: () => pool.end(),
  };
}
