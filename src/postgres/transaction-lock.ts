import { createHash } from "node:crypto";
import { onAbort } from "../core/abort.js";
import { LONGEST_TIMER_MS } from "../core/clock.js";
import {
  AcquireTimeoutError,
  InvalidArgumentError,
  StoreUnavailableError,
} from "../core/errors.js";
import type { Mode } from "../core/options.js";
import {
  checkName,
  checkOneOf,
  checkOptions,
  checkSignal,
  type Duration,
  orElse,
  show,
} from "../core/validate.js";
import { optionsAndFn } from "../core/work.js";
import { isPool, takeFrom } from "../stores/postgres/client.js";
import { within } from "../stores/shared/timeout.js";
import { type Backend, cancelWait } from "./cancel.js";
import { OpenTransaction, type TransactionClient } from "./open-transaction.js";
import { toLockError } from "./tx.js";
import { checkWait, withWaitLimit } from "./wait-limit.js";

/** The part of `pg`'s Pool that `withTransactionLock` uses. */
export interface TransactionPool<Client extends TransactionClient = TransactionClient> {
  /** Calls back with a client of the pool, for this caller alone until it is released. */
  connect(lent: (error: Error | undefined, client: Client | undefined) => void): unknown;
  /** Only a pool has them: a client can be connected, too. */
  readonly options: object;
}

/** Options of `withTransactionLock`. */
export interface TransactionLockOptions {
  /** How long to wait while the name is locked. Default 10 s; 0 tries once; `Infinity`. */
  wait?: Duration;
  /** Ends the wait: the call rejects with the signal's reason. It does not interrupt the function. */
  signal?: AbortSignal;
  /** Shared locks of a name do not exclude each other. Default "exclusive". */
  mode?: Mode;
}

interface Request {
  readonly name: string;
  readonly waitMs: number;
  readonly signal: AbortSignal | undefined;
  /** The arguments and the ending of the functions of PostgreSQL. */
  readonly key: string;
  readonly suffix: "" | "_shared";
}

/** A caller waits at least this long for a client of the pool, and for a reply, beyond its wait for the lock. */
const REPLY_MS = 10_000;

// With a stricter isolation level, the transaction would not see what the holder before it has written:
// its snapshot is taken before the lock. On a standby, READ WRITE fails: its locks are not the primary's.
const BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/**
 * Runs `fn` in a transaction that holds a lock on the name (`pg_advisory_xact_lock`). The lock begins
 * and ends with the transaction: commits when `fn` returns, rolls back when it throws. No fence is
 * needed for what `fn` writes with its `tx`. The lock excludes nobody outside of this database.
 *
 * Rejects with `AcquireTimeoutError` if the name stays locked for the whole `wait`; with the signal's
 * reason; with the error of `fn`; with `StoreUnavailableError` if the connection is lost: nothing was
 * committed, unless the message says that this is not known and `retryable` is false; with
 * `UnsupportedError` if PostgreSQL could not commit, because `fn` has ignored a failed statement or has
 * ended the transaction itself.
 *
 * @param pool A pool of `pg`; a pooler in transaction mode between it and the server does no harm.
 * @param name What is locked: 1 to 255 bytes of UTF-8 without control characters.
 * @param fn Called with the client of the transaction, in READ COMMITTED.
 *
 * @example
 * ```ts
 * import { Pool } from "pg";
 * import { withTransactionLock } from "holdfast/postgres";
 *
 * const pool = new Pool();
 * await withTransactionLock(pool, "order:1", { wait: "5s" }, async (tx) => {
 *   const { rows } = await tx.query("SELECT state FROM orders WHERE id = 1");
 *   if (rows[0].state === "open") await tx.query("UPDATE orders SET state = 'paid' WHERE id = 1");
 * });
 * ```
 */
export function withTransactionLock<T, Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  name: string,
  options: TransactionLockOptions | undefined,
  fn: (tx: Client) => T | Promise<T>,
): Promise<T>;
export function withTransactionLock<T, Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  name: string,
  fn: (tx: Client) => T | Promise<T>,
): Promise<T>;
export async function withTransactionLock<T, Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  name: string,
  optionsOrFn: TransactionLockOptions | undefined | ((tx: Client) => T | Promise<T>),
  maybeFn?: (tx: Client) => T | Promise<T>,
): Promise<T> {
  const [options, fn] = optionsAndFn(optionsOrFn, maybeFn, "withTransactionLock");
  const request = checkRequest(name, options);
  if (!isPool(pool as unknown)) {
    throw new InvalidArgumentError(`the pool is ${show(pool)}; pass a Pool of the package pg`);
  }
  const transaction = await begin(pool, request);
  let value: T;
  try {
    value = await fn(transaction.client);
  } catch (error) {
    throw await transaction.rollback(error);
  }
  await transaction.commit();
  return value;
}

function checkRequest(name: string, options: TransactionLockOptions): Request {
  checkOptions(options, "the options of withTransactionLock", ["wait", "signal", "mode"]);
  const mode = checkOneOf(orElse(options.mode, "exclusive"), "mode", ["exclusive", "shared"]);
  return {
    name: checkName(name),
    waitMs: checkWait(options.wait),
    signal: options.signal === undefined ? undefined : checkSignal(options.signal),
    key: `'${keyOf(name)}'::bigint`,
    suffix: mode === "shared" ? "_shared" : "",
  };
}

/** 64 bits of a wide hash: that two of a million names share a key has a chance of 1 in 37 million. */
const keyOf = (name: string): bigint =>
  createHash("sha256").update(`holdfast/transaction-lock:${name}`).digest().readBigInt64BE();

/** A transaction that holds the lock. */
async function begin<Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  request: Request,
): Promise<OpenTransaction<Client>> {
  const startedMs = performance.now();
  const transaction = new OpenTransaction(await connect(pool, request));
  try {
    if (!(await tryOnce(transaction, request))) {
      const leftMs = request.waitMs - (performance.now() - startedMs);
      if (leftMs <= 0) throw new AcquireTimeoutError(request.name, request.waitMs, null);
      await waitForLock(pool, transaction, { ...request, waitMs: leftMs });
    }
    request.signal?.throwIfAborted();
    return transaction;
  } catch (error) {
    throw await transaction.rollback(error);
  }
}

async function connect<Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  { waitMs, signal }: Request,
): Promise<Client> {
  signal?.throwIfAborted();
  const limitMs = Math.max(waitMs, REPLY_MS);
  const connecting = takeFrom(pool);
  try {
    return await settledOrGivenUp(connecting, limitMs, signal, () => {
      return new StoreUnavailableError(
        `the pool had no connection to PostgreSQL within ${Math.round(limitMs)} ms: is it exhausted?`,
      );
    });
  } catch (error) {
    connecting.then((late) => late.release()).catch(() => {});
    throw signal?.aborted ? signal.reason : toLockError(error, "PostgreSQL");
  }
}

/** Begins the transaction in the same round trip. Resolves to whether it has the lock. */
async function tryOnce<Client extends TransactionClient>(
  transaction: OpenTransaction<Client>,
  { waitMs, signal, suffix, key }: Request,
): Promise<boolean> {
  const { client, where } = transaction;
  // As text: a program's own parser of booleans may return "f", which would count as true.
  const text = `SELECT pg_catalog.pg_try_advisory_xact_lock${suffix}(${key})::pg_catalog.text AS locked`;
  const replied = client.query(`${BEGIN}; ${text}`).catch((error) => {
    throw toLockError(error, where);
  });
  const replies: unknown = await replyOf(transaction, replied, Math.max(waitMs, REPLY_MS), signal);
  const [, { rows }] = replies as [unknown, { rows: [{ locked: string }] }];
  return rows[0].locked === "true";
}

async function waitForLock<Client extends TransactionClient>(
  pool: TransactionPool<Client>,
  transaction: OpenTransaction<Client>,
  { name, waitMs, signal, suffix, key }: Request,
): Promise<void> {
  const { client } = transaction;
  let backend: Backend | null = null;
  const text = `SELECT pg_catalog.pg_advisory_xact_lock${suffix}(${key})`;
  const locked = withWaitLimit(client, name, waitMs, (own) => {
    backend = own;
    return client.query(text);
  });
  try {
    await replyOf(transaction, locked, waitMs + REPLY_MS, signal);
  } catch (error) {
    // Once our connection is closed, nobody else's statement can be the one that is cancelled.
    if (transaction.isOver && backend !== null) cancel(pool, backend).catch(() => {});
    throw error;
  }
}

/** The reply to a statement; closes the connection if the statement is still running when the wait ends. */
async function replyOf<T, Client extends TransactionClient>(
  transaction: OpenTransaction<Client>,
  reply: Promise<T>,
  limitMs: number,
  signal: AbortSignal | undefined,
): Promise<T> {
  let isRunning = true;
  const settled = (): void => {
    isRunning = false;
  };
  reply.then(settled, settled);
  try {
    return await settledOrGivenUp(reply, limitMs, signal, () => {
      return new StoreUnavailableError(
        `${transaction.where} gave no reply within ${Math.round(limitMs)} ms`,
      );
    });
  } catch (error) {
    if (isRunning) transaction.end("close");
    throw error;
  }
}

async function cancel(pool: TransactionPool, backend: Backend): Promise<void> {
  const client = await takeFrom(pool);
  try {
    await cancelWait(client, backend);
  } finally {
    client.release();
  }
}

/** The promise's value, unless the time is over or the signal aborts before it settles. */
function settledOrGivenUp<T>(
  promise: Promise<T>,
  limitMs: number,
  signal: AbortSignal | undefined,
  timeoutError: () => Error,
): Promise<T> {
  const limited = limitMs > LONGEST_TIMER_MS ? promise : within(limitMs, promise, timeoutError);
  if (signal === undefined) return limited;
  return new Promise((resolve, reject) => {
    const undo = onAbort(signal, () => reject(signal.reason));
    limited.then(resolve, reject).finally(undo);
  });
}
