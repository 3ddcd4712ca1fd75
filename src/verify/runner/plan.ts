import type { Random } from "../../core/random.js";
import type { Feature } from "../../core/store.js";
import { seededRandom } from "../../testing/seeded-random.js";
import type { Connections, ContendedName, Program } from "../traffic/protocol.js";
import type { FaultKind } from "./kinds.js";
import type { Target } from "./target.js";

/** Everything that is drawn for one run. The course of the run also depends on the machine. */
export interface Plan {
  readonly seed: number;
  /** The factor of all its times: 1 on a quiet machine. */
  readonly pace: number;
  /** For how long programs begin new operations. Faults end earlier. */
  readonly forMs: number;
  readonly commandTimeoutMs: number;
  readonly workers: readonly WorkerPlan[];
  readonly names: readonly ContendedName[];
  readonly faults: readonly PlannedFault[];
  readonly interventions: readonly Intervention[];
}

interface WorkerPlan {
  readonly client: string;
  /** The ttl of its `Locks`, where the store refuses a ttl per lease. */
  readonly ttlMs?: number;
  readonly connections: readonly Connections[];
  readonly programs: readonly Omit<Program, "untilMs">[];
}

export interface PlannedFault {
  readonly kind: string;
  /** The number of the worker that the fault hits, or that makes it. */
  readonly worker: number;
  readonly atMs: number;
  readonly forMs: number;
  /** The seed of the fault's own random choices. */
  readonly seed: number;
}

/** An operator's action on a name, over a connection of its own. */
export type Intervention = { readonly atMs: number; readonly name: string } & (
  | { readonly does: "force a release" }
  | { readonly does: "resize"; readonly limit: number }
);

export interface PlanOptions {
  readonly workers: number;
  readonly forMs: number;
  /** The factor by which everything is slower than usual: 1 on a quiet machine. */
  readonly pace: number;
  /** The mean pause between two operations of a program. Default: `pauseMsOn`. */
  readonly pauseMs?: number | undefined;
}

/** The last part of a run, in which nothing is injected, so that waiters have time to go on. */
const CALM = 0.3;
const MS_PER_FAULT = 900;
/** One of this many runs has more names, and leases that mostly expire: other runs seldom show an expiry. */
const EXPIRING_RUN_OF = 3;
const EXPIRING_SHARE = 0.6;
/** The share of connection faults that hit all workers at the same time, as when their network fails. */
const HITS_ALL = 0.25;

const PAUSE_MS = 15;
/** On a user's store, all workers together begin up to about 30 operations a second on average: each has two programs. */
const GIVEN_PAUSE_MS_PER_WORKER = 67;

/** The mean pause between two operations of a program. */
const pauseMsOn = ({ isOurs }: Pick<Target, "isOurs">, workers: number): number =>
  isOurs ? PAUSE_MS : GIVEN_PAUSE_MS_PER_WORKER * workers;

export function drawPlan(
  seed: number,
  target: Pick<
    Target,
    "ttlsMs" | "kinds" | "drawConnections" | "isOurs" | "cannot" | "longestHoldTtls"
  >,
  options: PlanOptions,
): Plan {
  const random = seededRandom(seed);
  const { forMs, pace, pauseMs = pauseMsOn(target, options.workers) } = options;
  const chance = (share: number): boolean => random.unit() < share;
  const pick = <T>(from: readonly T[]): T => from[Math.floor(random.unit() * from.length)]!;
  const isExpiring = seed % EXPIRING_RUN_OF === 0;
  const names: ContendedName[] = [{ name: "a", permits: 0 }];
  if (isExpiring || chance(0.6)) names.push({ name: "b", permits: 0 });
  if (isExpiring) names.push({ name: "c", permits: 0 });
  const refuses = Object.keys(target.cannot ?? {}) as Feature[];
  const oneTtl = refuses.includes("own-ttl");
  if (chance(0.4) && !refuses.includes("permits"))
    names.push({ name: "permits", permits: 2 + Math.floor(random.unit() * 3) });
  if (chance(0.2)) names.push({ name: "once", permits: 0, onceEveryMs: 400 });
  const ttlsMs = target.ttlsMs.map((ttlMs) => Math.round(ttlMs * pace));
  const drawTtls = (): readonly number[] => {
    // In half of the cases all workers have the same ttl.
    const drawn = chance(0.5) ? [ttlsMs[0]!] : ttlsMs;
    return oneTtl ? [pick(drawn)] : drawn;
  };
  const workers = Array.from({ length: options.workers }, (_, i) =>
    drawWorker(random, `w${i + 1}`, seed, {
      names,
      ttlsMs: drawTtls(),
      waitMs: pick([500, 2_000, 5_000]) * pace,
      pauseMs,
      ...(isExpiring ? { expiringShare: EXPIRING_SHARE } : {}),
      refuses,
      ...(target.longestHoldTtls ? { longestHoldTtls: target.longestHoldTtls } : {}),
      connections: target.drawConnections(random),
      oneTtl,
    }),
  );
  const calmMs = forMs * (1 - CALM);
  return {
    seed,
    pace,
    forMs,
    commandTimeoutMs: Math.round(pick([400, 1_000, 5_000]) * pace),
    workers,
    names,
    faults: drawFaults(random, target.kinds, workers.length, {
      untilMs: calmMs,
      ttlMs: ttlsMs[0]!,
      pace,
    }),
    // A forced release leaves a note in the store for an hour.
    interventions: target.isOurs ? drawInterventions(random, names, calmMs) : [],
  };
}

function drawWorker(
  random: Random,
  client: string,
  seed: number,
  traffic: Pick<
    Program,
    "names" | "ttlsMs" | "waitMs" | "pauseMs" | "expiringShare" | "refuses" | "longestHoldTtls"
  > &
    Pick<WorkerPlan, "connections"> & { readonly oneTtl: boolean },
): WorkerPlan {
  const { connections, oneTtl, ...rest } = traffic;
  const locks = connections.reduce((sum, one) => sum + one.locks, 0);
  const lanes = Math.max(locks, 1 + Math.floor(random.unit() * 3));
  const programs = Array.from({ length: lanes }, (_, i) => ({
    ...rest,
    seed: Math.floor(random.unit() * 2 ** 31),
    lane: `${seed}.${client}.${i + 1}`,
    via: i % locks,
  }));
  const ttl = oneTtl ? { ttlMs: traffic.ttlsMs[0]! } : {};
  return { client, ...ttl, connections, programs };
}

function drawFaults(
  random: Random,
  kinds: readonly FaultKind[],
  workers: number,
  { untilMs, ttlMs, pace }: { untilMs: number; ttlMs: number; pace: number },
): readonly PlannedFault[] {
  const weights = kinds.map(({ weight = 1 }) => weight);
  const sum = weights.reduce((a, b) => a + b, 0);
  const drawKind = (): FaultKind | undefined => {
    let left = random.unit() * sum;
    return kinds.find((_, i) => {
      left -= weights[i]!;
      return left < 0;
    });
  };
  const byName = new Map(kinds.map((kind) => [kind.name, kind]));
  const count = Math.round((untilMs / (MS_PER_FAULT * pace)) * (0.5 + random.unit()));
  const faults: PlannedFault[] = [];
  for (let i = 0; i < count; i++) {
    const kind = drawKind();
    if (kind === undefined) break;
    if (faults.some((one) => excludes(kind, byName.get(one.kind)!))) continue;
    const { min, max } = kind.lasts;
    const lastsMs = (min + random.unit() ** 2 * (max - min)) * ttlMs;
    // A short run may be over before a long ttl is.
    const forMs = Math.floor(Math.min(lastsMs, untilMs));
    const atMs = Math.floor(drawMoment(random, faults, { forMs, untilMs, ttlMs }));
    const one = Math.floor(random.unit() * workers);
    const hitsAll = kind.hits === "connection" && random.unit() < HITS_ALL;
    for (let worker = 0; worker < workers; worker++) {
      if (!hitsAll && worker !== one) continue;
      const seed = Math.floor(random.unit() * 2 ** 31);
      faults.push({ kind: kind.name, worker, atMs, forMs, seed });
    }
  }
  return faults.sort((a, b) => a.atMs - b.atMs);
}

/**
 * Draws the time of a fault. Half of them are in force near an earlier fault, or near one ttl after
 * it, when the leases that it hit expire.
 */
function drawMoment(
  random: Random,
  earlier: readonly PlannedFault[],
  { forMs, untilMs, ttlMs }: { forMs: number; untilMs: number; ttlMs: number },
): number {
  const lastMs = untilMs - forMs;
  const one = earlier[Math.floor(random.unit() * earlier.length)];
  if (one === undefined || random.unit() < 0.5) return random.unit() * lastMs;
  const afterMs = (random.unit() < 0.4 ? 0 : ttlMs) + (random.unit() - 0.7) * 0.4 * ttlMs;
  const soonerMs = random.unit() * Math.min(forMs, ttlMs);
  return Math.min(lastMs, Math.max(0, one.atMs + afterMs - soonerMs));
}

const excludes = (one: FaultKind, other: FaultKind): boolean =>
  one.excludes?.includes(other.name) || other.excludes?.includes(one.name) || false;

function drawInterventions(
  random: Random,
  names: readonly ContendedName[],
  untilMs: number,
): readonly Intervention[] {
  const count = Math.floor(random.unit() * 3);
  return Array.from({ length: count }, (): Intervention => {
    const atMs = Math.round(random.unit() * untilMs);
    const { name, permits } = names[Math.floor(random.unit() * names.length)]!;
    const limit = 1 + Math.floor(random.unit() * 5);
    return permits > 0 && random.unit() < 0.7
      ? { does: "resize", atMs, name, limit }
      : { does: "force a release", atMs, name };
  }).sort((a, b) => a.atMs - b.atMs);
}
