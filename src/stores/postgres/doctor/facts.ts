import type { Connections } from "../connections.js";
import { type LockKind, relationsOf } from "../rights.js";
import { MARKER_FUNCTION } from "../schema.js";

/** No statement of the doctor takes so long, unless the server hangs. */
export const TIMEOUT_MS = 5_000;

/** Facts about the server, its user and the schema. Every user can read all of them. */
export interface Facts {
  /** The kind of lock that the URL names. */
  readonly kind: LockKind;
  readonly version: string;
  readonly versionNumber: number;
  readonly encoding: string;
  readonly database: string;
  readonly user: string;
  readonly isSuperuser: boolean;
  readonly isStandby: boolean;
  readonly isReadOnly: boolean;
  /** Settings of this connection, by their names. */
  readonly settings: Readonly<Record<(typeof SETTINGS)[number], string>>;
  /** Null: there is none. */
  readonly schema: SchemaFacts | null;
  readonly mayCreateSchema: boolean;
}

export interface SchemaFacts {
  readonly name: string;
  /** Null if nobody has made the tables in it. */
  readonly format: number | null;
  /** Whether the functions of this version are there. */
  readonly hasFunctions: boolean;
  readonly mayCreateTables: boolean;
  /** Whether the user may add functions to tables that are there. */
  readonly mayAddFunctions: boolean;
  readonly isOwn: boolean;
  readonly tables: readonly TableFacts[];
}

export interface TableFacts {
  readonly name: string;
  readonly isUnlogged: boolean;
  readonly bytes: number;
  readonly liveRows: number;
  readonly deadRows: number;
  /** Whether autovacuum is on for it. */
  readonly isVacuumed: boolean;
}

const SETTINGS = [
  "default_transaction_isolation",
  "synchronous_commit",
  "synchronous_standby_names",
  "fsync",
  "full_page_writes",
  "autovacuum",
] as const;

export async function readFacts(
  connections: Connections,
  schema: string,
  kind: LockKind,
): Promise<Facts> {
  const [row] = await connections.queryCatalogs<Omit<Facts, "kind">>(
    SERVER,
    [SETTINGS, schema, MARKER_FUNCTION],
    TIMEOUT_MS,
  );
  const facts = { ...row!, kind };
  if (facts.schema === null) return facts;
  const tables = await connections.queryCatalogs<TableFacts>(
    TABLE_FACTS,
    [schema, relationsOf(kind)],
    TIMEOUT_MS,
  );
  return { ...facts, schema: { ...facts.schema, tables } };
}

// By the catalogs: to_regclass() and the function itself fail for a user without rights on the schema.
const SERVER = `SELECT current_setting('server_version') AS version,
  current_setting('server_version_num')::integer AS "versionNumber",
  current_setting('server_encoding') AS encoding,
  current_database() AS database,
  current_user AS "user",
  (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS "isSuperuser",
  pg_is_in_recovery() AS "isStandby",
  current_setting('default_transaction_read_only') = 'on' AS "isReadOnly",
  (SELECT json_object_agg(name, current_setting(name)) FROM unnest($1::text[]) AS name) AS settings,
  has_database_privilege(current_database(), 'CREATE') AS "mayCreateSchema",
  (SELECT json_build_object(
      'name', nspname,
      'format', (SELECT substring(prosrc FROM '\\d+')::integer FROM pg_proc
        WHERE pronamespace = n.oid AND proname = 'format_version'),
      'hasFunctions', EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid AND proname = $3),
      'mayAddFunctions', has_schema_privilege(n.oid, 'CREATE') AND EXISTS (SELECT FROM pg_class
        WHERE relnamespace = n.oid AND relname = 'claims' AND pg_has_role(relowner, 'USAGE')),
      'mayCreateTables', has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'),
      'isOwn', nspowner = (SELECT oid FROM pg_roles WHERE rolname = current_user))
    FROM pg_namespace AS n WHERE nspname = $2) AS schema`;

const TABLE_FACTS = `SELECT c.relname AS name,
  c.relpersistence = 'u' AS "isUnlogged",
  pg_total_relation_size(c.oid)::float8 AS bytes,
  coalesce(s.n_live_tup, 0)::float8 AS "liveRows",
  coalesce(s.n_dead_tup, 0)::float8 AS "deadRows",
  NOT EXISTS (SELECT FROM pg_options_to_table(c.reloptions)
    WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean) AS "isVacuumed"
FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE n.nspname = $1 AND c.relname = ANY ($2) AND c.relkind = 'r' ORDER BY c.relname`;
