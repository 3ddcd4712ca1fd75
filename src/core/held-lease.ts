import { type Context, isPromise, jittered, type ReleaseOutcome, reasonOf } from "./commands.js";
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
import type { Duration } from "./validate.js";
import { Kept } from "./watchdog.js";

interface PendingRenew {
  readonly sinceMs: number;
  resolve(): void;
  reject(error: unknown): void;
}

type Listeners = { [E in keyof LeaseEvents]?: LeaseEvents[E][] };

/** Attempts that go unanswered are given up after this share of the ttl, so that several fit into it. */
const PATIENCE = 1 / 6;

/** What a waiter hands over. */
interface Proof {
  readonly grantId: string;
  readonly grant: Grant;
  /** When the ask that the grant rests on was sent, and what was suspected then. */
  readonly sentAtMs: number;
  readonly suspicionsAtSend: number;
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
  releasing: Promise<ReleaseResult> | null;
  /** Who wants to know when its release begins. */
  beforeRelease: (() => void)[] | null;
  /** From when `maxHold` counts, if not from the grant. */
  holdFromMs: number | null;
  /** It is not renewed any more. */
  runsOut: boolean;
  /** Nobody has worked under it. */
  unused: boolean;
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
  /** Goes on from the asks of the waiter: the store obeys the latest that it has heard of. */
  #seq: number;
  /** Attempts before this number prove nothing: answered by now, or of another ttl. */
  #nextProofSeq = 0;
  /** When it is lost unless renewed: its deadline less `abortBefore`. */
  #lostAtMs = 0;
  #suspicionsAtProof: number;
  #renewAtMs = 0;
  /** The last attempt is not answered yet. */
  #unanswered = false;
  #suspicionsAtSend = 0;
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
    this.#suspicionsAtProof = proof.suspicionsAtSend;
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
      extras.controller = new AbortController();
      this.#over();
      if (extras.error !== null) extras.controller.abort(extras.error);
    }
    return extras.controller.signal;
  }

  assertHeld(): void {
    if (this.#over()) {
      throw this.#extras?.error ?? this.#alreadyReleased();
    }
    if (this.#suspicionsAtProof !== this.#context.runtime.clock.suspicions()) {
      this.#jeopardize("the wall clock ran ahead");
      // Once: one that was sent after the suspicion is on its way, or will be at the end of this turn.
      if (!this.due && this.#suspicionsAtSend !== this.#context.runtime.clock.suspicions()) {
        this.#ask();
      }
      throw new LeaseLostError(this, "expired", {
        detail:
          "the wall clock ran ahead of the elapsed time, so this machine may have been frozen; " +
          "not proved until a renewal is answered",
      });
    }
  }

  on<E extends keyof LeaseEvents>(event: E, listener: LeaseEvents[E]): this {
    const extras = this.#more();
    extras.listeners ??= {};
    const all: LeaseEvents[E][] = extras.listeners[event] ?? [];
    all.push(listener);
    extras.listeners[event] = all as Listeners[E];
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
    if (ttlMs !== this.#ttlMs) this.#nextProofSeq = this.#seq + 1;
    this.#ttlMs = ttlMs;
    // A shorter ttl may take effect in the store though its answer is lost: it counts at once.
    this.#lostAtMs = Math.min(this.#lostAtMs, nowMs + this.#usableMs(ttlMs));
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

  /** Released before anybody has worked under it: `atLeast` does not keep the name closed. */
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

  /** Its `Locks` closes: work that still runs under it is told, and has `graceMs` to end. */
  async close(graceMs: number): Promise<void> {
    if (this.#over()) return;
    this.#lose("closed");
    // Whoever was just told may have given it back already.
    if (graceMs > 0 && this.#more().releasing === null) {
      this.#keepFor(graceMs);
      await this.#releasedWithin(graceMs);
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
      if (this.#unanswered) this.#jeopardize("a renewal was not answered");
      this.#ask();
    }
    this.#schedule();
  }

  override renewal(): Renewal | null {
    if (this.#over()) return null;
    this.#seq++;
    this.#unanswered = true;
    this.#suspicionsAtSend = this.#context.runtime.clock.suspicions();
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
        // Only what was sent after a suspicion can lift it.
        if (latest) this.#suspicionsAtProof = this.#suspicionsAtSend;
        this.#prove(sentAtMs, answer.grant.ttlMs);
        if (this.#over()) return;
        this.#recover();
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
        this.#settleRenewing(sentAtMs, commands.unavailable("renew", answer.cause, this.#grantId));
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
    const abortShare = this.#call.abortBeforeMs / this.#call.ttlMs;
    return ttlMs - driftOf(ttlMs, this.#context.settings) - ttlMs * abortShare;
  }

  #prove(sentAtMs: number, ttlMs: number): void {
    const { runtime, watchdog } = this.#context;
    this.#lostAtMs = runtime.seams.countFrom(sentAtMs) + this.#usableMs(ttlMs);
    this.#renewAtMs = this.#renews ? watchdog.dueAt(sentAtMs, ttlMs) : Number.POSITIVE_INFINITY;
  }

  #ask(): void {
    const { runtime, settings, watchdog } = this.#context;
    watchdog.renewSoon(this);
    this.#renewAtMs = this.#renews
      ? runtime.clock.elapsedMs() + Math.min(settings.commandTimeoutMs, this.#ttlMs * PATIENCE)
      : Number.POSITIVE_INFINITY;
    this.#schedule();
  }

  #schedule(): void {
    this.#context.watchdog.agenda.set(this, Math.min(this.#renewAtMs, this.#endsAtMs()));
  }

  #jeopardize(cause: unknown): void {
    if (this.#state !== "held") return;
    this.#state = "jeopardy";
    emit("jeopardy", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
      remainingMs: this.remainingMs,
      cause: reasonOf(cause, this.#grantId),
    }));
    this.#tell("jeopardy", cause);
  }

  #recover(): void {
    if (this.#state !== "jeopardy") return;
    this.#state = "held";
    emit("recovered", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
    }));
    this.#tell("recovered");
  }

  #lose(reason: LossReason, more: { why?: string } = {}): void {
    this.#state = "lost";
    this.#context.watchdog.agenda.remove(this);
    const error = new LeaseLostError(this, reason, more);
    this.#more().error = error;
    emit("lost", this.#context.settings.logger, () => ({
      name: this.name,
      token: this.token,
      reason,
      heldMs: this.#heldMs(),
    }));
    this.#more().controller?.abort(error);
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

  #releasedWithin(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#context.runtime.clock.after(ms, resolve);
      timer.keepAlive(true);
      this.beforeRelease(() => {
        timer.cancel();
        resolve();
      });
    });
  }

  #release(): Awaitable<ReleaseResult> {
    const { commands, watchdog } = this.#context;
    const heldMs = this.#heldMs();
    const lost = this.#over();
    if (!lost) {
      // From here on no renewal is sent, and one in flight finds no grant to revive.
      this.#state = "released";
      watchdog.agenda.remove(this);
      if (this.#extras?.renewing)
        this.#settleRenewing(Number.POSITIVE_INFINITY, this.#alreadyReleased());
    }
    const extras = this.#extras;
    const unused = extras?.unused === true || extras?.holdFromMs === Number.POSITIVE_INFINITY;
    const release = { name: commands.key(this.name), grantId: this.#grantId, unused };
    const owedMs = unused ? Math.max(this.#ttlMs, this.#call.atLeastMs) : this.#ttlMs;
    const answer = commands.release(release, owedMs);
    // A store in this process has answered by now: no further turn is taken.
    return isPromise(answer)
      ? answer.then((late) => this.#released(late, lost, heldMs))
      : this.#released(answer, lost, heldMs);
  }

  #released(answer: ReleaseOutcome, lost: boolean, heldMs: number): ReleaseResult {
    if (lost) return "lost";
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
      releasing: null,
      beforeRelease: null,
      holdFromMs: null,
      runsOut: false,
      unused: false,
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
