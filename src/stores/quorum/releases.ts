import type { Clock } from "../../core/clock.js";
import type { Ballot } from "./ballot.js";
import { askEach, type Limits, type Member } from "./member.js";
import type { NodeRelease, NodeReleaseReply, QuorumNode } from "./node.js";
import { OwedReleases } from "./owed-releases.js";

/** A release of a ballot on all nodes. */
export interface BallotRelease extends Omit<NodeRelease, "keptOutMs"> {
  readonly ballot: Pick<Ballot, "mayReach">;
}

/** A release, and how long it is sent. */
export interface Sending {
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
  /** By node. */
  readonly #owed: readonly OwedReleases<Sending>[];

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
    this.#owed = members.map(
      (member) =>
        new OwedReleases(clock, (sending, answered) => {
          this.#attempt([member], sending, (answer) => answered(!isOwed(answer, member)));
        }),
    );
  }

  /** Calls `answered` once for each node with the answer to the first attempt, and `silent` as `askEach` does. */
  send(
    release: BallotRelease,
    { limits, keptMs }: { limits: Limits; keptMs: number },
    answered: (answer: NodeReleaseReply | Error, index: number) => void,
    silent?: () => void,
  ): void {
    const sending = { release, limits, untilMs: this.#clock.elapsedMs() + keptMs };
    const orOwed = (answer: NodeReleaseReply | Error, i: number): void => {
      if (isOwed(answer, this.#members[i]!)) this.#owed[i]!.add(sending);
      answered(answer, i);
    };
    this.#attempt(this.#members, sending, orOwed, silent);
  }

  /** Makes all attempts at once, and resolves when the nodes that are not silent have answered. */
  async flush(): Promise<void> {
    for (const owed of this.#owed) owed.sendAll();
    await Promise.all(this.#underWay);
  }

  /** Does not repeat what has failed so far. */
  close(): void {
    for (const owed of this.#owed) owed.clear();
  }

  #attempt(
    members: readonly Member[],
    sending: Sending,
    answered: (answer: NodeReleaseReply | Error, index: number) => void,
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
      const count = (answer: NodeReleaseReply | Error, i: number): void => {
        answered(answer, i);
        if (++answers === members.length) resolve();
      };
      const nobodyWaits = (): void => {
        silent();
        resolve();
      };
      askEach(members, sending.limits, send, count, nobodyWaits);
    });
    this.#underWay.add(underWay);
    underWay.then(() => this.#underWay.delete(underWay));
  }
}

/** A node that has not joined never got a claim. */
const isOwed = (answer: NodeReleaseReply | Error, { isJoined, pending }: Member): boolean =>
  answer instanceof Error && isJoined && !pending.isClosed;
