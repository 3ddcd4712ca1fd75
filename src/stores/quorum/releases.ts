import type { Clock, Timer } from "../../core/clock.js";
import type { Ballot } from "./ballot.js";
import { askEach, type Limits, type Member } from "./member.js";
import type { NodeRelease, NodeReleaseReply, QuorumNode } from "./node.js";

const RETRY_MS = { first: 100, most: 2_000 };

/** A release of a ballot on all nodes. */
export interface BallotRelease extends Omit<NodeRelease, "keptOutMs"> {
  readonly ballot: Pick<Ballot, "mayReach">;
}

/** A release, and how often and how long it is sent. */
interface Sending {
  readonly release: BallotRelease;
  readonly limits: Limits;
  /** When the record has expired. */
  readonly untilMs: number;
}

/** Sends releases to all nodes, and repeats those that a node did not answer until its record has expired. */
export class Releases {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  /** The attempts that a node may still answer. */
  readonly #underWay = new Set<Promise<void>>();
  /** The attempts to come, each of which can be made at once. */
  readonly #later = new Map<Timer, () => void>();

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
  }

  /** Calls `answered` once for each node with the answer to the first attempt, and `silent` as `askEach` does. */
  send(
    release: BallotRelease,
    { limits, keptMs }: { limits: Limits; keptMs: number },
    answered: (answer: NodeReleaseReply | Error, index: number) => void,
    silent?: () => void,
  ): void {
    const untilMs = this.#clock.elapsedMs() + keptMs;
    this.#attempt(this.#members, { release, limits, untilMs }, RETRY_MS.first, answered, silent);
  }

  /** Makes all attempts at once, and resolves when the nodes that are not silent have answered. */
  async flush(): Promise<void> {
    for (const [timer, attempt] of this.#later) {
      timer.cancel();
      this.#later.delete(timer);
      attempt();
    }
    await Promise.all(this.#underWay);
  }

  /** Does not repeat what has failed so far. */
  close(): void {
    for (const timer of this.#later.keys()) timer.cancel();
    this.#later.clear();
  }

  #attempt(
    members: readonly Member[],
    sending: Sending,
    pauseMs: number,
    answered: (answer: NodeReleaseReply | Error, index: number) => void = () => {},
    silent: () => void = () => {},
  ): void {
    const { name, id, number, unused, wakes, ballot } = sending.release;
    const usual = { name, id, number, unused, wakes, keptOutMs: 0 };
    const leftMs = Math.max(0, sending.untilMs - this.#clock.elapsedMs());
    const send = (node: QuorumNode, i: number): Promise<NodeReleaseReply> => {
      const mayReach = ballot.mayReach(this.#members.indexOf(members[i]!));
      return node.release(mayReach ? { ...usual, keptOutMs: leftMs } : usual);
    };
    let answers = 0;
    const underWay = new Promise<void>((resolve) => {
      const repeatOrEnd = (answer: NodeReleaseReply | Error, i: number): void => {
        // A node that has not joined never got a claim.
        if (answer instanceof Error && members[i]!.isJoined) {
          this.#repeat(members[i]!, sending, pauseMs);
        }
        answered(answer, i);
        if (++answers === members.length) resolve();
      };
      const nobodyWaits = (): void => {
        silent();
        resolve();
      };
      askEach(members, sending.limits, send, repeatOrEnd, nobodyWaits);
    });
    this.#underWay.add(underWay);
    underWay.then(() => this.#underWay.delete(underWay));
  }

  #repeat(member: Member, sending: Sending, pauseMs: number): void {
    const isTooLate = this.#clock.elapsedMs() + pauseMs >= sending.untilMs;
    if (isTooLate || member.pending.isClosed) return;
    const nextPauseMs = Math.min(2 * pauseMs, RETRY_MS.most);
    const attempt = (): void => this.#attempt([member], sending, nextPauseMs);
    const timer = this.#clock.after(pauseMs, () => {
      this.#later.delete(timer);
      attempt();
    });
    this.#later.set(timer, attempt);
  }
}
