import type { Random } from "../../../core/random.js";
import { seededRandom } from "../../../testing/seeded-random.js";
import { pick, whole } from "../draw-schedule.js";
import type { MessageFault, Schedule, StoreTrouble, Task, Trouble } from "../schedule.js";

const LASTS_MS = 8_000;
const MAX_TTL_MS = 4_000;
const TTLS_MS = [500, 1_000, 2_000];
const MESSAGE_FAULTS: readonly MessageFault[] = [
  "requests are lost",
  "replies are lost",
  "messages arrive twice",
  "messages are late",
  "messages are late",
  "refused",
  "subscription is down",
  "pushes are lost",
];
/** Wall clocks in 1970 and in 2200: nothing may depend on them. */
const WRONG_YEARS_MS = [Date.UTC(1970, 0, 2), Date.UTC(2200, 0, 1)].map(
  (ms) => ms - Date.UTC(2030, 0, 1),
);

/** Draws a schedule with a quorum. Each kind of fault is left out of many schedules, which promise more then. */
export function drawQuorumSchedule(seed: number): Schedule {
  const random = seededRandom(seed ^ 0x3c6ef372);
  const chance = (share: number): boolean => random.unit() < share;
  const clients = 2 + Math.floor(random.unit() * 3);
  // Each client alone with a name of its own, or few names for all.
  const areApart = chance(0.15);
  const names = areApart ? clients : chance(0.8) ? 1 : 2;
  const nodes = chance(0.6) ? 3 : 5;
  // Most clocks agree within the time that the nodes allow for; a few do not.
  const spreadMs = pick(random, [1, 20, 300, MAX_TTL_MS / 4, MAX_TTL_MS / 2, 60_000]);
  const syncs = Array.from({ length: nodes }, () => chance(0.3));
  const drawn: Schedule = {
    seed,
    place: "quorum",
    // Within the drift that a lease allows for.
    rates: Array.from({ length: clients }, () => 1 + (random.unit() - 0.5) * 0.016),
    names,
    semaphores: Array.from({ length: names }, () => 0),
    abortBefore: chance(0.3),
    nodes: {
      maxTtlMs: MAX_TTL_MS,
      clocks: Array.from({ length: nodes }, () => ({
        aheadMs: whole(random.unit() * spreadMs),
        rate: 1 + (random.unit() - 0.5) * 0.001,
      })),
      syncs,
      ...(chance(0.1) ? { areNew: true as const } : {}),
    },
    tasks: Array.from({ length: clients * (2 + Math.floor(random.unit() * 4)) }, () =>
      drawTask(random, clients, names),
    )
      .map((task) => (areApart ? { ...task, name: task.client } : task))
      .sort((a, b) => a.atMs - b.atMs),
    troubles: [],
  };
  const drawOfNodes = chance(0.25) ? drawVanishing : drawNodeTroubles;
  // By the seed, not by chance: the other schedules stay as they were.
  if (seed % 5 === 2) return { ...drawn, troubles: drawSplitVotes(random, drawn, syncs) };
  const troubles = [...drawClientTroubles(random, drawn), ...drawOfNodes(random, drawn, syncs)];
  return { ...drawn, troubles: troubles.sort((a, b) => a.fromMs - b.fromMs) };
}

function drawTask(random: Random, clients: number, names: number): Task {
  const chance = (share: number): boolean => random.unit() < share;
  const ttlMs = pick(random, TTLS_MS);
  return {
    client: Math.floor(random.unit() * clients),
    name: Math.floor(random.unit() * names),
    atMs: whole(random.unit() * LASTS_MS),
    shared: false,
    ttlMs,
    waitMs: chance(0.15) ? 0 : whole(500 + random.unit() * 8_000),
    holdMs: whole(random.unit() ** 3 * 3 * ttlMs),
    ...(chance(0.1) ? { abortAfterMs: whole(random.unit() * 2_000) } : {}),
    ...(chance(0.05) ? { maxHoldMs: whole(random.unit() * 2 * ttlMs + 1) } : {}),
    ...(chance(0.1) ? { atLeastMs: whole(random.unit() * ttlMs) } : {}),
    ...(chance(0.1) ? { renewToMs: pick(random, TTLS_MS) } : {}),
    ...(chance(0.05) ? { terms: 1 + Math.floor(random.unit() * 2) } : {}),
  };
}

function drawClientTroubles(random: Random, { rates, names }: Schedule): Trouble[] {
  const many = pick(random, [0, 2, 5]);
  const wrongYears = rates.flatMap((_, client): Trouble[] =>
    random.unit() < 0.2
      ? [{ kind: "wall clock jumps", client, fromMs: 0, byMs: pick(random, WRONG_YEARS_MS) }]
      : [],
  );
  const drawn = Array.from({ length: Math.floor(random.unit() * (many + 1)) }, (): Trouble => {
    const client = Math.floor(random.unit() * rates.length);
    const fromMs = whole(random.unit() * LASTS_MS);
    const toMs = fromMs + whole(50 + random.unit() ** 2 * 4_000);
    const which = random.unit();
    if (which < 0.4) return { kind: pick(random, MESSAGE_FAULTS), client, fromMs, toMs };
    if (which < 0.5) return { kind: "stops between statements", client, fromMs, toMs };
    if (which < 0.65) return { kind: "paused", client, fromMs, toMs };
    if (which < 0.7) return { kind: "machine suspended", client, fromMs, toMs };
    if (which < 0.82) return { kind: "killed", client, fromMs };
    if (which < 0.87) return { kind: "closed", client, fromMs };
    const name = Math.floor(random.unit() * names);
    return { kind: "forces a release", client, fromMs, name };
  });
  return [...wrongYears, ...drawn];
}

function drawNodeTroubles(
  random: Random,
  { rates, names }: Schedule,
  syncs: readonly boolean[],
): Trouble[] {
  const minority = Math.floor((syncs.length - 1) / 2);
  // The nodes that have faults at all: none, a minority, or all of them.
  const hit = pick(random, [0, minority, minority, syncs.length]);
  const first = Math.floor(random.unit() * syncs.length);
  const kinds = NODE_TROUBLES.filter(() => random.unit() < 0.4);
  const many = pick(random, [3, 8, 16, 40]);
  if (hit === 0 || kinds.length === 0) return [];
  return Array.from({ length: Math.floor(random.unit() * (many + 1)) }, () => {
    const node = (first + Math.floor(random.unit() * hit)) % syncs.length;
    const about = { node, clients: rates.length, names, isSynced: syncs[node]! };
    return drawNodeTrouble(random, pick(random, kinds), about);
  });
}

/** Several nodes forget a name at once, again and again, while messages are late, doubled and lost. */
function drawVanishing(
  random: Random,
  { rates, names }: Schedule,
  syncs: readonly boolean[],
): Trouble[] {
  const forgotten = Array.from({ length: 12 }, () => {
    const atMs = random.unit() * LASTS_MS;
    const name = Math.floor(random.unit() * names);
    return syncs.flatMap((_, node): Trouble[] => {
      const fromMs = whole(atMs + random.unit() * 40);
      return random.unit() < 0.6 ? [{ kind: "node forgets a record", node, fromMs, name }] : [];
    });
  });
  const kinds = ["messages are late", "messages arrive twice", "replies are lost"] as const;
  const faulty = rates.flatMap((_, client) =>
    syncs.flatMap((_, node) =>
      kinds.flatMap((kind): Trouble[] => {
        const fromMs = whole(random.unit() * LASTS_MS);
        const toMs = fromMs + whole(random.unit() * 2_000);
        return random.unit() < 0.4 ? [{ kind, client, node, fromMs, toMs }] : [];
      }),
    ),
  );
  return [...forgotten.flat(), ...faulty];
}

/**
 * Clients do not reach some of the nodes for a moment, or late, again and again: ballots leave different numbers
 * behind, or arrive after later ones, and vanish.
 */
function drawSplitVotes(
  random: Random,
  schedule: Schedule,
  syncs: readonly boolean[],
): readonly Trouble[] {
  const refusing = schedule.rates.flatMap((_, client) =>
    syncs.flatMap((_, node) =>
      Array.from({ length: 6 }, (): Trouble => {
        const fromMs = whole(random.unit() * LASTS_MS);
        return {
          kind: schedule.seed % 2 === 0 ? "refused" : "messages are late",
          client,
          node,
          fromMs,
          toMs: fromMs + whole(random.unit() * 1_500),
        };
      }),
    ),
  );
  const troubles = [...refusing, ...drawVanishing(random, schedule, syncs)];
  return troubles.sort((a, b) => a.fromMs - b.fromMs);
}

const NODE_TROUBLES = ["messages", "stops", "loss", "forgets", "jumps"] as const;
type NodeTroubleKind = (typeof NODE_TROUBLES)[number];

function drawNodeTrouble(
  random: Random,
  kind: NodeTroubleKind,
  about: { node: number; clients: number; names: number; isSynced: boolean },
): StoreTrouble {
  const { node, clients, names, isSynced } = about;
  const fromMs = whole(random.unit() * LASTS_MS);
  const toMs = fromMs + whole(20 + random.unit() ** 2 * 3_000);
  switch (kind) {
    case "messages": {
      const client = Math.floor(random.unit() * clients);
      return { kind: pick(random, MESSAGE_FAULTS), client, node, fromMs, toMs };
    }
    case "stops":
      return random.unit() < 0.5
        ? { kind: "node hangs", node, fromMs, toMs }
        : { kind: "node restarts", node, fromMs, toMs, oldMs: 0 };
    case "loss": {
      const which = random.unit();
      if (which < 0.3) return { kind: "node is flushed", node, fromMs };
      if (which < 0.6 || isSynced) return { kind: "node restarts", node, fromMs, toMs };
      const oldMs = whole(1 + random.unit() * 2_000);
      return { kind: "node restarts", node, fromMs, toMs, oldMs };
    }
    case "forgets": {
      const name = Math.floor(random.unit() * names);
      return { kind: "node forgets a record", node, fromMs, name };
    }
    case "jumps": {
      const byMs = whole((random.unit() - 0.5) * pick(random, [200, 2_000, 20_000]));
      return { kind: "node's clock jumps", node, fromMs, byMs };
    }
  }
}
