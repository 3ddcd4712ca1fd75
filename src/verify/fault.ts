import type { Random } from "../core/random.js";

/** A failure that can be injected and healed. */
export interface Fault {
  /** The name in histories, for people: "redis-1 paused". */
  readonly name: string;
  /** Resolves when the fault is active. Does nothing if it already is. */
  inject(): Promise<void>;
  /** Resolves when the fault is gone. Does nothing if it was not injected. */
  heal(): Promise<void>;
}

/** Makes a fault of its two steps. `heal` also follows an `inject` that failed halfway. */
export function fault(name: string, inject: () => unknown, heal: () => unknown = () => {}): Fault {
  let there: "no" | "halfway" | "yes" = "no";
  let turn: Promise<void> = Promise.resolve();
  // Steps run one at a time: a heal that overtook its inject would leave the fault active.
  const inTurn = (act: () => Promise<void>): Promise<void> => {
    const done = turn.then(act);
    turn = done.catch(() => {});
    return done;
  };
  return {
    name,
    inject: () =>
      inTurn(async () => {
        if (there === "yes") return;
        there = "halfway";
        await inject();
        there = "yes";
      }),
    heal: () =>
      inTurn(async () => {
        if (there === "no") return;
        await heal();
        there = "no";
      }),
  };
}

/**
 * Combines several faults into one: all are injected, or none. They are healed in the opposite
 * order, each of them even if one fails.
 */
export function together(...faults: readonly Fault[]): Fault {
  const name = faults.map((one) => one.name).join(" and ");
  const heal = () => healAll(faults);
  return {
    name,
    async inject() {
      try {
        for (const one of faults) await one.inject();
      } catch (error) {
        await heal().catch((cause) => {
          throw new AggregateError([error, cause], `neither injected nor healed: ${name}`);
        });
        throw error;
      }
    },
    heal,
  };
}

async function healAll(faults: Iterable<Fault>): Promise<void> {
  const errors: unknown[] = [];
  const names: string[] = [];
  for (const one of [...faults].reverse()) {
    await one.heal().catch((error) => {
      errors.push(error);
      names.push(one.name);
    });
  }
  if (errors.length > 0) throw new AggregateError(errors, `could not heal: ${names.join(", ")}`);
}

/** One step of a plan. */
export interface Step {
  /** Milliseconds from the beginning of the plan. */
  readonly atMs: number;
  /** Whether the fault is injected or healed. */
  readonly does: "inject" | "heal";
  /** The fault that is injected or healed. */
  readonly fault: Fault;
}

export interface Span {
  readonly minMs: number;
  readonly maxMs: number;
}

/** Draws a plan: one fault at a time, each healed before the end. */
export function planFaults(
  faults: readonly Fault[],
  random: Random,
  { forMs, pause, last }: { forMs: number; pause: Span; last: Span },
): readonly Step[] {
  const draw = ({ minMs, maxMs }: Span): number => minMs + random.unit() * (maxMs - minMs);
  const steps: Step[] = [];
  let atMs = 0;
  while (faults.length > 0) {
    const next = faults[Math.floor(random.unit() * faults.length)]!;
    const injectAtMs = atMs + draw(pause);
    const healAtMs = injectAtMs + draw(last);
    // A plan whose steps take no time would never end.
    if (healAtMs > forMs || healAtMs <= atMs) break;
    steps.push(
      { atMs: injectAtMs, does: "inject", fault: next },
      { atMs: healAtMs, does: "heal", fault: next },
    );
    atMs = healAtMs;
  }
  return steps;
}

/** Carries out a plan in real time. Whatever happens, no fault stays injected. */
export async function carryOut(
  plan: readonly Step[],
  { signal, onStep }: { signal?: AbortSignal; onStep?: (step: Step) => void } = {},
): Promise<void> {
  const startedMs = performance.now();
  const injected = new Set<Fault>();
  const failures: unknown[] = [];
  try {
    for (const step of plan) {
      await sleep(startedMs + step.atMs - performance.now(), signal);
      if (step.does === "inject") injected.add(step.fault);
      await step.fault[step.does]();
      if (step.does === "heal") injected.delete(step.fault);
      onStep?.(step);
    }
  } catch (error) {
    failures.push(error);
  }
  await healAll(injected).catch((error) => failures.push(error));
  if (failures.length > 1)
    throw new AggregateError(failures, "the plan failed, and so did healing its faults");
  if (failures.length > 0) throw failures[0];
}

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, Math.max(0, ms));
    signal?.addEventListener("abort", end);
  });
}
