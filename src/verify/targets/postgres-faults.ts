import type { Random } from "../../core/random.js";
import { DEFAULT_SCHEMA, setupSql } from "../../stores/postgres/schema.js";
import { type Fault, fault } from "../fault.js";
import { killed, paused } from "../faults/server.js";
import type { PgBouncer } from "../lab/pgbouncer.js";
import type { PostgresServer } from "../lab/postgres.js";
import { EXCLUSION, type FaultKind } from "../runner/kinds.js";
import { LONG, LOST_DATA, ONCE, RESTARTED, SHORT } from "./servers.js";

/** As whom the workers log in. */
export const USER = "app";
const RIGHTS = "rights taken";
const SETTINGS_CHANGED = "settings changed";
const TERMINATED = "connections terminated";
const CANCELLED = "statements cancelled";
/** Kinds that limit what the workers' user may do. */
export const LIMITS_USER: readonly string[] = [RIGHTS, SETTINGS_CHANGED];

/** A user without special rights, who has made the schema. */
export async function prepare(server: PostgresServer): Promise<void> {
  await server.sql(`CREATE ROLE ${USER} LOGIN PASSWORD '${USER}';
    GRANT CREATE ON DATABASE postgres TO ${USER};
    SET ROLE ${USER}; BEGIN; ${setupSql(DEFAULT_SCHEMA)} COMMIT;`);
}

/** The right of the workers' user to write. A server that is down can neither take it nor give it back. */
export class WriteRight {
  readonly #server: PostgresServer;
  #isTaken = false;

  constructor(server: PostgresServer) {
    this.#server = server;
  }

  taken(): Fault {
    return fault(
      `${USER} may not write at ${this.#server.name}`,
      async () => {
        this.#isTaken = true;
        await this.#server.sql(`REVOKE UPDATE ON holdfast.names FROM ${USER}`);
      },
      async () => {
        this.#isTaken = false;
        await this.restore();
      },
    );
  }

  /** Gives it back, if that was due while the server was down. */
  async restore(): Promise<void> {
    if (this.#isTaken) return;
    await this.#server.sql(`GRANT UPDATE ON holdfast.names TO ${USER}`).catch(() => {});
  }

  /** The server is killed, and has the right again when it runs. */
  serverKilled(): Fault {
    const dead = killed(this.#server);
    return fault(
      dead.name,
      () => dead.inject(),
      async () => {
        await dead.heal();
        await this.restore();
      },
    );
  }
}

export function serverKinds(
  server: PostgresServer,
  user: string,
  right = new WriteRight(server),
): readonly FaultKind[] {
  const kind = (
    name: string,
    lasts: FaultKind["lasts"],
    make: (random: Random, forMs: number) => Fault,
    more: Partial<FaultKind> = {},
  ): FaultKind => ({
    name,
    hits: "server",
    lasts,
    make: (_member, random, forMs) => make(random, forMs),
    ...more,
  });
  const others = `usename = '${user}' AND pid <> pg_backend_pid()`;
  return [
    kind("server paused", LONG, () => paused(server)),
    kind(RESTARTED, SHORT, () => right.serverKilled()),
    kind(LOST_DATA, ONCE, () => dataLost(server), {
      weight: 0.5,
      breaks: EXCLUSION,
      because: "what was granted is forgotten, and granted again",
    }),
    kind(TERMINATED, ONCE, () =>
      fault(`${server.name} terminates its connections`, () =>
        server.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${others}`),
      ),
    ),
    kind(CANCELLED, ONCE, () =>
      fault(`${server.name} cancels statements`, () =>
        server.sql(
          `SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE ${others} AND state = 'active'`,
        ),
      ),
    ),
    kind("rows locked", LONG, (_random, forMs) =>
      transaction(server, "rows are locked", "SELECT FROM holdfast.names FOR UPDATE", forMs),
    ),
    kind("table locked", SHORT, (random, forMs) => {
      const table = random.unit() < 0.5 ? "names" : "claims";
      return transaction(server, `${table} is locked`, `LOCK TABLE holdfast.${table}`, forMs);
    }),
    kind("old snapshot kept", LONG, (_random, forMs) =>
      transaction(
        server,
        "a snapshot is kept",
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM holdfast.names",
        forMs,
      ),
    ),
    kind(RIGHTS, LONG, () => right.taken()),
    kind(SETTINGS_CHANGED, LONG, (random) => reconfigured(server, random)),
  ];
}

/** Faults that end a session at the server, before its holder knows. */
const END_SESSIONS: readonly string[] = [RESTARTED, TERMINATED, SETTINGS_CHANGED];
const HIT_SESSIONS: readonly string[] = ["server paused", CANCELLED, ...END_SESSIONS];

export const LOCKS_OF_SESSIONS: Required<Pick<FaultKind, "breaks" | "because">> = {
  breaks: EXCLUSION,
  because:
    "the server frees the locks of a session with its connection, which the holder may learn later",
};

/** The faults of a server that hit locks of sessions, which are in none of the tables. */
export const sessionKinds = (server: PostgresServer): readonly FaultKind[] =>
  serverKinds(server, USER)
    .filter(({ name }) => HIT_SESSIONS.includes(name))
    .map((kind) => (END_SESSIONS.includes(kind.name) ? { ...kind, ...LOCKS_OF_SESSIONS } : kind));

/** As an emptied database. The counter of deleted names is lost, too. */
const dataLost = (server: PostgresServer): Fault =>
  fault(`${server.name} loses its data`, () =>
    server.sql(
      "TRUNCATE holdfast.names, holdfast.claims; UPDATE holdfast.deleted_names SET last_token = 0",
    ),
  );

/** Somebody else's transaction that stays open. */
const transaction = (server: PostgresServer, what: string, sql: string, forMs: number): Fault =>
  fault(`${what} at ${server.name}`, () => {
    // Not waited for.
    server.sql(`BEGIN; ${sql}; SELECT pg_sleep(${forMs / 1_000}); COMMIT`).catch(() => {});
  });

/** Settings that operators make for a role. Connections that are made meanwhile have it. */
const SETTINGS: readonly (readonly [name: string, value: string])[] = [
  ["statement_timeout", "20ms"],
  ["idle_session_timeout", "100ms"],
  ["synchronous_commit", "off"],
  ["lock_timeout", "1ms"],
  ["search_path", "pg_temp"],
];

function reconfigured(server: PostgresServer, random: Random): Fault {
  const [name, value] = SETTINGS[Math.floor(random.unit() * SETTINGS.length)]!;
  const terminate = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '${USER}'`;
  return fault(
    `${name} = ${value} for ${USER} at ${server.name}`,
    () => server.sql(`ALTER ROLE ${USER} SET ${name} = '${value}'; ${terminate}`),
    () => server.sql(`ALTER ROLE ${USER} RESET ${name}; ${terminate}`),
  );
}

export const poolerKinds = (pooler: PgBouncer): readonly FaultKind[] => [
  { name: "pooler paused", hits: "server", lasts: LONG, make: () => paused(pooler) },
  { name: "pooler killed and restarted", hits: "server", lasts: SHORT, make: () => killed(pooler) },
];
