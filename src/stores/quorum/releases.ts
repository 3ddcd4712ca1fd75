import type { Clock, Timer } from "../../core/clock.js";
import type { Member } from "./member.js";
import type { NodeRelease, NodeReleaseReply } from "./node.js";

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

  /** Calls `answered` once for each node with the answer to the first attempt. */
  send(
    release: NodeRelease,
    { timeoutMs, keptMs }: { timeoutMs: number; keptMs: number },
    answered: (answer: NodeReleaseReply | Error, index: number) => void,
  ): void {
    const untilMs = this.#clock.elapsedMs() + keptMs;
    this.#isClosed = false;
    for (const [i, member] of this.#members.entries()) {
      member.ask(
        timeoutMs,
        (node) => node.release(release),
        (answer) => {
          if (answer instanceof Error) this.#repeat(member, release, timeoutMs, untilMs);
          answered(answer, i);
        },
      );
    }
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
    timeoutMs: number,
    untilMs: number,
    pauseMs = RETRY_MS.first,
  ): void {
    if (this.#isClosed || this.#clock.elapsedMs() + pauseMs >= untilMs) return;
    const timer = this.#clock.after(pauseMs, () => {
      this.#timers.delete(timer);
      member.ask(
        timeoutMs,
        (node) => node.release(release),
        (answer) => {
          if (!(answer instanceof Error)) return;
          this.#repeat(member, release, timeoutMs, untilMs, Math.min(2 * pauseMs, RETRY_MS.most));
        },
      );
    });
    this.#timers.add(timer);
  }
}
