import type { Random } from "../../core/random.js";
import { POSTGRES_SESSION_TRAITS } from "../../stores/postgres/session/index.js";
import { type Fault, fault } from "../fault.js";
import { postgresConnectionKind } from "../faults/postgres-kind.js";
import { TcpProxy } from "../faults/proxy.js";
import { killed, paused } from "../faults/server.js";
import { FalseClock } from "../lab/clock.js";
import { Disk } from "../lab/disk.js";
import type { Lab } from "../lab/lab.js";
import type { PostgresServer } from "../lab/postgres.js";
import { lackingRight } from "../lab/rights.js";
import { LOOPBACK, type Server } from "../lab/server.js";
import { until } from "../lab/until.js";
import { connectionKinds, type FaultKind, WORKER_KINDS } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Way } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import {
  LIMITS_USER,
  LOCKS_OF_SESSIONS,
  poolerKinds,
  prepare,
  serverKinds,
  sessionKinds,
  USER,
  WriteRight,
} from "./postgres-faults.js";
import {
  bringBack,
  clockKind,
  DISK_FULL,
  diskKind,
  LONG,
  LOST_DATA,
  ONCE,
  RESTARTED,
  SHORT,
  wayThrough,
} from "./servers.js";

const OF_SESSIONS = "?mode=session";
const SYNC_MS = 20_000;
const TTLS_MS = [1_200, 2_000, 3_000];
/** The write-ahead log alone takes 32 MB at least. */
const DISK_MB = 160;
const CONFIG = {
  max_connections: "200",
  // Releases that are answered and not on disk yet are lost in a crash as often as possible.
  wal_writer_delay: "2000ms",
  max_wal_size: "32MB",
  min_wal_size: "32MB",
};

/** Faults that lose data, if only a handover: with a clock that is set back as well, tokens may fall. */
const LOSSES = [LOST_DATA, RESTARTED, DISK_FULL];

/** One server; workers log in as a user of their own. */
export async function postgresTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const clock = isClocked ? await FalseClock.open(lab, "the server's clock") : null;
  const noDisk = lackingRight("loop mounts");
  const disk = noDisk === null ? await Disk.open(lab, { sizeMb: DISK_MB }) : null;
  const onDisk = disk?.site() ?? LOOPBACK;
  const server = await lab.postgres({ config: CONFIG, site: clock?.site(onDisk) ?? onDisk });
  await prepare(server);
  const right = new WriteRight(server);
  return {
    ...COMMON,
    name: "postgres",
    about: "one PostgreSQL server",
    url: server.url,
    kinds: [
      ...WORKER_KINDS,
      ...connectionKinds("connection"),
      ...connectionKinds("commands"),
      ...connectionKinds("subscription"),
      ...serverKinds(server, USER, right),
      ...(disk === null ? [] : [diskKind(disk, server, () => right.restore())]),
      clockKind(clock, LOSSES),
    ],
    leftOut: noDisk === null ? [] : [{ name: DISK_FULL, because: noDisk }],
    openWay: (client) => openWay(lab, client, server, `${USER}:${USER}`, isClocked),
    versions: () => versionsOf(server),
    leftOf: (names) => leftOf(server, names),
    commands: () => server.commands(),
    recover: () => bringBack(server),
    async [Symbol.asyncDispose]() {
      await server.kill();
      await disk?.close();
    },
  };
}

/** One server, with locks of sessions: another connection than those of the pool has them. */
export async function postgresSessionTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const server = await lab.postgres({ config: CONFIG });
  await prepare(server);
  const { cannot, fair } = POSTGRES_SESSION_TRAITS;
  return {
    ...COMMON,
    name: "postgres-session",
    about: "one PostgreSQL server, mode=session",
    limits: { fair, freeMs: 6_000, healMs: 8_000 },
    cannot,
    url: `${server.url}${OF_SESSIONS}`,
    kinds: [
      ...WORKER_KINDS,
      ...connectionKinds("connection", LOCKS_OF_SESSIONS),
      ...sessionKinds(server),
    ],
    openWay: (client) => openWay(lab, client, server, `${USER}:${USER}`, isClocked, OF_SESSIONS),
    versions: () => versionsOf(server),
    leftOf: (names) => leftOfSessions(server, names),
    commands: () => server.commands(),
    recover: () => bringBack(server),
  };
}

/** One server behind a pooler in transaction mode: no messages, and another session for each statement. */
export async function pgbouncerTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const server = await lab.postgres({ config: CONFIG });
  const pooler = await lab.pgbouncer(server);
  return {
    ...COMMON,
    name: "pgbouncer",
    about: "one PostgreSQL server behind pgbouncer in transaction mode",
    handoverMs: 4_000,
    url: server.url,
    kinds: [
      ...WORKER_KINDS,
      ...connectionKinds("connection"),
      // The pooler logs in as a superuser, who can't be limited.
      ...serverKinds(server, "postgres").filter(({ name }) => !LIMITS_USER.includes(name)),
      ...poolerKinds(pooler),
    ],
    openWay: (client) => openWay(lab, client, pooler, `postgres:${server.password}`, isClocked),
    versions: () => versionsOf(server),
    leftOf: (names) => leftOf(server, names),
    commands: () => server.commands(),
    async recover() {
      await bringBack(server);
      await bringBack(pooler);
    },
  };
}

/** A primary and a synchronous standby: what was granted is on both, so a failover keeps it. */
export async function postgresStandbyTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  let primary = await lab.postgres({ config: CONFIG });
  await prepare(primary);
  let standby = await lab.postgres({ standbyOf: primary, config: CONFIG });
  await synchronize(primary);
  let follows = true;
  const place = { address: primary.address, port: primary.port };
  const runners = await TcpProxy.open(place, { kindOf: postgresConnectionKind });
  /** Once in a run: the old primary has to be made anew as the standby. */
  const failOver = async (): Promise<void> => {
    if (!follows || standby.state !== "running") throw new Error(`${standby.name} can't take over`);
    follows = false;
    await primary.kill();
    await standby.promote();
    await standby.sql("ALTER SYSTEM RESET synchronous_standby_names");
    await standby.sql("SELECT pg_reload_conf()");
    place.port = standby.port;
    [primary, standby] = [standby, primary];
  };
  const kind = (name: string, lasts: FaultKind["lasts"], make: () => Fault | null): FaultKind => ({
    name,
    hits: "cluster",
    lasts,
    make,
  });
  return {
    ...COMMON,
    name: "postgres-standby",
    about: "a PostgreSQL primary and a synchronous standby, failed over by address",
    limits: { healMs: 8_000 },
    url: `postgres://postgres:${primary.password}@${runners.address}:${runners.port}/postgres`,
    kinds: [
      ...WORKER_KINDS,
      ...connectionKinds("connection"),
      ...connectionKinds("commands"),
      ...connectionKinds("subscription"),
      kind("primary paused", LONG, () => paused(primary)),
      kind("primary killed and restarted", SHORT, () => killed(primary)),
      // Nothing is granted without it.
      kind("standby paused", LONG, () => (follows ? paused(standby) : null)),
      kind("failover to the standby", ONCE, () =>
        follows ? fault("failover to the standby", failOver) : null,
      ),
    ],
    openWay: (client) => openWay(lab, client, place, `${USER}:${USER}`, isClocked),
    versions: () => versionsOf(primary),
    leftOf: (names) => leftOf(primary, names),
    // A standby that became the primary has a count of its own.
    commands: async () => null,
    async recover() {
      await bringBack(primary);
      if (follows) {
        await bringBack(standby);
        return;
      }
      await standby.follow(primary);
      await synchronize(primary);
      follows = true;
    },
    [Symbol.asyncDispose]: () => runners.close(),
  };
}

/** From now on, each commit of the primary waits for its standby. */
async function synchronize(primary: PostgresServer): Promise<void> {
  await primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
  await primary.sql("SELECT pg_reload_conf()");
  await until("the standby is synchronous", SYNC_MS, async () => {
    const states = await primary.sql("SELECT sync_state FROM pg_stat_replication");
    return states === "sync";
  });
}

const COMMON = {
  isOurs: true,
  ttlsMs: TTLS_MS,
  limits: {},
  drawConnections,
  async [Symbol.asyncDispose]() {},
};

function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.5) return [{ locks: 1 }];
  if (which < 0.75) return [{ locks: 2 }];
  return [{ locks: 1 }, { locks: 1, lazy: true }];
}

async function openWay(
  lab: Lab,
  client: string,
  server: Pick<Server, "address" | "port">,
  login: string,
  isClocked: boolean,
  query = "",
): Promise<Way> {
  const proxy = await TcpProxy.open(server, { kindOf: postgresConnectionKind });
  return wayThrough(
    [proxy],
    { lab, client, isClocked },
    (hosts) => `postgres://${login}@${hosts}/postgres${query}`,
  );
}

async function versionsOf(server: PostgresServer): Promise<Record<string, string>> {
  return { postgres: await server.sql("SHOW server_version") };
}

/** Rows of claims that have not expired. The next call on a name deletes the others. */
const leftOf = (server: PostgresServer, names: readonly string[]): Promise<readonly string[]> => {
  const isLeft = (row: string): string =>
    `${isOneOf(names)}
      AND greatest((${row}).expires, (${row}).closed) > extract(epoch FROM clock_timestamp()) * 1000000`;
  return namesOf(
    server,
    `SELECT name FROM holdfast.claims WHERE ${isLeft("claims")}
      UNION ALL SELECT name FROM holdfast.names WHERE ${isLeft("held")}`,
  );
};

/** Names whose session is alive: it has an advisory lock on its own number. */
const leftOfSessions = (
  server: PostgresServer,
  names: readonly string[],
): Promise<readonly string[]> =>
  namesOf(
    server,
    `SELECT name FROM holdfast.session_locks JOIN pg_locks
      ON locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = session
      WHERE ${isOneOf(names)}`,
  );

const isOneOf = (names: readonly string[]): string =>
  `name IN (${names.map((name) => `'${name}'`).join(", ")})`;

const namesOf = async (server: PostgresServer, sql: string): Promise<readonly string[]> =>
  (await server.sql(sql)).split("\n").filter((row) => row !== "");
