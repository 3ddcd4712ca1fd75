import type { Random } from "../../core/random.js";
import { type Fault, fault } from "../fault.js";
import { killed, paused } from "../faults/server.js";
import type { RedisServer } from "../lab/redis.js";
import { EXCLUSION, type FaultKind } from "../runner/kinds.js";
import { LONG, LOST_DATA, ONCE, RESTARTED, SHORT } from "./servers.js";

/** The user name of the workers. */
export const USER = "app";
export const NO_SELECT = "right to select taken";
export const EVICTED = "keys evicted";

export const DEAF = {
  breaks: ["L4"],
  because: "a waiter that can't be notified may go to the end of the queue",
} as const;

/** Creates a user whose rights can be revoked without affecting the lab or the runner. */
export async function prepare(server: RedisServer): Promise<void> {
  await server.cli("acl", "setuser", USER, "on", `>${USER}`, "~*", "&*", "+@all");
}

export function serverKinds(server: (random: Random) => RedisServer): readonly FaultKind[] {
  const kind = (
    name: string,
    lasts: FaultKind["lasts"],
    make: (server: RedisServer, random: Random, forMs: number) => Fault,
    more: Partial<FaultKind> = {},
  ): FaultKind => ({
    name,
    hits: "server",
    lasts,
    make: (_member, random, forMs) => make(server(random), random, forMs),
    ...more,
  });
  return [
    kind("server paused", LONG, (one) => paused(one)),
    kind(RESTARTED, SHORT, (one) => restartedWithRights(one)),
    kind(LOST_DATA, ONCE, (one) => dataLost(one), {
      weight: 0.5,
      breaks: EXCLUSION,
      because: "what was granted is forgotten, and granted again",
    }),
    kind("scripts flushed", ONCE, (one) =>
      fault(`${one.name} has its scripts flushed`, () => one.cli("script", "flush")),
    ),
    kind("memory full", LONG, (one) => configured(one, "maxmemory", "1mb", "0")),
    kind(EVICTED, LONG, (one) => evicting(one), {
      weight: 0.5,
      breaks: EXCLUSION,
      because: "with a policy that evicts, the server may delete a grant at any time",
    }),
    kind("configuration changed", LONG, (one, random) => reconfigured(one, random)),
    kind("slow command", SHORT, (one, _random, forMs) => slowed(one, forMs)),
    kind("connections killed", ONCE, (one) =>
      fault(`${one.name} kills its connections`, async () => {
        await one.cli("client", "kill", "type", "normal");
        await one.cli("client", "kill", "type", "pubsub");
      }),
    ),
    kind("right to subscribe taken", LONG, (one) => rightTaken(one, "subscribe", "pubsub"), DEAF),
    kind(NO_SELECT, LONG, (one) => rightTaken(one, "select", "normal")),
  ];
}

/** The restart creates the user again, who is not in the append-only file. */
export const restartedWithRights = (server: RedisServer): Fault => {
  const dead = killed(server);
  return fault(
    dead.name,
    () => dead.inject(),
    async () => {
      await dead.heal();
      await prepare(server);
    },
  );
};

/** The same effect as a restart without persistence, or a failover to an empty replica. */
const dataLost = (server: RedisServer): Fault =>
  fault(`${server.name} loses its data`, () => server.cli("flushall"));

const configured = (server: RedisServer, name: string, value: string, usual: string): Fault =>
  fault(
    `${server.name} has ${name} ${value}`,
    () => server.cli("config", "set", name, value),
    () => server.cli("config", "set", name, usual),
  );

/** Settings that an operator may change on a running server. None may cost more than time. */
const SETTINGS: readonly (readonly [name: string, value: string, usual: string])[] = [
  // Closes idle connections after a second.
  ["timeout", "1", "0"],
  // Replies BUSY while a script runs for longer than this, in milliseconds.
  ["lua-time-limit", "5", "5000"],
  // Refuses writes without this many replicas.
  ["min-replicas-to-write", "1", "0"],
  ["notify-keyspace-events", "AKE", ""],
  ["save", "1 1", ""],
];

function reconfigured(server: RedisServer, random: Random): Fault {
  const [name, value, usual] = SETTINGS[Math.floor(random.unit() * SETTINGS.length)]!;
  return configured(server, name, value, usual);
}

/** Sets a memory limit below the present use, so the server evicts some keys of its choice. */
const evicting = (server: RedisServer): Fault =>
  fault(
    `${server.name} evicts keys`,
    async () => {
      const used = /^used_memory:(\d+)/m.exec(await server.cli("info", "memory"))![1]!;
      await server.cli("config", "set", "maxmemory-policy", "allkeys-random");
      await server.cli("config", "set", "maxmemory", String(Number(used) - 512));
    },
    async () => {
      await server.cli("config", "set", "maxmemory", "0");
      await server.cli("config", "set", "maxmemory-policy", "noeviction");
    },
  );

/** Another client's script keeps the server busy. */
const slowed = (server: RedisServer, forMs: number): Fault =>
  fault(`${server.name} busy with another's script`, () => {
    const turns = Math.round(forMs * 20_000);
    // Not awaited: the server replies to nobody meanwhile.
    server
      .cli("eval", `local n = 0 for i = 1, ${turns} do n = n + i end return n`, "0")
      .catch(() => {});
  });

function rightTaken(server: RedisServer, command: string, connections: string): Fault {
  return fault(
    `${USER} may not ${command} at ${server.name}`,
    async () => {
      await server.cli("acl", "setuser", USER, `-${command}`);
      await server.cli("client", "kill", "type", connections, "user", USER).catch(() => {});
    },
    () => server.cli("acl", "setuser", USER, `+${command}`),
  );
}
