import { createHash } from "node:crypto";
import { reasonOf } from "../../core/cause.js";
import {
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../core/errors.js";
import {
  LOCK_LIMIT,
  MOST_WAITERS,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  WAITERS_AT_EXPIRY,
} from "../../core/store.js";
import { show } from "../../core/validate.js";
import { type Connections, OWN_PATH } from "./connections.js";
import { SQL } from "./sql.js";

export const DEFAULT_SCHEMA = "holdfast";

/**
 * Raised when the functions of an older version could misread the tables, or would no longer fit them. Otherwise the
 * functions of several versions work on the same tables, side by side.
 */
export const FORMAT = 2;
/** Names and labels may contain any character. */
export const ENCODING = "UTF8";
/**
 * The beginning of a transaction that creates something: CREATE … IF NOT EXISTS and CREATE OR REPLACE
 * fail when two sessions run them at once. The number is arbitrary; as text, because Prisma refuses a result of type
 * void. The second statement locks a catalogue: only
 * then does a session that has waited drop its cache of names that were missing before.
 */
export const SETUP_TURN: readonly string[] = [
  "SELECT pg_catalog.pg_advisory_xact_lock(4837201155)::pg_catalog.text",
  "SELECT FROM pg_catalog.pg_namespace LIMIT 0",
];
/** The number of the lock that sessions take in turn to set the sequence of tokens to the clock. */
const SESSION_TOKEN_LOCK = 4_837_201_156;
export const SETUP_MS = 30_000;
const SETUP_ATTEMPTS = 5;

const CONSTANTS: Readonly<Record<string, number>> = {
  /** The highest number that a double holds exactly, as other stores have it. */
  MAX_TOKEN: Number.MAX_SAFE_INTEGER,
  LOCK_LIMIT,
  MOST_WAITERS,
  RENEWALS_PER_TTL,
  WAITERS_AT_EXPIRY,
  REVOKED_KEPT_US: REVOKED_KEPT.ms * 1_000,
  REVOKED_KEPT_MANY: REVOKED_KEPT.many,
  SESSION_TOKEN_LOCK,
};

/** Throws InvalidArgumentError unless it consists of plain characters, and is no name of PostgreSQL's own. */
export function checkSchema(schema: unknown): string {
  if (typeof schema !== "string" || !/^[a-z_][a-z0-9_]{0,62}$/.test(schema)) {
    throw new InvalidArgumentError(
      `the schema is ${show(schema)}; it must consist of small letters, digits and "_", at most 63, and not begin with a digit`,
    );
  }
  if (schema.startsWith("pg_") || schema === "information_schema") {
    throw new InvalidArgumentError(
      `the schema is ${show(schema)}; PostgreSQL keeps names that begin with pg_, and information_schema, for itself: choose another`,
    );
  }
  return schema;
}

/** A checked schema as SQL has it: "user" and "order" are also words of SQL. */
export const quoteSchema = (schema: string): string => `"${schema}"`;

/** Makes the table of `postgresFence()`, which is no part of the format. */
export const fencesTableSql = (quotedSchema: string): string =>
  `CREATE TABLE IF NOT EXISTS ${quotedSchema}.fences (resource pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY, highest bigint NOT NULL) WITH (fillfactor = 70)`;

const BODY = [
  SQL.tables,
  SQL.names,
  SQL.requests,
  SQL.renewals,
  SQL.operations,
  SQL.sessions,
  SQL.records,
]
  .join("\n")
  .replaceAll(/\$([A-Z_]+)\b/g, (text, name: string) => String(CONSTANTS[name] ?? text));

const PLAIN_FUNCTIONS = [...BODY.matchAll(/^CREATE OR REPLACE FUNCTION (\w+)/gm)].map(
  ([, name]) => name!,
);

/** A hash of the statements without their comments. */
const VERSION = createHash("sha256")
  .update(BODY.replaceAll(/--.*$/gm, "").replaceAll(/\s+/g, " "))
  .digest("hex")
  .slice(0, 12);

/**
 * The name of a function in the schema. It contains the version, because processes of two versions may use one
 * schema: nobody replaces a function that another process calls.
 */
export const functionName = (name: string): string => `${name}_${VERSION}`;

/** A call of a function of the schema with this many arguments, for a SELECT. */
export function callSql(schema: string, name: string, argumentCount: number): string {
  const placeholders = Array.from({ length: argumentCount }, (_, i) => `$${i + 1}`);
  return `${quoteSchema(schema)}.${functionName(name)}(${placeholders.join(", ")})`;
}

/** The names of all functions of this version in the schema. */
export const FUNCTIONS: readonly string[] = [
  ...PLAIN_FUNCTIONS.map(functionName),
  "format_version",
];

/** All functions of a version are made in one transaction, so one of them stands for all. */
export const MARKER_FUNCTION = functionName("now_us");

/**
 * The statements that make the schema, or add the functions of this version, for one transaction. Run again, they
 * change nothing; on a schema of another format they fail. Where the schema is there and empty, the right to create
 * tables and functions in it is enough.
 */
export function setupSql(schema: string): string {
  const quoted = quoteSchema(schema);
  const body = BODY.replaceAll("$SCHEMA", quoted).replaceAll(
    new RegExp(`\\b(${PLAIN_FUNCTIONS.join("|")})\\(`, "g"),
    (_, name: string) => `${functionName(name)}(`,
  );
  return `${[OWN_PATH, ...SETUP_TURN].join(";\n")};
SELECT set_config('client_min_messages', 'warning', true);
DO $$ BEGIN
  IF current_setting('server_encoding') <> '${ENCODING}' THEN
    RAISE 'the database has the encoding %, and locks need ${ENCODING}', current_setting('server_encoding');
  END IF;
  -- CREATE SCHEMA IF NOT EXISTS needs the right to create a schema even if it is there.
  IF to_regnamespace('${quoted}') IS NULL THEN CREATE SCHEMA ${quoted}; END IF;
  IF to_regprocedure('${quoted}.format_version()') IS NOT NULL THEN
    IF ${quoted}.format_version() <> ${FORMAT} THEN
      RAISE 'the schema ${schema} has format %, and these statements make format ${FORMAT}', ${quoted}.format_version();
    END IF;
  END IF;
END $$;
SELECT set_config('search_path', '${quoted}, pg_catalog', true);
${body}
CREATE OR REPLACE FUNCTION format_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT ${FORMAT}';
`;
}

/**
 * Makes the schema, or adds the functions of this version, unless they are there. Returns what this call has made.
 * Rejects with UnsupportedError if the schema has another format, or the database another encoding.
 */
export async function ensureSchema(
  connections: Connections,
  schema: string,
): Promise<"nothing" | "schema" | "functions"> {
  const found = await readState(connections, schema);
  if (found === "complete") return "nothing";
  for (let attempt = 1; ; attempt++) {
    try {
      await connections.query(setupSql(schema), [], SETUP_MS);
      return found === "empty" ? "schema" : "functions";
    } catch (error) {
      // Another session has made it meanwhile, perhaps for another user, who owns it now.
      if ((await readState(connections, schema)) === "complete") return "nothing";
      // A session that has waited for its turn may have cached that the schema is missing.
      if (isMadeByAnother(error) && attempt < SETUP_ATTEMPTS) continue;
      throw found === "other functions" ? toUpgradeError(error, connections, schema) : error;
    }
  }
}

type State = "empty" | "other functions" | "complete";

async function readState(connections: Connections, schema: string): Promise<State> {
  const inSchema = (name: string): string => `${quoteSchema(schema)}.${name}()`;
  // As text: programs may have replaced pg's parsers for all other types.
  const [row] = await connections.query<{
    encoding: string;
    has_format: string;
    has_functions: string;
  }>(
    `SELECT pg_catalog.current_setting('server_encoding') AS encoding,
      (pg_catalog.to_regprocedure($1) IS NOT NULL)::pg_catalog.text AS has_format,
      (pg_catalog.to_regprocedure($2) IS NOT NULL)::pg_catalog.text AS has_functions`,
    [inSchema("format_version"), inSchema(MARKER_FUNCTION)],
    SETUP_MS,
  );
  if (row!.encoding !== ENCODING) {
    throw new UnsupportedError(
      `the database of ${connections.where} has the encoding ${row!.encoding}, in which not every name of a lock can be stored: ` +
        `use another database of the server (CREATE DATABASE locks ENCODING '${ENCODING}' LOCALE 'C' TEMPLATE template0)`,
    );
  }
  if (row!.has_format !== "true") return "empty";
  const [found] = await connections.query<{ format: string }>(
    `SELECT ${inSchema("format_version")}::pg_catalog.text AS format`,
    [],
    SETUP_MS,
  );
  const { format } = found!;
  if (Number(format) !== FORMAT) {
    throw new UnsupportedError(
      `the schema ${schema} of ${connections.where} has format ${format}, and this version of Holdfast knows ${FORMAT}: ` +
        "use the version that made it, or another schema",
    );
  }
  return row!.has_functions === "true" ? "complete" : "other functions";
}

/** The user may use the tables, and not add functions. */
function toUpgradeError(error: unknown, { where }: Connections, schema: string): unknown {
  const { cause } = error as { cause?: { code?: unknown } };
  if (cause?.code !== "42501") return error;
  return new StoreUnavailableError(
    `the schema ${schema} of ${where} has only functions of another version of Holdfast, and the user may not add those of ` +
      `this one (${reasonOf(cause)}): let the owner of its tables run "holdfast setup --store URL --grant USER" of this ` +
      'version, or the SQL that "holdfast setup --print" prints; processes of the other version go on as before',
    { cause, retryable: false },
  );
}

/** unique_violation, duplicate_schema, duplicate_table, duplicate_object, duplicate_function, "tuple concurrently updated". */
const isMadeByAnother = (error: unknown): boolean =>
  ["23505", "42P06", "42P07", "42710", "42723", "XX000"].includes(
    (error as { code?: string } | null)?.code ?? "",
  );
