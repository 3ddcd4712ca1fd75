import { reasonOf, safeCause } from "./cause.js";
import type { Context } from "./context.js";
import { LeaseLostError, type LossReason } from "./errors.js";
import { type Events, emit, type LeaseFields } from "./events.js";
import type { Grace } from "./grace.js";
import type { Lease, LeaseEvents, LeaseState, ReleaseResult } from "./lease.js";
import { LeaseExtras } from "./lease-extras.js";
import { type Proof, ProvedGrant } from "./proved-grant.js";
import { RenewCalls } from "./renew-calls.js";
import { isPromise, type ReleaseOutcome } from "./requests.js";
import { type SequencerOptions, writeSequencer } from "./sequencer.js";
import type { Call } from "./settings.js";
import type { Awaitable, Grant, LostAnswer, RenewAnswer, Renewal } from "./store.js";
import type { Duration } from "./validate.js";

type OwnEvent = "renewed" | "renewal-failed" | "jeopardy" | "recovered" | "lost" | "released";

/** The lease of one grant: its states, its events, and its end. */
export class HeldLease extends ProvedGrant implements Lease {
  readonly #id: number;
  readonly #grantedAtMs: number;
  #state: LeaseState = "held";
  /** When to renew next, or to repeat a renewal without a reply. */
  #renewAtMs: number;
  #extras: LeaseExtras | null = null;

  /** `id`: the number of its acquire, for events. */
  constructor(context: Context, id: number, name: string, call: Call, proof: Proof) {
    super(context, name, call, proof);
    this.#id = id;
    this.#grantedAtMs = context.runtime.clock.elapsedMs();
    this.#renewAtMs = this.#dueAt(proof.sentAtMs, proof.grant.ttlMs);
  }

  /** Whether any time is left. If not, the grant expired before its reply was read, and is no lease. */
  get hasTimeLeft(): boolean {
    return this.#nowMs() < this.#endsAtMs();
  }

  /** Whether the release of the lease has begun. */
  get releaseHasBegun(): boolean {
    return this.#extras !== null && this.#extras.releasing !== null;
  }

  /** Whether nobody has worked under the lease. Then `atLeast` does not keep the name closed after its release. */
  get isUnused(): boolean {
    const extras = this.#extras;
    return extras?.unused === true || extras?.holdFromMs === Number.POSITIVE_INFINITY;
  }

  /** Puts it on the agenda, which wakes it for its renewals and its end. */
  begin(): void {
    this.#schedule();
  }

  /** Sets the time from which `maxHold` counts; `acquireAll` sets infinity until it has all of its names. */
  holdFrom(ms: number): void {
    this.#ensureExtras().holdFromMs = ms;
    if (!this.#isOver()) this.#schedule();
  }

  /** Renews at once, because the store may have lost the grant. */
  renewNow(): void {
    if (!this.#isOver()) this.#renewSoon();
  }

  /** Stops the renewals: another lease of the same `acquireAll` is lost, and its work may ignore the signal. */
  letRunOut(): void {
    this.#ensureExtras().runsOut = true;
    this.#renewAtMs = Number.POSITIVE_INFINITY;
    if (!this.#isOver()) this.#schedule();
  }

  get state(): LeaseState {
    this.#isOver();
    return this.#state;
  }

  get remainingMs(): number {
    return this.#isOver() ? 0 : this.#endsAtMs() - this.#nowMs();
  }

  get signal(): AbortSignal {
    return this.#ensureExtras().signal(() => this.#isOver());
  }

  assertHeld(): void {
    if (this.#isOver()) throw this.#extras?.error ?? this.#releasedError();
    if (!this.mayHaveFrozen) return;
    this.#jeopardize("the wall clock ran ahead");
    // One renewal is enough: this one, or one that was sent after the step and is still in flight.
    if (!this.isInBatch && this.mayHaveFrozenSinceSend) this.#renewSoon();
    throw new LeaseLostError(this, "expired", {
      detail:
        "the wall clock ran ahead of the elapsed time, so this machine may have been frozen; " +
        "not proved until a renewal succeeds",
    });
  }

  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    const extras = this.#ensureExtras();
    extras.on(event, listener, this.#isOver() ? extras.error : null);
    return this;
  }

  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    this.#extras?.off(event, listener);
    return this;
  }

  async renew(ttl?: Duration): Promise<void> {
    const { settings, requests, runtime } = this.context;
    const ttlMs = ttl === undefined ? this.ttlMs : this.checkNewTtl(ttl);
    if (this.#isOver()) this.assertHeld();
    const nowMs = this.#nowMs();
    const extras = this.#ensureExtras();
    if (ttlMs !== this.ttlMs) extras.longestTtlMs = Math.max(extras.longestTtlMs, this.ttlMs);
    this.setTtl(ttlMs, nowMs);
    extras.renewCalls ??= new RenewCalls();
    const { commandTimeoutMs } = settings;
    const renewed = extras.renewCalls.wait(runtime.clock, nowMs, commandTimeoutMs, () =>
      requests.noReplyError("renew", commandTimeoutMs),
    );
    this.#renewSoon();
    await renewed;
  }

  release(): Promise<ReleaseResult> {
    const extras = this.#ensureExtras();
    extras.notifyRelease();
    // A listener may have called this.
    extras.releasing ??= Promise.resolve(this.#release());
    return extras.releasing;
  }

  /** Releases the lease before any work has run under it. */
  abandon(): Promise<ReleaseResult> {
    this.#ensureExtras().unused = true;
    return this.release();
  }

  /** Calls the listener when the release begins, whichever code releases. */
  beforeRelease(listener: () => void): void {
    this.#ensureExtras().beforeRelease(listener);
  }

  /** Called when the `Locks` closes: notifies the work, which keeps the name until it ends or the grace is over. */
  override async close(grace: Grace): Promise<void> {
    if (this.#isOver()) return;
    this.#lose("closed");
    // A listener may have released it already.
    if (!this.releaseHasBegun) {
      this.#keepFor(grace.remainingMs);
      await Promise.race([grace.isOver, new Promise<void>((given) => this.beforeRelease(given))]);
    }
    await this.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  sequencer(options?: SequencerOptions): string {
    this.assertHeld();
    const { name, token, floor, holder, mode } = this;
    const madeAtMs = this.context.runtime.clock.wallMs();
    return writeSequencer({ name, token, floor, holder, mode, madeAtMs }, options);
  }

  override wake(nowMs: number): void {
    if (this.#isOver()) return;
    if (nowMs >= this.#renewAtMs) {
      const { requests } = this.context;
      if (this.isUnanswered) {
        this.#renewalFailed(
          requests.noReplyError("renew", requests.renewTimeoutMs(this.provedTtlMs)),
        );
      }
      this.#renewSoon();
    }
    this.#schedule();
  }

  override renewal(): Renewal | null {
    return this.#isOver() ? null : this.nextRenewal();
  }

  override replied(reply: RenewAnswer, { seq }: Renewal, sentAtMs: number): void {
    this.noteReply(seq);
    if (this.#isOver()) return;
    switch (reply.kind) {
      case "granted":
        if (!this.isSameGrant(reply.grant)) this.#lose("superseded");
        // A reply that a later renewal has overtaken, on the way or in the store, says nothing about the deadline.
        else if (!this.isOvertaken(seq) && reply.grant.seq === seq) {
          this.#renewed(reply.grant, sentAtMs);
        }
        break;
      case "unknown":
        if (!this.isOvertaken(seq)) this.#retryRenewal(reply.cause, sentAtMs);
        break;
      case "lost":
        this.#lose(reply.reason, whyOf(reply));
        break;
      case "queued":
        this.#lose("superseded");
        break;
    }
  }

  #renewed(grant: Grant, sentAtMs: number): void {
    const { provedUntilMs, provedTtlMs } = this;
    this.prove(grant, sentAtMs);
    this.#renewAtMs = this.#dueAt(sentAtMs, grant.ttlMs);
    if (this.#extras !== null) this.#extras.longestTtlMs = 0;
    if (this.#isOver()) return;
    this.#recover();
    // A listener may have released it: then `released` was its last event.
    if (this.#isOver()) return;
    this.#emit("renewed", () => {
      const remainingShare =
        Math.max(0, provedUntilMs - this.#nowMs()) / this.usableMs(provedTtlMs);
      return { ttlMs: grant.ttlMs, remainingShare };
    });
    this.#extras?.renewCalls?.settle(sentAtMs, null);
    this.#schedule();
  }

  #retryRenewal(cause: unknown, sentAtMs: number): void {
    const { requests } = this.context;
    const pauseMs = requests.retryPauseMs();
    if (this.#renews) this.#renewAtMs = this.#nowMs() + Math.min(pauseMs, this.provedTtlMs / 10);
    this.#renewalFailed(cause);
    this.#extras?.renewCalls?.settle(sentAtMs, requests.toStoreError("renew", cause));
    this.#schedule();
  }

  /** Whether lost or released; finds a loss by the clock, so no timer needs to have fired. */
  #isOver(): boolean {
    if (this.#hasEnded) return true;
    if (this.#nowMs() < this.#endsAtMs()) return false;
    this.#lose(this.#maxHoldAtMs() <= this.provedUntilMs ? "max-hold" : "expired");
    return true;
  }

  get #hasEnded(): boolean {
    return this.#state === "lost" || this.#state === "released";
  }

  get #renews(): boolean {
    return this.call.renew && this.#extras?.runsOut !== true;
  }

  #endsAtMs(): number {
    return Math.min(this.provedUntilMs, this.#maxHoldAtMs());
  }

  #maxHoldAtMs(): number {
    return (this.#extras?.holdFromMs ?? this.#grantedAtMs) + this.call.maxHoldMs;
  }

  #dueAt(provedAtMs: number, ttlMs: number): number {
    if (!this.#renews) return Number.POSITIVE_INFINITY;
    return this.context.watchdog.dueAt(provedAtMs, ttlMs);
  }

  #renewSoon(): void {
    const { requests, watchdog } = this.context;
    watchdog.renewSoon(this);
    // By the ttl of the deadline: by a longer one that is requested, the repetition could come after the deadline.
    this.#renewAtMs = this.#renews
      ? this.#nowMs() + requests.renewTimeoutMs(this.provedTtlMs)
      : Number.POSITIVE_INFINITY;
    this.#schedule();
  }

  #schedule(): void {
    // A listener of `jeopardy` or `recovered` may have released it: it stays off the agenda.
    if (this.#hasEnded) return;
    this.context.agenda.set(this, Math.min(this.#renewAtMs, this.#endsAtMs()));
  }

  #renewalFailed(failure: unknown): void {
    this.#emit("renewal-failed", () => {
      return { remainingMs: this.#leftMs(), cause: reasonOf(safeCause(failure)) };
    });
    // A subscriber may have released it.
    if (!this.#hasEnded) this.#jeopardize(failure);
  }

  #jeopardize(failure: unknown): void {
    const cause = safeCause(failure);
    const extras = this.#ensureExtras();
    extras.failure = cause;
    if (this.#state !== "held") return;
    this.#state = "jeopardy";
    this.#emit("jeopardy", () => ({ remainingMs: this.#leftMs(), cause: reasonOf(cause) }));
    // A subscriber may have released it.
    if (!this.#hasEnded) extras.notify("jeopardy", cause);
  }

  #recover(): void {
    if (this.#state !== "jeopardy") return;
    this.#state = "held";
    const extras = this.#ensureExtras();
    extras.failure = undefined;
    this.#emit("recovered", () => ({}));
    if (!this.#hasEnded) extras.notify("recovered");
  }

  #lose(reason: LossReason, more: { why?: string } = {}): void {
    this.#state = "lost";
    this.context.agenda.remove(this);
    const extras = this.#ensureExtras();
    const cause = reason === "expired" ? extras.failure : undefined;
    const error = new LeaseLostError(this, reason, { ...more, cause });
    extras.error = error;
    this.#emit("lost", () => ({ reason, heldMs: this.#heldMs() }));
    extras.lose(error);
    extras.renewCalls?.settle(Number.POSITIVE_INFINITY, error);
  }

  /** Renews the lease for the grace, unless more is left. Nobody relies on the lease, so no reply is needed. */
  #keepFor(graceMs: number): void {
    const { store, requests } = this.context;
    const leftMs = this.provedUntilMs - this.#nowMs();
    if (graceMs <= leftMs || store.traits.cannot["own-ttl"] !== undefined) return;
    const renewal = this.nextRenewal(this.ttlMs + graceMs);
    requests.run("renew", (inStore) => inStore.renew([renewal])).catch(() => {});
  }

  #release(): Awaitable<ReleaseResult> {
    const heldMs = this.#heldMs();
    const isLost = this.#isOver();
    if (!isLost) {
      // From here on no renewal is sent, and one in flight finds no grant to revive.
      this.#state = "released";
      this.context.agenda.remove(this);
      this.#extras?.renewCalls?.settle(Number.POSITIVE_INFINITY, this.#releasedError());
    }
    const unused = this.isUnused;
    const ttlMs = Math.max(this.ttlMs, this.#extras?.longestTtlMs ?? 0);
    const outcome = this.sendRelease(unused, unused ? Math.max(ttlMs, this.call.atLeastMs) : ttlMs);
    if (isLost) return "lost";
    // A store in this process has replied by now: no further turn is taken.
    return isPromise(outcome)
      ? outcome.then((late) => this.#released(late, heldMs))
      : this.#released(outcome, heldMs);
  }

  #released(outcome: ReleaseOutcome, heldMs: number): ReleaseResult {
    if (typeof outcome === "object" && "kind" in outcome) {
      this.#lose(outcome.reason, whyOf(outcome));
      return "lost";
    }
    const result: "released" | "unknown" = outcome === "released" ? outcome : "unknown";
    this.#emit("released", () => ({ heldMs, outcome: result }));
    return result;
  }

  #releasedError(): LeaseLostError {
    return new LeaseLostError(this, "released");
  }

  #emit<E extends OwnEvent>(event: E, more: () => Omit<Events[E], keyof LeaseFields>): void {
    const { settings, store } = this.context;
    emit(event, settings.logger, () => {
      const { name, token, mode } = this;
      const fields: LeaseFields = { id: this.#id, store: store.traits.store, name, mode, token };
      return { ...fields, ...more() } as Events[E];
    });
  }

  /** The time left, for events. It checks for no loss, whose own event would then come first. */
  #leftMs(): number {
    return Math.max(0, this.#endsAtMs() - this.#nowMs());
  }

  #heldMs(): number {
    return this.#nowMs() - this.#grantedAtMs;
  }

  #nowMs(): number {
    return this.context.runtime.clock.elapsedMs();
  }

  #ensureExtras(): LeaseExtras {
    this.#extras ??= new LeaseExtras();
    return this.#extras;
  }
}

const whyOf = ({ why }: LostAnswer): { why?: string } => (why === undefined ? {} : { why });
