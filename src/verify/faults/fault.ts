import type { Random } from "../../core/random.js";

/** Something that goes wrong, and can be made good again. */
export interface Fault {
  /** For people, in a history: "redis-1 paused". */
  readonly name: string;
  /** Resolves when the fault is there. */
  inject(): Promise<void>;
  /** Resolves when it is gone. Healing what was not injected does nothing. */
  heal(): Promise<void>;
}

/** Several at once, as one; healed in the opposite order, all of them even if one fails. */
export function together(...faults: readonly Fault[]): Fault {
  return {
    name: faults.map(({ name }) => name).join(" and "),
    async inject() {
      for (const fault of faults) await fault.inject();
    },
    async heal() {
      const errors: unknown[] = [];
      for (const fault of faults.toReversed()) {
        await fault.heal().catch((error) => errors.push(error));
      }
      if (errors.length > 0) throw new AggregateError(errors, `could not heal: ${this.name}`);
    },
  };
}

export interface Step {
  readonly atMs: number;
  readonly does: "inject" | "heal";
  readonly fault: Fault;
}

export interface Span {
  readonly minMs: number;
  readonly maxMs: number;
}

/** Which fault comes when: drawn from chance, one at a time, each healed before the end. */
export function planFaults(
  faults: readonly Fault[],
  random: Random,
  { forMs, pause, last }: { forMs: number; pause: Span; last: Span },
): readonly Step[] {
  const draw = ({ minMs, maxMs }: Span): number => minMs + random.unit() * (maxMs - minMs);
  const steps: Step[] = [];
  let atMs = 0;
  while (faults.length > 0) {
    const fault = faults[Math.floor(random.unit() * faults.length)]!;
    const injectAtMs = atMs + draw(pause);
    const healAtMs = injectAtMs + draw(last);
    if (healAtMs > forMs) break;
    steps.push(
      { atMs: injectAtMs, does: "inject", fault },
      { atMs: healAtMs, does: "heal", fault },
    );
    atMs = healAtMs;
  }
  return steps;
}

/** Carries a plan out in real time. Whatever happens, nothing stays injected. */
export async function carryOut(
  plan: readonly Step[],
  { signal, onStep }: { signal?: AbortSignal; onStep?: (step: Step) => void } = {},
): Promise<void> {
  const startedMs = performance.now();
  const injected = new Set<Fault>();
  try {
    for (const step of plan) {
      await sleep(startedMs + step.atMs - performance.now(), signal);
      if (step.does === "inject") injected.add(step.fault);
      await step.fault[step.does]();
      if (step.does === "heal") injected.delete(step.fault);
      onStep?.(step);
    }
  } finally {
    for (const fault of injected) await fault.heal();
  }
}

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(resolve, Math.max(0, ms));
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(signal.reason);
      },
      { once: true },
    );
  });
}
