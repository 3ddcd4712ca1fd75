import type { Reply } from "./client/errors.js";
import { Fifo } from "./client/fifo.js";

/**
 * A leader learns of a touch within half a tick, and a session's timeout is at least two ticks by default.
 * The rest is slack for a busy machine.
 */
const DELIVERY = 1 / 3;

/** The parts of a reply that the rule reads. */
export type LivenessReply = Pick<
  Reply,
  "sentAtMs" | "answeredAtMs" | "connection" | "isWrite" | "succeeded"
>;

/**
 * Keeps the latest moment from which the leader is known to count the session's timeout. The rule:
 *
 * - A *touch* is any answered request. It proves nothing: followers answer by themselves, and tell the leader
 *   of their sessions later.
 * - A *proof* is an answered write. It does not extend the session, but the leader that committed it had its
 *   majority, and the server in between was connected to it: touches that were answered long enough before
 *   the write was sent have reached that leader, on the same connection.
 * - A new connection resumes the session at the leader: its first proof covers the connect request.
 */
export class Liveness {
  readonly #deliveryMs: number;
  #connection = 0;
  /** Touches of the present connection that no proof has covered yet, in the order of their replies. */
  #touches = new Fifo<{ readonly sentAtMs: number; readonly answeredAtMs: number }>();
  #provedAtMs = Number.NEGATIVE_INFINITY;

  constructor(sessionTimeoutMs: number) {
    this.#deliveryMs = sessionTimeoutMs * DELIVERY;
  }

  /** The session lives for its timeout from then on, whatever happens. */
  get provedAtMs(): number {
    return this.#provedAtMs;
  }

  /** Takes the client's event `replied`. */
  replied(reply: LivenessReply): void {
    const { number, connectSentAtMs } = reply.connection;
    // A reply of an earlier connection came too late to say anything about this one.
    if (number < this.#connection) return;
    if (number > this.#connection) {
      this.#connection = number;
      this.#touches = new Fifo();
    }
    if (reply.isWrite && reply.succeeded) {
      this.#prove(connectSentAtMs);
      this.#proveTouchesBefore(reply.sentAtMs - this.#deliveryMs);
    }
    this.#touches.add({ sentAtMs: reply.sentAtMs, answeredAtMs: reply.answeredAtMs });
  }

  #proveTouchesBefore(deliveredMs: number): void {
    while ((this.#touches.first?.answeredAtMs ?? Number.POSITIVE_INFINITY) <= deliveredMs) {
      this.#prove(this.#touches.take()!.sentAtMs);
    }
  }

  #prove(atMs: number): void {
    this.#provedAtMs = Math.max(this.#provedAtMs, atMs);
  }
}
