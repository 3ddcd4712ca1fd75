import type { Clock } from "../../core/clock.js";
import { InvalidArgumentError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { askAll, type Member } from "./member.js";
import type { NodeState } from "./node.js";

const TIMEOUT_MS = 2_000;
/** Nodes that were not reached are tried again after this time. */
const RETRY_MS = 1_000;
/** While a store is set up, nodes that are later than a majority get this time. */
const LATE_MS = 250;

/**
 * Joins the nodes: learns their clocks, finds one server that is named twice, and puts nodes into service
 * that nobody has used yet. A node that has not been joined has no vote.
 */
export class Membership {
  readonly #members: readonly Member[];
  readonly #majority: number;
  readonly #clock: Clock;
  readonly #states = new Map<number, NodeState>();
  /** By node: it is the same server as another one. */
  readonly #refusals = new Map<number, InvalidArgumentError>();
  #isReady = false;
  #attempt: Promise<void> | null = null;
  /** Resolves when all nodes have answered the last attempt, or have not done so in time. */
  #answered: Promise<unknown> = READY;
  #triedAtMs = Number.NEGATIVE_INFINITY;

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#majority = majorityOf(members.length);
    this.#clock = clock;
  }

  /** Resolves when a majority has been reached once. The others are tried again now and then. */
  join(): Promise<void> {
    const isDue = this.#clock.elapsedMs() - this.#triedAtMs >= RETRY_MS;
    const isTried = !this.#isReady || (isDue && this.#states.size < this.#members.length);
    const attempt = isTried ? this.#try() : READY;
    if (!this.#isReady) return attempt;
    attempt.catch(() => {});
    const [refusal] = this.#refusals.values();
    return refusal === undefined ? READY : Promise.reject(refusal);
  }

  /** Also gives the other nodes a moment, so that a server that is named twice is found. */
  async joinAll(): Promise<void> {
    await this.join();
    await new Promise<void>((resolve) => {
      const timer = this.#clock.after(LATE_MS, resolve);
      timer.keepAlive(true);
      this.#answered.then(() => {
        timer.cancel();
        resolve();
      });
    });
    return this.join();
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
    const failures: Error[] = [];
    let answers = 0;
    await new Promise<void>((resolve) => {
      this.#answered = new Promise((allAnswered) => {
        for (const i of missing) {
          this.#members[i]!.join(TIMEOUT_MS, (state) => {
            if (state instanceof Error) failures.push(state);
            else this.#add(i, state);
            if (++answers === missing.length) allAnswered(null);
            // Only nodes that nobody has used yet have to be seen all.
            if (answers === missing.length || (this.#hasMajority && this.#isUsed)) resolve();
          });
        }
      });
    });
    const [refusal] = this.#refusals.values();
    if (refusal !== undefined) throw refusal;
    if (!this.#hasMajority) throw unavailable(this.#members.length, failures);
    if (this.#states.size === this.#members.length && !this.#isUsed) await this.#settle();
    this.#isReady = true;
  }

  #add(i: number, state: NodeState): void {
    const [twin] = [...this.#states].find(([, { runId }]) => runId === state.runId) ?? [];
    if (twin === undefined) {
      this.#refusals.delete(i);
      this.#states.set(i, state);
      this.#members[i]!.isJoined = true;
      return;
    }
    const [first, second] = [twin, i].map((one) => this.#members[one]!.node.where);
    this.#refusals.set(
      i,
      new InvalidArgumentError(
        `${first} and ${second} are the same Redis server: a quorum needs independent servers`,
      ),
    );
  }

  get #hasMajority(): boolean {
    return this.#states.size >= this.#majority;
  }

  /** Whether any node was seen in service. */
  get #isUsed(): boolean {
    return [...this.#states.values()].some(({ recoveringForMs }) => recoveringForMs === 0);
  }

  /**
   * All nodes are without data. Either nobody has used them, or all have lost their data within maxTtl, which
   * looks the same.
   */
  async #settle(): Promise<void> {
    await askAll(this.#members, TIMEOUT_MS, (node, i) => node.settle(this.#states.get(i)!.marker));
  }
}

const READY = Promise.resolve();
