import { AssertionError } from "node:assert";
import { setTimeout as pause } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import type { StoreClock } from "../core/clock.js";
import type { Awaitable, Push, Store } from "../core/store.js";
import { MemoryStore } from "../stores/memory/index.js";
import { Execution } from "./rule/execution.js";
import {
  closesWhenGranted,
  contendedProgram,
  describeStep,
  endsSoon,
  mixedProgram,
  type Program,
  SHORT_IS_OVER_MS,
  type Step,
  shorterPrograms,
} from "./rule/program.js";
import type { Ignored } from "./rule/transcript.js";
import { seededRandom } from "./seeded-random.js";

export type { Ignored } from "./rule/transcript.js";

/** Options of `compareWithRule`. */
export interface RuleComparison {
  /**
   * One or more clients of the same store, as several processes would have them. All requests under
   * one grantId go through the same client. Requests that `traits.cannot` names are left out.
   */
  readonly clients: readonly Store[];
  /** Run `i`, counted from 0, is drawn from `seed + i`; default 1. So `{ seed: 42, runs: 1 }` repeats one. */
  readonly seed?: number;
  /** How many random programs are run; default 100. */
  readonly runs?: number;
  /**
   * `mixed`, the default: requests of every kind on two names; the replies, the state of the names
   * and the grants pushed to waiters are compared. `contended`: one lock for which many wait; pushes
   * of the kind `look` are compared as well.
   */
  readonly workload?: "mixed" | "contended";
  /**
   * The highest number of claims and releases in one turn of the event loop; default 1. Above 1,
   * the store must process the requests of one turn in the order of the calls.
   */
  readonly atOnce?: number;
  /**
   * Lets this many milliseconds pass on the store's clock: a pause if the clock is real, a step if
   * it is virtual. Without it, no lease expires in the comparison.
   */
  readonly pass?: (ms: number) => Awaitable<unknown>;
  /** Parts of the replies that are not compared. Default: none. */
  readonly ignore?: readonly Ignored[];
  /** Names begin with this; default "". Choose a fresh one if the store outlives the comparison. */
  readonly prefix?: string;
  /** How long to wait for a push that the rule has sent, in milliseconds; default 10,000. */
  readonly pushTimeoutMs?: number;
  /** How long to search for a shorter program that fails, in milliseconds; default 15,000. */
  readonly shortenMs?: number;
}

/** The coverage of a comparison that found no difference. */
export interface RuleCoverage {
  /** How many programs were run. */
  readonly runs: number;
  /** How many steps all programs had in total. */
  readonly steps: number;
  /** Pushes of the rule to waiters, by kind. */
  readonly pushed: { readonly granted: number; readonly look: number };
}

/** The first step after which the store differs from the rule. */
interface Difference {
  readonly program: Program;
  readonly step: number;
  readonly rule: unknown;
  readonly store: unknown;
  readonly cause?: unknown;
}

/** Used after the first failure, because each shorter program waits for a missing push again. */
const SHORTENING_PUSH_TIMEOUT_MS = 1_000;

/**
 * Runs random programs of claims, renewals, releases, revocations and resizes on a store and on the
 * rule that every store has to follow, and compares their replies: holders, queue, order of
 * tokens, floors, sequence numbers, pushes. The same seed gives the same programs.
 *
 * Throws an `AssertionError` at the first difference. Its message has the seed that repeats the run
 * and the shortest program found that still fails.
 *
 * @example
 * ```ts
 * import { memoryStore } from "holdfast/stores/memory";
 * import { compareWithRule, VirtualClock } from "holdfast/testing";
 *
 * const clock = new VirtualClock();
 * const store = memoryStore({ clock: clock.forStore() });
 * const { pushed } = await compareWithRule({
 *   clients: [store],
 *   pass: (ms) => clock.stall(ms),
 * });
 * console.log(`${pushed.granted} grants were pushed to waiters`);
 * ```
 */
export async function compareWithRule(comparison: RuleComparison): Promise<RuleCoverage> {
  const { seed = 1, runs = 100 } = comparison;
  const coverage = { runs, steps: 0, pushed: { granted: 0, look: 0 } };
  for (let run = 0; run < runs; run++) {
    const drawn = new ProgramRunner(comparison, seed + run);
    const program = drawn.draw();
    const outcome = await drawn.run(program);
    if (outcome.difference !== null) {
      throw toError(await drawn.shorten(outcome.difference), seed + run);
    }
    coverage.steps += program.steps.length;
    coverage.pushed.granted += outcome.pushed.granted;
    coverage.pushed.look += outcome.pushed.look;
  }
  return coverage;
}

class ProgramRunner {
  readonly #comparison: RuleComparison;
  readonly #seed: number;
  readonly #isContended: boolean;
  #executions = 0;

  constructor(comparison: RuleComparison, seed: number) {
    this.#comparison = comparison;
    this.#seed = seed;
    this.#isContended = comparison.workload === "contended";
  }

  draw(): Program {
    const { clients, atOnce = 1, pass } = this.#comparison;
    const scope = { traits: clients[0]!.traits, atOnce, timePasses: pass !== undefined };
    const draw = this.#isContended ? contendedProgram : mixedProgram;
    return draw(seededRandom(this.#seed), scope);
  }

  async run(program: Program, pushTimeoutMs = this.#comparison.pushTimeoutMs ?? 10_000) {
    const { clients, pass, prefix = "", ignore = [] } = this.#comparison;
    // No claim of an earlier execution may be left on the names.
    const names = `${prefix}${this.#isContended ? "contended " : ""}${this.#seed}.${++this.#executions}`;
    const clock = new RuleClock();
    const memory = new MemoryStore(clock);
    const rule = new Execution(
      clients.map(() => memory),
      names,
      new Set(ignore),
    );
    const store = new Execution(clients, names, new Set(ignore));
    let difference: Difference | null = null;
    // A ticket with `atLeast` closes the name for a moment at a later step, when it is granted.
    let endsSoonFromNow = false;
    for (let i = 0; i < program.steps.length && difference === null; i++) {
      const step = program.steps[i]!;
      const isLast = i === program.steps.length - 1;
      const compared = rule.transcript.length;
      endsSoonFromNow ||= closesWhenGranted(step);
      try {
        await this.#runStep(step, rule, store);
        if (program.awaitPushes || isLast) await this.#awaitPushes(rule, store, pushTimeoutMs);
        if (pass !== undefined && (endsSoonFromNow || endsSoon(step))) {
          clock.passed(SHORT_IS_OVER_MS);
          await pass(SHORT_IS_OVER_MS);
        }
        await rule.inspect();
        await store.inspect();
      } catch (cause) {
        difference = { program, step: i, rule: "a reply", store: `rejected: ${cause}`, cause };
        break;
      }
      if (program.awaitPushes || isLast) {
        for (const side of [rule, store]) side.addPushes(this.#kinds);
      }
      // The last comparison covers all entries again: a token that was drawn later changes the
      // ranks of earlier ones.
      difference = firstDifference({ program, step: i }, rule, store, isLast ? 0 : compared);
    }
    await store.releaseAll();
    return { difference, pushed: rule.pushed };
  }

  /** Leaves out parts of the program as long as it still fails. */
  async shorten(difference: Difference): Promise<Difference> {
    const { shortenMs = 15_000 } = this.#comparison;
    const untilMs = performance.now() + shortenMs;
    let shortest = difference;
    let shorter: Difference | null;
    do {
      shorter = null;
      // Steps after the difference do not contribute to it.
      const steps = shortest.program.steps.slice(0, shortest.step + 1);
      for (const program of shorterPrograms({ ...shortest.program, steps })) {
        if (performance.now() > untilMs) break;
        shorter = (await this.run(program, SHORTENING_PUSH_TIMEOUT_MS)).difference;
        if (shorter !== null) break;
      }
      shortest = shorter ?? shortest;
    } while (shorter !== null);
    return shortest;
  }

  get #kinds(): readonly Push["kind"][] {
    return this.#isContended ? ["granted", "look"] : ["granted"];
  }

  async #runStep(step: Step, rule: Execution, store: Execution): Promise<void> {
    await rule.run(step);
    await store.run(step);
  }

  /** A store notifies its waiters by messages, which take a moment. */
  async #awaitPushes(rule: Execution, store: Execution, timeoutMs: number): Promise<void> {
    const untilMs = performance.now() + timeoutMs;
    const expected = rule.pushes(this.#kinds);
    const isMissing = (): boolean => {
      const pushed = store.pushes(this.#kinds);
      return [...expected].some(([to, { length }]) => (pushed.get(to)?.length ?? 0) < length);
    };
    while (isMissing() && performance.now() < untilMs) await pause(1);
  }
}

/** Advances a little at each reading, so that no two requests happen at the same moment. */
class RuleClock implements StoreClock {
  #nowMs = 1_000_000;

  nowMs(): number {
    this.#nowMs += 0.001;
    return this.#nowMs;
  }

  wallMs(): number {
    return Date.UTC(2030, 0, 1) + this.#nowMs;
  }

  passed(ms: number): void {
    this.#nowMs += ms;
  }
}

function firstDifference(
  after: Pick<Difference, "program" | "step">,
  rule: Execution,
  store: Execution,
  from: number,
): Difference | null {
  const expected = rule.transcript.toComparable(from);
  const actual = store.transcript.toComparable(from);
  if (isDeepStrictEqual(actual, expected)) return null;
  const at = expected.findIndex((one, i) => !isDeepStrictEqual(one, actual[i]));
  return { ...after, rule: expected[at], store: actual[at] };
}

function toError({ program, step, rule, store, cause }: Difference, seed: number): AssertionError {
  const steps = program.steps
    .slice(0, step + 1)
    .map((one, i) => `  ${i + 1}. ${describeStep(one)}`);
  const message = [
    `the store differs from the rule after step ${step + 1} (repeat: { seed: ${seed}, runs: 1 })`,
    ...steps,
    `the rule:  ${JSON.stringify(rule)}`,
    `the store: ${JSON.stringify(store)}`,
  ].join("\n");
  const error = new AssertionError({ message, actual: store, expected: rule, operator: "rule" });
  if (cause !== undefined) error.cause = cause;
  return error;
}
