import type { Clock } from "../../core/clock.js";
import { InvalidArgumentError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { askAll, type Member } from "./member.js";
import type { NodeState } from "./node.js";

const LIMITS = { silentMs: 500, timeoutMs: 5_000 };
/** Nodes that were not reached are tried again after this time. */
const RETRY_MS = 1_000;

/**
 * Joins the nodes: learns their clocks, finds one server that is named twice, and puts nodes into service
 * that nobody has used yet.
 */
export class Membership {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  readonly #states = new Map<number, NodeState>();
  #isReady = false;
  #attempt: Promise<void> | null = null;
  #triedAtMs = Number.NEGATIVE_INFINITY;

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
  }

  /** Resolves when a majority has been reached once. The others are tried again now and then. */
  join(): Promise<void> {
    if (!this.#isReady) return this.#try();
    const isDue = this.#clock.elapsedMs() - this.#triedAtMs >= RETRY_MS;
    if (isDue && this.#states.size < this.#members.length) this.#try().catch(() => {});
    return READY;
  }

  #try(): Promise<void> {
    this.#attempt ??= this.#joinMissing().finally(() => {
      this.#attempt = null;
    });
    return this.#attempt;
  }

  async #joinMissing(): Promise<void> {
    this.#triedAtMs = this.#clock.elapsedMs();
    const missing = this.#members.flatMap((_, i) => (this.#states.has(i) ? [] : [i]));
    const majority = majorityOf(this.#members.length);
    const answers = await askAll(
      missing.map((i) => this.#members[i]!),
      LIMITS,
      (node) => node.join(),
      (some) => {
        for (const [i, state] of some) {
          if (!(state instanceof Error)) this.#states.set(missing[i]!, state);
        }
        // Only nodes that nobody has used yet have to be seen all.
        const areAllHeard = missing.every((i) => this.#states.has(i) || this.#members[i]!.isSilent);
        return this.#states.size >= majority && (this.#isUsed || areAllHeard);
      },
    );
    this.#refuseDuplicates();
    if (this.#states.size < majority) {
      const failures = [...answers.values()].filter((answer) => answer instanceof Error);
      throw unavailable(this.#members.length, failures);
    }
    if (this.#states.size === this.#members.length && !this.#isUsed) await this.#settle();
    this.#isReady = true;
  }

  /** Whether any node was seen that somebody has used. */
  get #isUsed(): boolean {
    return [...this.#states.values()].some(({ isNew }) => !isNew);
  }

  /**
   * All nodes are without a trace of use. Either nobody has used them, or all have lost everything within
   * maxTtl, which looks the same.
   */
  async #settle(): Promise<void> {
    await askAll(this.#members, LIMITS, (node, i) => node.settle(this.#states.get(i)!.marker));
  }

  #refuseDuplicates(): void {
    const seen = new Map<string, string>();
    for (const [i, { runId }] of this.#states) {
      const { where } = this.#members[i]!.node;
      const other = seen.get(runId);
      if (other !== undefined) {
        throw new InvalidArgumentError(
          `${other} and ${where} are the same Redis server: a quorum needs independent servers`,
        );
      }
      seen.set(runId, where);
    }
  }
}

const READY = Promise.resolve();
