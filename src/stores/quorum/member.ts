import type { Clock, Timer } from "../../core/clock.js";
import type { QuorumNode } from "./node.js";

/** A lower estimate of a node's clock is believed after this time, in which no better one came. */
const ESTIMATE_KEPT_MS = 10_000;
const FIRST_ROUND_TRIP_MS = 1;
/** A timer that fires later than this shows that the process stood still; it then reads for so long what has arrived. */
const LATE_MS = 20;
const READ_MS = 50;

/** One node as this client sees it: how fast it answers, what its clock shows, whether it is silent. */
export class Member {
  readonly node: QuorumNode;
  readonly #clock: Clock;
  /** The node did not answer its last request in time: nobody waits for it until it does. */
  isSilent = false;
  roundTripMs = FIRST_ROUND_TRIP_MS;
  #aheadMicros: number | null = null;
  #estimatedAtMs = Number.NEGATIVE_INFINITY;
  /** Ends each request that has no answer yet. */
  readonly #pending = new Set<(error: Error) => void>();
  #isClosed = false;

  constructor(node: QuorumNode, clock: Clock) {
    this.node = node;
    this.#clock = clock;
  }

  /** The node's clock over ours, in µs; null before its first answer. */
  get aheadMicros(): number | null {
    return this.#aheadMicros;
  }

  /**
   * Sends a request. The result is an error when the answer does not come in time, or is one. A late answer
   * still shows that the node is there.
   */
  ask<T>(
    timeoutMs: number,
    send: (node: QuorumNode) => Promise<T>,
    answered: (answer: T | Error) => void,
  ): void {
    if (this.#isClosed) {
      answered(closedError());
      return;
    }
    const sentAtMs = this.#clock.elapsedMs();
    const end = (answer: T | Error): void => {
      if (!this.#pending.delete(end)) return;
      timer.cancel();
      answered(answer);
    };
    this.#pending.add(end);
    let timer: Timer;
    const expire = (): void => {
      if (this.#clock.elapsedMs() > dueAtMs + LATE_MS) {
        // The event loop was busy: the answer may have arrived, and is read after the timers.
        wait(READ_MS);
        return;
      }
      this.isSilent = true;
      end(new Error(`${this.node.where} gave no answer within ${Math.round(timeoutMs)} ms`));
    };
    let dueAtMs = sentAtMs;
    const wait = (ms: number): void => {
      dueAtMs = this.#clock.elapsedMs() + ms;
      timer = this.#clock.after(ms, expire);
      timer.keepAlive(true);
    };
    wait(timeoutMs);
    send(this.node).then(
      (answer) => {
        this.#heard(sentAtMs, timeoutMs, answer);
        end(answer);
      },
      (error: unknown) => end(error instanceof Error ? error : new Error(String(error))),
    );
  }

  /** Ends the requests that have no answer, and sends no others: their timers would outlive the store. */
  close(): void {
    this.#isClosed = true;
    for (const end of [...this.#pending]) end(closedError());
  }

  open(): void {
    this.#isClosed = false;
  }

  #heard(sentAtMs: number, timeoutMs: number, answer: unknown): void {
    const nowMs = this.#clock.elapsedMs();
    this.isSilent = false;
    this.roundTripMs += (Math.min(nowMs - sentAtMs, timeoutMs) - this.roundTripMs) / 8;
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

const closedError = (): Error => new Error("the store is closed");

/** Sends a request to all members, and resolves when all have answered, or `isEnough`, which sees every answer, says so. */
export function askAll<T>(
  members: readonly Member[],
  timeoutMs: number,
  send: (node: QuorumNode, index: number) => Promise<T>,
  isEnough: (answers: ReadonlyMap<number, T | Error>) => boolean = () => false,
): Promise<ReadonlyMap<number, T | Error>> {
  return new Promise((resolve) => {
    const answers = new Map<number, T | Error>();
    for (const [i, member] of members.entries()) {
      member.ask(
        timeoutMs,
        (node) => send(node, i),
        (answer) => {
          answers.set(i, answer);
          if (isEnough(answers) || answers.size === members.length) resolve(answers);
        },
      );
    }
  });
}
