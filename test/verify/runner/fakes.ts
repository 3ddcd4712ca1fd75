import type { Event } from "../../../src/verify/check/history.js";
import { Member } from "../../../src/verify/runner/crew.js";
import { connectionKinds, type FaultKind, WORKER_KINDS } from "../../../src/verify/runner/kinds.js";
import type { Plan, PlannedFault } from "../../../src/verify/runner/plan.js";
import type { CheckId, CheckResult } from "../../../src/verify/runner/result.js";
import type { RunOutcome } from "../../../src/verify/runner/run.js";
import type { Target } from "../../../src/verify/runner/target.js";
import type { Way } from "../../../src/verify/runner/way.js";
import { TimeLine } from "../../../src/verify/traffic/time-line.js";

/** A kind of fault that does nothing. */
export const kindOf = (name: string, more: Partial<FaultKind> = {}): FaultKind => ({
  name,
  hits: "server",
  lasts: { min: 0.1, max: 2 },
  make: () => ({ name, inject: async () => {}, heal: async () => {} }),
  ...more,
});

/** A store that is only described, never opened. */
export function paperTarget(more: Partial<Target> = {}): Target {
  return {
    name: "paper",
    about: "a store on paper",
    isOurs: true,
    url: "paper:",
    ttlsMs: [1_000, 2_000],
    limits: {},
    kinds: [...WORKER_KINDS, ...connectionKinds("connection"), kindOf("server paused")],
    drawConnections: (random) => [{ locks: random.unit() < 0.5 ? 1 : 2 }],
    openWay: async () => NO_WAY,
    versions: async () => ({}),
    commands: async () => null,
    recover: async () => {},
    async [Symbol.asyncDispose]() {},
    ...more,
  };
}

const NO_WAY: Way = { url: "paper:", proxies: [], close: async () => {} };

/** A worker whose process was never started. */
export const idleMember = (client: string, timeLine = new TimeLine()): Member =>
  new Member({
    client,
    way: NO_WAY,
    timeLine,
    locks: {},
    connections: [],
    programs: [],
    resourceFile: "",
  });

export const plannedFault = (kind: string, more: Partial<PlannedFault> = {}): PlannedFault => ({
  kind,
  worker: 0,
  atMs: 0,
  forMs: 100,
  seed: 1,
  ...more,
});

export const checkOf = (id: CheckId, more: Partial<CheckResult> = {}): CheckResult => ({
  id,
  promise: "It holds.",
  verdict: "held",
  checked: 1,
  expected: 0,
  why: "held",
  evidence: [],
  ...more,
});

/** The result of a plan: these checks are violated, each with its evidence at this time. */
export function outcomeOf(plan: Plan, broken: readonly CheckId[], atMs = 0): RunOutcome {
  const evidence: Event[] = atMs === 0 ? [] : [{ kind: "killed", client: "w1", atMs }];
  const none = { writes: 0, lost: 0, refused: 0 };
  return {
    record: {
      seed: plan.seed,
      fromMs: 0,
      untilMs: plan.forMs,
      clients: plan.workers.map(({ client }) => client),
      faults: [],
      checks: broken.map((id) => checkOf(id, { verdict: "violated", evidence })),
      registers: { fenced: none, unfenced: none },
    },
    history: [],
    operations: 0,
    grants: 0,
    troubles: [],
  };
}
