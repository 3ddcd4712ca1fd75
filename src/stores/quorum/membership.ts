import type { Clock } from "../../core/clock.js";
import type { InvalidArgumentError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";
import { sameServer, unavailable } from "./errors.js";
import { askAll, joinEach, type Member } from "./member.js";
import type { NodeState } from "./node.js";

const LIMITS = { silentMs: 500, timeoutMs: 5_000 };
/** Nodes that were not reached are tried again after this time. */
const RETRY_MS = 1_000;
/** While a store is set up, nodes that are later than a majority get this time. */
const LATE_MS = 250;

/**
 * Joins the nodes: learns their clocks, finds one server that is named twice, and puts nodes into service
 * that nobody has used yet. A node that has not joined has no vote.
 */
export class Membership {
  readonly #members: readonly Member[];
  readonly #majority: number;
  readonly #clock: Clock;
  readonly #states = new Map<Member, NodeState>();
  /** By node: it is the same server as another one. */
  readonly #refusals = new Map<Member, InvalidArgumentError>();
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

  /**
   * Resolves when a majority has joined once. The others are tried again now and then. Rejects with
   * InvalidArgumentError if a server is named twice.
   */
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
    const missing = this.#members.filter(({ isJoined }) => !isJoined);
    // Other nodes are waited for only while these can't decide anything.
    const answers = await this.#ask(missing, () => this.#canVote);
    const [refusal] = this.#refusals.values();
    if (refusal !== undefined) throw refusal;
    if (!this.#hasMajority) {
      const failures = answers.filter((answer) => answer instanceof Error);
      throw unavailable(this.#members.length, failures);
    }
    if (this.#states.size === this.#members.length && !this.#isUsed) await this.#settleIfNew();
    this.#isReady = true;
  }

  /**
   * All nodes have answered that they are without a trace of use. Either nobody has used them, or all have lost
   * everything within maxTtl, which looks the same. They are asked once more, after the last of them has
   * answered: the others may be in service by now, and the last one may have forgotten what they granted. A
   * node that loses its data after its first answer has another marker, and is not put into service.
   */
  async #settleIfNew(): Promise<void> {
    const seen = new Map(this.#states);
    const answers = await this.#ask(this.#members, () => this.#isUsed);
    if (this.#isUsed || answers.some((answer) => answer instanceof Error)) return;
    await askAll(this.#members, LIMITS, (node, i) =>
      node.settle(seen.get(this.#members[i]!)!.marker),
    );
  }

  /** Resolves when all have answered, or `isEnough` says so. Later answers count too. */
  #ask(members: readonly Member[], isEnough: () => boolean): Promise<(NodeState | Error)[]> {
    const answers: (NodeState | Error)[] = [];
    return new Promise((resolve) => {
      this.#answered = new Promise((allAnswered) => {
        joinEach(members, LIMITS, (answer, i) => {
          answers.push(answer);
          if (answer instanceof Error) members[i]!.absence = answer;
          else this.#add(members[i]!, answer);
          const isLast = answers.length === members.length;
          if (isLast) allAnswered(null);
          if (isLast || isEnough()) resolve(answers);
        });
      });
    });
  }

  #add(member: Member, state: NodeState): void {
    const twin = [...this.#states].find(
      ([other, { runId }]) => other !== member && runId === state.runId,
    );
    if (twin === undefined) {
      this.#refusals.delete(member);
      this.#states.set(member, state);
      member.isJoined = true;
      return;
    }
    this.#refusals.set(member, sameServer(twin[0].node.where, member.node.where));
  }

  /** Whether a majority of the nodes is in service. */
  get #canVote(): boolean {
    const voters = [...this.#states.values()].filter((state) => state.recoveringForMs === 0);
    return voters.length >= this.#majority;
  }

  get #hasMajority(): boolean {
    return this.#states.size >= this.#majority;
  }

  /** Whether any node was seen that somebody has used. */
  get #isUsed(): boolean {
    return [...this.#states.values()].some(({ isNew }) => !isNew);
  }
}

const READY = Promise.resolve();
