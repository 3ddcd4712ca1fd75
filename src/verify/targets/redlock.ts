import type { Random } from "../../core/random.js";
import { QUORUM_TRAITS } from "../../stores/quorum/options.js";
import { type Fault, fault, together } from "../fault.js";
import { TcpProxy } from "../faults/proxy.js";
import { redisConnectionKind } from "../faults/redis-kind.js";
import { FalseClock } from "../lab/clock.js";
import type { Lab } from "../lab/lab.js";
import type { RedisServer } from "../lab/redis.js";
import {
  connectionKinds,
  EXCLUSION,
  type FaultKind,
  jumpMs,
  WORKER_KINDS,
} from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import type { Way } from "../runner/way.js";
import type { Connections } from "../traffic/protocol.js";
import { COMMON, leftOf, recover, versionsOf } from "./redis.js";
import { EVICTED, prepare, restartedWithRights, serverKinds, USER } from "./redis-faults.js";
import { LONG, LOST_DATA, ONCE, SHORT, wayThrough } from "./servers.js";

const NODES = 5;
const MINORITY = 2;
/** The default ttl of `Locks`; longer than a run's own ttls on a busy machine. */
const REST = "/2?maxTtl=30s";

const MINORITY_LOSES = "a node loses its data";
const MINORITY_EMPTY = "a node is restarted empty";
const MAJORITY_LOSES = "a majority of the nodes loses its data";
const ALL_LOSE = "all nodes lose their data";
const LOSSES = [MINORITY_LOSES, MINORITY_EMPTY, MAJORITY_LOSES, ALL_LOSE];

/** Five servers that sync every write; workers use a user and a database of their own. */
export async function redlockTarget(lab: Lab, isClocked: boolean): Promise<Target> {
  const nodes = await Promise.all(
    Array.from({ length: NODES }, async (_, i): Promise<Node> => {
      const clock = isClocked ? await FalseClock.open(lab, `the clock of node ${i + 1}`) : null;
      const site = clock === null ? {} : { site: clock.site() };
      const server = await lab.redis({ persistence: "always", ...site });
      await prepare(server);
      return { server, clock };
    }),
  );
  const servers = nodes.map(({ server }) => server);
  const losses = new Losses();
  return {
    ...COMMON,
    name: "redlock",
    about: "five Redis servers with appendfsync always, as a quorum",
    url: urlOf(servers),
    limits: { fair: QUORUM_TRAITS.fair },
    cannot: QUORUM_TRAITS.cannot,
    drawConnections,
    kinds: [
      ...WORKER_KINDS,
      ...connectionKinds("connection"),
      ...connectionKinds("commands"),
      ...connectionKinds("subscription"),
      ...serverKinds((random) => pick(servers, random)).filter(({ name }) => name !== LOST_DATA),
      ...outageKinds(servers),
      ...lossKinds(servers, losses),
      clockKind(nodes),
    ].map((kind) => (kind.name === EVICTED ? { ...kind, weight: 0.25, excludes: LOSSES } : kind)),
    openWay: (client) => openWay(lab, client, servers, isClocked),
    versions: () => versionsOf(servers[0]!),
    leftOf: (names) => leftOf(servers, names),
    commands: async () => {
      const counts = await Promise.all(servers.map((server) => server.commands()));
      return Math.round(counts.reduce((sum, count) => sum + count, 0) / NODES);
    },
    async recover() {
      await recover(servers);
      // Nodes that are out of the vote would be so in the next run, too.
      for (const server of servers) await server.cli("flushall");
      losses.forget();
    },
  };
}

interface Node {
  readonly server: RedisServer;
  readonly clock: FalseClock | null;
}

/** The nodes that have lost their data in this run, which is shorter than maxTtl. */
class Losses {
  readonly #nodes = new Set<RedisServer>();

  /** False if more than a minority would have lost their data. */
  add(server: RedisServer): boolean {
    if (!this.#nodes.has(server) && this.#nodes.size >= MINORITY) return false;
    this.#nodes.add(server);
    return true;
  }

  forget(): void {
    this.#nodes.clear();
  }
}

const pick = <T>(from: readonly T[], random: Random): T =>
  from[Math.floor(random.unit() * from.length)]!;

function shuffled<T>(all: readonly T[], random: Random): T[] {
  const keyed = all.map((one) => ({ one, key: random.unit() }));
  return keyed.sort((a, b) => a.key - b.key).map(({ one }) => one);
}

/** More servers than one at the same time. */
function outageKinds(servers: readonly RedisServer[]): readonly FaultKind[] {
  const some = (count: number, random: Random): Fault =>
    together(...shuffled(servers, random).slice(0, count).map(restartedWithRights));
  return [
    {
      name: "a minority of the nodes killed and restarted",
      hits: "cluster",
      lasts: LONG,
      make: (_member, random) => some(MINORITY, random),
    },
    {
      name: "a majority of the nodes killed and restarted",
      hits: "cluster",
      weight: 0.5,
      lasts: SHORT,
      make: (_member, random) => some(MINORITY + 1, random),
    },
  ];
}

function lossKinds(servers: readonly RedisServer[], losses: Losses): readonly FaultKind[] {
  const ofMinority = (name: string, make: (server: RedisServer) => Fault): FaultKind => ({
    name,
    hits: "cluster",
    lasts: ONCE,
    excludes: [MAJORITY_LOSES, ALL_LOSE],
    make: (_member, random) => {
      const server = pick(servers, random);
      return losses.add(server) ? make(server) : null;
    },
  });
  return [
    ofMinority(MINORITY_LOSES, flushed),
    ofMinority(MINORITY_EMPTY, (server) =>
      fault(`${server.name} is restarted empty`, async () => {
        await server.wipe();
        await prepare(server);
      }),
    ),
    {
      name: MAJORITY_LOSES,
      hits: "cluster",
      weight: 0.5,
      lasts: ONCE,
      breaks: ["L1", "L2"],
      because: "nobody is granted anything until maxTtl is over",
      locksOut: true,
      make: (_member, random) =>
        together(
          ...shuffled(servers, random)
            .slice(0, MINORITY + 1)
            .map(flushed),
        ),
    },
    {
      name: ALL_LOSE,
      hits: "cluster",
      weight: 0.25,
      lasts: ONCE,
      breaks: [...EXCLUSION, "L1", "L2"],
      because: "it looks like a quorum that nobody has used yet",
      locksOut: true,
      make: () => together(...servers.map(flushed)),
    },
  ];
}

const flushed = (server: RedisServer): Fault =>
  fault(`${server.name} loses its data`, () => server.cli("flushall"));

function clockKind(nodes: readonly Node[]): FaultKind {
  return {
    name: "clock of a node jumps",
    hits: "server",
    needsClock: true,
    setsClock: true,
    lasts: LONG,
    breaks: EXCLUSION,
    because: "leases end by the clocks of the nodes: one that is set ahead ends them early",
    // Tokens are not promised if a clock is wrong and data are lost, too.
    excludes: [...LOSSES, EVICTED],
    make: (_member, random) => pick(nodes, random).clock?.jump(jumpMs(random)) ?? null,
  };
}

function drawConnections(random: Random): readonly Connections[] {
  const which = random.unit();
  if (which < 0.5) return [{ locks: 1 }];
  if (which < 0.65) return [{ locks: 2, library: "ioredis" }];
  if (which < 0.8) return [{ locks: 2, library: "redis" }];
  return [{ locks: 1, lazy: true }, { locks: 1 }];
}

const urlOf = (
  places: readonly { readonly address: string; readonly port: number }[],
  login = "",
): string =>
  `redlock://${login}${places.map(({ address, port }) => `${address}:${port}`).join(",")}${REST}`;

async function openWay(
  lab: Lab,
  client: string,
  servers: readonly RedisServer[],
  isClocked: boolean,
): Promise<Way> {
  const proxies = await Promise.all(
    servers.map((server) => TcpProxy.open(server, { kindOf: redisConnectionKind })),
  );
  return wayThrough(
    proxies,
    { lab, client, isClocked },
    (hosts) => `redlock://${USER}:${USER}@${hosts}${REST}`,
  );
}
