import type { Clock } from "../../core/clock.js";
import type { Keys } from "./keys.js";
import { withFormat } from "./queue.js";
import { hasFallen, refuseFallen } from "./revisions.js";
import type { EtcdClient } from "./rpc/client.js";

/** That the session lived when it was asked. */
export interface Proof {
  /** That grants of it were revoked, by their keys, as they were written. */
  readonly notices: ReadonlyMap<string, string>;
}

export class SessionDead extends Error {
  readonly session: Session;

  constructor(session: Session) {
    super("the session has run out");
    this.name = "SessionDead";
    this.session = session;
  }
}

/** An unanswered keepalive is given up after this share of the ttl, so that several fit into it; the client may give it up sooner. */
const PATIENCE = 1 / 5;
const PATIENCE_MS = { least: 200, most: 5_000 };
/** Proofs requested within this share of the ttl share one round trip. */
const GAP = 1 / 60;
const LONGEST_GAP_MS = 200;
/** It runs out by itself. */
const END_MS = 500;

/** The lease of etcd under which all claims of one ttl stand. */
export class Session {
  /** What was asked for. */
  readonly ttlS: number;
  readonly lease: bigint;
  /** What the server gave, which may be more than was asked for. */
  readonly ttlMs: number;
  readonly #client: EtcdClient;
  readonly #clock: Clock;
  readonly #keys: Keys;
  /** Another member or leader than before has answered. */
  readonly #another: () => void;
  /** The last member that answered, and its term. */
  #answeredBy = "";
  #provedAtMs: number;
  #askedAtMs = Number.NEGATIVE_INFINITY;
  #dead = false;
  /** Asked now; and what is to be asked after that, for those who came meanwhile. */
  #asking: Promise<Proof> | null = null;
  #next: Promise<Proof> | null = null;
  /** Ends a pause between two. */
  #resume: (() => void) | null = null;

  private constructor(
    client: EtcdClient,
    clock: Clock,
    keys: Keys,
    granted: { ttlS: number; lease: bigint; ttlMs: number; provedAtMs: number },
    another: () => void,
  ) {
    this.#client = client;
    this.#clock = clock;
    this.#keys = keys;
    this.ttlS = granted.ttlS;
    this.lease = granted.lease;
    this.ttlMs = granted.ttlMs;
    this.#provedAtMs = granted.provedAtMs;
    this.#another = another;
  }

  static async begin(
    client: EtcdClient,
    clock: Clock,
    keys: Keys,
    ttlS: number,
    another: () => void = () => {},
  ): Promise<Session> {
    const provedAtMs = clock.elapsedMs();
    const granted = await client.leaseGrant(ttlS);
    const put = { key: keys.session(granted.id), value: withFormat({}), lease: granted.id };
    const answer = await client.txn({ success: [{ put }] }, { again: true }).then(refuseFallen);
    const ttlMs = granted.ttlS * 1_000;
    const one = { ttlS, lease: granted.id, ttlMs, provedAtMs };
    const session = new Session(client, clock, keys, one, another);
    session.#heardFrom(answer);
    return session;
  }

  get isDead(): boolean {
    return this.#dead;
  }

  /** Until then the server lets it live, whatever happens. */
  get deadlineMs(): number {
    return this.#provedAtMs + this.ttlMs;
  }

  get provedAtMs(): number {
    return this.#provedAtMs;
  }

  /** Keeps it alive by what is sent after this call; rejects with SessionDead when it is gone. */
  prove(): Promise<Proof> {
    const gapMs = Math.min(this.ttlMs * GAP, LONGEST_GAP_MS);
    const waitMs = this.#askedAtMs + gapMs - this.#clock.elapsedMs();
    if (this.#asking === null && (waitMs <= 0 || this.#dead)) {
      this.#asking = this.#ask().finally(() => {
        this.#asking = null;
      });
      return this.#asking;
    }
    this.#next ??= Promise.all([this.#asking?.catch(() => {}), this.#pause(waitMs)]).then(() => {
      this.#next = null;
      return this.prove();
    });
    return this.#next;
  }

  /** Everything under it goes. */
  async end(): Promise<void> {
    this.die();
    await this.#client.leaseRevoke(this.lease, { timeoutMs: END_MS });
  }

  /** It was found to be gone. */
  die(): void {
    this.#dead = true;
    this.#resume?.();
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#resume?.(), ms).unref();
      this.#resume = () => {
        clearTimeout(timer);
        this.#resume = null;
        resolve();
      };
    });
  }

  /**
   * A keepalive alone proves nothing: a leader that was deposed, and does not know it, answers it.
   * With it goes a linearizable read of the session's key. If both were answered by one member in one
   * term, then that term's leader, which kept the lease alive, was the leader at some moment after
   * both were sent; and a later leader begins the whole ttl anew.
   */
  async #ask(): Promise<Proof> {
    if (this.#dead) throw new SessionDead(this);
    const sentAtMs = this.#clock.elapsedMs();
    this.#askedAtMs = sentAtMs;
    const patienceMs = Math.max(
      PATIENCE_MS.least,
      Math.min(this.ttlMs * PATIENCE, PATIENCE_MS.most),
    );
    const within = { timeoutMs: patienceMs };
    const [kept, read] = await Promise.all([
      this.#client.leaseKeepAlive(this.lease, within),
      this.#client.range(this.#keys.sessionAndNotices(this.lease), within),
    ]);
    const [session, ...notices] = read.kvs;
    // In a restored cluster the session may live, and what was claimed since be gone.
    if (session?.key !== this.#keys.session(this.lease) || hasFallen(read)) {
      this.#dead = true;
      throw new SessionDead(this);
    }
    if (kept.ttlS <= 0 || kept.member !== read.member || kept.term !== read.term) {
      throw new Error("etcd: the leader has changed while the session was kept alive");
    }
    this.#provedAtMs = Math.max(this.#provedAtMs, sentAtMs);
    this.#heardFrom(read);
    return { notices: new Map(notices.map(({ key, value }) => [key, value])) };
  }

  #heardFrom({ member, term }: { member: bigint; term: bigint }): void {
    const by = `${member} ${term}`;
    if (by === this.#answeredBy) return;
    this.#answeredBy = by;
    this.#another();
  }
}
