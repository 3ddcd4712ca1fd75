import { danger, type Finding, note, ok } from "../../../doctor/finding.js";
import { ENCODING, quoteSchema } from "../schema.js";
import type { Facts } from "./facts.js";

const OLDEST = 14;

/** Findings from the settings of the server and of the connection. */
export const judgeSettings = (facts: Facts): Finding[] => [
  judgeVersion(facts),
  judgeEncoding(facts),
  judgeRole(facts),
  ...(facts.kind === "sessions" ? SET_BY_SESSION : judgeLeases(facts)),
];

/** A session sets what it needs, whatever the settings of its user are. */
const SET_BY_SESSION: readonly Finding[] = [
  ok("isolation", "the session that has the locks sets it for itself"),
  ok("persistence", "locks of sessions end with a crash of the server, whatever is on disk"),
];

const judgeLeases = (facts: Facts): Finding[] => [
  judgeIsolation(facts),
  ...judgePersistence(facts),
  judgeCommit(facts),
];

function judgeVersion({ version, versionNumber }: Facts): Finding {
  if (versionNumber >= OLDEST * 10_000) return ok("version", `PostgreSQL ${version}`);
  return danger(
    "version",
    `PostgreSQL ${version} is too old: Holdfast is not tested on it`,
    `Upgrade to PostgreSQL ${OLDEST} or later.`,
  );
}

function judgeEncoding({ encoding, database }: Facts): Finding {
  if (encoding === ENCODING) return ok("encoding", encoding);
  return danger(
    "encoding",
    `the database ${database} has the encoding ${encoding}, in which not every name can be stored: every request is refused`,
    `Use another database of the server: CREATE DATABASE locks ENCODING '${ENCODING}' LOCALE 'C' TEMPLATE template0;`,
  );
}

function judgeRole({ isStandby, isReadOnly }: Facts): Finding {
  if (isStandby) {
    return danger(
      "role",
      "a standby: it refuses every claim, renewal and release",
      "Name the primary in the URL, or an address that always leads to it.",
    );
  }
  if (!isReadOnly) return ok("role", "a primary");
  return danger(
    "role",
    "default_transaction_read_only is on: the server refuses every claim, renewal and release",
    "ALTER ROLE … SET default_transaction_read_only = off, for the user of the locks.",
  );
}

function judgeIsolation({ settings }: Facts): Finding {
  const isolation = settings.default_transaction_isolation;
  if (isolation === "read committed") return ok("isolation", isolation);
  return danger(
    "isolation",
    `default_transaction_isolation is "${isolation}": every request is refused, because a step would read ` +
      "what was true before its name was locked",
    "ALTER ROLE … SET default_transaction_isolation = 'read committed', for the user of the locks.",
  );
}

function judgePersistence({ settings, schema }: Facts): Finding[] {
  const found: Finding[] = [];
  const isOff = (name: "fsync" | "full_page_writes"): boolean => settings[name] === "off";
  if (isOff("fsync")) {
    found.push(
      danger(
        "persistence",
        "fsync is off: after a crash of the machine, locks are lost while their holders are at work, and granted again; the database may be damaged",
        "Set fsync = on.",
      ),
    );
  }
  if (isOff("full_page_writes")) {
    found.push(
      danger(
        "persistence",
        "full_page_writes is off: after a crash of the machine, half-written pages can damage the tables, and locks in them are lost",
        "Set full_page_writes = on, unless the file system never writes a part of a page (such as ZFS).",
      ),
    );
  }
  const unlogged = schema?.tables.filter(({ isUnlogged }) => isUnlogged) ?? [];
  if (unlogged.length > 0) {
    const names = unlogged.map(({ name }) => `${schema!.name}.${name}`);
    found.push(
      danger(
        "persistence",
        `UNLOGGED: ${names.join(", ")}. A crash of the server empties such a table, and a failover too: all locks in it are granted again`,
        // PostgreSQL refuses to rewrite claims: rows of names contain its type.
        unlogged.some(({ name }) => name === "claims")
          ? `While nobody holds a lock: DROP SCHEMA ${quoteSchema(schema!.name)} CASCADE; then holdfast setup.`
          : unlogged
              .map(({ name }) => `ALTER TABLE ${quoteSchema(schema!.name)}.${name} SET LOGGED;`)
              .join(" "),
      ),
    );
  }
  if (found.length > 0) return found;
  return [
    ok("persistence", "fsync and full_page_writes are on: what is committed survives a crash"),
  ];
}

function judgeCommit({ settings }: Facts): Finding {
  const value = settings.synchronous_commit;
  const durable = "grants, renewals and tickets are on disk before the server replies";
  if (value !== "off") return ok("commit", `synchronous_commit is ${value}: ${durable}`);
  return note(
    "commit",
    `synchronous_commit is off. Holdfast turns it on for itself, so ${durable}; what your own transactions wrote, a fence among it, can be lost in a crash`,
    "Set synchronous_commit = on for work that locks protect.",
  );
}
