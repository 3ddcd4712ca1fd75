import type { Random } from "../../core/random.js";
import { seededRandom } from "../../testing/seeded-random.js";

/** One acquire of one client, and what it does with the lease. */
export interface Task {
  readonly client: number;
  readonly name: number;
  /** All of these too, asked for at once, in this order. */
  readonly also?: readonly number[];
  readonly atMs: number;
  readonly shared: boolean;
  /** So many of a semaphore's. */
  readonly permits?: number;
  /** A program that thinks that the semaphore has so many. */
  readonly limit?: number;
  /** A candidate, so many times at the most: waits for ever, and after a loss campaigns again. */
  readonly terms?: number;
  readonly ttlMs: number;
  readonly waitMs: number;
  readonly holdMs: number;
  /** The caller's signal aborts so long after the ask. */
  readonly abortAfterMs?: number;
  readonly maxHoldMs?: number;
  readonly atLeastMs?: number;
  /** `false`: the lease is not renewed by itself. */
  readonly renew?: false;
  /** `lease.renew` to another ttl, half-way through. */
  readonly renewToMs?: number;
}

/** What befalls the messages between a client and the store; half of them, each by its own chance. */
export type Weather =
  | "requests are lost"
  | "replies are lost"
  | "pushes are lost"
  | "requests arrive twice"
  | "messages are late"
  | "refused"
  /** No weather, but it strikes like one: the process, in the middle of sending. */
  | "stops between statements";

export type Trouble = { readonly fromMs: number } & (
  | { readonly kind: Weather; readonly client: number; readonly toMs: number }
  | {
      readonly kind: "paused" | "machine suspended";
      readonly client: number;
      readonly toMs: number;
    }
  /** `closed`: its program closes its locks, with leases held and acquires waiting. */
  | { readonly kind: "killed" | "closed"; readonly client: number }
  | { readonly kind: "forces a release"; readonly client: number; readonly name: number }
  /** And from then on, every program takes it that there are so many. */
  | {
      readonly kind: "resizes a semaphore";
      readonly client: number;
      readonly name: number;
      readonly limit: number;
    }
  | { readonly kind: "wall clock jumps"; readonly client: number; readonly byMs: number }
  | { readonly kind: "store's wall clock jumps"; readonly byMs: number }
  | { readonly kind: "store hangs"; readonly toMs: number }
);

/** All that happens in one run, but for the chance of each message, which hangs on the seed. */
export interface Schedule {
  readonly seed: number;
  /** A client's clock runs so much faster than the store's. */
  readonly rates: readonly number[];
  readonly names: number;
  /** By name: how many permits it has; 0: it is a lock. */
  readonly semaphores: readonly number[];
  readonly abortBefore: boolean;
  readonly tasks: readonly Task[];
  readonly troubles: readonly Trouble[];
}

const WEATHERS: readonly Weather[] = [
  "requests are lost",
  "replies are lost",
  "pushes are lost",
  "requests arrive twice",
  "messages are late",
  "messages are late",
  "refused",
  "stops between statements",
  "stops between statements",
];
const LASTS_MS = 20_000;
const TTLS_MS = [500, 1_000, 2_000, 4_000, 10_000];

/** Every fourth seed, from 1 on, has locks and nothing else. */
export function drawSchedule(seed: number): Schedule {
  const plain = drawLocks(seed);
  return seed % 4 === 1 ? plain : drawMore(seededRandom(seed ^ 0x5bd1e995), plain);
}

function drawLocks(seed: number): Schedule {
  const random = seededRandom(seed);
  const chance = (share: number): boolean => random.unit() < share;
  const clients = 2 + Math.floor(random.unit() * 4);
  const names = chance(0.7) ? 1 : 2;
  return {
    seed,
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
  const resized = semaphores.flatMap((permits, name) => (permits > 0 && chance(0.8) ? [name] : []));
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
  // At a semaphore too: it is no lock, and refuses.
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

/** One or more, in any order. */
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
  if (which < 0.5) return { kind: pick(random, WEATHERS), client, fromMs, toMs };
  if (which < 0.65) return { kind: "paused", client, fromMs, toMs };
  if (which < 0.72) return { kind: "machine suspended", client, fromMs, toMs };
  if (which < 0.79) return { kind: "killed", client, fromMs };
  if (which < 0.83) return { kind: "closed", client, fromMs };
  if (which < 0.87) return { kind: "store hangs", fromMs, toMs };
  const byMs = whole((random.unit() - 0.5) * 20_000);
  if (which < 0.94) return { kind: "wall clock jumps", client, fromMs, byMs };
  return { kind: "store's wall clock jumps", fromMs, byMs };
}

/** For whoever reads it. */
const whole = Math.round;

function pick<T>(random: Random, from: readonly T[]): T {
  return from[Math.floor(random.unit() * from.length)]!;
}
