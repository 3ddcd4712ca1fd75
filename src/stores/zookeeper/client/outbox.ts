import type { Agenda } from "../../../core/agenda.js";
import type { Clock } from "../../../core/clock.js";
import { Alarm } from "./alarm.js";
import type { ZooKeeperErrorCode } from "./codes.js";
import { Fifo } from "./fifo.js";
import type { Operation } from "./operations.js";
import { Request, type RequestHandlers } from "./request.js";

export interface OutboxOptions {
  readonly agenda: Agenda;
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Requests wait to be taken, and may have room: called once in a turn of the event loop. */
  readonly filled: () => void;
  /** A server has replied to a request. */
  readonly answered: () => void;
  /** Why requests are not sent, for messages. */
  readonly whyUnsent: () => string;
}

/** The requests of the client's user: those that wait to be sent, and the timeouts of all that are pending. */
export class Outbox {
  readonly #options: OutboxOptions;
  /** Oldest first: all have the same timeout. */
  readonly #pending = new Set<Request>();
  readonly #timeouts = Alarm.afterInput(() => this.#expire());
  readonly #unsent = new Fifo<Request>();
  #isAnnounced = false;

  constructor(options: OutboxOptions) {
    this.#options = options;
  }

  /** Throws `InvalidArgumentError` if the request can't be written. */
  add<T>(operation: Operation<T>, handlers: RequestHandlers<T>): void {
    const { agenda, clock, timeoutMs, answered } = this.#options;
    const deadlineMs = clock.elapsedMs() + timeoutMs;
    const request: Request = new Request<unknown>(operation, deadlineMs, {
      succeeded: (value, reply) => {
        this.#remove(request);
        answered();
        handlers.succeeded(value as T, reply);
      },
      failed: (error) => {
        this.#remove(request);
        if (error.reply !== null) answered();
        handlers.failed(error);
      },
    });
    this.#pending.add(request);
    if (this.#pending.size === 1) {
      // Pending requests keep the process alive.
      agenda.addPending(1);
      agenda.set(this.#timeouts, deadlineMs);
    }
    this.#unsent.add(request);
    this.announce();
  }

  /** Calls `filled` at the end of this turn if requests wait. */
  announce(): void {
    if (this.#isAnnounced || this.#unsent.length === 0) return;
    this.#isAnnounced = true;
    // After everything that the present replies set off, and before new input is read.
    process.nextTick(() => {
      this.#isAnnounced = false;
      this.#options.filled();
    });
  }

  /** The requests to be sent now, in the order of the calls; at most `count`. */
  take(count: number): Request[] {
    const requests: Request[] = [];
    while (requests.length < count && this.#unsent.length > 0) {
      const request = this.#unsent.take()!;
      if (!request.settled) requests.push(request);
    }
    return requests;
  }

  failAll(code: ZooKeeperErrorCode): void {
    for (const request of [...this.#pending]) request.fail(code);
  }

  #remove(request: Request): void {
    // Requests are given up oldest first: none stays in memory until the next connection.
    while (this.#unsent.first?.settled) this.#unsent.take();
    if (!this.#pending.delete(request) || this.#pending.size > 0) return;
    this.#options.agenda.addPending(-1);
    this.#options.agenda.remove(this.#timeouts);
  }

  #expire(): void {
    const { agenda, clock, timeoutMs, whyUnsent } = this.#options;
    const nowMs = clock.elapsedMs();
    for (const request of this.#pending) {
      if (request.deadlineMs > nowMs) {
        agenda.set(this.#timeouts, request.deadlineMs);
        return;
      }
      const reason =
        request.sentAtMs === null
          ? `it could not be sent for ${timeoutMs} ms: ${whyUnsent()}`
          : `no reply came within ${timeoutMs} ms`;
      request.fail("OPERATION_TIMEOUT", { reason });
    }
  }
}
