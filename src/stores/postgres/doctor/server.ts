import { randomUUID } from "node:crypto";
import { danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import { compareClocks, listFirst, measureRoundTrips } from "../../../doctor/measures.js";
import type { Connections } from "../connections.js";
import type { LockKind } from "../rights.js";
import { type Facts, TIMEOUT_MS } from "./facts.js";

const LONG_MS = 5 * 60_000;
const MOST_SHOWN = 3;

/** Whether a pooler in between lets waiters be notified. Locks of sessions are refused behind each. */
export async function checkPooler(connections: Connections, kind: LockKind): Promise<Finding> {
  const pooler = await connections.detectPooler(TIMEOUT_MS);
  if (kind === "sessions") {
    if (pooler === "none") return ok("pooler", "none in between");
    return danger(
      "pooler",
      "a pooler stands in between: every claim is refused, because the pooler could let others use the session that has the locks",
      "Name the server itself in the URL, or leave out mode=session.",
    );
  }
  if (pooler === "none") return ok("pooler", "none in between: waiters are notified");
  if (pooler === "sessions" && (await isDelivered(connections))) {
    return ok("pooler", "in between, in session mode: waiters are notified");
  }
  return note(
    "pooler",
    pooler === "transactions"
      ? "a pooler in transaction mode stands in between: waiters poll with growing pauses instead of being notified; nothing else changes"
      : "a pooler stands in between, and a message did not pass it: waiters poll with growing pauses instead of being notified; nothing else changes",
    "For faster handovers, name the server itself in the URL of the locks.",
  );
}

/** Listens, which fails if a message to itself does not arrive. */
const isDelivered = (connections: Connections): Promise<boolean> =>
  connections.subscribe(`holdfast_${randomUUID()}`, { message() {} }).then(
    async (subscription) => {
      await subscription.close();
      return true;
    },
    () => false,
  );

export const checkClock = (connections: Connections): Promise<Finding> =>
  compareClocks(async () => {
    const text = "SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS ms";
    const [row] = await connections.queryCatalogs<{ ms: number }>(text, [], TIMEOUT_MS);
    return row!.ms;
  });

export const checkLatency = (connections: Connections): Promise<Finding> =>
  measureRoundTrips(() => connections.query("SELECT 1", [], TIMEOUT_MS));

/** Whether locks of sessions have room in the server's table of locks, which all its users share. */
export async function checkLockTable(connections: Connections): Promise<Finding> {
  const [row] = await connections.queryCatalogs<{ used: number; room: number }>(
    LOCK_TABLE,
    [],
    TIMEOUT_MS,
  );
  const { used, room } = row!;
  const what = `${used} of about ${room} locks of all users are taken`;
  if (used < room / 2) return ok("lock table", what);
  return note(
    "lock table",
    `${what}: when the table is full, statements of all users fail`,
    "Raise max_locks_per_transaction and restart the server, or hold fewer locks.",
  );
}

const LOCK_TABLE = `SELECT (SELECT count(*)::integer FROM pg_locks WHERE NOT fastpath) AS used,
  current_setting('max_locks_per_transaction')::integer * (current_setting('max_connections')::integer
    + current_setting('max_prepared_transactions')::integer) AS room`;

interface Standbys {
  readonly attached: number;
  readonly synchronous: number;
  /** Whether the user may see which of them are synchronous. */
  readonly isVisible: boolean;
}

/** Grants that a failover can lose. */
export async function checkReplicas(
  connections: Connections,
  { isStandby, settings, kind }: Facts,
): Promise<Finding[]> {
  // A standby grants nothing, and the finding about its role says so.
  if (isStandby) return [];
  const [row] = await connections.queryCatalogs<Standbys>(STANDBYS, [], TIMEOUT_MS);
  const { attached, synchronous, isVisible } = row!;
  const names = settings.synchronous_standby_names;
  const count = `${attached} standby${attached === 1 ? " is" : "s are"} attached`;
  if (kind === "sessions" && attached > 0) {
    return [
      note(
        "replicas",
        `${count}. A standby knows no locks of sessions: after a failover, each name is granted again`,
        "Fence what must not be done twice.",
      ),
    ];
  }
  if (names === "" || kind === "sessions") {
    if (attached === 0)
      return [ok("replicas", "no standby is attached: there is no failover to lose a grant")];
    return [loss(`${count}, and synchronous_standby_names is empty: a grant waits for none`)];
  }
  if (settings.synchronous_commit === "local") {
    return [
      loss("synchronous_commit is local: a grant does not wait for the synchronous standbys"),
    ];
  }
  if (isVisible && synchronous === 0) {
    return [
      danger(
        "replicas",
        `synchronous_standby_names is "${names}", and no such standby is attached: every grant and renewal waits for one, and leases are lost`,
        "Start the standby, or correct synchronous_standby_names.",
      ),
    ];
  }
  const state = `${count}, and a grant waits for "${names}"`;
  return [ok("replicas", `${state}: a failover to a synchronous standby loses none`)];
}

const loss = (what: string): Finding =>
  note(
    "replicas",
    `${what}. After a failover to a standby that has not received the grant, the name is granted again`,
    "Set synchronous_standby_names and leave synchronous_commit on, or fence what must not be done twice.",
  );

const STANDBYS = `SELECT count(*)::integer AS attached,
  count(*) FILTER (WHERE sync_state IN ('sync', 'quorum'))::integer AS synchronous,
  pg_has_role('pg_read_all_stats', 'USAGE') AS "isVisible"
FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'`;

interface LongTransaction {
  readonly what: string;
  readonly minutes: number;
}

/** Transactions that keep the server from cleaning dead rows up. */
export async function checkTransactions(
  connections: Connections,
  longMs = LONG_MS,
): Promise<Finding> {
  const found = await connections.queryCatalogs<LongTransaction>(
    LONG_TRANSACTIONS,
    [longMs],
    TIMEOUT_MS,
  );
  if (found.length > 0) {
    const all = found.map(({ what, minutes }) => `${what}, for ${Math.floor(minutes)} min`);
    return note(
      "transactions",
      `open for long: ${listFirst(all, MOST_SHOWN)}. Old versions of rows pile up meanwhile, and names that are locked often become slower`,
      "End them (pg_terminate_backend, ROLLBACK PREPARED), and set idle_in_transaction_session_timeout.",
    );
  }
  const [row] = await connections.queryCatalogs<{ hidden: number }>(
    HIDDEN_SESSIONS,
    [],
    TIMEOUT_MS,
  );
  if (row!.hidden === 0) {
    return ok(
      "transactions",
      `none in this database is open for ${longMs / 60_000} minutes or more`,
    );
  }
  return unknown(
    "transactions",
    `whether other users keep transactions open for long (sessions of theirs: ${row!.hidden})`,
    "Run the doctor once as a user with the role pg_read_all_stats.",
  );
}

const LONG_TRANSACTIONS = `SELECT what, extract(epoch FROM clock_timestamp() - since)::float8 / 60 AS minutes FROM (
  SELECT format('process %s (user %s, %s)', pid, usename, state) AS what, xact_start AS since
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  UNION ALL
  SELECT format('prepared transaction %L (user %s)', gid, owner), prepared
    FROM pg_prepared_xacts WHERE database = current_database()
) AS open WHERE since < clock_timestamp() - $1 * interval '1 ms' ORDER BY since`;

const HIDDEN_SESSIONS = `SELECT count(*)::integer AS hidden FROM pg_stat_activity
  WHERE datname = current_database() AND usesysid <> (SELECT oid FROM pg_roles WHERE rolname = current_user)
    AND NOT pg_has_role('pg_read_all_stats', 'USAGE')`;
