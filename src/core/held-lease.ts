import { unlimitedController } from "./abort.js";
import { reasonOf, safeCause } from "./cause.js";
import { INACCURACY_MS } from "./clock.js";
import { type Context, isPromise, jittered, type ReleaseOutcome } from "./commands.js";
import { InvalidArgumentError, LeaseLostError, type LossReason } from "./errors.js";
import { emit, guarded } from "./events.js";
import type { Lease, LeaseEvents, LeaseState, ReleaseResult } from "./lease.js";
import { type Call, checkTtl, driftOf } from "./options.js";
import {
  type Awaitable,
  type ClaimMode,
  type Grant,
  type LostAnswer,
  modeOf,
  type RenewAnswer,
  type Renewal,
  type Store,
} from "./store.js";
import { checkOneOf, type Duration, show } from "./validate.js";
import { Kept } from "./watchdog.js";

interface PendingRenew {
  readonly sinceMs: number;
  resolve(): void;
  reject(error: unknown): void;
}

type Listeners = { [E in keyof LeaseEvents]?: LeaseEvents[E][] };

const EVENTS = ["jeopardy", "recovered", "lost"] as const;

/** Attempts that go unanswered are given up after this share of the ttl, so that several fit into it. */
const PATIENCE = 1 / 6;

/** A release waits at least this long for its reply, however little of the lease is left. */
const SHORTEST_RELEASE_MS = 250;

/** A longer freeze is never overlooked, however long the ttl: it is time that `abortBefore` promises to the work. */
const LONGEST_FREEZE_MS = 200;

/** What a waiter hands over. */
interface Proof {
  readonly grantId: string;
  readonly grant: Grant;
  /** When the ask that the grant rests on was sent, and the clock's `unexplainedMs` then. */
  readonly sentAtMs: number;
  readonly unexplainedAtSendMs: number;
  readonly lastSeq: number;
}

interface KnownClaim {
  readonly store: Store;
  readonly name: string;
  readonly grantId: string;
  readonly token: bigint;
}

/** What most leases never need, so that ten thousand of them stay small. */
interface Extras {
  error: LeaseLostError | null;
  controller: AbortController | null;
  listeners: Listeners | null;
  renewing: PendingRenew[] | null;
  /** Why the last renewal failed, if none was answered since. */
  failure: unknown;
  releasing: Promise<ReleaseResult> | null;
  /** Who wants to know when its release begins. */
  beforeRelease: (() => void)[] | null;
  /** From when `maxHold` counts, if not from the grant. */
  holdFromMs: number | null;
  /** It is not renewed any more. */
  runsOut: boolean;
  unused: boolean;
  /** The longest ttl that the store may still count by: a shorter one was asked for, and is not proved. */
  longestTtlMs: number;
}

export class HeldLease extends Kept implements Lease {
  readonly name: string;
  readonly token: bigint;
  readonly floor: bigint;
  readonly #context: Context;
  readonly #call: Call;
  readonly #grantId: string;
  readonly #grantedAtMs: number;
  #state: LeaseState = "held";
  #ttlMs: number;
  /** The ttl that the deadline rests on. `renew` sets another one before the store has answered. */
  #provedTtlMs = 0;
  /** Goes on from the asks of the waiter: the store obeys the latest that it has heard of. */
  #seq: number;
  /** Attempts before this number prove nothing: answered by now, or of another ttl. */
  #nextProofSeq = 0;
  /** When it is lost unless renewed: its deadline less `abortBefore`. */
  #lostAtMs = 0;
  #unexplainedAtProofMs: number;
  #renewAtMs = 0;
  /** The last attempt is not answered yet. */
  #unanswered = false;
  #unexplainedAtSendMs = 0;
  #extras: Extras | null = null;

  constructor(context: Context, name: string, call: Call, proof: Proof) {
    super();
    const { tokenOffset } = context.settings;
    const { grant } = proof;
    this.#context = context;
    this.#call = call;
    this.name = name;
    this.token = tokenOffset === 0n ? grant.token : grant.token + tokenOffset;
    this.floor = grant.floor === grant.token ? this.token : grant.floor + tokenOffset;
    this.#grantId = proof.grantId;
    this.#grantedAtMs = context.runtime.clock.elapsedMs();
    this.#ttlMs = call.ttlMs;
    this.#seq = proof.lastSeq;
    this.#unexplainedAtProofMs = proof.unexplainedAtSendMs;
    this.#prove(proof.sentAtMs, grant.ttlMs);
  }

  /** What the store knows it by. */
  static claimOf(lease: HeldLease): KnownClaim {
    const { store, commands, settings } = lease.#context;
    const token = lease.token - settings.tokenOffset;
    return { store, name: commands.key(lease.name), grantId: lease.#grantId, token };
  }

  get holder(): string {
    return this.#call.holder;
  }

  get mode(): ClaimMode {
    return modeOf(this.#call);
  }

  get permits(): number {
    return this.mode === "permits" ? this.#call.permits : 1;
  }

  /** False: it was over before it was seen, and is no lease. */
  get isGood(): boolean {
    return this.#context.runtime.clock.elapsedMs() < this.#endsAtMs();
  }

  /** Its release has begun. */
  get isGivenBack(): boolean {
    return this.#extras !== null && this.#extras.releasing !== null;
  }

  /** Nobody has worked under it: `atLeast` does not keep the name closed after its release. */
  get isUnused(): boolean {
    const extras = this.#extras;
    return extras?.unused === true || extras?.holdFromMs === Number.POSITIVE_INFINITY;
  }

  isBefore(grant: Grant): boolean {
    return this.token < this.#tokenOf(grant);
  }

  /** Starts watching. */
  begin(): void {
    this.#schedule();
  }

  /** `maxHold` counts from then: while others are still waited for, and nobody works under it, from never. */
  holdFrom(ms: number): void {
    this.#more().holdFromMs = ms;
    if (!this.#over()) this.#schedule();
  }

  /** One that it was held together with is lost: nobody may keep this one for ever. */
  letRunOut(): void {
    this.#more().runsOut = true;
    this.#renewAtMs = Number.POSITIVE_INFINITY;
    if (!this.#over()) this.#schedule();
  }

  get state(): LeaseState {
    this.#over();
    return this.#state;
  }

  get remainingMs(): number {
    if (this.#over()) return 0;
    return this.#endsAtMs() - this.#context.runtime.clock.elapsedMs();
  }

  get signal(): AbortSignal {
    const extras = this.#more();
    if (extras.controller === null) {
      extras.controller = unlimitedController();
      this.#over();
      if (extras.error !== null) extras.controller.abort(extras.error);
    }
    return extras.controller.signal;
  }

  assertHeld(): void {
    if (this.#over()) {
      throw this.#extras?.error ?? this.#alreadyReleased();
    }
    if (this.#frozenSince(this.#unexplainedAtProofMs)) {
      this.#jeopardize("the wall clock ran ahead");
      // Once: one that was sent after the step is on its way, or will be at the end of this turn.
      if (!this.due && this.#frozenSince(this.#unexplainedAtSendMs)) this.#ask();
      throw new LeaseLostError(this, "expired", {
        detail:
          "the wall clock ran ahead of the elapsed time, so this machine may have been frozen; " +
          "not proved until a renewal is answered",
      });
    }
  }

  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    checkOneOf(event, "the event", EVENTS);
    if (typeof listener !== "function") {
      throw new InvalidArgumentError(`the listener is ${show(listener)}; it must be a function`);
    }
    const extras = this.#more();
    const lost = this.#over() ? extras.error : null;
    extras.listeners ??= {};
    const all: LeaseEvents[E][] = extras.listeners[event] ?? [];
    all.push(listener);
    extras.listeners[event] = all as Listeners[E];
    if (event === "lost" && lost !== null) {
      queueMicrotask(() => {
        if (all.includes(listener)) guarded(() => (listener as LeaseEvents["lost"])(lost));
      });
    }
    return this;
  }

  off<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    const all: LeaseEvents[E][] = this.#extras?.listeners?.[event] ?? [];
    const at = all.indexOf(listener);
    if (at !== -1) all.splice(at, 1);
    return this;
  }

  async renew(ttl?: Duration): Promise<void> {
    const { settings, store, commands, runtime } = this.#context;
    const ttlMs = ttl === undefined ? this.#ttlMs : checkTtl(ttl, settings, store.traits);
    if (this.#usableMs(ttlMs) <= 0) {
      throw new InvalidArgumentError(
        `ttl is ${ttlMs} ms, of which drift and abortBefore, in proportion, leave nothing`,
      );
    }
    if (this.#over()) this.assertHeld();
    const nowMs = runtime.clock.elapsedMs();
    if (ttlMs !== this.#ttlMs) {
      this.#nextProofSeq = this.#seq + 1;
      const extras = this.#more();
      extras.longestTtlMs = Math.max(extras.longestTtlMs, this.#ttlMs);
    }
    this.#ttlMs = ttlMs;
    // A shorter ttl may take effect in the store though its answer is lost: it counts at once.
    this.#lostAtMs = Math.min(this.#lostAtMs, nowMs + this.#usableMs(ttlMs));
    this.#provedTtlMs = Math.min(this.#provedTtlMs, ttlMs);
    await new Promise<void>((resolve, reject) => {
      const timer = runtime.clock.after(settings.commandTimeoutMs, () =>
        reject(commands.noAnswer("renew", settings.commandTimeoutMs)),
      );
      timer.keepAlive(true);
      const extras = this.#more();
      extras.renewing ??= [];
      extras.renewing.push({
        sinceMs: nowMs,
        resolve: () => {
          timer.cancel();
          resolve();
        },
        reject: (error) => {
          timer.cancel();
          reject(error);
        },
      });
      this.#ask();
    });
  }

  release(): Promise<ReleaseResult> {
    const extras = this.#more();
    const told = extras.beforeRelease ?? [];
    extras.beforeRelease = null;
    for (const tell of told) tell();
    // Whoever was told may have called this.
    extras.releasing ??= Promise.resolve(this.#release());
    return extras.releasing;
  }

  /** Released before anybody has worked under it. */
  abandon(): Promise<ReleaseResult> {
    this.#more().unused = true;
    return this.release();
  }

  /** Called when it is about to be given back, by whomever. */
  beforeRelease(tell: () => void): void {
    const extras = this.#more();
    extras.beforeRelease ??= [];
    extras.beforeRelease.push(tell);
  }

  /** Its `Locks` closes: work under it is notified, and keeps the name until it ends or the grace is over. */
  async close({ ms, over }: { readonly ms: number; readonly over: Promise<void> }): Promise<void> {
    if (this.#over()) return;
    this.#lose("closed");
    // A listener may have released it already.
    if (!this.isGivenBack) {
      this.#keepFor(ms);
      await Promise.race([over, new Promise<void>((given) => this.beforeRelease(given))]);
    }
    await this.release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  toJSON(): { name: string; token: string; floor: string; holder: string; mode: ClaimMode } {
    return {
      name: this.name,
      token: String(this.token),
      floor: String(this.floor),
      holder: this.holder,
      mode: this.mode,
    };
  }

  // What the watchdog calls.

  override wake(nowMs: number): void {
    if (this.#over()) return;
    if (nowMs >= this.#renewAtMs) {
      if (this.#unanswered) {
        this.#jeopardize(this.#context.commands.noAnswer("renew", this.#patienceMs()));
      }
      this.#ask();
    }
    this.#schedule();
  }

  override renewal(): Renewal | null {
    if (this.#over()) return null;
    this.#seq++;
    this.#unanswered = true;
    this.#unexplainedAtSendMs = this.#context.runtime.clock.unexplainedMs();
    return {
      name: this.#context.commands.key(this.name),
      grantId: this.#grantId,
      seq: this.#seq,
      ttlMs: this.#ttlMs,
    };
  }

  override answered(answer: RenewAnswer, { seq }: Renewal, sentAtMs: number): void {
    const latest = seq === this.#seq;
    if (latest) this.#unanswered = false;
    if (this.#over()) return;
    switch (answer.kind) {
      case "granted":
        // The store has another grant under this id: it is not ours.
        if (this.#tokenOf(answer.grant) !== this.token) {
          this.#lose("superseded");
          return;
        }
        // Overtaken by a later attempt, on the way or in the store: says nothing of how long it is good.
        if (seq < this.#nextProofSeq || answer.grant.seq !== seq) return;
        this.#nextProofSeq = seq + 1;
        // Only a renewal that was sent after a step of the wall clock proves anything about it.
        if (latest) this.#unexplainedAtProofMs = this.#unexplainedAtSendMs;
        this.#prove(sentAtMs, answer.grant.ttlMs);
        if (this.#extras !== null) this.#extras.longestTtlMs = 0;
        if (this.#over()) return;
        this.#recover();
        // A listener may have given it back: then `released` was its last event.
        if (this.#over()) return;
        emit("renewed", this.#context.settings.logger, () => ({
          name: this.name,
          token: this.token,
          ttlMs: answer.grant.ttlMs,
        }));
        this.#settleRenewing(sentAtMs, null);
        break;
      case "unknown": {
        // A later attempt was answered meanwhile.
        if (seq < this.#nextProofSeq) return;
        const { settings, runtime, commands } = this.#context;
        const pauseMs = jittered(settings.retry, runtime.random.unit());
        if (this.#renews) {
          this.#renewAtMs = runtime.clock.elapsedMs() + Math.min(pauseMs, this.#ttlMs / 10);
        }
        this.#jeopardize(answer.cause);
        this.#settleRenewing(sentAtMs, commands.unavailable("renew", answer.cause));
        break;
      }
      case "lost":
        this.#lose(answer.reason, because(answer));
        return;
      case "queued":
        this.#lose("superseded");
        return;
    }
    this.#schedule();
  }

  /** Whether lost or released; finds out by the clock, so it needs no timer to have run. */
  #over(): boolean {
    if (this.#state === "lost" || this.#state === "released") return true;
    const nowMs = this.#context.runtime.clock.elapsedMs();
    if (nowMs < this.#endsAtMs()) return false;
    this.#lose(this.#maxHoldAtMs() <= this.#lostAtMs ? "max-hold" : "expired");
    return true;
  }

  /** Since then, this machine may have been frozen for longer than `abortBefore` makes up for. */
  #frozenSince(unexplainedMs: number): boolean {
    const slackMs = this.#provedTtlMs * this.#abortShare - INACCURACY_MS;
    const frozenMs = this.#context.runtime.clock.unexplainedMs() - unexplainedMs;
    return frozenMs > Math.max(0, Math.min(slackMs, LONGEST_FREEZE_MS));
  }

  #tokenOf(grant: Grant): bigint {
    return grant.token + this.#context.settings.tokenOffset;
  }

  get #renews(): boolean {
    return this.#call.renew && this.#extras?.runsOut !== true;
  }

  #endsAtMs(): number {
    return Math.min(this.#lostAtMs, this.#maxHoldAtMs());
  }

  #maxHoldAtMs(): number {
    return (this.#extras?.holdFromMs ?? this.#grantedAtMs) + this.#call.maxHoldMs;
  }

  /** What of a ttl can be relied on. */
  #usableMs(ttlMs: number): number {
    return ttlMs - driftOf(ttlMs, this.#context.settings) - ttlMs * this.#abortShare;
  }

  get #abortShare(): number {
    return this.#call.abortBeforeMs / this.#call.ttlMs;
  }

  #prove(sentAtMs: number, ttlMs: number): void {
    const { runtime, watchdog } = this.#context;
    this.#lostAtMs = runtime.seams.countFrom(sentAtMs) + this.#usableMs(ttlMs);
    this.#provedTtlMs = ttlMs;
    this.#renewAtMs = this.#renews ? watchdog.dueAt(sentAtMs, ttlMs) : Number.POSITIVE_INFINITY;
  }

  #ask(): void {
    const { runtime, watchdog } = this.#context;
    watchdog.renewSoon(this);
    this.#renewAtMs = this.#renews
      ? runtime.clock.elapsedMs() + this.#patienceMs()
      : Number.POSITIVE_INFINITY;
    this.#schedule();
  }

  #patienceMs(): number {
    return Math.min(this.#context.settings.commandTimeoutMs, this.#ttlMs * PATIENCE);
  }

  #schedule(): void {
    // A listener of `jeopardy` or `recovered` may have given it back: it stays off the agenda.
    if (this.#state === "lost" || this.#state === "released") return;
    this.#context.watchdog.agenda.set(this, Math.min(this.#renewAtMs, this.#endsAtMs()));
  }

  #jeopardize(failure: unknown): void {
    const cause = safeCause(failure);
    this.#more().failure = cause;
    if (this.#state !== "held") return;
    this.#state = "jeopardy";
    emit("jeopardy", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
      remainingMs: this.remainingMs,
      cause: reasonOf(cause),
    }));
    this.#tell("jeopardy", cause);
  }

  #recover(): void {
    if (this.#state !== "jeopardy") return;
    this.#state = "held";
    this.#more().failure = undefined;
    emit("recovered", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
    }));
    this.#tell("recovered");
  }

  #lose(reason: LossReason, more: { why?: string } = {}): void {
    this.#state = "lost";
    this.#context.watchdog.agenda.remove(this);
    const extras = this.#more();
    const cause = reason === "expired" ? extras.failure : undefined;
    const error = new LeaseLostError(this, reason, { ...more, cause });
    extras.error = error;
    emit("lost", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
      reason,
      heldMs: this.#heldMs(),
    }));
    extras.controller?.abort(error);
    this.#tell("lost", error);
    this.#settleRenewing(Number.POSITIVE_INFINITY, error);
  }

  /** What is left of it may be less than the grace. Nobody believes in it any more: no answer is needed. */
  #keepFor(graceMs: number): void {
    const { store, commands, runtime } = this.#context;
    const leftMs = this.#lostAtMs - runtime.clock.elapsedMs();
    if (graceMs <= leftMs || store.traits.cannot["own-ttl"] !== undefined) return;
    const ttlMs = this.#ttlMs + graceMs;
    const name = commands.key(this.name);
    commands
      .run("renew", () => store.renew([{ name, grantId: this.#grantId, seq: ++this.#seq, ttlMs }]))
      .catch(() => {});
  }

  #release(): Awaitable<ReleaseResult> {
    const { commands, watchdog, runtime, settings } = this.#context;
    const heldMs = this.#heldMs();
    const lost = this.#over();
    if (!lost) {
      // From here on no renewal is sent, and one in flight finds no grant to revive.
      this.#state = "released";
      watchdog.agenda.remove(this);
      if (this.#extras?.renewing)
        this.#settleRenewing(Number.POSITIVE_INFINITY, this.#alreadyReleased());
    }
    const unused = this.isUnused;
    const release = { name: commands.key(this.name), grantId: this.#grantId, unused };
    const ttlMs = Math.max(this.#ttlMs, this.#extras?.longestTtlMs ?? 0);
    const owedMs = unused ? Math.max(ttlMs, this.#call.atLeastMs) : ttlMs;
    // Nobody waits for the reply once the lease is over: a server that hangs would hold up the work.
    const leftMs = Math.max(SHORTEST_RELEASE_MS, this.#lostAtMs - runtime.clock.elapsedMs());
    const answer = commands.release(release, owedMs, Math.min(settings.commandTimeoutMs, leftMs));
    if (lost) return "lost";
    // A store in this process has answered by now: no further turn is taken.
    return isPromise(answer)
      ? answer.then((late) => this.#released(late, heldMs))
      : this.#released(answer, heldMs);
  }

  #released(answer: ReleaseOutcome, heldMs: number): ReleaseResult {
    if (typeof answer === "object" && "kind" in answer) {
      this.#lose(answer.reason, because(answer));
      return "lost";
    }
    const outcome = answer === "released" ? "released" : "unknown";
    emit("released", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
      heldMs,
      outcome,
    }));
    return outcome;
  }

  #alreadyReleased(): LeaseLostError {
    return new LeaseLostError(this, "released");
  }

  #heldMs(): number {
    return this.#context.runtime.clock.elapsedMs() - this.#grantedAtMs;
  }

  #settleRenewing(upToMs: number, error: unknown): void {
    const all = this.#extras?.renewing;
    if (!all) return;
    this.#more().renewing = all.filter((one) => one.sinceMs > upToMs);
    for (const one of all) {
      if (one.sinceMs > upToMs) continue;
      if (error === null) one.resolve();
      else one.reject(error);
    }
  }

  #more(): Extras {
    this.#extras ??= {
      error: null,
      controller: null,
      listeners: null,
      renewing: null,
      failure: undefined,
      releasing: null,
      beforeRelease: null,
      holdFromMs: null,
      runsOut: false,
      unused: false,
      longestTtlMs: 0,
    };
    return this.#extras;
  }

  #tell<E extends keyof LeaseEvents>(event: E, ...args: Parameters<LeaseEvents[E]>): void {
    for (const listener of [...(this.#extras?.listeners?.[event] ?? [])]) {
      guarded(() => (listener as (...args: unknown[]) => void)(...args));
    }
  }
}

/** For guards that compare the claim itself. A grantId is a secret: not for users. */
export function claimOf(lease: Lease): KnownClaim {
  if (lease instanceof HeldLease) return HeldLease.claimOf(lease);
  throw new InvalidArgumentError("the lease is not one of acquire or withLock");
}

const because = ({ why }: LostAnswer): { why?: string } => (why === undefined ? {} : { why });
