import type { Clock } from "../../../core/clock.js";

/** A session as the store began it. */
export interface BegunSession<Id> {
  readonly id: Id;
  /** The ttl that the store gave, which may be longer than requested. */
  readonly ttlMs: number;
  /** The session lives for its lifetime from this moment on, on the elapsed-time clock. */
  readonly provedAtMs: number;
  /**
   * The lifetime is longer than the ttl where a proof rests on something that was sent long before it. Default: the
   * ttl.
   */
  readonly lifetimeMs?: number;
}

/** Proves that a session lives for its lifetime from `provedAtMs` on. A store adds the data that it reads with the proof. */
export interface SessionProof {
  readonly provedAtMs: number;
}

/** A key under a session, and the claim that it belongs to. */
export interface SessionKey {
  readonly key: string;
  readonly name: string;
  readonly grantId: string;
  /** Whether the key is the claim itself, not something about it. */
  readonly isClaim: boolean;
}

/** The operations of a store that sessions use. */
export interface SessionPort<Id, Proof extends SessionProof> {
  begin(ttlMs: number): Promise<BegunSession<Id>>;
  /** Resolves to null if the session is gone. A rejection proves nothing. */
  prove(session: { readonly id: Id; readonly ttlMs: number }): Promise<Proof | null>;
  /** Where other requests prove the session too: the latest of these proofs. */
  provedAtMs?(id: Id): number;
  /** Ends the session in the store, with everything under it. */
  end(id: Id): Promise<void>;
  /** All keys under the session that belong to claims. They may be out of date. */
  listKeys(id: Id): Promise<Iterable<SessionKey>>;
  claimKey(name: string, grantId: string): string;
  /** Returns those of the keys that are not under the session, at a moment after this call. */
  missingOf(id: Id, keys: readonly string[]): Promise<readonly string[]>;
  deleteKeys(keys: readonly string[]): Promise<void>;
}

export class SessionExpired extends Error {
  readonly session: Session<unknown>;

  constructor(session: Session<unknown>) {
    super("the session has expired in the store, and its claims with it: claim again");
    this.name = "SessionExpired";
    this.session = session;
  }
}

/** Proofs requested within this share of the ttl share one round trip. */
const PROOF_GAP = 1 / 60;
const LONGEST_GAP_MS = 200;

/** A store's own liveness, shared by all claims of one ttl. */
export class Session<Id, Proof extends SessionProof = SessionProof> {
  readonly id: Id;
  readonly ttlMs: number;
  readonly requestedTtlMs: number;
  readonly #lifetimeMs: number;
  readonly #port: SessionPort<Id, Proof>;
  readonly #clock: Clock;
  #provedAtMs: number;
  #sentAtMs = Number.NEGATIVE_INFINITY;
  #isDead = false;
  #current: Promise<Proof> | null = null;
  /** The next proof, sent after the current one for the callers that have requested a proof meanwhile. */
  #next: Promise<Proof> | null = null;
  #endGap: (() => void) | null = null;

  private constructor(
    port: SessionPort<Id, Proof>,
    clock: Clock,
    requestedTtlMs: number,
    begun: BegunSession<Id>,
  ) {
    this.#port = port;
    this.#clock = clock;
    this.requestedTtlMs = requestedTtlMs;
    this.id = begun.id;
    this.ttlMs = begun.ttlMs;
    this.#lifetimeMs = begun.lifetimeMs ?? begun.ttlMs;
    this.#provedAtMs = begun.provedAtMs;
  }

  static async begin<Id, Proof extends SessionProof>(
    port: SessionPort<Id, Proof>,
    clock: Clock,
    ttlMs: number,
  ): Promise<Session<Id, Proof>> {
    return new Session(port, clock, ttlMs, await port.begin(ttlMs));
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  get provedAtMs(): number {
    const meanwhileMs = this.#port.provedAtMs?.(this.id) ?? Number.NEGATIVE_INFINITY;
    return Math.max(this.#provedAtMs, meanwhileMs);
  }

  /** The store keeps the session alive until then, whatever happens. */
  get deadlineMs(): number {
    return this.provedAtMs + this.#lifetimeMs;
  }

  /**
   * Resolves with a proof that was sent after this call: an earlier one says nothing about what the caller did since.
   * Rejects with SessionExpired when the session is gone.
   */
  prove(): Promise<Proof> {
    const gapMs = Math.min(this.ttlMs * PROOF_GAP, LONGEST_GAP_MS);
    const waitMs = this.#sentAtMs + gapMs - this.#clock.elapsedMs();
    if (this.#current === null && (waitMs <= 0 || this.#isDead)) {
      this.#current = this.#sendProof().finally(() => {
        this.#current = null;
      });
      return this.#current;
    }
    this.#next ??= Promise.all([this.#current?.catch(() => {}), this.#gap(waitMs)]).then(() => {
      this.#next = null;
      return this.prove();
    });
    return this.#next;
  }

  /** Ends the session, and everything under it in the store. */
  async end(): Promise<void> {
    this.markDead();
    await this.#port.end(this.id);
  }

  /** The session was found to be gone, or is given up. */
  markDead(): void {
    this.#isDead = true;
    this.#endGap?.();
  }

  async #sendProof(): Promise<Proof> {
    if (this.#isDead) throw new SessionExpired(this);
    this.#sentAtMs = this.#clock.elapsedMs();
    const proof = await this.#port.prove(this);
    if (proof === null) this.markDead();
    // A session that was given up meanwhile lives shorter than a proof says.
    if (proof === null || this.#isDead) throw new SessionExpired(this);
    this.#provedAtMs = Math.max(this.#provedAtMs, proof.provedAtMs);
    return proof;
  }

  #gap(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#endGap?.(), ms).unref();
      this.#endGap = () => {
        clearTimeout(timer);
        this.#endGap = null;
        resolve();
      };
    });
  }
}
