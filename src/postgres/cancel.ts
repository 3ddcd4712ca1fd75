import { setTimeout as sleep } from "node:timers/promises";
import { cutOff, newConnection, type PostgresConnection } from "../stores/postgres/client.js";
import { within } from "../stores/shared/timeout.js";
import type { PostgresTx } from "./tx.js";

/** A transaction, and the process of the server that runs it. */
export interface Backend {
  readonly pid: string;
  readonly began: string;
}

/** The timeout of a cancellation from a connection of its own. */
export const CANCEL_MS = 5_000;
/** The pause before a statement that does not wait for a lock yet is looked at again. */
const PAUSE_MS = 50;

const inMicroseconds = (time: string): string =>
  `(pg_catalog.date_part('epoch', ${time}) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8::pg_catalog.text`;

/** Columns by which a statement reads its backend. As text: programs may have replaced pg's parsers. */
export const BACKEND_COLUMNS = `pg_catalog.pg_backend_pid()::pg_catalog.text AS pid, ${inMicroseconds("pg_catalog.now()")} AS began`;

// Another transaction may have the process meanwhile, behind a pooler for example.
const CANCEL = `SELECT CASE WHEN wait_event_type OPERATOR(pg_catalog.=) 'Lock' THEN pg_catalog.pg_cancel_backend(pid) ELSE false END::pg_catalog.text AS cancelled
  FROM pg_catalog.pg_stat_activity
  WHERE pid OPERATOR(pg_catalog.=) $1::pg_catalog.int4 AND state OPERATOR(pg_catalog.=) 'active'
    AND ${inMicroseconds("xact_start")} OPERATOR(pg_catalog.=) $2::pg_catalog.text`;

/**
 * Cancels the statement of the transaction that waits, or is about to wait, for a lock. The server itself does not
 * notice that nobody needs the lock any more, even if the connection of the statement is closed.
 */
export async function cancelWait(
  connection: Pick<PostgresConnection, "query">,
  { pid, began }: Backend,
): Promise<void> {
  for (const startedMs = performance.now(); performance.now() - startedMs < CANCEL_MS; ) {
    const { rows } = await connection.query(CANCEL, [pid, began]);
    const [activity] = rows as [{ cancelled: string }?];
    if (activity?.cancelled !== "false") return;
    await sleep(PAUSE_MS);
  }
}

/** Whether the tx is a client of `pg`: its connection can be opened once more. */
export const isClient = (tx: PostgresTx): tx is PostgresTx & PostgresConnection =>
  "connectionParameters" in tx;

/** Cancels by a connection of its own: the pool of the client may have no other one. */
export async function cancelWaitOf(client: PostgresConnection, backend: Backend): Promise<void> {
  const connection = newConnection(client);
  connection.on("error", () => {});
  const cancelled = connection.connect().then(() => cancelWait(connection, backend));
  try {
    await within(CANCEL_MS, cancelled, () => new Error(`no reply within ${CANCEL_MS} ms`));
  } finally {
    cancelled.catch(() => {});
    cutOff(connection);
  }
}
