import { danger, type Finding, note, ok } from "../../../doctor/finding.js";
import { judgeEncryption, listFirst } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import type { Connections } from "../connections.js";
import { findMissingRights, type LockKind, relationsOf } from "../rights.js";
import { quoteSchema } from "../schema.js";
import { type Facts, type SchemaFacts, TIMEOUT_MS } from "./facts.js";

const MOST_SHOWN = 5;

/** Whether the user has all rights that locks need. */
export async function checkRights(
  connections: Connections,
  { user, kind }: Facts,
  schema: SchemaFacts,
): Promise<Finding> {
  const missing = await findMissingRights(connections, schema.name, null, TIMEOUT_MS, kind);
  if (missing.length === 0) return ok("rights", `${user} has all rights that locks need`);
  return danger(
    "rights",
    `${user} lacks ${listFirst(missing, MOST_SHOWN)}: requests fail, some at once and some later`,
    `holdfast setup --store URL --grant ${user}, run by the owner of the schema ${schema.name}, gives them.`,
  );
}

/** More rights than locks need endanger the rest of the database when the application is broken into. */
export function judgeLogin({ user, isSuperuser, schema }: Facts): Finding {
  const advice =
    "Let another user own the tables, and give this one only what holdfast setup --grant gives.";
  if (isSuperuser) {
    return note("login", `${user} is a superuser: locks need no such rights`, advice);
  }
  if (schema?.isOwn) {
    return note(
      "login",
      `${user} owns the schema ${schema.name}, and can drop and alter its tables`,
      advice,
    );
  }
  return ok("login", `${user} is neither a superuser nor the owner of the tables`);
}

interface Access {
  readonly role: string;
  readonly isPublic: boolean;
  readonly reads: boolean;
  readonly writes: boolean;
  readonly creates: boolean;
}

/** Which other users can read or change the tables. Superusers and the owner always can. */
export async function checkAccess(
  connections: Connections,
  { kind }: Facts,
  { name }: SchemaFacts,
): Promise<Finding> {
  const all = await connections.queryCatalogs<Access>(
    ACCESS,
    [name, relationsOf(kind)],
    TIMEOUT_MS,
  );
  const everybody = all.find(({ isPublic }) => isPublic);
  if (everybody !== undefined) {
    return danger(
      "access",
      `every user of the database can use the tables in the schema ${name} (${deedsOf(everybody)}): ${CONSEQUENCES[kind]}`,
      revocation(name, "PUBLIC"),
    );
  }
  if (all.length === 0) return ok("access", "no other user can read or write the tables");
  const users = all.map((one) => `${one.role} (${deedsOf(one)})`);
  return note(
    "access",
    `other users can use the tables in the schema ${name} as well: ${listFirst(users, MOST_SHOWN)}; ${CONSEQUENCES[kind]}`,
    `For each of them that takes no locks: ${revocation(name, "USER")} A right may also come from a role that it is a member of.`,
  );
}

const CONSEQUENCES: Readonly<Record<LockKind, string>> = {
  leases:
    "a user who writes them can free and take any lock, and a user who reads them learns the grantIds and channels by which a grant is forged",
  sessions:
    "a user who writes them can forge tokens, so that a fence lets a former holder in, and a user who reads them learns who holds what",
};

const revocation = (schema: string, role: string): string =>
  `REVOKE ALL ON ALL TABLES IN SCHEMA ${quoteSchema(schema)} FROM ${role}; REVOKE ALL ON SCHEMA ${quoteSchema(schema)} FROM ${role};`;

const deedsOf = ({ reads, writes, creates }: Access): string =>
  [
    ...(reads ? ["read"] : []),
    ...(writes ? ["write"] : []),
    // A function that fits a call better than ours is called in its place, with the rights of the caller.
    ...(creates ? ["put functions beside them"] : []),
  ].join(", ");

const ACCESS = `WITH home AS (SELECT oid, nspowner FROM pg_namespace WHERE nspname = $1),
  tables AS (SELECT c.oid, relowner FROM pg_class AS c JOIN home ON relnamespace = home.oid WHERE relname = ANY ($2)),
  roles AS (
    SELECT 'public'::name AS role, true AS "isPublic"
    UNION ALL
    SELECT rolname, false FROM pg_roles
      WHERE NOT rolsuper AND rolname !~ '^pg_' AND rolname <> current_user
        AND oid NOT IN (SELECT nspowner FROM home UNION SELECT relowner FROM tables)
  ),
  access AS (
    SELECT roles.*, has_schema_privilege(role, home.oid, 'USAGE') AS enters,
        has_schema_privilege(role, home.oid, 'CREATE') AS creates,
        (SELECT bool_or(has_table_privilege(role, oid, 'SELECT')) FROM tables) AS may_read,
        (SELECT bool_or(has_table_privilege(role, oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')) FROM tables) AS may_write
      FROM roles, home
  )
SELECT role, "isPublic", creates, enters AND may_read AS reads, enters AND may_write AS writes
  FROM access WHERE creates OR enters AND (may_read OR may_write) ORDER BY role`;

export const judgeTransport = ({ hosts, options }: StoreUrl): Finding[] =>
  judgeEncryption(hosts, options.has("tls"), "Add ?tls to the URL unless the network is your own.");
