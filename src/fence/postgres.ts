import { reasonOf, safeCause } from "../core/cause.js";
import { HoldfastError, StoreUnavailableError } from "../core/errors.js";
import {
  checkOptions,
  checkToken,
  type Duration,
  orElse,
  parseDuration,
} from "../core/validate.js";
import {
  addressOfTx,
  checkInTransaction,
  checkTx,
  makeFail,
  type PostgresTx,
  rowsBy,
  serverErrorOf,
  sqlStateOf,
  toLockError,
} from "../postgres/tx.js";
import { checkClient, type PostgresClient } from "../stores/postgres/client.js";
import { Connections } from "../stores/postgres/connections.js";
import {
  checkSchema,
  DEFAULT_SCHEMA,
  fencesTableSql,
  quoteSchema,
  SETUP_TURN,
} from "../stores/postgres/schema.js";
import {
  checkFenced,
  checkResource,
  type Fence,
  type Fenced,
  isStrict,
  notEntered,
  stale,
} from "./fence.js";
import { checkListOptions, type FencedResource, type FenceListOptions } from "./shared/list.js";

export type { Columns } from "../postgres/sql.js";
export type { PostgresTx } from "../postgres/tx.js";
export type { PostgresClient } from "../stores/postgres/client.js";
export { type GuardRowOptions, guardRow } from "./shared/guard-row.js";

/** Options of `postgresFence`. */
export interface PostgresFenceOptions {
  /** The schema of the fence's table `fences`, made at the first use. Default "holdfast". */
  schema?: string;
  /**
   * How long a step without a `tx` waits for transactions that have guarded the same resource and are
   * still open. Default 10 s.
   */
  wait?: Duration;
}

/** The same for all fences on a client: a fence is never closed, and what it adds to the client stays. */
const byClient = new WeakMap<PostgresClient, Connections>();

function connectionsOf(client: PostgresClient): Connections {
  const connections = byClient.get(client) ?? new Connections(client);
  byClient.set(client, connections);
  return connections;
}

interface ListedRow {
  readonly resource: string;
  readonly highest: string;
  readonly entered_at_ms: number | string | null;
}

/** Beyond the wait, for the reply. */
const REPLY_MS = 10_000;
/** A step of its own may meet this many others, where the default isolation level is a strict one. */
const CONFLICTS = 20;

/**
 * A fence for data in PostgreSQL. The `tx` is the client on whose open transaction you write: the guard
 * locks the resource until that transaction ends, so that guarded transactions of one resource run one
 * after another. A refused transaction can't be committed any more. Without a `tx`, each step is a
 * transaction of its own, by the fence's pool.
 */
export class PostgresFence implements Fence<PostgresTx | undefined> {
  /** The statements that make the table, for one transaction: for users who may not create it. */
  readonly setupSql: string;
  readonly #connections: Connections;
  readonly #waitMs: number;
  /** In quotes. */
  readonly #schema: string;
  readonly #sql: ReturnType<typeof statementsOf>;
  #hasTable = false;
  /** The transaction of the caller's in which the table was last made. */
  #madeIn: string | null = null;

  constructor(client: PostgresClient, options: PostgresFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["schema", "wait"]);
    checkClient(client, "postgresFence");
    this.#schema = quoteSchema(checkSchema(orElse(options.schema, DEFAULT_SCHEMA)));
    this.#waitMs = Math.ceil(
      parseDuration(orElse(options.wait, "10s"), "wait", { min: 1, max: 3_600_000 }),
    );
    this.#connections = connectionsOf(client);
    this.#sql = statementsOf(`${this.#schema}.fences`, this.#waitMs);
    this.setupSql = setupStatements(this.#schema, true).join("; ");
  }

  async enter(tx: PostgresTx | undefined, resource: string, lease: Fenced): Promise<void> {
    const { token, floor } = checkFenced(resource, lease);
    await this.#pass(tx, resource, token, floor, false);
  }

  async guard(
    tx: PostgresTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const strict = isStrict(options);
    const { token, floor } = checkFenced(resource, lease);
    await this.#pass(tx, resource, token, floor, strict);
    if (tx !== undefined) checkInTransaction(tx);
  }

  async highest(tx: PostgresTx | undefined, resource: string): Promise<bigint> {
    checkResource(resource);
    const [row] = await this.#run<{ highest: string }>(tx, resource, "highest", [resource]);
    return BigInt(row?.highest ?? 0);
  }

  /**
   * The resources that it has seen, in the order of their UTF-8 bytes. PostgreSQL tells when a number was last
   * raised or guarded only with `track_commit_timestamp = on`, and not for ever.
   */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    const { prefix, limit } = checkListOptions(options);
    try {
      if (!this.#hasTable && !(await this.#findTable()).table) return [];
      const rows = await this.#alone<ListedRow>(this.#sql.list, [prefix, limit]);
      return rows.map(({ resource, highest, entered_at_ms }) => ({
        resource,
        highest: BigInt(highest),
        enteredAtMs: entered_at_ms === null ? null : Number(entered_at_ms),
      }));
    } catch (error) {
      throw this.#toFenceError(error, undefined, prefix);
    }
  }

  async reset(tx: PostgresTx | undefined, resource: string, token: bigint): Promise<void> {
    checkResource(resource);
    await this.#run(tx, resource, "reset", [resource, String(checkToken(token, "token"))]);
  }

  async #pass(
    tx: PostgresTx | undefined,
    resource: string,
    token: bigint,
    floor: bigint,
    strict: boolean,
  ): Promise<void> {
    const values = [resource, String(floor), String(token)];
    const passed = await this.#run(tx, resource, strict ? "stay" : "enter", values);
    if (passed.length > 0) return;
    const highest = await this.highest(tx, resource);
    if (tx !== undefined) await makeFail(tx);
    const refused = strict && token >= highest ? notEntered : stale;
    throw refused(resource, token, highest);
  }

  async #run<Row>(
    tx: PostgresTx | undefined,
    resource: string,
    step: keyof ReturnType<typeof statementsOf>["own"],
    values: readonly unknown[],
  ): Promise<readonly Row[]> {
    if (tx !== undefined) checkTx(tx);
    try {
      if (!this.#hasTable) await this.#ensureTable(tx);
      if (tx === undefined) return await this.#alone<Row>(this.#sql.own[step], values);
      return (await rowsBy(tx, this.#sql.within[step], values)) as Row[];
    } catch (error) {
      throw this.#toFenceError(error, tx, resource);
    }
  }

  /** Makes the table if it is missing, in the `tx` if there is one: the pool may have no connection left. */
  async #ensureTable(tx: PostgresTx | undefined): Promise<void> {
    const found = await this.#findTable(tx);
    if (found.table) {
      // A table that was made in this transaction goes if that is rolled back.
      this.#hasTable = found.xid === null || found.xid !== this.#madeIn;
      return;
    }
    const statements = setupStatements(this.#schema, !found.schema);
    if (tx === undefined) {
      // Several in one message are one transaction.
      await this.#alone([`SELECT ${waitLimit(this.#waitMs)}`, ...statements].join("; "), []);
      this.#hasTable = true;
    } else {
      for (const statement of statements) await tx.query(statement);
      this.#madeIn = (await this.#findTable(tx)).xid;
    }
  }

  /** `xid`: the transaction, if it has written. */
  async #findTable(
    tx?: PostgresTx,
  ): Promise<{ schema: boolean; table: boolean; xid: string | null }> {
    const text =
      "SELECT pg_catalog.to_regnamespace($1)::pg_catalog.text AS schema, pg_catalog.to_regclass($2)::pg_catalog.text AS table, " +
      "pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text AS xid";
    const values = [this.#schema, `${this.#schema}.fences`];
    const rows =
      tx === undefined ? await this.#alone(text, values) : await rowsBy(tx, text, values);
    const [{ schema, table, xid }] = rows as [Record<"schema" | "table" | "xid", string | null>];
    return { schema: schema !== null, table: table !== null, xid };
  }

  async #alone<Row>(text: string, values: readonly unknown[]): Promise<readonly Row[]> {
    for (let conflicts = 0; ; conflicts++) {
      try {
        return await this.#connections.query<Row>(text, values, this.#waitMs + REPLY_MS);
      } catch (error) {
        if (sqlStateOf(error) !== "40001" || conflicts === CONFLICTS) throw error;
      }
    }
  }

  #toFenceError(error: unknown, tx: PostgresTx | undefined, resource: string): HoldfastError {
    const where = tx === undefined ? this.#connections.where : addressOfTx(tx);
    const { state, error: own } = serverErrorOf(error);
    const cause = safeCause(own);
    if (state === "55P03") {
      return new StoreUnavailableError(
        `a transaction at ${where} that has guarded ${JSON.stringify(resource)} stays open: ` +
          "end it (pg_stat_activity), or let idle_in_transaction_session_timeout do so",
        { cause },
      );
    }
    if (state === "42501") {
      return new StoreUnavailableError(
        `the user at ${where} lacks a right (${reasonOf(cause)}): let the owner of the database run ` +
          `${this.setupSql}; and grant USAGE on the schema, and SELECT, INSERT, UPDATE on its table`,
        { cause, retryable: false },
      );
    }
    // Dropped, or the transaction that had made it was rolled back: the next call makes it again.
    if (state === "42P01") this.#hasTable = false;
    const known = toLockError(error, where);
    if (HoldfastError.is(known)) return known;
    return new StoreUnavailableError(`the fence can't use ${where}: ${reasonOf(own)}`, {
      cause,
      retryable: state === "42P01",
    });
  }
}

/**
 * Makes a fence for data in PostgreSQL. It keeps one row for each resource in a table of its own, which
 * it makes at the first use if it is missing. Throws `InvalidArgumentError` if `client` is none.
 *
 * @param client A pool of `pg` for the same database as the data, or a client that nothing else uses.
 *
 * @example
 * ```ts
 * import { Pool } from "pg";
 * import { connect } from "holdfast";
 * import { postgresFence } from "holdfast/fence/postgres";
 *
 * const pool = new Pool(); // its database has a table: stock (amount integer)
 * const fence = postgresFence(pool);
 * const locks = await connect("redis://127.0.0.1:6379");
 * await locks.withLock("stock", { fence }, async (lease) => {
 *   const { rows } = await pool.query("SELECT amount FROM stock");
 *   const tx = await pool.connect();
 *   try {
 *     await tx.query("BEGIN");
 *     await fence.guard(tx, "stock", lease); // throws StaleTokenError if a later holder has entered
 *     await tx.query("UPDATE stock SET amount = $1", [rows[0].amount - 1]);
 *     await tx.query("COMMIT");
 *   } catch (error) {
 *     await tx.query("ROLLBACK").catch(() => {}); // the first error tells why
 *     throw error;
 *   } finally {
 *     tx.release();
 *   }
 * });
 * ```
 */
export function postgresFence(
  client: PostgresClient,
  options?: PostgresFenceOptions,
): PostgresFence {
  return new PostgresFence(client, options);
}

const waitLimit = (waitMs: number): string =>
  `pg_catalog.set_config('lock_timeout', '${waitMs}', true)`;
/**
 * The number is on disk before the reply. Otherwise a crash could lose it, and the fence would accept an earlier
 * holder again.
 */
const DURABLE =
  "pg_catalog.set_config('synchronous_commit', pg_catalog.replace(pg_catalog.current_setting('synchronous_commit'), 'off', 'on'), true)";

/**
 * `own` is for a step without a transaction of the caller, `within` for one inside. All names have their schema: on the
 * caller's search path, functions and operators of other users may fit better, and would run with the caller's rights.
 * Numbers are parameters of type text: Prisma's engine can't send a string as a bigint.
 */
function statementsOf(table: string, waitMs: number) {
  const isResource = "resource OPERATOR(pg_catalog.=) $1::pg_catalog.text";
  const make = (from: string) => ({
    /** Locks the row, then compares. No row in the reply: refused. */
    enter: `INSERT INTO ${table} AS fence (resource, highest) SELECT $1::pg_catalog.text, $2::pg_catalog.text::bigint ${from}
ON CONFLICT (resource) DO UPDATE SET highest = greatest(fence.highest, excluded.highest)
WHERE fence.highest OPERATOR(pg_catalog.<=) $3::pg_catalog.text::bigint RETURNING 1`,
    /** Changes the row, although not its value: a transaction with an older snapshot fails instead of reading it. */
    stay: `UPDATE ${table} SET highest = highest ${from}
WHERE ${isResource}
  AND highest OPERATOR(pg_catalog.>=) $2::pg_catalog.text::bigint AND highest OPERATOR(pg_catalog.<=) $3::pg_catalog.text::bigint RETURNING 1`,
    highest: `SELECT highest::pg_catalog.text AS highest FROM ${table} WHERE ${isResource}`,
    reset: `INSERT INTO ${table} (resource, highest) SELECT $1::pg_catalog.text, $2::pg_catalog.text::bigint ${from}
ON CONFLICT (resource) DO UPDATE SET highest = excluded.highest`,
  });
  // In FROM it is executed before a row is locked, and its effect ends with the statement.
  const list = `SELECT resource, highest::pg_catalog.text AS highest,
CASE WHEN pg_catalog.current_setting('track_commit_timestamp') OPERATOR(pg_catalog.=) 'on'
  THEN extract(epoch FROM pg_catalog.pg_xact_commit_timestamp(xmin)) OPERATOR(pg_catalog.*) 1000 END AS entered_at_ms
FROM ${table} WHERE pg_catalog.starts_with(resource, $1::pg_catalog.text) ORDER BY resource LIMIT $2::integer`;
  return { own: make(`FROM ${waitLimit(waitMs)}, ${DURABLE} AS durable`), within: make(""), list };
}

function setupStatements(schema: string, withSchema: boolean): string[] {
  return [
    ...SETUP_TURN,
    // Needs a right that a user may lack where the schema is there already.
    ...(withSchema ? [`CREATE SCHEMA IF NOT EXISTS ${schema}`] : []),
    fencesTableSql(schema),
  ];
}
