import { HoldfastError } from "../../core/errors.js";
import type { Claim, ClaimAnswer, Push, RenewAnswer, Renewal } from "../../core/store.js";
import { Listener, type ListenerPort } from "./listener.js";
import { type LocalWaiter, LocalWaiters } from "./local-waiters.js";
import { settlesWithin } from "./timeout.js";

/**
 * The reply `queued` is held back this long for the subscription, because a refusal of the subscription for good is
 * an error of the claim.
 */
const LISTEN_TIMEOUT_MS = 1_000;
const LISTEN_TIMEOUT_PER_TTL = 1 / 6;

/** How a store sends the requests of a waiter, and reads the messages to its waiters. */
interface WaiterPort {
  claim(claim: Claim): Promise<ClaimAnswer>;
  /** Never rejects. */
  renew(renewal: Renewal): Promise<RenewAnswer>;
  toStoreError(error: unknown): unknown;
  message(text: string): void;
}

/**
 * Claims that leave a ticket if the name is busy, with the waiters of this process and the subscription by
 * which they are notified. The first ticket opens the subscription.
 */
export class QueuedClaims {
  readonly waiters = new LocalWaiters();
  readonly #port: WaiterPort;
  readonly #listener: Listener;

  constructor(channel: string, connections: ListenerPort, port: WaiterPort) {
    this.#port = port;
    const events = {
      message: (text: string) => port.message(text),
      missed: () => this.waiters.pushLookToAll(),
    };
    this.#listener = new Listener(channel, connections, events, () => this.waiters.size > 0);
  }

  get isListening(): boolean {
    return this.#listener.isOpen;
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    // The waiter is registered before its ticket exists, whose push may arrive before the reply.
    const waiter = this.waiters.add(claim, push);
    const wasListening = this.isListening;
    return this.#port.claim(claim).then((answer) => {
      if (answer.kind !== "queued") this.waiters.removeAnswered(waiter);
      // The subscription begins only now: most names are free, and then nobody has to listen; nor does a waiter that
      // has given up.
      else if (!wasListening && this.waiters.has(waiter)) return this.#listen(waiter, answer);
      return answer;
    });
  }

  /** Ends the subscription, until the next ticket. */
  close(): Promise<void> {
    return this.#listener.close();
  }

  /** Opens the subscription that a new ticket needs. */
  async #listen(waiter: LocalWaiter, queued: ClaimAnswer): Promise<ClaimAnswer> {
    const opened = this.#listener.open();
    const timeoutMs = Math.min(waiter.claim.ttlMs * LISTEN_TIMEOUT_PER_TTL, LISTEN_TIMEOUT_MS);
    const isOpen = await settlesWithin(timeoutMs, opened, { unref: true }).catch(
      (error: unknown) => {
        const failure = this.#port.toStoreError(error);
        if (HoldfastError.is(failure) && !failure.retryable) throw failure;
        // The store has answered the claim, and the ticket exists: a rejection would mean that it is unreachable.
        return false;
      },
    );
    if (!isOpen) opened.then(() => waiter.push({ kind: "look" })).catch(() => {});
    if (!isOpen || !this.waiters.has(waiter)) return queued;
    return this.#checkTicket(waiter);
  }

  /**
   * Until now the ticket had no channel, so it may have been granted without a message. The renewal has the claim's
   * own number, so that the core counts a grant from the claim, which was sent earlier.
   */
  async #checkTicket(waiter: LocalWaiter): Promise<ClaimAnswer> {
    const { claim } = waiter;
    const { names, grantId, seq, ttlMs } = claim;
    const answer = await this.#port.renew({ name: names[0]!, grantId, seq, ttlMs });
    if (answer.kind === "unknown") throw answer.cause;
    if (answer.kind === "queued") return answer;
    // The ticket may have expired meanwhile.
    const claimed: ClaimAnswer =
      answer.kind === "lost"
        ? await this.#port.claim(claim)
        : { kind: "granted", grants: [answer.grant] };
    if (claimed.kind !== "queued") this.waiters.removeAnswered(waiter);
    return claimed;
  }
}
