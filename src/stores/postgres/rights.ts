import { InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import type { Connections } from "./connections.js";
import { MissingRightError } from "./errors.js";
import { FUNCTIONS, quoteSchema } from "./schema.js";

const ALL_ROWS = ["SELECT", "INSERT", "UPDATE", "DELETE"] as const;

type Rights = Readonly<Record<string, readonly string[]>>;

/** The rights that each kind of lock needs on its tables and sequences, and no more. `sessions`: mode=session. */
const RIGHTS_OF = {
  leases: {
    names: ALL_ROWS,
    claims: ALL_ROWS,
    deleted_names: ["SELECT", "UPDATE"],
    records: ALL_ROWS,
    meters: ALL_ROWS,
  } as Rights,
  sessions: { session_locks: ALL_ROWS, session_tokens: ["UPDATE"] } as Rights,
};
const LOCK_RIGHTS: Rights = { ...RIGHTS_OF.leases, ...RIGHTS_OF.sessions };
/** Also those of `postgresFence()`, whose table only the set-up makes together with those of locks. */
const ALL_RIGHTS: Rights = { ...LOCK_RIGHTS, fences: ["SELECT", "INSERT", "UPDATE"] };

export type LockKind = keyof typeof RIGHTS_OF;

/** The tables and sequences of a kind of lock. */
export const relationsOf = (kind: LockKind): readonly string[] => Object.keys(RIGHTS_OF[kind]);

/** The statements that give a role what it needs for locks and fences, for the owner of the schema. */
export function grantSql(schema: string, role: string): string {
  const quoted = quoteSchema(schema);
  const functions = FUNCTIONS.map((name) => `${quoted}.${name}`);
  // Every role has the last one, unless the database has taken it from PUBLIC.
  return [...rightsOn(quoted, ALL_RIGHTS), `EXECUTE ON FUNCTION ${functions.join(", ")}`]
    .map((right) => `${grantTo(right, role)}\n`)
    .join("");
}

const rightsOn = (quoted: string, all: Rights): readonly string[] => [
  `USAGE ON SCHEMA ${quoted}`,
  ...Object.entries(all).map(([name, rights]) => `${rights.join(", ")} ON ${quoted}.${name}`),
];

const grantTo = (right: string, role: string): string =>
  `GRANT ${right} TO ${quoteIdentifier(checkRole(role))};`;

/** Adds the SQL that gives the user the right that it lacks. Other errors stay as they are. */
export async function showMissingRight(
  error: unknown,
  connections: Connections,
  schema: string,
  timeoutMs: number,
): Promise<unknown> {
  if (!(error instanceof MissingRightError)) return error;
  const { message, cause } = error;
  try {
    const [at] = await connections.query<{
      role: string;
      database: string;
      home: string | null;
      table: string | null;
    }>(
      `SELECT current_user AS role, pg_catalog.current_database() AS database, nspname AS home, relname AS table
        FROM (VALUES (1)) AS one
          LEFT JOIN pg_catalog.pg_namespace AS n ON nspname OPERATOR(pg_catalog.=) $1
          LEFT JOIN pg_catalog.pg_class ON relnamespace OPERATOR(pg_catalog.=) n.oid
            AND relname OPERATOR(pg_catalog.=) 'names'`,
      [schema],
      timeoutMs,
    );
    const { role, database, home, table } = at!;
    const quoted = quoteSchema(schema);
    let rights: readonly string[];
    if (home === null) rights = [`CREATE ON DATABASE ${quoteIdentifier(database)}`];
    else if (table === null) rights = [`USAGE, CREATE ON SCHEMA ${quoted}`];
    else if (/ function /.test(message)) rights = [`EXECUTE ON ALL FUNCTIONS IN SCHEMA ${quoted}`];
    else rights = rightsOn(quoted, LOCK_RIGHTS);
    const sql = rights.map((right) => grantTo(right, role)).join(" ");
    return new StoreUnavailableError(`${message}, or this: ${sql}`, { cause, retryable: false });
  } catch {
    return error;
  }
}

/**
 * The rights that the role lacks, as GRANT has them: all that are granted, or those that one kind of lock needs. Null
 * stands for the current user.
 */
export async function findMissingRights(
  connections: Connections,
  schema: string,
  role: string | null,
  timeoutMs: number,
  kind?: LockKind,
): Promise<readonly string[]> {
  const wanted = Object.entries(kind === undefined ? ALL_RIGHTS : RIGHTS_OF[kind]).flatMap(
    ([name, rights]) => rights.map((right) => ({ name, right })),
  );
  const rows = await connections.queryCatalogs<{ missing: string }>(
    MISSING_RIGHTS,
    [schema, role, wanted.map(({ name }) => name), wanted.map(({ right }) => right), FUNCTIONS],
    timeoutMs,
  );
  return rows.map(({ missing }) => missing);
}

/** By the catalogs alone, which every user can read. */
const MISSING_RIGHTS = `WITH who AS (SELECT coalesce($2, current_user)::name AS role),
  home AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
SELECT missing FROM who, home, LATERAL (
  SELECT 'USAGE ON SCHEMA ' || $1 AS missing, has_schema_privilege(role, home.oid, 'USAGE') AS may
  UNION ALL
  SELECT format('%s ON %s.%s', w.privilege, $1, relname), has_table_privilege(role, c.oid, w.privilege)
    FROM unnest($3::text[], $4::text[]) AS w(name, privilege)
      JOIN pg_class AS c ON relname = w.name AND relnamespace = home.oid
  UNION ALL
  SELECT format('EXECUTE ON FUNCTION %s.%s', $1, proname), has_function_privilege(role, p.oid, 'EXECUTE')
    FROM pg_proc AS p WHERE pronamespace = home.oid AND proname = ANY ($5::text[])
) AS rights WHERE NOT may`;

const quoteIdentifier = (name: string): string => `"${name.replaceAll('"', '""')}"`;

function checkRole(role: string): string {
  const bytes = Buffer.byteLength(role);
  if (bytes === 0 || bytes > 63 || role.includes("\0")) {
    throw new InvalidArgumentError(
      `the user to grant rights to is ${show(role)}; it must be the name of a role, of 1 to 63 bytes`,
    );
  }
  return role;
}
