import { randomBytes } from "node:crypto";
import { StoreUnavailableError, UnsupportedError } from "../../../core/errors.js";
import { RENEWALS_PER_TTL } from "../../../core/store.js";
import { slices } from "../../shared/slices.js";
import { settlesWithin } from "../../shared/timeout.js";
import { type Batched, settleBatch, TurnBatcher } from "../../shared/turn-batcher.js";
import {
  BACKEND,
  cutOff,
  isDirect,
  type NewConnection,
  newConnection,
  type PostgresClient,
  unref,
} from "../client.js";
import { toStoreError } from "../errors.js";
import { callSql } from "../schema.js";

const LOCKS_PER_STATEMENT = 500;
const OPEN_MS = 10_000;
/** A statement without a reply ends the session after this time, or later while a lease may still count on it. */
const REPLY_MS = 5_000;
/** The server ends a session that is silent for this long, or for the longest ttl if that is more. */
const SHORTEST_SILENCE_MS = 5_000;
/** The server stores its timeouts as 32-bit numbers. */
export const LONGEST_TTL_MS = 2 ** 31 - 1;
/** Linux refuses more. A longer ttl is safe: tcp_user_timeout decides when the connection is given up. */
const LONGEST_KEEPALIVE_S = 32_767;
/** A session without locks is kept for this long, so that the next acquire takes one round trip. */
const IDLE_MS = 60_000;

/**
 * - Locks end with a crash of the server, so nothing about them needs to be on disk.
 * - Under a stricter isolation level a claim would not see the readers before it.
 */
const SETTINGS =
  "SELECT pg_catalog.set_config('synchronous_commit', 'off', false)," +
  " pg_catalog.set_config('lock_timeout', '2s', false)," +
  " pg_catalog.set_config('default_transaction_isolation', 'read committed', false)";

/**
 * The server ends a session that is silent for the longest ttl, and not earlier: neither of itself nor because TCP
 * gets no acknowledgement. So the lock of a holder that is cut off or paused is free soon after its lease has ended,
 * and never before.
 */
const SILENCE =
  "SELECT pg_catalog.set_config('idle_session_timeout', $1, false)," +
  " pg_catalog.set_config('tcp_user_timeout', $1, false), pg_catalog.set_config('tcp_keepalives_idle', $2, false)," +
  " pg_catalog.set_config('tcp_keepalives_interval', '5', false)," +
  " pg_catalog.set_config('tcp_keepalives_count', '3', false)," +
  " pg_catalog.pg_backend_pid()::pg_catalog.text AS pid";

/** The server itself adds pg_catalog to an unnest() of several arrays. */
const UNLOCK = `SELECT CASE WHEN is_shared THEN pg_catalog.pg_advisory_unlock_shared(key)
  ELSE pg_catalog.pg_advisory_unlock(key) END FROM unnest($1::bigint[], $2::boolean[]) AS claim(key, is_shared)`;

/** A lock that is claimed or released. */
export interface LockRequest {
  readonly key: bigint;
  readonly grantId: string;
  readonly name: string;
  readonly holder: string;
  readonly ttlMs: number;
  readonly isShared: boolean;
  /** Whether another claim of this session has the shared lock, and still needs it. */
  readonly isLocked: boolean;
}

/** Not granted: the name and the label of one holder, where they are known. */
export type LockReply =
  | { readonly token: string; readonly floor: string }
  | { readonly token?: never; readonly name: string | null; readonly holder: string | null };

interface Options {
  readonly client: PostgresClient;
  readonly schema: string;
  /** The server, for messages. */
  readonly where: string;
  /** Called when the locks of the session are gone. */
  readonly ended: (session: SessionConnection) => void;
  readonly hasLocks: () => boolean;
}

/** The connection whose session has the locks of this process. When it ends, the server releases all of them. */
export class SessionConnection {
  readonly #options: Options;
  readonly #connection: NewConnection;
  readonly #id = randomBytes(8).readBigInt64BE();
  readonly #claims = new TurnBatcher<LockRequest, LockReply>((all) => {
    for (const batch of slices(all, LOCKS_PER_STATEMENT)) {
      settleBatch(batch, this.#claim(requestsOf(batch)), {
        replyTo: (replies, at) => replies[at]!,
      });
    }
  });
  readonly #releases = new TurnBatcher<LockRequest, void>((all) => {
    for (const batch of slices(all, LOCKS_PER_STATEMENT)) {
      settleBatch(batch, this.#release(requestsOf(batch)), { replyTo: () => {} });
    }
  });
  readonly #proofs = new TurnBatcher<number, void>((batch) =>
    settleBatch(batch, this.#prove(Math.max(...requestsOf(batch))), { replyTo: () => {} }),
  );
  /** The longest ttl that was requested, and the longest that the server is known to allow. */
  #wantedMs = SHORTEST_SILENCE_MS;
  #allowedMs = 0;
  #usedAtMs = performance.now();
  #last: Promise<unknown> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;
  #isOver = false;

  private constructor(options: Options) {
    this.#options = options;
    this.#connection = newConnection(options.client);
    this.#connection.on("error", () => this.#end());
    this.#connection.on("end", () => this.#end());
  }

  /** Rejects with UnsupportedError behind a pooler. */
  static async open(options: Options): Promise<SessionConnection> {
    const session = new SessionConnection(options);
    try {
      await session.#open();
      return session;
    } catch (error) {
      session.#cutOff();
      throw toStoreError(error, options.where);
    }
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  claim(request: LockRequest): Promise<LockReply> {
    this.#usedAtMs = performance.now();
    return this.#claims.send(request);
  }

  release(request: LockRequest): Promise<void> {
    return this.#releases.send(request);
  }

  /** Resolves when the server has proved, after this call, that the session is alive and will be for this ttl. */
  prove(ttlMs: number): Promise<void> {
    return this.#proofs.send(ttlMs);
  }

  /** Makes the server keep a silent session for this ttl. */
  async allowTtl(ttlMs: number): Promise<void> {
    if (ttlMs > this.#allowedMs) await this.prove(ttlMs);
  }

  /** Ends the session, and with it all its locks. */
  async close(): Promise<void> {
    if (this.#isOver) return;
    this.#end();
    const ended = this.#connection.end().catch(() => {});
    if (!(await settlesWithin(REPLY_MS, ended))) cutOff(this.#connection);
  }

  async #open(): Promise<void> {
    const { schema, where } = this.#options;
    const connecting = this.#connection.connect();
    connecting.catch(() => {});
    if (!(await settlesWithin(OPEN_MS, connecting))) {
      throw new StoreUnavailableError(`${where}: no connection within ${OPEN_MS} ms`);
    }
    unref(this.#connection);
    this.#checkBackend(await this.#query(BACKEND));
    await this.#query(SETTINGS);
    await this.#query(`SELECT ${callSql(schema, "begin_session", 1)}`, [this.#id]);
  }

  /** A pooler hands a session of the server to others between two statements, with the locks that it has. */
  #checkBackend(rows: readonly unknown[]): void {
    if (isDirect(this.#connection, rows)) return;
    this.#cutOff();
    throw new UnsupportedError(
      `a pooler stands before ${this.#options.where}, and would let others use the session that has the locks, so that ` +
        "names are granted twice: connect to the server itself, or use the lease table (the URL without mode=session, or postgresStore()), which works through poolers",
    );
  }

  async #claim(requests: readonly LockRequest[]): Promise<readonly LockReply[]> {
    // As text: programs may have replaced the parser that pg has for JSON.
    const call = `SELECT ${callSql(this.#options.schema, "claim_session_locks", 8)}::pg_catalog.text AS reply`;
    const values = [
      this.#id,
      requests.map(({ key }) => key),
      requests.map(({ grantId }) => grantId),
      requests.map(({ name }) => name),
      requests.map(({ holder }) => holder),
      requests.map(({ ttlMs }) => Math.ceil(ttlMs)),
      requests.map(({ isShared }) => isShared),
      requests.map(({ isLocked }) => isLocked),
    ];
    try {
      const rows = await this.#query<{ reply: string }>(call, values);
      return rows.map(({ reply }) => JSON.parse(reply));
    } catch (error) {
      // The statement may have taken locks before it failed, and those stay: nobody else would release them.
      await this.#unlock(requests).catch(() => this.#cutOff());
      throw error;
    }
  }

  async #release(requests: readonly LockRequest[]): Promise<void> {
    await this.#query(`SELECT ${callSql(this.#options.schema, "release_session_locks", 4)}`, [
      requests.map(({ key }) => key),
      requests.map(({ grantId }) => grantId),
      requests.map(({ isShared }) => isShared),
      requests.map(({ isLocked }) => !isLocked),
    ]);
  }

  /**
   * This statement does not touch the table, which somebody else may have locked: a wait for it would end the
   * session, and with it all its locks.
   */
  async #unlock(requests: readonly LockRequest[]): Promise<void> {
    const taken = requests.filter(({ isLocked }) => !isLocked);
    await this.#query(UNLOCK, [taken.map(({ key }) => key), taken.map(({ isShared }) => isShared)]);
  }

  async #prove(ttlMs: number): Promise<void> {
    if (ttlMs <= this.#allowedMs) {
      this.#checkBackend(await this.#query(BACKEND));
      return;
    }
    this.#wantedMs = Math.max(this.#wantedMs, Math.ceil(ttlMs));
    const wantedMs = this.#wantedMs;
    const keepaliveS = Math.min(Math.ceil(wantedMs / 1_000), LONGEST_KEEPALIVE_S);
    this.#checkBackend(await this.#query(SILENCE, [String(wantedMs), String(keepaliveS)]));
    this.#allowedMs = Math.max(this.#allowedMs, wantedMs);
    this.#keepAlive();
  }

  /** Keeps the session from falling silent when no lease is renewed. */
  #keepAlive(): void {
    clearInterval(this.#timer);
    const everyMs = Math.min(this.#allowedMs / RENEWALS_PER_TTL, IDLE_MS);
    this.#timer = setInterval(() => {
      const nowMs = performance.now();
      if (this.#options.hasLocks()) this.#usedAtMs = nowMs;
      if (nowMs - this.#usedAtMs > IDLE_MS) void this.close();
      else this.prove(0).catch(() => {});
    }, everyMs).unref();
  }

  async #query<Row>(text: string, values: readonly unknown[] = []): Promise<readonly Row[]> {
    const { where, hasLocks } = this.#options;
    // The client takes one statement at a time.
    const replied = this.#last.then(() => {
      if (!this.#isOver) return this.#connection.query(text, values);
      throw new StoreUnavailableError(`the connection to ${where} has been lost`);
    });
    this.#last = replied.catch(() => {});
    // While leases count on the session, the reply may still come in time for them.
    const timeoutMs = hasLocks() ? Math.max(this.#allowedMs, REPLY_MS) : REPLY_MS;
    if (!(await settlesWithin(timeoutMs, replied))) {
      this.#cutOff();
      throw new StoreUnavailableError(`${where}: no reply within ${Math.round(timeoutMs)} ms`);
    }
    return (await replied).rows as readonly Row[];
  }

  #cutOff(): void {
    cutOff(this.#connection);
    this.#end();
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#timer);
    this.#options.ended(this);
  }
}

const requestsOf = <Request>(batch: readonly Batched<Request, never>[]): Request[] =>
  batch.map(({ request }) => request);
