import { INACCURACY_MS } from "./clock.js";
import type { Context } from "./context.js";
import { InvalidArgumentError } from "./errors.js";
import type { Lease } from "./lease.js";
import type { ReleaseOutcome } from "./requests.js";
import { type Call, checkTtl, driftOf } from "./settings.js";
import {
  type Awaitable,
  type ClaimMode,
  type Grant,
  modeOf,
  type Renewal,
  type Store,
} from "./store.js";
import type { Duration } from "./validate.js";
import { Renewable } from "./watchdog.js";

/** A longer freeze always counts, however long the ttl: it is time that `abortBefore` promises to the work. */
const LONGEST_FREEZE_MS = 200;

/** A waiter's knowledge of a grant when it becomes a lease. */
export interface Proof {
  readonly grantId: string;
  readonly grant: Grant;
  /** When the request that the grant rests on was sent, and the clock's `unexplainedMs` then. */
  readonly sentAtMs: number;
  readonly unexplainedAtSendMs: number;
  readonly lastSeq: number;
}

/** A grant as its store knows it. */
interface KnownClaim {
  readonly store: Store;
  readonly name: string;
  readonly grantId: string;
  readonly token: bigint;
}

/** Leads from a lease to the claim behind it. A symbol, because a grantId is a secret: no property that users see. */
export const CLAIM = Symbol("claim");

/**
 * A grant, its numbered renewals, and until when the store has proved it. A base class and not a
 * part of the lease, so that ten thousand leases are ten thousand objects and not twice as many.
 */
export abstract class ProvedGrant extends Renewable {
  readonly name: string;
  readonly token: bigint;
  readonly floor: bigint;
  readonly #context: Context;
  readonly #call: Call;
  readonly #grantId: string;
  #ttlMs: number;
  /** The ttl that the proof rests on. `renew` sets another one before the store has replied. */
  #provedTtlMs = 0;
  #provedUntilMs = 0;
  #unexplainedAtProofMs: number;
  /** The number of the last request. It continues the waiter's numbers, because the store obeys the highest number. */
  #seq: number;
  /** Renewals before this number prove nothing: a later one was answered, or changed the ttl. */
  #nextProofSeq = 0;
  /** Whether the last renewal has no reply yet. */
  #isUnanswered = false;
  #unexplainedAtSendMs = 0;

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
    this.#ttlMs = call.ttlMs;
    this.#seq = proof.lastSeq;
    this.#unexplainedAtProofMs = proof.unexplainedAtSendMs;
    this.setProvedUntil(proof.sentAtMs, grant.ttlMs);
  }

  [CLAIM](): KnownClaim {
    const { store, requests, settings } = this.#context;
    const token = this.token - settings.tokenOffset;
    return { store, name: requests.toStoreName(this.name), grantId: this.#grantId, token };
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

  toJSON(): { name: string; token: string; floor: string; holder: string; mode: ClaimMode } {
    const { name, token, floor, holder, mode } = this;
    return { name, holder, mode, token: String(token), floor: String(floor) };
  }

  isOlderThan(grant: Grant): boolean {
    return this.token < grant.token + this.#context.settings.tokenOffset;
  }

  protected get context(): Context {
    return this.#context;
  }

  protected get call(): Call {
    return this.#call;
  }

  protected get ttlMs(): number {
    return this.#ttlMs;
  }

  /** The deadline less `abortBefore`: the lease is lost then, unless it is renewed. */
  protected get provedUntilMs(): number {
    return this.#provedUntilMs;
  }

  protected get provedTtlMs(): number {
    return this.#provedTtlMs;
  }

  protected get isUnanswered(): boolean {
    return this.#isUnanswered;
  }

  protected nextRenewal(ttlMs = this.#ttlMs): Renewal {
    this.#seq++;
    this.#isUnanswered = true;
    this.#unexplainedAtSendMs = this.#context.runtime.clock.unexplainedMs();
    const name = this.#context.requests.toStoreName(this.name);
    return { name, grantId: this.#grantId, seq: this.#seq, ttlMs };
  }

  protected noteReply(seq: number): void {
    if (seq === this.#seq) this.#isUnanswered = false;
  }

  /** Whether a later renewal was answered already, or changed the ttl. */
  protected isOvertaken(seq: number): boolean {
    return seq < this.#nextProofSeq;
  }

  /** Whether the reply is about this grant: the store may have another one under the same id. */
  protected isSameGrant(grant: Grant): boolean {
    return grant.token + this.#context.settings.tokenOffset === this.token;
  }

  protected prove({ seq, ttlMs }: Grant, sentAtMs: number): void {
    this.#nextProofSeq = seq + 1;
    // Only a renewal that was sent after a step of the wall clock proves anything about it.
    if (seq === this.#seq) this.#unexplainedAtProofMs = this.#unexplainedAtSendMs;
    this.setProvedUntil(sentAtMs, ttlMs);
  }

  /** Throws `InvalidArgumentError` for a ttl that the store can't keep, or that leaves no time for work. */
  protected checkNewTtl(ttl: Duration): number {
    const { settings, store } = this.#context;
    const ttlMs = checkTtl(ttl, settings, store.traits);
    if (this.usableMs(ttlMs) > 0) return ttlMs;
    throw new InvalidArgumentError(
      `ttl is ${ttlMs} ms, of which drift and abortBefore, in proportion, leave nothing; choose a longer one`,
    );
  }

  protected setTtl(ttlMs: number, nowMs: number): void {
    if (ttlMs !== this.#ttlMs) this.#nextProofSeq = this.#seq + 1;
    this.#ttlMs = ttlMs;
    // A shorter ttl may take effect in the store though its reply is lost: it counts at once.
    this.#provedUntilMs = Math.min(this.#provedUntilMs, nowMs + this.usableMs(ttlMs));
    this.#provedTtlMs = Math.min(this.#provedTtlMs, ttlMs);
  }

  /** The part of a ttl that work can rely on: less the drift, and less `abortBefore` in proportion. */
  protected usableMs(ttlMs: number): number {
    return ttlMs - driftOf(ttlMs, this.#context.settings) - ttlMs * abortShare(this.#call);
  }

  /** Whether, since the proof, this machine may have been frozen for longer than `abortBefore` makes up for. */
  protected get mayHaveFrozen(): boolean {
    return this.frozenSince(this.#unexplainedAtProofMs);
  }

  /** The same since the last renewal was sent: no renewal in flight can prove that it was not. */
  protected get mayHaveFrozenSinceSend(): boolean {
    return this.frozenSince(this.#unexplainedAtSendMs);
  }

  protected sendRelease(unused: boolean, owedMs: number): Awaitable<ReleaseOutcome> {
    const { requests, runtime } = this.#context;
    const release = { name: requests.toStoreName(this.name), grantId: this.#grantId, unused };
    const timeoutMs = requests.releaseTimeoutMs(this.#provedUntilMs - runtime.clock.elapsedMs());
    return requests.release(release, owedMs, timeoutMs);
  }

  // Not private methods: those would add a field to each lease.

  protected setProvedUntil(sentAtMs: number, ttlMs: number): void {
    const { seams } = this.#context.runtime;
    this.#provedUntilMs = seams.countFrom(sentAtMs) + this.usableMs(ttlMs);
    this.#provedTtlMs = ttlMs;
  }

  protected frozenSince(unexplainedMs: number): boolean {
    const slackMs = this.#provedTtlMs * abortShare(this.#call) - INACCURACY_MS;
    const frozenMs = this.#context.runtime.clock.unexplainedMs() - unexplainedMs;
    return frozenMs > Math.max(0, Math.min(slackMs, LONGEST_FREEZE_MS));
  }
}

const abortShare = ({ abortBeforeMs, ttlMs }: Call): number => abortBeforeMs / ttlMs;

/**
 * The claim behind a lease, for guards that compare it in the store. Throws LeaseLostError for a lease that shared
 * the lease of outer work and has ended: the outer lease may still be held.
 */
export function claimOf(
  lease: Pick<Lease, "token" | "floor" | "signal" | "assertHeld">,
): KnownClaim {
  const known = lease as { [CLAIM]?(): KnownClaim } | undefined | null;
  if (typeof known?.[CLAIM] === "function") return known[CLAIM]();
  throw new InvalidArgumentError(
    "the lease has no grant of a store; pass a lease that acquire or withLock gave, and not one of work that runs without the lock",
  );
}
