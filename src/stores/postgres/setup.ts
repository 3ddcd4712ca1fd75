import { InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import type { SetupResult } from "../kind.js";
import type { StoreUrl } from "../url.js";
import { Connections } from "./connections.js";
import { openPool, schemaOf, toConnectError } from "./open.js";
import { findMissingRights, grantSql, showMissingRight } from "./rights.js";
import {
  ensureSchema,
  fencesTableSql,
  quoteSchema,
  SETUP_MS,
  SETUP_TURN,
  setupSql,
} from "./schema.js";

/** The set-up for psql, which sends one statement after the other. */
export function setupScript(url: StoreUrl, grantee?: string): string {
  const schema = schemaOf(url);
  const grants = grantee === undefined ? "" : grantSql(schema, grantee);
  return `BEGIN;\n${setupSql(schema)}${fencesTableSql(quoteSchema(schema))};\n${grants}COMMIT;`;
}

/**
 * Makes the schema, or what this version needs in it, and the table of fences, unless they are there. Gives the role the
 * rights that locks and fences need.
 */
export async function setUpPostgres(url: StoreUrl, grantee?: string): Promise<SetupResult> {
  const schema = schemaOf(url);
  // Throws before anything is made.
  const grants = grantee === undefined ? "" : grantSql(schema, grantee);
  const connections = new Connections(await openPool(url));
  try {
    if (grantee !== undefined) await checkRoleExists(connections, grantee);
    const made = await ensureSchema(connections, schema);
    const hasFences = await ensureFences(connections, quoteSchema(schema));
    if (grantee !== undefined) await grant(connections, schema, grantee, grants);
    const part = made === "functions" ? "the functions of this version in " : "";
    const onlyFences = made === "nothing" && !hasFences;
    return {
      what: `${onlyFences ? "the table of fences in " : part}the schema ${schema}`,
      isMade: made !== "nothing" || onlyFences,
    };
  } catch (error) {
    throw toConnectError(await showMissingRight(error, connections, schema, SETUP_MS), url);
  } finally {
    await connections.close();
  }
}

/** Makes the table of fences, as their users may not. Returns whether it was there. */
async function ensureFences(connections: Connections, quotedSchema: string): Promise<boolean> {
  // CREATE TABLE IF NOT EXISTS needs the right to create a table even if it is there.
  const [row] = await connections.query<{ found: string | null }>(
    "SELECT pg_catalog.to_regclass($1)::pg_catalog.text AS found",
    [`${quotedSchema}.fences`],
    SETUP_MS,
  );
  if (row!.found !== null) return true;
  const statements = [...SETUP_TURN, fencesTableSql(quotedSchema)];
  await connections.query(statements.join(";\n"), [], SETUP_MS);
  return false;
}

/** Throws before anything is made. */
async function checkRoleExists(connections: Connections, role: string): Promise<void> {
  const found = await connections.queryCatalogs(
    "SELECT FROM pg_roles WHERE rolname = $1 UNION ALL SELECT WHERE $1 = 'public'",
    [role],
    SETUP_MS,
  );
  if (found.length > 0) return;
  throw new InvalidArgumentError(
    `${connections.where} has no role ${show(role)}: make it with CREATE ROLE, or check its name`,
  );
}

async function grant(
  connections: Connections,
  schema: string,
  grantee: string,
  grants: string,
): Promise<void> {
  const { where } = connections;
  // One at a time, because two GRANTs at once fail, too.
  await connections.query([...SETUP_TURN, grants].join(";\n"), [], SETUP_MS);
  // The server only warns when a user grants what it may not pass on.
  const missing = await findMissingRights(connections, schema, grantee, SETUP_MS);
  if (missing.length === 0) return;
  throw new StoreUnavailableError(
    `the user at ${where} may not grant ${show(grantee)} these rights: ${missing.join("; ")}; ` +
      `let the owner of the schema ${schema} do so`,
    { retryable: false },
  );
}
