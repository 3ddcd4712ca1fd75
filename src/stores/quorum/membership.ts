import type { Clock, Timer } from "../../core/clock.js";
import type { InvalidArgumentError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";
import { sameServer, unavailable } from "./errors.js";
import { askAll, type Member, sendEach } from "./member.js";
import type { NodeState } from "./node.js";

const LIMITS = { silentMs: 500, timeoutMs: 5_000 };
/** Nodes that were not reached are asked again after this time: a request or its answer may be lost. */
const RETRY_MS = 1_000;
/** Nodes that answer later than a majority by more than this join afterwards. */
const MINORITY_GRACE_MS = 250;

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
    const isTried = !this.#isReady || (isDue && !this.#haveAllJoined);
    const attempt = isTried ? this.#try() : READY;
    if (!this.#isReady) return attempt;
    attempt.catch(() => {});
    const [refusal] = this.#refusals.values();
    return refusal === undefined ? READY : Promise.reject(refusal);
  }

  #try(): Promise<void> {
    this.#attempt ??= this.#joinMissing().finally(() => {
      this.#attempt = null;
    });
    return this.#attempt;
  }

  async #joinMissing(): Promise<void> {
    const givesUpAtMs = this.#clock.elapsedMs() + LIMITS.timeoutMs;
    // Late answers to an earlier attempt may have made it complete.
    let isOver = this.#haveAllJoined;
    while (!isOver) {
      this.#triedAtMs = this.#clock.elapsedMs();
      const haveAllAnswered = await this.#askMissing();
      const [refusal] = this.#refusals.values();
      if (refusal !== undefined) throw refusal;
      const isTooLate = this.#clock.elapsedMs() >= givesUpAtMs;
      // Nodes that do not answer are waited for only while the others can't decide anything.
      isOver = haveAllAnswered || this.#haveAllJoined || this.#canVote || isTooLate;
    }
    if (this.#states.size < this.#majority) {
      const failures = this.#missing.map(({ absence }) => absence);
      throw unavailable(this.#members.length, failures);
    }
    if (this.#haveAllJoined && !this.#isUsed) await this.#settleIfNew();
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
    const answers = await askAll(this.#members, LIMITS, (node) => node.join());
    for (const [i, answer] of answers) {
      if (answer instanceof Error) return;
      this.#add(this.#members[i]!, answer);
    }
    if (this.#isUsed) return;
    await askAll(this.#members, LIMITS, (node, i) =>
      node.settle(seen.get(this.#members[i]!)!.marker),
    );
  }

  /**
   * Resolves with true when all have answered; otherwise a moment after a majority can vote, so that the first
   * lease of a process does not rest on a bare majority; or when it is time to ask again. Later answers count.
   */
  #askMissing(): Promise<boolean> {
    const members = this.#missing;
    let answers = 0;
    return new Promise((resolve) => {
      const resolveAfter = (ms: number): Timer => {
        const timer = this.#clock.after(ms, () => resolve(false));
        timer.keepAlive(true);
        return timer;
      };
      let timer = resolveAfter(RETRY_MS);
      const answered = (answer: NodeState | Error, i: number): void => {
        const couldVote = this.#canVote;
        if (answer instanceof Error) members[i]!.absence = answer;
        else this.#add(members[i]!, answer);
        if (++answers === members.length) {
          timer.cancel();
          resolve(true);
        } else if (this.#canVote && !couldVote) {
          timer.cancel();
          timer = resolveAfter(MINORITY_GRACE_MS);
        }
      };
      sendEach(members, LIMITS, (node) => node.join(), answered);
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

  get #haveAllJoined(): boolean {
    return this.#states.size === this.#members.length;
  }

  get #missing(): readonly Member[] {
    return this.#members.filter(({ isJoined }) => !isJoined);
  }

  /** Whether any node was found to have been in use before. */
  get #isUsed(): boolean {
    return [...this.#states.values()].some(({ isNew }) => !isNew);
  }
}

const READY = Promise.resolve();
