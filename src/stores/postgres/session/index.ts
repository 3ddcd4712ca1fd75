import { createHash } from "node:crypto";
import { UnsupportedError } from "../../../core/errors.js";
import { systemRuntime } from "../../../core/runtime.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type LostAnswer,
  modeOf,
  type NameInfo,
  type Push,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  type Store,
  type Traits,
} from "../../../core/store.js";
import { checkOptions } from "../../../core/validate.js";
import { type DescribedName, readNameInfo } from "../../shared/json-replies.js";
import { LOST } from "../../shared/lost.js";
import { refuseUnsupported } from "../../shared/unsupported.js";
import type { PostgresClient } from "../client.js";
import { Database } from "../database.js";
import { toStoreError } from "../errors.js";
import { firstAfter, firstBeyond, storable } from "../text.js";
import { LONGEST_TTL_MS, type LockRequest, SessionConnection } from "./connection.js";
import { type OwnLock, OwnLocks } from "./own-locks.js";
import { Turns } from "./turns.js";

/** Options of `postgresSessionStore`. */
export interface PostgresSessionStoreOptions {
  /** The schema of the table and the functions, made at the first use. Default "holdfast". */
  schema?: string;
  /** Closes the pool with the first `Locks` on the store that is closed. Default false: it is the caller's. */
  closeClient?: boolean;
}

/** The traits of the store on locks of sessions. */
export const POSTGRES_SESSION_TRAITS: Traits = {
  store: "PostgreSQL sessions",
  scope: "network",
  liveness: "session",
  waiting: "polled",
  fair: false,
  minTtlMs: 50,
  survives: ["the crash of any client", "lost, late and repeated messages"],
  grantsTwiceAfter: [
    "the end of the holder's session at the server, until the holder notices: ended by an administrator, by a restart or crash of the server, or by a proxy that closes only the server's side",
    "a failover to a standby, which knows no locks of sessions",
    "a failover while the old primary still answers",
  ],
  cannot: {
    permits: "a lock of a session is exclusive or shared, and counts nothing",
    "many-names": "each name is a lock of the server by itself",
    records: "locks of sessions keep nothing in tables; leave out mode=session",
    "at-least": "the server frees a lock with its session, and keeps no time for it",
    revoke:
      "the server can only end the whole session, and with it all locks of the holder's process: if you want that, use pg_terminate_backend",
  },
};

/**
 * Locks that are advisory locks of one session of a PostgreSQL server, which frees them when the session ends. The
 * locks of a process are kept in a table of its own, because a session may take its own lock again.
 */
export class PostgresSessionStore implements Store {
  readonly traits = POSTGRES_SESSION_TRAITS;
  readonly #client: PostgresClient;
  readonly #database: Database;
  readonly #keyOf: (name: string) => bigint;
  readonly #clock = systemRuntime().clock;
  readonly #locks = new OwnLocks(this.#clock, (lock) => this.#end(lock));
  readonly #turns = new Turns();
  /** Claims under way, by grantId. */
  readonly #claiming = new Map<string, Promise<ClaimAnswer>>();
  #session: Promise<SessionConnection> | null = null;

  /** `keyOf`: tests pass one by which names collide. */
  constructor(
    client: PostgresClient,
    options: PostgresSessionStoreOptions = {},
    keyOf?: (name: string) => bigint,
  ) {
    checkOptions(options, "the options of postgresSessionStore", ["schema", "closeClient"]);
    const traits = { maker: "postgresSessionStore", detectsPooler: false };
    this.#database = new Database(client, options, traits);
    this.#client = client;
    this.#keyOf = keyOf ?? ((name) => hashOf(this.#database.schema, name));
  }

  open(): void {
    this.#database.open();
  }

  /** Makes the schema unless it is there, and begins the session; claims do so first. Rejects if that fails. */
  async setUp(): Promise<void> {
    await this.#useSession().catch(async (error: unknown) => {
      throw await this.#database.showMissingRight(error);
    });
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const there = this.#claiming.get(claim.grantId);
    if (there !== undefined) return there;
    const answer = this.#claim(claim, push)
      .catch(async (error: unknown) => {
        throw await this.#database.showMissingRight(this.#toStoreError(error));
      })
      .finally(() => this.#claiming.delete(claim.grantId));
    this.#claiming.set(claim.grantId, answer);
    return answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const locks = renewals.map(({ name, grantId }) => this.#locks.get(name, grantId));
    // The locks are read now, because the proof says nothing about a renewal that comes while it is under way.
    const grants = locks.map((lock, i) => {
      const { seq, ttlMs } = renewals[i]!;
      return lock && this.#renewed(lock, seq, ttlMs);
    });
    let failure: { cause: unknown } | null = null;
    try {
      await this.#prove(locks.filter((lock) => lock !== undefined));
    } catch (cause) {
      failure = { cause: this.#toStoreError(cause) };
    }
    return locks.map((lock, i): RenewAnswer => {
      if (lock === undefined || !this.#locks.has(lock)) return this.#whyLost(renewals[i]!.name);
      return failure === null
        ? { kind: "granted", grant: grants[i]! }
        : { kind: "unknown", ...failure };
    });
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    return Promise.all(
      releases.map(async ({ name, grantId }): Promise<ReleaseAnswer> => {
        const lock = this.#locks.get(name, grantId);
        return lock !== undefined && (await this.#end(lock)) ? "released" : this.#whyLost(name);
      }),
    );
  }

  revoke(): never {
    throw new UnsupportedError(`forced releases: ${this.traits.cannot.revoke}`);
  }

  resize(): never {
    throw new UnsupportedError(`semaphores: ${this.traits.cannot.permits}`);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const [found] = await this.#describe(name, firstAfter(name), 1);
    return found ?? null;
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#describe(prefix, firstBeyond(prefix), limit);
  }

  async close(): Promise<void> {
    if (!this.#database.leave(this.#locks.size > 0)) return;
    this.#locks.stop();
    await this.#session?.then((session) => session.close()).catch(() => {});
    await this.#database.close();
  }

  async #claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    refuseUnsupported(this.traits, claim);
    const name = claim.names[0]!;
    const there = this.#locks.get(name, claim.grantId);
    if (there !== undefined) {
      const grant = this.#renewed(there, claim.seq, claim.ttlMs);
      await this.#prove([there]);
      return this.#locks.has(there) ? { kind: "granted", grants: [grant] } : LOST;
    }
    const { grantId, holder, seq } = claim;
    const ttlMs = Math.min(claim.ttlMs, LONGEST_TTL_MS);
    const key = this.#keyOf(name);
    const isShared = modeOf(claim) === "shared";
    const request = { key, grantId, name, holder: storable(holder), ttlMs, isShared };
    const more = { push, seq, requestedAtMs: this.#clock.elapsedMs() };
    return this.#turns.takeForClaim(key, isShared, () => this.#claimLock(request, more));
  }

  async #claimLock(
    request: Omit<LockRequest, "isLocked">,
    more: Pick<OwnLock, "push" | "seq" | "requestedAtMs">,
  ): Promise<ClaimAnswer> {
    const { name, key, isShared, ttlMs } = request;
    const session = await this.#useSession();
    await session.allowTtl(ttlMs);
    const others = this.#locks.withKey(key);
    refuseCollision(name, others[0]?.name);
    const conflicting = others.find((other) => other.isUnsure || !(isShared && other.isShared));
    if (conflicting !== undefined) return toBusy(name, conflicting.holder);
    const reply = await session.claim({ ...request, isLocked: others.length > 0 });
    if (reply.token === undefined) {
      refuseCollision(name, reply.name ?? undefined);
      return toBusy(name, reply.holder);
    }
    // The session may have ended after the reply.
    if (session.isOver) return LOST;
    const [token, floor] = [BigInt(reply.token), BigInt(reply.floor)];
    const state = { isEnding: false, isUnsure: false, ending: null };
    const lock = { ...request, ...more, ...state, session, token, floor };
    this.#locks.add(lock);
    return { kind: "granted", grants: [grantOf(lock)] };
  }

  /** Renews a lock. Its grant counts if the session proves to be alive. */
  #renewed(lock: OwnLock, seq: number, ttlMs: number): Grant {
    this.#locks.renew(lock, seq, Math.min(ttlMs, LONGEST_TTL_MS));
    return grantOf(lock);
  }

  /** False: the lock is gone already. Rejects if that is not known: the lock stays in the table, to be released again. */
  #end(lock: OwnLock): Promise<boolean> {
    lock.isEnding = true;
    lock.ending ??= this.#turns
      .take(lock.key, () => this.#release(lock))
      .finally(() => {
        lock.ending = null;
      });
    return lock.ending;
  }

  async #release(lock: OwnLock): Promise<boolean> {
    if (!this.#locks.isThere(lock)) return false;
    const isLocked = this.#locks.withKey(lock.key).length > 1;
    await lock.session.release({ ...lock, isLocked }).catch((error: unknown) => {
      lock.isUnsure = true;
      throw this.#toStoreError(error);
    });
    this.#locks.delete(lock);
    return true;
  }

  /** Resolves when the sessions of these locks have proved, after this call, that they are alive. */
  async #prove(locks: readonly OwnLock[]): Promise<void> {
    const longestMs = Math.max(...locks.map(({ ttlMs }) => ttlMs));
    const sessions = new Set(locks.map(({ session }) => session));
    await Promise.all([...sessions].map((session) => session.prove(longestMs)));
  }

  /** A session that is alive, as far as we know. */
  async #useSession(): Promise<SessionConnection> {
    this.#session ??= this.#beginSession();
    const begun = this.#session;
    const session = await begun.catch(() => null);
    if (session !== null && !session.isOver) return session;
    if (this.#session === begun) this.#session = null;
    // This rejects if the session could not begin; otherwise the session has ended since.
    await begun;
    return this.#useSession();
  }

  async #beginSession(): Promise<SessionConnection> {
    await this.#database.setUp();
    return SessionConnection.open({
      client: this.#client,
      schema: this.#database.schema,
      where: this.#database.where,
      ended: (session) => this.#sessionEnded(session),
      hasLocks: () => this.#locks.size > 0,
    });
  }

  /** The server has freed the locks, or will. Each lease is renewed at once, so that it learns of it early. */
  #sessionEnded(session: SessionConnection): void {
    for (const { push } of this.#locks.deleteOf(session)) push({ kind: "lost" });
  }

  #whyLost(name: string): LostAnswer {
    const isHeld = this.#locks.withKey(this.#keyOf(name)).length > 0;
    return isHeld ? { kind: "lost", reason: "superseded" } : LOST;
  }

  async #describe(first: string, beyond: string | null, many: number): Promise<NameInfo[]> {
    const values = [first, beyond, many];
    const all = await this.#database.callForJson<DescribedName>("describe_session_locks", values);
    return all.flatMap((one) => readNameInfo(one, one.name) ?? []);
  }

  #toStoreError(error: unknown): unknown {
    return toStoreError(error, this.#database.where);
  }
}

/**
 * Makes a store on locks of one session of a PostgreSQL server. The session is a connection of its own, beside those
 * of your pool; the server frees the locks when the connection ends. Throws `InvalidArgumentError` if the pool or an
 * option can't be used; behind a pooler, claims are refused with `UnsupportedError`.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { postgresSessionStore } from "holdfast/stores/postgres";
 * import { Pool } from "pg";
 *
 * const pool = new Pool({ connectionString: "postgres://127.0.0.1/app" });
 * const locks = createLocks(postgresSessionStore(pool), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * await pool.end();
 * ```
 */
export function postgresSessionStore(
  client: PostgresClient,
  options: PostgresSessionStoreOptions = {},
): PostgresSessionStore {
  return new PostgresSessionStore(client, options);
}

/** With 64 bits, the chance that two of a million names collide is one in 37 million. */
const hashOf = (schema: string, name: string): bigint =>
  createHash("sha256").update(`holdfast lock\0${schema}\0${name}`).digest().readBigInt64BE();

const grantOf = ({ token, floor, ttlMs, seq }: OwnLock): Grant => {
  return { token, floor, ttlMs, seq, handedOver: false };
};

const toBusy = (name: string, holder: string | null): ClaimAnswer => {
  return { kind: "busy", name, position: { ahead: 0, freeInMs: 0, holder } };
};

function refuseCollision(name: string, other = name): void {
  if (other === name) return;
  throw new UnsupportedError(
    `${JSON.stringify(name)} has the same 64-bit key as ${JSON.stringify(other)}, which is held: ` +
      "use another name, or another schema for one of the two",
  );
}
