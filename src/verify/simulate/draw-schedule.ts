import type { Random } from "../../core/random.js";
import { seededRandom } from "../../testing/seeded-random.js";
import type { MessageFault, Schedule, Task, Trouble } from "./schedule.js";

const MESSAGE_FAULTS: readonly MessageFault[] = [
  "requests are lost",
  "replies are lost",
  "pushes are lost",
  "pushes are late",
  "subscription is down",
  "messages arrive twice",
  "messages are late",
  "messages are late",
  "refused",
  "stops between statements",
  "stops between statements",
];
const LASTS_MS = 20_000;
const TTLS_MS = [500, 1_000, 2_000, 4_000, 10_000];
const SHORT_TTLS_MS = [500, 750, 1_000, 1_500];

/** A time without requests: longer than a store may keep data that nobody uses. */
const IDLE_MS = 70_000;

/** Draws a schedule. Every fourth seed, from 1 on, has locks and nothing else. */
export function drawSchedule(seed: number): Schedule {
  const plain = drawLocks(seed);
  const all = seed % 4 === 1 ? plain : drawMore(seededRandom(seed ^ 0x5bd1e995), plain);
  const placed = drawPlace(seededRandom(seed ^ 0x27d4eb2f), all);
  return drawStore(seededRandom(seed ^ 0x165667b1), placed);
}

function drawLocks(seed: number): Schedule {
  const random = seededRandom(seed);
  const chance = (share: number): boolean => random.unit() < share;
  const clients = 2 + Math.floor(random.unit() * 4);
  const names = chance(0.7) ? 1 : 2;
  return {
    seed,
    place: "network",
    // Within the drift that a lease allows for.
    rates: Array.from({ length: clients }, () => 1 + (random.unit() - 0.5) * 0.016),
    names,
    semaphores: Array.from({ length: names }, () => 0),
    abortBefore: chance(0.3),
    tasks: Array.from({ length: clients * (2 + Math.floor(random.unit() * 5)) }, () =>
      drawTask(random, clients, names),
    ).sort((a, b) => a.atMs - b.atMs),
    troubles: Array.from({ length: Math.floor(random.unit() * 12) }, () =>
      drawTrouble(random, clients),
    ).sort((a, b) => a.fromMs - b.fromMs),
  };
}

function drawTask(random: Random, clients: number, names: number): Task {
  const chance = (share: number): boolean => random.unit() < share;
  const ttlMs = pick(random, TTLS_MS);
  return {
    client: Math.floor(random.unit() * clients),
    name: Math.floor(random.unit() * names),
    atMs: whole(random.unit() * LASTS_MS),
    shared: chance(0.3),
    ttlMs,
    waitMs: chance(0.1) ? 0 : whole(500 + random.unit() * 15_000),
    holdMs: whole(random.unit() ** 2 * 3 * ttlMs),
    ...(chance(0.1) ? { abortAfterMs: whole(random.unit() * 4_000) } : {}),
    ...(chance(0.1) ? { maxHoldMs: whole(random.unit() * 2 * ttlMs + 1) } : {}),
    ...(chance(0.2) ? { renewToMs: pick(random, TTLS_MS) } : {}),
  };
}

function drawMore(random: Random, plain: Schedule): Schedule {
  const chance = (share: number): boolean => random.unit() < share;
  const clients = plain.rates.length;
  const names = plain.names + (chance(0.5) ? 1 : 0);
  const semaphores = Array.from({ length: names }, () =>
    chance(0.3) ? 2 + Math.floor(random.unit() * 4) : 0,
  );
  const resized = semaphores.flatMap((permits, name) =>
    permits > 0 ? Array.from({ length: Math.floor(random.unit() * 5) }, () => name) : [],
  );
  const by = () => ({
    client: Math.floor(random.unit() * clients),
    fromMs: whole(random.unit() * LASTS_MS),
  });
  const troubles: readonly Trouble[] = [
    ...plain.troubles,
    ...Array.from({ length: Math.floor(random.unit() * 3) }, () => ({
      kind: "forces a release" as const,
      ...by(),
      name: Math.floor(random.unit() * names),
    })),
    ...resized.map((name) => ({
      kind: "resizes a semaphore" as const,
      ...by(),
      name,
      limit: 1 + Math.floor(random.unit() * 6),
    })),
  ];
  return {
    ...plain,
    names,
    semaphores,
    tasks: plain.tasks.map((task) => drawMoreOf(random, task, semaphores)),
    troubles: troubles.toSorted((a, b) => a.fromMs - b.fromMs),
  };
}

function drawMoreOf(random: Random, task: Task, semaphores: readonly number[]): Task {
  const chance = (share: number): boolean => random.unit() < share;
  const names = semaphores.length;
  const name = chance(0.3) ? Math.floor(random.unit() * names) : task.name;
  const permits = semaphores[name]!;
  // Also at a semaphore, where a multi-lock is refused.
  const isForAll = names > 1 && chance(permits > 0 ? 0.05 : 0.4);
  const isElection = !isForAll && permits === 0 && chance(0.1);
  const more = {
    ...task,
    name,
    ...(chance(0.15) ? { atLeastMs: whole(random.unit() * 2 * task.ttlMs) } : {}),
  };
  if (isForAll) return { ...more, also: drawOthers(random, names, name) };
  if (isElection) return { ...more, shared: false, terms: 1 + Math.floor(random.unit() * 3) };
  return {
    ...more,
    ...(chance(0.08) ? { renew: false as const } : {}),
    ...(permits === 0
      ? {}
      : {
          shared: false,
          permits: 1 + Math.floor(random.unit() * permits),
          ...(chance(0.06) ? { limit: permits + 1 } : {}),
        }),
  };
}

/** Draws the place of the store, and faults that are possible there. */
function drawPlace(random: Random, drawn: Schedule): Schedule {
  const which = random.unit();
  const place = which < 0.45 ? "network" : which < 0.75 ? "skipping" : "process";
  const schedule = place === "process" ? crowded(drawn) : drawn;
  const at = (): { client: number; fromMs: number } => ({
    client: Math.floor(random.unit() * schedule.rates.length),
    fromMs: whole(random.unit() * LASTS_MS),
  });
  const some = <T>(most: number, draw: () => T): readonly T[] =>
    Array.from({ length: Math.floor(random.unit() * (most + 1)) }, draw);
  const cut = (): Trouble => {
    const { client, fromMs } = at();
    const toMs = fromMs + whole(20 + random.unit() ** 2 * 4_000);
    return { kind: "subscription is down", client, fromMs, toMs };
  };
  const closed = (): Trouble => {
    const { client, fromMs } = at();
    return { kind: "closed", client, fromMs: whole(fromMs / 2) };
  };
  const troubles = [
    ...(place === "process" ? schedule.troubles.filter(isInProcess) : schedule.troubles),
    ...(place === "process" ? some(3, closed) : []),
    ...(place === "skipping" ? some(4, cut) : []),
  ];
  const placed = {
    ...schedule,
    place,
    troubles: troubles.toSorted((a, b) => a.fromMs - b.fromMs),
  } as const;
  if (random.unit() < 0.06) return drawIdle(random, placed);
  return place !== "process" && random.unit() < 0.2 ? drawFrost(random, placed) : placed;
}

/** Draws malformed replies and late openings of the store. Half of the seeds are left unchanged. */
function drawStore(random: Random, drawn: Schedule): Schedule {
  const chance = (share: number): boolean => random.unit() < share;
  if (chance(0.5)) return drawn;
  const which = random.unit();
  const polling = which < 0.3 ? "polled" : which < 0.6 ? "ticketless" : "network";
  const place = drawn.place === "network" ? polling : drawn.place;
  const clients = drawn.rates.length;
  const some = <T>(most: number, draw: () => T): readonly T[] =>
    Array.from({ length: 1 + Math.floor(random.unit() * most) }, draw);
  const malformed = (): Trouble => {
    const fromMs = whole(random.unit() * LASTS_MS);
    return {
      kind: chance(0.6) ? "answers are missing" : "answers are doubled",
      client: Math.floor(random.unit() * clients),
      fromMs,
      toMs: fromMs + whole(500 + random.unit() * 10_000),
    };
  };
  const late = (): Trouble => ({
    kind: "store opens late",
    client: Math.floor(random.unit() * clients),
    fromMs: 0,
    toMs: 1 + whole(random.unit() * 10_000),
  });
  // While its acquire is pending, or soon after.
  const closed = (): Trouble => {
    const { client, atMs } = pick(random, drawn.tasks);
    return { kind: "closed", client, fromMs: atMs + whole(random.unit() ** 3 * 2_000) };
  };
  const troubles = [
    ...drawn.troubles,
    ...(chance(0.5) ? some(4, malformed) : []),
    ...(chance(0.3) ? some(3, late) : []),
    ...(chance(0.3) ? some(2, closed) : []),
  ].toSorted((a, b) => a.fromMs - b.fromMs);
  return {
    ...drawn,
    place,
    troubles: troubles.map((one) =>
      one.kind === "closed" && chance(0.5)
        ? { ...one, graceMs: whole(random.unit() ** 2 * 6_000) }
        : one,
    ),
    ...(chance(0.3)
      ? {
          traits: {
            liveness: pick(random, ["lease", "session"]),
            namesAtOnce: pick(random, [1, 2, 9]),
          },
        }
      : {}),
  };
}

/** Draws short leases on machines that freeze, for less than `abortBefore` covers and for more. */
function drawFrost(random: Random, schedule: Schedule): Schedule {
  const frozen = Array.from({ length: 2 + Math.floor(random.unit() * 10) }, (): Trouble => {
    const fromMs = whole(random.unit() * LASTS_MS);
    return {
      kind: "machine frozen",
      client: Math.floor(random.unit() * schedule.rates.length),
      fromMs,
      toMs: fromMs + whole(20 + random.unit() ** 2 * 600),
    };
  });
  return {
    ...schedule,
    abortBefore: true,
    tasks: schedule.tasks.map((task) => ({ ...task, ttlMs: pick(random, SHORT_TTLS_MS) })),
    troubles: [...schedule.troubles, ...frozen].toSorted((a, b) => a.fromMs - b.fromMs),
  };
}

/** Two clients with more concurrent acquires, so that several of one `Locks` wait together. */
function crowded(schedule: Schedule): Schedule {
  const { rates, tasks, troubles } = schedule;
  return {
    ...schedule,
    rates: rates.slice(0, 2),
    tasks: tasks.map((task) => ({
      ...task,
      client: task.client % 2,
      atMs: whole(task.atMs / 4),
    })),
    troubles: troubles.map((one) => ("client" in one ? { ...one, client: one.client % 2 } : one)),
  };
}

/** Whether the fault can hit clients that are in one process with the store. */
const isInProcess = ({ kind }: Trouble): boolean =>
  kind !== "store hangs" && !MESSAGE_FAULTS.includes(kind as MessageFault);

/** Draws more than a minute without requests, and then sets the store's wall clock back. */
function drawIdle(random: Random, schedule: Schedule): Schedule {
  const fromMs = whole((0.2 + random.unit() * 0.6) * LASTS_MS);
  const later = (atMs: number): number => (atMs < fromMs ? atMs : atMs + IDLE_MS);
  return {
    ...schedule,
    tasks: schedule.tasks.map((task) => ({ ...task, atMs: later(task.atMs) })),
    troubles: [
      ...schedule.troubles.map((one) => ({
        ...one,
        fromMs: later(one.fromMs),
        ...("toMs" in one ? { toMs: one.toMs + later(one.fromMs) - one.fromMs } : {}),
      })),
      {
        kind: "store's wall clock jumps" as const,
        fromMs: fromMs + IDLE_MS,
        byMs: -whole(IDLE_MS + random.unit() * 600_000),
      },
    ].toSorted((a, b) => a.fromMs - b.fromMs),
  };
}

/** Draws one or more other names, in any order. */
function drawOthers(random: Random, names: number, but: number): readonly number[] {
  const others = Array.from({ length: names }, (_, name) => name).filter((name) => name !== but);
  const from = Math.floor(random.unit() * others.length);
  const many = 1 + Math.floor(random.unit() * others.length);
  return [...others.slice(from), ...others.slice(0, from)].slice(0, many);
}

function drawTrouble(random: Random, clients: number): Trouble {
  const fromMs = whole(random.unit() * LASTS_MS);
  const toMs = fromMs + whole(100 + random.unit() ** 2 * 8_000);
  const client = Math.floor(random.unit() * clients);
  const which = random.unit();
  if (which < 0.5) return { kind: pick(random, MESSAGE_FAULTS), client, fromMs, toMs };
  if (which < 0.65) return { kind: "paused", client, fromMs, toMs };
  if (which < 0.72) return { kind: "machine suspended", client, fromMs, toMs };
  if (which < 0.79) return { kind: "killed", client, fromMs };
  if (which < 0.83) return { kind: "closed", client, fromMs };
  if (which < 0.87) return { kind: "store hangs", fromMs, toMs };
  const byMs = whole((random.unit() - 0.5) * 20_000);
  if (which < 0.94) return { kind: "wall clock jumps", client, fromMs, byMs };
  return { kind: "store's wall clock jumps", fromMs, byMs };
}

/** Whole numbers are easier to read in a schedule. */
export const whole = Math.round;

export function pick<T>(random: Random, from: readonly T[]): T {
  return from[Math.floor(random.unit() * from.length)]!;
}
