import { onAbort } from "./abort.js";
import { type Context, isPromise, jittered, type ReleaseOutcome } from "./commands.js";
import {
  AcquireTimeoutError,
  ClosedError,
  HoldfastError,
  InvalidArgumentError,
  QueueFullError,
  StoreUnavailableError,
} from "./errors.js";
import { type Events, emit } from "./events.js";
import { HeldLease } from "./held-lease.js";
import type { Call } from "./options.js";
import {
  type Awaitable,
  type ClaimAnswer,
  type Grant,
  LOCK_LIMIT,
  modeOf,
  type Position,
  type Push,
  type RenewAnswer,
  type Renewal,
  WAITERS_AT_EXPIRY,
} from "./store.js";
import { Kept } from "./watchdog.js";

/** Send times of that many asks are remembered; a grant that rests on an older one is asked about. */
const ASKS_REMEMBERED = 32;
/** The waiters that ask at a holder's expiry do so a little apart. */
const APART_MS = 5;
/** After a timeout, how long the ticket's removal may take before the store counts as unavailable. */
export const LAST_WORD_MS = 250;
/** A timer that fires later than this was held up by the event loop. */
const LATE_MS = 50;
/** `wait: 0` waits this long for the store's reply, or `commandTimeout` if that is shorter. */
const SHORTEST_ASK_MS = 2_000;

type NotGranted = Events["not-granted"]["reason"];

/** What stands in the way. */
export interface Busy {
  readonly name: string;
  readonly holder: string | null;
  readonly freeInMs: number;
}

/**
 * One acquire, from the first ask to the lease: asks, keeps its ticket alive, is pushed or polls,
 * and gives up without leaving anything behind. Each event looks at what is known by then, so no
 * order of answers, pushes, timers and aborts is assumed. Several names are asked for in one step,
 * which leaves no ticket: busy is the end of it.
 */
export class Waiter extends Kept {
  readonly #context: Context;
  readonly #names: readonly string[];
  readonly #call: Call;
  /** Another one after a grant that it never saw has ended: the store gives that one nothing any more. */
  #grantId: string;
  /** The first ask under that id: what answers an earlier one is about another. */
  #firstSeq = 1;
  readonly #startedAtMs: number;
  readonly #unexplainedAtStartMs: number;
  /** When the last asks were sent; the newest, number `#seq`, is last. */
  readonly #sent: number[] = [];
  readonly #push = (push: Push): void => this.#pushed(push);
  #ignoreSignal: () => void = () => {};
  #seq = 0;
  #unexplainedAtSeqMs = 0;
  #asking = 0;
  #askTimeoutAtMs = Number.POSITIVE_INFINITY;
  #askAtMs = Number.POSITIVE_INFINITY;
  #polls = 0;
  #ticket = false;
  /** Told to look while a claim was under way, whose answer may be older than that. */
  #looks = false;
  #renewAtMs = Number.POSITIVE_INFINITY;
  #renewalSentAtMs = Number.NaN;
  /** When the oldest ask or renewal was sent that the store has not answered, nor any after it; NaN if there is none. */
  #unheardSinceMs = Number.NaN;
  /** In a silence: a look was answered, so one claim may follow. */
  #mayClaim = false;
  #busy: Busy;
  /** The last exchange with the store failed: a wait that ends like this ends in an outage. */
  #trouble: HoldfastError | null = null;
  #done = false;
  #leases: readonly HeldLease[] | null = null;
  #resolve: ((leases: readonly HeldLease[] | null) => void) | null = null;
  #reject: ((error: unknown) => void) | null = null;
  #failure: { error: unknown } | null = null;

  constructor(context: Context, names: readonly string[], call: Call) {
    super();
    this.#context = context;
    this.#names = names;
    this.#call = call;
    this.#busy = { name: names[0]!, holder: null, freeInMs: 0 };
    this.#grantId = context.runtime.random.grantId();
    this.#startedAtMs = context.runtime.clock.elapsedMs();
    this.#unexplainedAtStartMs = context.runtime.clock.unexplainedMs();
  }

  /** A lease for each name; null when asked once and busy. */
  acquire(): Awaitable<readonly HeldLease[] | null> {
    const { signal } = this.#call;
    // Also in the middle of an acquire of several names.
    assertOpen(this.#context);
    signal?.throwIfAborted();
    for (const name of this.#names) {
      emit("asked", this.#context.settings.logger, () => ({
        name,
        holder: this.#call.holder,
        mode: modeOf(this.#call),
        // An exclusive holder takes all that there are: a number that nobody has asked for.
        permits: this.#call.limit === LOCK_LIMIT ? 1 : this.#call.permits,
      }));
    }
    this.#ask();
    // A store in this process has answered by now.
    if (this.#done) {
      if (this.#failure) throw this.#failure.error;
      return this.#leases;
    }
    const acquired = new Promise<readonly HeldLease[] | null>((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.#context.watchdog.agenda.addPending(1);
    this.#schedule();
    if (signal !== undefined) {
      const abort = (): void => this.#fail(signal.reason, "aborted");
      this.#ignoreSignal = onAbort(signal, abort);
      // A subscriber of the event `asked` may have aborted it.
      if (signal.aborted) abort();
    }
    return acquired;
  }

  /** Why it has to wait, as the store last said. */
  get busy(): Busy {
    return this.#busy;
  }

  /** The `Locks` is closing, and waits for the release that this sends. */
  close(): void {
    this.#fail(new ClosedError(), "closed");
  }

  // What the watchdog calls.

  override wake(nowMs: number): void {
    if (this.#done) return;
    if (nowMs >= this.#startedAtMs + this.#call.waitMs && this.#call.waitMs > 0) {
      this.#timeOut();
      return;
    }
    if (this.#asking > 0 && nowMs > this.#askTimeoutAtMs + LATE_MS) {
      // The event loop was busy: the reply may have come, and is read after the timers.
      this.#askTimeoutAtMs = nowMs + LAST_WORD_MS;
    } else if (this.#asking > 0 && nowMs >= this.#askTimeoutAtMs) {
      this.#unanswered(
        this.#asking,
        this.#context.commands.noAnswer("claim", nowMs - this.#sent.at(-1)!),
      );
    } else if (nowMs >= this.#askAtMs) this.#ask();
    else if (this.#ticket && nowMs >= this.#renewAtMs && this.#isSilent(nowMs)) this.#look(nowMs);
    else if (this.#ticket && nowMs >= this.#renewAtMs) {
      if (!Number.isNaN(this.#renewalSentAtMs)) {
        this.#trouble = this.#context.commands.noAnswer(
          "renew a ticket",
          nowMs - this.#renewalSentAtMs,
        );
      }
      this.#renewAtMs =
        nowMs + Math.min(this.#context.settings.commandTimeoutMs, this.#call.ttlMs / 6);
      this.#context.watchdog.renewSoon(this);
    }
    this.#schedule();
  }

  override renewal(sentAtMs: number): Renewal | null {
    if (this.#done || this.#asking > 0) return null;
    const name = this.#context.commands.key(this.#names[0]!);
    const { ttlMs } = this.#call;
    if (this.#isSilent(sentAtMs)) {
      // By an id that nobody has: a renewal makes nothing, so the store answers, and extends nothing.
      return { name, grantId: this.#context.runtime.random.grantId(), seq: this.#seq, ttlMs };
    }
    this.#renewalSentAtMs = sentAtMs;
    return { name, grantId: this.#grantId, seq: this.#nextSeq(sentAtMs), ttlMs };
  }

  override answered(answer: RenewAnswer, { seq, grantId }: Renewal, sentAtMs: number): void {
    if (sentAtMs === this.#renewalSentAtMs) this.#renewalSentAtMs = Number.NaN;
    // The renewal may have extended a grant that was given back meanwhile; it can't have made one.
    if (this.#done || seq < this.#firstSeq) return;
    if (grantId !== this.#grantId) {
      this.#looked(answer.kind !== "unknown", sentAtMs);
      return;
    }
    const nowMs = this.#context.runtime.clock.elapsedMs();
    if (answer.kind === "unknown") {
      this.#trouble = this.#context.commands.unavailable("renew a ticket", answer.cause);
      // In a silence, the next look is appointed already.
      if (!this.#isSilent(nowMs)) this.#renewAtMs = nowMs + this.#pauseMs();
    } else {
      this.#hear(sentAtMs);
      if (answer.kind === "granted") this.#accept([answer.grant]);
      else if (answer.kind === "queued") this.#queued(answer.position, sentAtMs);
      else this.#askAnew(answer.reason === "revoked");
    }
    this.#schedule();
  }

  #ask(): void {
    const { store, runtime, commands, settings } = this.#context;
    const sentAtMs = runtime.clock.elapsedMs();
    if (this.#isSilent(sentAtMs) && !this.#mayClaim) {
      this.#look(sentAtMs);
      return;
    }
    const seq = this.#nextSeq(sentAtMs);
    this.#asking = seq;
    this.#looks = false;
    // A caller that would wait less than that does not wait longer for a store that hangs.
    const patienceMs = Math.max(SHORTEST_ASK_MS, this.#call.waitMs);
    this.#askTimeoutAtMs = sentAtMs + Math.min(settings.commandTimeoutMs, patienceMs);
    this.#askAtMs = Number.POSITIVE_INFINITY;
    const grantId = this.#grantId;
    const answered = (answer: ClaimAnswer): void => {
      if (!this.#answersFormerId(grantId, answer)) this.#claimAnswered(seq, answer, sentAtMs);
    };
    const failed = (error: unknown): void => {
      if (!this.#answersFormerId(grantId, null)) this.#unanswered(seq, error);
    };
    try {
      const answer = store.claim(
        {
          names: this.#names.map((name) => commands.key(name)),
          grantId,
          seq,
          permits: this.#call.permits,
          limit: this.#call.limit,
          ttlMs: this.#call.ttlMs,
          atLeastMs: this.#call.atLeastMs,
          holder: this.#call.holder,
          queue: !this.#asksOnce,
          driftFactor: settings.driftFactor,
        },
        this.#push,
      );
      if (isPromise(answer)) answer.then(answered, failed);
      else answered(answer);
    } catch (error) {
      failed(error);
    }
  }

  #claimAnswered(seq: number, answer: ClaimAnswer, sentAtMs: number): void {
    if (seq === this.#asking) this.#asking = 0;
    if (this.#answersNobody(answer)) return;
    this.#hear(sentAtMs);
    switch (answer.kind) {
      case "granted":
        this.#accept(answer.grants);
        break;
      case "queued":
        this.#queued(answer.position, sentAtMs);
        break;
      case "busy":
        this.#heard(answer.position, this.#context.commands.nameOf(answer.name));
        // Another ask of unknown outcome may have left some of several names, or may do so yet.
        if (this.#seq > 1 && this.#asksOnce) this.#giveUp(this.#names);
        if (this.#asksOnce) this.#settle(null, "busy");
        else this.#askAtMs = this.#context.runtime.clock.elapsedMs() + this.#pollMs();
        break;
      case "lost":
        this.#askAnew(true);
        break;
      case "mismatch": {
        const name = this.#context.commands.nameOf(answer.name);
        this.#fail(mismatch(name, this.#call.limit, answer.limit), "refused");
        break;
      }
      case "full": {
        const name = this.#context.commands.nameOf(answer.name);
        this.#fail(new QueueFullError(name, answer.waiting), "refused");
        break;
      }
    }
    this.#schedule();
  }

  /** There is neither a grant nor a ticket. `byAnotherId`: what there was has ended, and the store still knows it. */
  #askAnew(byAnotherId: boolean): void {
    // A session outlives its claims: a deletion of the old one may be on its way.
    if (byAnotherId || this.#context.store.traits.liveness === "session") {
      this.#giveUp(this.#names);
      this.#grantId = this.#context.runtime.random.grantId();
      this.#firstSeq = this.#seq + 1;
      // Another ask under the old id may still be under way.
      this.#asking = 0;
      this.#unheardSinceMs = Number.NaN;
    }
    this.#ticket = false;
    // In a turn of its own: a store in this process would otherwise be asked within its own answer.
    this.#askAtMs = this.#context.runtime.clock.elapsedMs();
  }

  #unanswered(seq: number, cause: unknown): void {
    if (this.#answersNobody(null) || seq !== this.#asking) return;
    this.#asking = 0;
    const error = this.#context.commands.unavailable("claim", cause);
    this.#trouble = error;
    if (!error.retryable) this.#fail(error, "refused");
    else if (this.#call.waitMs === 0) this.#fail(error, "unavailable");
    else {
      // Whoever answers looks may still swallow claims: in a silence, what one has made runs out before the next.
      const pauseMs = this.#mayClaim ? this.#call.ttlMs : this.#pauseMs();
      this.#mayClaim = false;
      this.#askAtMs = this.#context.runtime.clock.elapsedMs() + pauseMs;
      this.#schedule();
    }
  }

  /**
   * Unheard for one ttl. The store may hear us all the same, and every claim and renewal then extends
   * what may have become a grant by now: a name under which nobody works. So nothing more is sent
   * that extends, and the store lets it run out; a look tells when the store answers again, which
   * allows one claim.
   */
  #isSilent(nowMs: number): boolean {
    return nowMs - this.#unheardSinceMs >= this.#call.ttlMs;
  }

  /** What is late tells nothing of what was sent after it. */
  #hear(sentAtMs: number): void {
    this.#trouble = null;
    this.#mayClaim = false;
    this.#unheardSinceMs =
      sentAtMs < this.#sent.at(-1)! ? Math.max(this.#unheardSinceMs, sentAtMs) : Number.NaN;
  }

  /** With the renewals of others, in one batch. One that hangs is not sent again before a claim would be. */
  #look(nowMs: number): void {
    this.#renewAtMs = Number.POSITIVE_INFINITY;
    this.#askAtMs = nowMs + this.#context.settings.commandTimeoutMs;
    this.#context.watchdog.renewSoon(this);
  }

  #looked(answers: boolean, sentAtMs: number): void {
    const nowMs = this.#context.runtime.clock.elapsedMs();
    // A late one: something else was heard, or asked for, since.
    if (this.#asking > 0 || !this.#isSilent(nowMs) || sentAtMs < this.#sent.at(-1)!) return;
    this.#mayClaim = answers;
    this.#askAtMs = answers ? nowMs : nowMs + this.#pauseMs();
    this.#schedule();
  }

  /** A claim under an id that was given up may have arrived after its release: it is released again. */
  #answersFormerId(grantId: string, answer: ClaimAnswer | null): boolean {
    if (grantId === this.#grantId) return false;
    if (answer === null || answer.kind === "granted" || answer.kind === "queued") {
      this.#giveUp(this.#names, { grantId });
    }
    return true;
  }

  /** A claim answered after the end may have created what nobody will release: give it back (again). */
  #answersNobody(answer: ClaimAnswer | null): boolean {
    if (!this.#done) return false;
    for (const [i, name] of this.#names.entries()) {
      const lease = this.#leases?.[i];
      const grant = answer?.kind === "granted" ? answer.grants[i] : undefined;
      // A later grant than the lease's is nobody's. An earlier one is a late answer, and long gone.
      if (lease === undefined || (grant && lease.isBefore(grant))) this.#giveUp([name]);
      // Not otherwise: work may still go on under one that is lost, until it is given back or runs out.
      else if (lease.isGivenBack) this.#giveUp([name], { unused: lease.isUnused });
    }
    return true;
  }

  #pushed(push: Push): void {
    if (this.#done || (push.kind === "granted" && push.grant.seq < this.#firstSeq)) return;
    const nowMs = this.#context.runtime.clock.elapsedMs();
    if (push.kind === "granted") this.#accept([push.grant]);
    else if (this.#asking > 0) this.#looks = true;
    // With others that are told to look, in one batch.
    else if (this.#ticket && !this.#isSilent(nowMs)) this.#context.watchdog.renewSoon(this);
    this.#schedule();
  }

  #queued(position: Position, sentAtMs: number): void {
    const { runtime, store, watchdog } = this.#context;
    this.#ticket = true;
    this.#heard(position);
    this.#renewAtMs = watchdog.dueAt(sentAtMs, this.#call.ttlMs);
    const nowMs = runtime.clock.elapsedMs();
    if (store.traits.waiting === "polled") this.#askAtMs = nowMs + this.#pollMs();
    else if (position.ahead < WAITERS_AT_EXPIRY) {
      this.#askAtMs = nowMs + Math.max(1, position.freeInMs) + position.ahead * APART_MS;
    } else this.#askAtMs = Number.POSITIVE_INFINITY;
    if (!this.#looks || this.#asking > 0) return;
    this.#looks = false;
    watchdog.renewSoon(this);
  }

  #accept(grants: readonly Grant[]): void {
    // When many waiters are ended one by one, a ticket that is dropped may grant to the next of them.
    if (this.#context.closing.aborted) {
      this.close();
      return;
    }
    const { signal } = this.#call;
    if (signal?.aborted) {
      this.#fail(signal.reason, "aborted");
      return;
    }
    const leases = grants.map((grant, i) => this.#leaseOf(grant, this.#names[i]!));
    if (leases.every((lease) => lease !== null)) {
      for (const lease of leases) lease.begin();
      // Whoever hears of it may abort the wait, which is over.
      this.#settle(leases, null);
      for (const [i, lease] of leases.entries()) {
        emit("granted", this.#context.settings.logger, () => ({
          name: lease.name,
          token: lease.token,
          holder: lease.holder,
          waitMs: this.#waitedMs(),
          handedOver: grants[i]!.handedOver,
        }));
      }
      return;
    }
    // It rests on an ask that is too old: it is no grant until the store has extended it.
    if (this.#asking > 0) return;
    this.#trouble = new StoreUnavailableError(
      `the answer that granted ${this.#what} came after its ttl of ${this.#call.ttlMs} ms`,
    );
    if (this.#call.waitMs === 0) this.#fail(this.#trouble, "unavailable");
    // In a turn of its own: a store in this process would otherwise be asked without end.
    else this.#askAtMs = this.#context.runtime.clock.elapsedMs();
  }

  /** Null: it was over before it was seen, and is no lease. */
  #leaseOf(grant: Grant, name: string): HeldLease | null {
    const seq = this.#context.runtime.seams.restsOn(grant.seq, this.#seq);
    // Undefined: an ask that is none of ours, or too long ago.
    const sentAtMs = seq > this.#seq ? undefined : this.#sent.at(seq - this.#seq - 1);
    if (sentAtMs === undefined) return null;
    const lease = new HeldLease(this.#context, name, this.#call, {
      grantId: this.#grantId,
      grant,
      sentAtMs,
      unexplainedAtSendMs:
        grant.seq === this.#seq ? this.#unexplainedAtSeqMs : this.#unexplainedAtStartMs,
      lastSeq: this.#seq,
    });
    return lease.isGood ? lease : null;
  }

  #timeOut(): void {
    const { commands, runtime } = this.#context;
    const askedForMs = this.#asking > 0 ? runtime.clock.elapsedMs() - this.#sent.at(-1)! : 0;
    const waitMs = this.#call.waitMs;
    const timeout = new AcquireTimeoutError(this.#busy.name, waitMs, this.#busy.holder);
    if (this.#trouble !== null) this.#fail(this.#outage(this.#trouble), "unavailable");
    else if (!this.#ticket && this.#asking === 0) this.#fail(timeout, "timeout");
    else {
      // The ticket's removal also tells whether the store still answers: busy and down are not the same error.
      const reject = this.#reject;
      this.#end(null);
      this.#giveUp(this.#names, { timeoutMs: LAST_WORD_MS }).then((outcome) => {
        // Only now: after a busy event loop, the reply to the claim may have been there, and unread.
        const unheard = this.#asking > 0 && askedForMs >= LAST_WORD_MS;
        const released = HoldfastError.is(outcome) ? outcome : null;
        const trouble = unheard ? commands.noAnswer("claim", askedForMs) : released;
        this.#emitNotGranted(trouble === null ? "timeout" : "unavailable");
        reject?.(trouble === null ? timeout : this.#outage(trouble));
      });
    }
  }

  #outage(cause: HoldfastError): HoldfastError {
    return new StoreUnavailableError(
      `waited ${Math.round(this.#call.waitMs)} ms for ${this.#what}, and the store was not available at the end: ${cause.message}`,
      { cause },
    );
  }

  #fail(error: unknown, reason: NotGranted): void {
    if (this.#done) return;
    const reject = this.#reject;
    this.#failure = { error };
    this.#end(reason);
    this.#giveUp(this.#names);
    reject?.(error);
  }

  #settle(leases: readonly HeldLease[] | null, reason: NotGranted | null): void {
    this.#leases = leases;
    const resolve = this.#resolve;
    this.#end(reason);
    resolve?.(leases);
  }

  #end(reason: NotGranted | null): void {
    this.#done = true;
    if (reason !== null) this.#emitNotGranted(reason);
    this.#context.watchdog.agenda.remove(this);
    if (this.#resolve === null) return;
    this.#context.watchdog.agenda.addPending(-1);
    this.#ignoreSignal();
  }

  /** What nobody has worked under, as a rule. The outcome is that of the last name. */
  async #giveUp(
    names: readonly string[],
    {
      unused = true,
      timeoutMs,
      grantId = this.#grantId,
    }: { unused?: boolean; timeoutMs?: number; grantId?: string } = {},
  ): Promise<ReleaseOutcome> {
    const { commands } = this.#context;
    const { ttlMs, atLeastMs } = this.#call;
    const outcomes = names.map((name) => {
      const release = { name: commands.key(name), grantId, unused };
      return commands.release(release, unused ? Math.max(ttlMs, atLeastMs) : ttlMs, timeoutMs);
    });
    return (await Promise.all(outcomes)).at(-1)!;
  }

  #emitNotGranted(reason: NotGranted): void {
    for (const name of this.#names) {
      emit("not-granted", this.#context.settings.logger, () => ({
        name,
        holder: this.#call.holder,
        waitMs: this.#waitedMs(),
        reason,
      }));
    }
  }

  #heard({ holder, freeInMs }: Position, name = this.#names[0]!): void {
    this.#busy = { name, holder, freeInMs };
  }

  /** Without a ticket or a second ask: busy is the end. */
  get #asksOnce(): boolean {
    return this.#call.waitMs === 0 || this.#names.length > 1;
  }

  get #what(): string {
    return this.#names.map((name) => JSON.stringify(name)).join(", ");
  }

  #nextSeq(sentAtMs: number): number {
    this.#seq++;
    this.#unexplainedAtSeqMs = this.#context.runtime.clock.unexplainedMs();
    this.#sent.push(sentAtMs);
    if (Number.isNaN(this.#unheardSinceMs)) this.#unheardSinceMs = sentAtMs;
    if (this.#sent.length > ASKS_REMEMBERED) this.#sent.shift();
    return this.#seq;
  }

  #schedule(): void {
    if (this.#done) return;
    const askingUntil = this.#asking > 0 ? this.#askTimeoutAtMs : this.#askAtMs;
    this.#context.watchdog.agenda.set(
      this,
      Math.min(
        this.#call.waitMs > 0 ? this.#startedAtMs + this.#call.waitMs : Number.POSITIVE_INFINITY,
        askingUntil,
        this.#ticket && this.#asking === 0 ? this.#renewAtMs : Number.POSITIVE_INFINITY,
      ),
    );
  }

  #waitedMs(): number {
    return this.#context.runtime.clock.elapsedMs() - this.#startedAtMs;
  }

  #pauseMs(): number {
    return jittered(this.#context.settings.retry, this.#context.runtime.random.unit());
  }

  #pollMs(): number {
    const { minMs, maxMs, jitter } = this.#context.settings.poll;
    const pauseMs = Math.min(maxMs, minMs * 2 ** Math.min(this.#polls++, 20));
    return Math.max(minMs, jittered({ pauseMs, jitter }, this.#context.runtime.random.unit()));
  }
}

export function assertOpen({ closing }: Context): void {
  if (closing.aborted) throw new ClosedError();
}

export function mismatch(name: string, asked: number, stored: number): InvalidArgumentError {
  const kind = (limit: number): string =>
    limit === LOCK_LIMIT ? "a lock" : `a semaphore of ${limit} permits`;
  return new InvalidArgumentError(
    `${JSON.stringify(name)} is in use as ${kind(stored)} and can't be taken as ${kind(asked)}; ` +
      (stored === LOCK_LIMIT || asked === LOCK_LIMIT
        ? "use another name"
        : "use the same number everywhere, or change it with resize"),
  );
}
