import { Acquisition, type Busy, type NotGranted } from "./acquisition.js";
import { isLate } from "./clock.js";
import { assertOpen, type Context } from "./context.js";
import { ClosedError, HoldfastError } from "./errors.js";
import { checkAtExpiry } from "./expiry-check.js";
import { HeldLease } from "./held-lease.js";
import { PushTarget } from "./push-target.js";
import { LAST_REPLY_MS } from "./reply-timeout.js";
import { SentRequests } from "./sent-requests.js";
import type { Call } from "./settings.js";
import type {
  Awaitable,
  ClaimAnswer,
  Grant,
  Position,
  Push,
  RenewAnswer,
  Renewal,
} from "./store.js";
import {
  releaseAfterEnd,
  releaseClaim,
  releaseFormer,
  releaseTimedOut,
} from "./waiter-releases.js";
import { Renewable } from "./watchdog.js";

/**
 * One acquire: claims, keeps its ticket alive, is notified or polls, and releases everything when it gives up. Each
 * event is judged by what is known when it arrives, so no order of replies, pushes, timers and aborts is assumed. A
 * claim of several names leaves no ticket: the reply `busy` ends the wait.
 */
export class Waiter extends Renewable {
  readonly #context: Context;
  readonly #acquisition: Acquisition;
  readonly #sent: SentRequests;
  readonly #pushTarget = new PushTarget((push) => this.#pushed(push));
  /** The number of the claim in flight; 0 if there is none. */
  #claimSeq = 0;
  #claimTimeoutAtMs = Number.POSITIVE_INFINITY;
  /** When to claim next, or to probe a silent store. */
  #claimAtMs = Number.POSITIVE_INFINITY;
  #polls = 0;
  #hasTicket = false;
  /** Whether the push `look` came while a claim was in flight, whose reply may be older than the push. */
  #mustLook = false;
  #renewAtMs = Number.POSITIVE_INFINITY;
  /** The send time of the ticket's renewal without a reply; NaN if there is none. */
  #renewalSentAtMs = Number.NaN;
  /** Why the last request failed; a wait that ends now is then reported as an outage. */
  #failure: HoldfastError | null = null;

  constructor(context: Context, names: readonly string[], call: Call) {
    super();
    this.#context = context;
    this.#acquisition = new Acquisition(context, names, call);
    this.#sent = new SentRequests(context.runtime, call.ttlMs);
  }

  /** A lease for each name; null when claimed once and busy. */
  acquire(): Awaitable<readonly HeldLease[] | null> {
    // `acquireAll` may have begun before `close`, and reach this name after it.
    assertOpen(this.#context);
    this.#call.signal?.throwIfAborted();
    this.#acquisition.emitAsked();
    this.#claim();
    if (this.#acquisition.isOver) return this.#acquisition.result();
    this.#context.waiters.add(this);
    this.#schedule();
    return this.#acquisition.wait((reason) => this.#fail(reason, "aborted"));
  }

  /** Why it has to wait, as the store last replied. */
  get busy(): Busy {
    return this.#acquisition.busy;
  }

  /** Ends the wait because the `Locks` closes, which waits for the release that this sends. */
  override close(): void {
    this.#fail(new ClosedError(), "closed");
  }

  override wake(nowMs: number): void {
    if (this.#acquisition.isOver) return;
    if (nowMs >= this.#acquisition.endsAtMs) {
      this.#timeOut();
      return;
    }
    if (this.#claimSeq > 0 && nowMs >= this.#claimTimeoutAtMs) this.#claimTimedOut(nowMs);
    else if (nowMs >= this.#claimAtMs) this.#claim();
    else if (this.#hasTicket && nowMs >= this.#renewAtMs) this.#renewTicket(nowMs);
    this.#schedule();
  }

  override renewal(sentAtMs: number): Renewal | null {
    if (this.#acquisition.isOver || this.#claimSeq > 0) return null;
    const name = this.#context.requests.toStoreName(this.#acquisition.names[0]!);
    const { ttlMs } = this.#call;
    if (this.#sent.isSilent(sentAtMs)) {
      // A probe: a renewal under an id that has no claim. The store replies, and extends nothing.
      const grantId = this.#context.runtime.random.grantId();
      return { name, grantId, seq: this.#sent.lastSeq, ttlMs };
    }
    this.#renewalSentAtMs = sentAtMs;
    return { name, grantId: this.#sent.grantId, seq: this.#sent.next(sentAtMs), ttlMs };
  }

  override replied(reply: RenewAnswer, { seq, grantId }: Renewal, sentAtMs: number): void {
    if (sentAtMs === this.#renewalSentAtMs) this.#renewalSentAtMs = Number.NaN;
    // The renewal may have extended a grant that was released meanwhile; it can't have made one.
    if (this.#acquisition.isOver || this.#sent.isFormer(seq)) return;
    if (grantId !== this.#sent.grantId) {
      this.#probeEnded(reply.kind !== "unknown", sentAtMs);
      return;
    }
    if (reply.kind === "unknown") {
      const nowMs = this.#nowMs();
      this.#failure = this.#context.requests.toStoreError("renew a ticket", reply.cause);
      // While the store is silent, the next probe is scheduled already.
      if (!this.#sent.isSilent(nowMs)) {
        this.#renewAtMs = nowMs + this.#context.requests.retryPauseMs();
      }
    } else {
      this.#noteReply(sentAtMs);
      if (reply.kind === "granted") this.#accept([reply.grant]);
      else if (reply.kind === "queued") this.#queued(reply.position, sentAtMs);
      else this.#claimAgain(reply.reason === "revoked");
    }
    this.#schedule();
  }

  #claim(): void {
    const { requests } = this.#context;
    const sentAtMs = this.#nowMs();
    if (!this.#sent.mayClaim(sentAtMs)) {
      this.#probe(sentAtMs);
      return;
    }
    const seq = this.#sent.next(sentAtMs);
    this.#claimSeq = seq;
    this.#mustLook = false;
    const timeoutMs = requests.claimTimeoutMs(this.#call.waitMs);
    this.#claimTimeoutAtMs = sentAtMs + timeoutMs;
    this.#claimAtMs = Number.POSITIVE_INFINITY;
    const { grantId } = this.#sent;
    const claim = this.#acquisition.toClaim(grantId, seq);
    requests.claim(claim, timeoutMs, this.#pushTarget.push, (reply) => {
      if (this.#sent.isFormer(seq)) releaseFormer(this.#acquisition, grantId, reply);
      else if (HoldfastError.is(reply)) this.#claimFailed(seq, reply);
      else this.#claimReplied(seq, reply, sentAtMs);
    });
  }

  #claimReplied(seq: number, reply: ClaimAnswer, sentAtMs: number): void {
    const { requests } = this.#context;
    if (seq === this.#claimSeq) this.#claimSeq = 0;
    if (this.#releaseIfOver(reply)) return;
    this.#noteReply(sentAtMs);
    switch (reply.kind) {
      case "granted":
        this.#accept(reply.grants);
        break;
      case "queued":
        this.#queued(reply.position, sentAtMs);
        break;
      case "busy":
        this.#acquisition.setBusy(reply.position, requests.toUserName(reply.name));
        if (this.#acquisition.claimsOnce) this.#endBusy();
        else this.#pollLater();
        break;
      case "lost":
        this.#claimAgain(true);
        break;
      case "mismatch":
      case "full":
        this.#fail(this.#acquisition.refusal(reply, requests.toUserName(reply.name)), "refused");
        break;
    }
    this.#schedule();
  }

  #claimTimedOut(nowMs: number): void {
    if (isLate(this.#claimTimeoutAtMs, nowMs)) {
      this.#claimTimeoutAtMs = nowMs + LAST_REPLY_MS;
      return;
    }
    const waitedMs = nowMs - this.#sent.lastSentAtMs;
    this.#claimFailed(this.#claimSeq, this.#context.requests.noReplyError("claim", waitedMs));
  }

  #claimFailed(seq: number, error: HoldfastError): void {
    if (this.#releaseIfOver(error) || seq !== this.#claimSeq) return;
    this.#claimSeq = 0;
    this.#failure = error;
    if (!error.retryable) this.#fail(error, "refused");
    else if (this.#call.waitMs === 0) this.#fail(error, "unavailable");
    else {
      // A store that replies to probes may still lose claims: what one claim has made expires before the next.
      const pauseMs = this.#sent.takeProbe()
        ? this.#call.ttlMs
        : this.#context.requests.retryPauseMs();
      this.#claimAtMs = this.#nowMs() + pauseMs;
      this.#schedule();
    }
  }

  /**
   * Claims again, because there is neither a grant nor a ticket. `underNewId`: the store still knows the ended
   * grant.
   */
  #claimAgain(underNewId: boolean): void {
    // A session outlives its claims: a deletion of the old claim may be in flight.
    if (underNewId || this.#context.store.traits.liveness === "session") {
      this.#release();
      this.#sent.changeGrantId();
      // A claim under the old id may still be in flight.
      this.#claimSeq = 0;
    }
    this.#hasTicket = false;
    // In the next turn: a store in this process would otherwise get a claim within its own reply.
    this.#claimAtMs = this.#nowMs();
  }

  #noteReply(sentAtMs: number): void {
    this.#failure = null;
    this.#sent.replied(sentAtMs);
  }

  #renewTicket(nowMs: number): void {
    const { requests, watchdog } = this.#context;
    if (this.#sent.isSilent(nowMs)) {
      this.#probe(nowMs);
      return;
    }
    if (!Number.isNaN(this.#renewalSentAtMs)) {
      this.#failure = requests.noReplyError("renew a ticket", nowMs - this.#renewalSentAtMs);
    }
    this.#renewAtMs = nowMs + requests.renewTimeoutMs(this.#call.ttlMs);
    watchdog.renewSoon(this);
  }

  /** Renews in one batch with others. A probe without a reply is repeated no sooner than a claim. */
  #probe(nowMs: number): void {
    this.#renewAtMs = Number.POSITIVE_INFINITY;
    this.#claimAtMs = nowMs + this.#context.settings.commandTimeoutMs;
    this.#context.watchdog.renewSoon(this);
  }

  #probeEnded(hasReplied: boolean, sentAtMs: number): void {
    const nowMs = this.#nowMs();
    // The reply is late: another one has arrived, or a claim was sent, since.
    const isLate = !this.#sent.isSilent(nowMs) || sentAtMs < this.#sent.lastSentAtMs;
    if (this.#claimSeq > 0 || isLate) return;
    this.#sent.noteProbe(hasReplied);
    this.#claimAtMs = hasReplied ? nowMs : nowMs + this.#context.requests.retryPauseMs();
    this.#schedule();
  }

  #pushed(push: Push): void {
    if (push.kind === "lost") return;
    const isFormer = push.kind === "granted" && this.#sent.isFormer(push.grant.seq);
    if (this.#acquisition.isOver || isFormer) return;
    const nowMs = this.#nowMs();
    if (push.kind === "granted") this.#accept([push.grant]);
    else if (this.#claimSeq > 0) this.#mustLook = true;
    // In one batch with other waiters that got the push `look`.
    else if (this.#hasTicket && !this.#sent.isSilent(nowMs)) this.#context.watchdog.renewSoon(this);
    this.#schedule();
  }

  #queued(position: Position, sentAtMs: number): void {
    const { store, watchdog } = this.#context;
    this.#hasTicket = true;
    this.#acquisition.setBusy(position);
    this.#renewAtMs = watchdog.dueAt(sentAtMs, this.#call.ttlMs);
    const nowMs = this.#nowMs();
    if (store.traits.waiting === "polled") this.#pollLater();
    else {
      const { claimAtMs, renewAtMs } = checkAtExpiry(position, nowMs);
      this.#claimAtMs = claimAtMs;
      this.#renewAtMs = Math.min(this.#renewAtMs, renewAtMs);
    }
    if (!this.#mustLook || this.#claimSeq > 0) return;
    this.#mustLook = false;
    watchdog.renewSoon(this);
  }

  #pollLater(): void {
    this.#claimAtMs = this.#nowMs() + this.#context.requests.pollPauseMs(this.#polls++);
  }

  #accept(grants: readonly Grant[]): void {
    // When many waiters are ended one by one, the release of a ticket may grant to the next of them.
    if (this.#context.closing.aborted) {
      this.close();
      return;
    }
    const { signal, waitMs } = this.#call;
    if (signal?.aborted) {
      this.#fail(signal.reason, "aborted");
      return;
    }
    const leases = grants.map((grant, i) => this.#leaseOf(grant, i));
    if (leases.every((lease) => lease !== null)) {
      for (const lease of leases) lease.begin();
      this.#pushTarget.granted(leases);
      this.#stopWaiting();
      this.#acquisition.succeed(leases, grants);
      return;
    }
    // The grant rests on a request that is too old. The reply to a claim in flight may bring an extended one.
    if (this.#claimSeq > 0) return;
    this.#failure = this.#acquisition.expiredGrantError();
    if (waitMs === 0) this.#fail(this.#failure, "unavailable");
    // In the next turn of the event loop: a store in this process would otherwise get claims without end.
    else this.#claimAtMs = this.#nowMs();
  }

  /** Null if the grant had expired before its reply was read: it is no lease. */
  #leaseOf(grant: Grant, index: number): HeldLease | null {
    const proof = this.#sent.proofOf(grant);
    if (proof === null) return null;
    const name = this.#acquisition.names[index]!;
    const lease = new HeldLease(
      this.#context,
      this.#acquisition.id + index,
      name,
      this.#call,
      proof,
    );
    return lease.hasTimeLeft ? lease : null;
  }

  #timeOut(): void {
    const { requests } = this.#context;
    const acquisition = this.#acquisition;
    const inFlightMs = this.#claimSeq > 0 ? this.#nowMs() - this.#sent.lastSentAtMs : 0;
    if (this.#failure !== null) {
      this.#fail(acquisition.outageError(this.#failure), "unavailable");
    } else if (!this.#hasTicket && this.#claimSeq === 0)
      this.#fail(acquisition.timeoutError(), "timeout");
    else {
      this.#stopWaiting();
      releaseTimedOut(acquisition, this.#sent.grantId, () => {
        const isUnanswered = this.#claimSeq > 0 && inFlightMs >= LAST_REPLY_MS;
        return isUnanswered ? requests.noReplyError("claim", inFlightMs) : null;
      });
    }
  }

  #endBusy(): void {
    // Another claim of unknown outcome may have taken some of several names, or may do so yet.
    if (this.#sent.lastSeq > 1) this.#release();
    this.#stopWaiting();
    this.#acquisition.end("busy");
    this.#acquisition.resolve();
  }

  #fail(error: unknown, reason: NotGranted): void {
    if (this.#acquisition.isOver) return;
    this.#stopWaiting();
    this.#acquisition.end(reason);
    this.#release();
    this.#acquisition.reject(error);
  }

  /** A reply after the end: releases what the claim may have made, and returns true. */
  #releaseIfOver(reply: ClaimAnswer | HoldfastError): boolean {
    const { isOver } = this.#acquisition;
    if (isOver) releaseAfterEnd(this.#acquisition, this.#sent.grantId, reply);
    return isOver;
  }

  #release(): void {
    void releaseClaim(this.#acquisition, this.#sent.grantId);
  }

  #stopWaiting(): void {
    this.#context.waiters.delete(this);
    this.#context.agenda.remove(this);
  }

  #schedule(): void {
    if (this.#acquisition.isOver) return;
    const renewAtMs = this.#hasTicket ? this.#renewAtMs : Number.POSITIVE_INFINITY;
    const sendAtMs = Math.min(this.#claimAtMs, renewAtMs);
    const nextAtMs = this.#claimSeq > 0 ? this.#claimTimeoutAtMs : sendAtMs;
    this.#context.agenda.set(this, Math.min(this.#acquisition.endsAtMs, nextAtMs));
  }

  get #call(): Call {
    return this.#acquisition.call;
  }

  #nowMs(): number {
    return this.#context.runtime.clock.elapsedMs();
  }
}
