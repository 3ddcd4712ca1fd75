import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import {
  LOCK_LIMIT,
  MOST_WAITERS,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  WAITERS_AT_EXPIRY,
} from "../../core/store.js";
import { show } from "../../core/validate.js";
import type { Connections } from "./connections.js";
import { SQL } from "./sql.js";

export const DEFAULT_SCHEMA = "holdfast";

/** Raised when an older Holdfast could misread the tables, or its functions would no longer fit them. */
export const FORMAT = 1;
/**
 * The beginning of a transaction that creates something: CREATE … IF NOT EXISTS and CREATE OR REPLACE
 * fail when two sessions run them at once. The number is any. The second statement locks a catalogue:
 * only then does a session that waited drop what it remembers of names that were missing before.
 */
export const SETUP_TURN: readonly string[] = [
  "SELECT pg_advisory_xact_lock(4837201155)",
  "SELECT FROM pg_catalog.pg_namespace LIMIT 0",
];
/** Any other number: sessions that bring their sequence of tokens up to the clock take their turn by it. */
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

const BODY = [SQL.tables, SQL.names, SQL.requests, SQL.renewals, SQL.operations, SQL.sessions].join(
  "\n",
);

/** The names of all functions in the schema. */
export const FUNCTIONS: readonly string[] = [
  ...[...BODY.matchAll(/^CREATE OR REPLACE FUNCTION (\w+)/gm)].map(([, name]) => name!),
  "format_version",
];

/**
 * The statements that make the schema, for one transaction. Run again, they change nothing; on a schema of another
 * format they fail. Where the schema is there and empty, the right to create tables and functions in it is enough.
 */
export function setupSql(schema: string): string {
  const quoted = quoteSchema(schema);
  const body = BODY.replaceAll(/\$([A-Z_]+)\b/g, (_, name: string) =>
    name === "SCHEMA" ? quoted : String(CONSTANTS[name]),
  );
  return `${SETUP_TURN.join(";\n")};
SELECT set_config('client_min_messages', 'warning', true);
DO $$ BEGIN
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

/** Makes the schema unless it is there. Returns whether this call has made it. */
export async function ensureSchema(connections: Connections, schema: string): Promise<boolean> {
  let isMade = false;
  for (let attempt = 1; ; attempt++) {
    const format = await formatOf(connections, schema);
    if (format === FORMAT) return isMade;
    if (format !== null) {
      throw new UnsupportedError(
        `the schema ${schema} of ${connections.where} has format ${format}, and this version of Holdfast knows ${FORMAT}: ` +
          "use the version that made it, or another schema",
      );
    }
    try {
      await connections.query(setupSql(schema), [], SETUP_MS);
      isMade = true;
    } catch (error) {
      // A session that has waited for its turn may still believe that the other one's schema is not there.
      if (attempt === SETUP_ATTEMPTS || !isMadeByAnother(error)) throw error;
    }
  }
}

/** unique_violation, duplicate_schema, duplicate_table, duplicate_object, duplicate_function, "tuple concurrently updated". */
const isMadeByAnother = (error: unknown): boolean =>
  ["23505", "42P06", "42P07", "42710", "42723", "XX000"].includes(
    (error as { code?: string } | null)?.code ?? "",
  );

async function formatOf(connections: Connections, schema: string): Promise<number | null> {
  const text = "SELECT to_regprocedure($1) IS NOT NULL AS is_there";
  const [row] = await connections.query<{ is_there: boolean }>(
    text,
    [`${quoteSchema(schema)}.format_version()`],
    SETUP_MS,
  );
  if (!row!.is_there) return null;
  const [found] = await connections.query<{ format: number }>(
    `SELECT ${quoteSchema(schema)}.format_version() AS format`,
    [],
    SETUP_MS,
  );
  return found!.format;
}
