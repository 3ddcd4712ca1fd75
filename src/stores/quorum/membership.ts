import type { Clock, Timer } from "../../core/clock.js";
import { InvalidArgumentError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { askAll, type Member } from "./member.js";
import type { NodeState } from "./node.js";

const TIMEOUT_MS = 2_000;
/** Nodes that were not reached are tried again after this time. */
const RETRY_MS = 1_000;
/** When a majority has joined, the others get this time: a server that is named twice is best found at once. */
const LATE_MS = 250;

/**
 * Joins the nodes: learns their clocks, finds one server that is named twice, and puts nodes into service
 * that nobody has used yet.
 */
export class Membership {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  readonly #states = new Map<Member, NodeState>();
  #isReady = false;
  /** Two addresses have turned out to lead to one server, perhaps long after the others have joined. */
  #refusal: InvalidArgumentError | null = null;
  #attempt: Promise<void> | null = null;
  #triedAtMs = Number.NEGATIVE_INFINITY;

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
  }

  /**
   * Resolves when a majority has joined. The others are tried again now and then. Rejects with
   * InvalidArgumentError if a server is named twice.
   */
  join(): Promise<void> {
    if (this.#refusal !== null) return Promise.reject(this.#refusal);
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
    const missing = this.#members.filter(({ hasJoined }) => !hasJoined);
    const majority = majorityOf(this.#members.length);
    // Only nodes that nobody has used yet have to be seen all.
    const answers = await this.#ask(missing, () => this.#states.size >= majority && this.#isUsed);
    if (this.#refusal !== null) throw this.#refusal;
    if (this.#states.size < majority) {
      const failures = answers.filter((answer) => answer instanceof Error);
      throw unavailable(this.#members.length, failures);
    }
    if (this.#states.size === this.#members.length && !this.#isUsed) {
      const areNew = missing.length === this.#members.length || (await this.#areAllStillNew());
      if (areNew) await this.#settle();
    }
    this.#isReady = true;
  }

  /** Those that joined earlier may be in service by now. */
  async #areAllStillNew(): Promise<boolean> {
    const answers = await this.#ask(this.#members, () => this.#isUsed);
    return !this.#isUsed && answers.every((answer) => !(answer instanceof Error));
  }

  /** Resolves with the answers when all have come, or some time after those that are enough. Later ones count too. */
  #ask(members: readonly Member[], isEnough: () => boolean): Promise<(NodeState | Error)[]> {
    const answers: (NodeState | Error)[] = [];
    let timer: Timer | undefined;
    return new Promise((resolve) => {
      for (const member of members) {
        member.join(TIMEOUT_MS, (answer) => {
          answers.push(answer);
          if (!(answer instanceof Error)) this.#add(member, answer);
          if (answers.length === members.length || this.#refusal !== null) {
            timer?.cancel();
            resolve(answers);
          } else if (isEnough()) timer ??= this.#clock.after(LATE_MS, () => resolve(answers));
          timer?.keepAlive(true);
        });
      }
    });
  }

  #add(member: Member, state: NodeState): void {
    for (const [other, { runId }] of this.#states) {
      if (other === member || runId !== state.runId) continue;
      this.#refusal = new InvalidArgumentError(
        `${other.node.where} and ${member.node.where} are the same Redis server: a quorum needs independent servers`,
      );
      return;
    }
    this.#states.set(member, state);
    member.hasJoined = true;
  }

  /** Whether any node was in service when it was last asked. */
  get #isUsed(): boolean {
    return [...this.#states.values()].some(({ recoveringForMs }) => recoveringForMs === 0);
  }

  /**
   * All nodes are without data. Either nobody has used them, or all have lost their data within maxTtl, which
   * looks the same.
   */
  async #settle(): Promise<void> {
    await askAll(this.#members, TIMEOUT_MS, (node, i) =>
      node.settle(this.#states.get(this.#members[i]!)!.marker),
    );
  }
}

const READY = Promise.resolve();
