import type { Clock, Timer } from "../../core/clock.js";
import { askEach, type Limits, type Member } from "./member.js";
import type { NodeRelease, NodeReleaseReply, QuorumNode } from "./node.js";

const RETRY_MS = { first: 100, most: 2_000 };

/** Sends releases to all nodes, and repeats those that a node did not answer until its record has expired. */
export class Releases {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  readonly #timers = new Set<Timer>();
  #isClosed = false;

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
  }

  /** Calls `answered` once for each node with the answer to the first attempt, and `silent` as `askEach` does. */
  send(
    release: NodeRelease,
    { limits, keptMs }: { limits: Limits; keptMs: number },
    answered: (answer: NodeReleaseReply | Error, index: number) => void,
    silent?: () => void,
  ): void {
    const untilMs = this.#clock.elapsedMs() + keptMs;
    this.#isClosed = false;
    const send = (node: QuorumNode): Promise<NodeReleaseReply> => node.release(release);
    const repeatOrEnd = (answer: NodeReleaseReply | Error, i: number): void => {
      const member = this.#members[i]!;
      // A node that has not joined never got a claim.
      if (answer instanceof Error && member.isJoined) {
        this.#repeat(member, release, limits, untilMs);
      }
      answered(answer, i);
    };
    askEach(this.#members, limits, send, repeatOrEnd, silent);
  }

  /** Repeats nothing any more, until the next release. */
  close(): void {
    this.#isClosed = true;
    for (const timer of this.#timers) timer.cancel();
    this.#timers.clear();
  }

  #repeat(
    member: Member,
    release: NodeRelease,
    limits: Limits,
    untilMs: number,
    pauseMs = RETRY_MS.first,
  ): void {
    if (this.#isClosed || this.#clock.elapsedMs() + pauseMs >= untilMs) return;
    const timer = this.#clock.after(pauseMs, () => {
      this.#timers.delete(timer);
      const send = (node: QuorumNode): Promise<NodeReleaseReply> => node.release(release);
      askEach([member], limits, send, (answer) => {
        if (!(answer instanceof Error)) return;
        this.#repeat(member, release, limits, untilMs, Math.min(2 * pauseMs, RETRY_MS.most));
      });
    });
    this.#timers.add(timer);
  }
}
