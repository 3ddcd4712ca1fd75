import { reasonOf, safeCause } from "../core/cause.js";
import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../core/errors.js";
import { show } from "../core/validate.js";
import {
  addressOfClient,
  isPool,
  type PostgresClient,
  transactionStatus,
} from "../stores/postgres/client.js";
import { isClientClosed, toStoreError } from "../stores/postgres/errors.js";

/**
 * A transaction of yours: the client of `pg` on which it was begun, or an object by which your query
 * builder runs a statement in it.
 */
export interface PostgresTx {
  /** Runs one statement with parameters `$1`, `$2`, … in the transaction. */
  query(text: string, values?: readonly unknown[]): Promise<{ rows: readonly unknown[] }>;
}

/** Throws InvalidArgumentError for a pool, which runs each statement in a transaction of its own. */
export function checkTx(tx: unknown): asserts tx is PostgresTx {
  const isTx = typeof (tx as PostgresTx | null)?.query === "function";
  if (isTx && !isPool(tx)) return;
  throw new InvalidArgumentError(
    `the tx is ${isTx ? "a pool" : show(tx)}; pass the client on which the transaction was begun`,
  );
}

/** Runs a statement. Throws InvalidArgumentError for an object of another form, as that of TypeORM or pg-promise. */
export async function rowsBy(
  tx: PostgresTx,
  text: string,
  values?: readonly unknown[],
): Promise<readonly unknown[]> {
  const reply: unknown = await tx.query(text, values);
  const rows = (reply as { rows?: unknown } | null | undefined)?.rows;
  if (Array.isArray(rows)) return rows;
  throw new InvalidArgumentError(
    `query of the tx has resolved to ${show(reply)}; it must resolve to an object with rows, as in docs/fences.md: { query: async (text, values) => ({ rows: await … }) }`,
  );
}

/** After a statement that locks: without a transaction, its lock has ended with it. */
export function checkInTransaction(tx: PostgresTx): void {
  if (transactionStatus(tx) !== "I") return;
  throw new InvalidArgumentError(
    "no transaction is open on the tx, so its locks end with each statement: run BEGIN first",
  );
}

export const addressOfTx = (tx: PostgresTx): string =>
  "host" in tx ? addressOfClient(tx as unknown as PostgresClient) : "PostgreSQL";

/** Codes of Prisma, from P1000 on, have five characters too. PostgreSQL has P0000 to P0004. */
const SQLSTATE = /^(?!P[1-9]\d{3}$)[0-9A-Z]{5}$/;
/** Prisma's code for a conflict with another transaction, which comes without an SQLSTATE. */
const PRISMA_CONFLICT = "P2034";
/** Prisma's code for a transaction that it has ended, as after its time limit. */
const PRISMA_ENDED = "P2028";
/** Prisma's code for a connection that was closed. */
const PRISMA_CLOSED = "P1017";
/** How many causes within causes are followed. */
const DEPTH = 5;

/**
 * The error of the server or the connection, and its SQLSTATE, which is empty if it has none. It may be the cause
 * of an error of ours or of Drizzle, or described by one of Prisma.
 */
export function serverErrorOf(error: unknown): { readonly state: string; readonly error: unknown } {
  let own = error;
  for (let one = error, depth = 0; depth <= DEPTH; depth++) {
    const { code, meta, cause, query } = (one ?? {}) as Record<string, unknown>;
    const described = describedByPrisma(meta);
    if (described !== null) return { state: described.code, error: described };
    if (isSqlState(code)) return { state: code, error: one };
    if (code === PRISMA_CONFLICT) return { state: "40001", error: one };
    // Drizzle's message is the whole statement with its values.
    if (one === own && typeof query === "string" && cause !== undefined) own = cause;
    one = cause;
  }
  return { state: "", error: own };
}

const isSqlState = (code: unknown): code is string =>
  typeof code === "string" && SQLSTATE.test(code);

/**
 * Prisma gives SQLSTATE and message as `meta`; since version 7, the error of its driver adapter does. Null if `meta`
 * has none, as that of an error of Prisma itself.
 */
function describedByPrisma(meta: unknown): (Error & { code: string }) | null {
  if (typeof meta !== "object" || meta === null) return null;
  const { code, message, driverAdapterError } = meta as Record<string, unknown>;
  const { cause } = (driverAdapterError ?? {}) as { cause?: unknown };
  const { originalCode = code, originalMessage = message } = (cause ?? {}) as Record<
    string,
    unknown
  >;
  if (!isSqlState(originalCode) || typeof originalMessage !== "string") return null;
  return Object.assign(new Error(originalMessage), { code: originalCode });
}

/** The SQLSTATE of an error, also of one within an error of a query builder or of ours. Empty: it has none. */
export const sqlStateOf = (error: unknown): string => serverErrorOf(error).state;

/**
 * An error of ours, except for what is wrong with the statement or its values: that is about the
 * caller's own tables, and stays the error of `pg` or of the query builder.
 */
export function toLockError(error: unknown, where: string): unknown {
  if (HoldfastError.is(error)) return error;
  const { state, error: own } = serverErrorOf(error);
  if (/^(22|23|42)/.test(state)) return error;
  const cause = safeCause(own);
  const why = reasonOf(own);
  if (/^40/.test(state)) {
    const message = `${where} has ended the transaction because of another one (${why}): run it again`;
    return new StoreUnavailableError(message, { cause });
  }
  const { code } = (own ?? {}) as { code?: unknown };
  if (code === PRISMA_ENDED) {
    return new StoreUnavailableError(`Prisma has ended the transaction (${why}): run it again`, {
      cause,
    });
  }
  // A single connection does not come back, but the next transaction gets another one.
  if (code === PRISMA_CLOSED || isClientClosed(own)) {
    const message = `the connection of the transaction to ${where} is lost (${why}): begin it again`;
    return new StoreUnavailableError(message, { cause });
  }
  const known = toStoreError(own, where);
  if (HoldfastError.is(known)) return known;
  return new StoreUnavailableError(`${where} has refused the statement (${why})`, {
    cause,
    retryable: /^53/.test(state),
  });
}

/** Makes the transaction fail, so that a caller that ignores our error can't commit it. */
export async function makeFail(tx: PostgresTx): Promise<void> {
  const text =
    "DO $$ BEGIN RAISE EXCEPTION 'Holdfast: the fence has refused a stale holder'; END $$";
  await tx.query(text).catch(() => {});
}
