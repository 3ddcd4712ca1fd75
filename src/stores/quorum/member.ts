import { type Clock, isLate, type Timer } from "../../core/clock.js";
import type { QuorumNode } from "./node.js";

/** Time after which a lower estimate of a node's clock is accepted if no better one came meanwhile. */
const ESTIMATE_KEPT_MS = 10_000;
const FIRST_ROUND_TRIP_MS = 1;
/** Measured round trips are capped at this: a longer one was caused by a pause, and says nothing about the network. */
const LONGEST_ROUND_TRIP_MS = 500;
/** At a timeout that comes late, how long the last answers may take. */
const LAST_ANSWERS_MS = 50;

/** A silent node with this many requests gets no more: the client keeps each until it has a reply. */
const MOST_UNANSWERED = 10_000;

/** The requests to all nodes that have no answer yet. */
export interface PendingRequests {
  /** Each ends one of them. */
  readonly ends: Set<() => void>;
  /** Whether nobody waits for the replies to further requests, which are sent all the same. */
  isClosed: boolean;
}

/** One node as this client sees it: how fast it answers, what its clock shows, whether it is silent. */
export class Member {
  readonly node: QuorumNode;
  readonly clock: Clock;
  /** The same for all members. */
  readonly pending: PendingRequests;
  /** The node did not answer its last request in time: nobody waits for it until it does. */
  isSilent = false;
  /** The node is known to be another server than the others. Before that it gets no requests, and has no vote. */
  isJoined = false;
  /** Why the node has not joined. */
  absence: Error;
  roundTripMs = FIRST_ROUND_TRIP_MS;
  /** Requests whose reply may still come, also those that nobody waits for any more. */
  unanswered = 0;
  #aheadMicros: number | null = null;
  #estimatedAtMs = Number.NEGATIVE_INFINITY;

  constructor(node: QuorumNode, clock: Clock, pending: PendingRequests) {
    this.node = node;
    this.clock = clock;
    this.pending = pending;
    this.absence = new Error(`${node.where} has not answered yet`);
  }

  /** How far the node's clock is ahead of ours, in µs; null before its first reply. */
  get aheadMicros(): number | null {
    return this.#aheadMicros;
  }

  /** The node has answered, at once or late. */
  replied(sentAtMs: number, answer: unknown): void {
    const nowMs = this.clock.elapsedMs();
    this.isSilent = false;
    this.roundTripMs += (Math.min(nowMs - sentAtMs, LONGEST_ROUND_TRIP_MS) - this.roundTripMs) / 8;
    const micros = (answer as { micros?: number } | undefined)?.micros;
    if (micros === undefined) return;
    // The answer was under way for a while, so the true difference is this or more.
    const aheadMicros = micros - nowMs * 1_000;
    const isBetter = this.#aheadMicros === null || aheadMicros >= this.#aheadMicros;
    if (!isBetter && nowMs - this.#estimatedAtMs < ESTIMATE_KEPT_MS) return;
    this.#aheadMicros = aheadMicros;
    this.#estimatedAtMs = nowMs;
  }
}

/** How long nodes get to answer. */
export interface Limits {
  /** After this, a node counts as silent: nobody waits for it if the others are enough. */
  readonly silentMs: number;
  /** After this, the request has failed. */
  readonly timeoutMs: number;
}

/**
 * Sends a request to these members and calls `answered` once for each, with an error if the answer is one, or
 * does not come in time; `silent`, when some have become silent. A late answer still shows that the node is
 * there. Members that have not joined are not asked.
 */
export function askEach<T>(
  members: readonly Member[],
  limits: Limits,
  send: (node: QuorumNode, index: number) => Promise<T>,
  answered: (answer: T | Error, index: number) => void,
  silent?: () => void,
): void {
  const sendIfJoined = (node: QuorumNode, i: number): Promise<T> =>
    members[i]!.isJoined ? send(node, i) : Promise.reject(members[i]!.absence);
  sendEach(members, limits, sendIfJoined, answered, silent);
}

/** The same, also to members that have not joined. */
export function sendEach<T>(
  members: readonly Member[],
  { silentMs, timeoutMs }: Limits,
  send: (node: QuorumNode, index: number) => Promise<T>,
  answered: (answer: T | Error, index: number) => void,
  silent: () => void = () => {},
): void {
  const { clock, pending: requests } = members[0]!;
  const sentAtMs = clock.elapsedMs();
  const isPending = members.map(() => true);
  let pending = members.length;
  let timer: Timer;
  const endAll = (toError: (member: Member) => Error): void => {
    for (const [i, member] of members.entries()) if (isPending[i]) end(toError(member), i);
  };
  const close = (): void => endAll(() => new Error("the store is closed"));
  const after = (ms: number, run: () => void): void => {
    const atMs = sentAtMs + ms;
    timer = clock.after(atMs - clock.elapsedMs(), () => {
      const nowMs = clock.elapsedMs();
      if (isLate(atMs, nowMs)) after(nowMs + LAST_ANSWERS_MS - sentAtMs, run);
      else run();
    });
    timer.keepAlive(true);
  };
  const end = (answer: T | Error, i: number): void => {
    if (!isPending[i]) return;
    isPending[i] = false;
    if (--pending === 0) {
      timer.cancel();
      requests.ends.delete(close);
    }
    answered(answer, i);
  };
  requests.ends.add(close);
  after(silentMs, () => {
    for (const [i, member] of members.entries()) if (isPending[i]) member.isSilent = true;
    after(timeoutMs, () => {
      const waitedMs = Math.round(clock.elapsedMs() - sentAtMs);
      endAll(({ node }) => new Error(`${node.where} gave no answer within ${waitedMs} ms`));
    });
    silent();
  });
  for (const [i, member] of members.entries()) {
    const isStuck = member.isSilent && member.unanswered >= MOST_UNANSWERED;
    const sent = isStuck ? Promise.reject(stuck(member)) : send(member.node, i);
    member.unanswered++;
    sent.then(
      (answer) => {
        member.unanswered--;
        member.replied(sentAtMs, answer);
        end(answer, i);
      },
      (error: unknown) => {
        member.unanswered--;
        end(error instanceof Error ? error : new Error(String(error)), i);
      },
    );
  }
  if (requests.isClosed) close();
}

const stuck = ({ node, unanswered }: Member): Error =>
  new Error(`${node.where} has not answered the last ${unanswered} requests`);

/**
 * Sends a request to all members, and resolves when all have answered, or `isEnough` says so; it is asked
 * after every answer, and when nodes have become silent.
 */
export function askAll<T>(
  members: readonly Member[],
  limits: Limits,
  send: (node: QuorumNode, index: number) => Promise<T>,
  isEnough: (answers: ReadonlyMap<number, T | Error>) => boolean = () => false,
): Promise<ReadonlyMap<number, T | Error>> {
  return new Promise((resolve) => {
    const answers = new Map<number, T | Error>();
    const check = (): void => {
      if (isEnough(answers) || answers.size === members.length) resolve(answers);
    };
    const answered = (answer: T | Error, i: number): void => {
      answers.set(i, answer);
      check();
    };
    askEach(members, limits, send, answered, check);
  });
}
