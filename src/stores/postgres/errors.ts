import { reasonOf, safeCause } from "../../core/cause.js";
import { HoldfastError, StoreUnavailableError, UnsupportedError } from "../../core/errors.js";

/** The server has refused a statement because the user lacks a right. */
export class MissingRightError extends StoreUnavailableError {
  /** The name that users see. */
  override name = StoreUnavailableError.name;
}

type Meaning = readonly [pattern: RegExp, describe: (where: string, text: string) => string];

const CLIENT_CLOSED = /not queryable|Client was closed/;

/** Errors that stay the same however often a request is repeated, by SQLSTATE and message. */
const REFUSALS: readonly Meaning[] = [
  [/^28/, (where) => `${where} refuses the user name or the password: check both`],
  [/^3D000/, (where) => `${where} has no such database: check the name in the URL`],
  [
    new RegExp(`${CLIENT_CLOSED.source}|Cannot use a pool after`),
    (where) =>
      `the client of ${where} is closed, or has lost its connection and does not connect again: pass postgresStore() a Pool`,
  ],
  [
    /^25006/,
    (where) => `${where} is a standby, or read-only: it grants no locks; name the primary`,
  ],
];

/** Errors that may go away: a retry helps. */
const TROUBLES: readonly Meaning[] = [
  [
    /^55P03/,
    (where) =>
      `somebody else's transaction at ${where} keeps the row of the name locked: see pg_stat_activity`,
  ],
  [
    /^40001/,
    (where) =>
      `${where} has given up the statement because another transaction has changed the same rows: set default_transaction_isolation to "read committed"`,
  ],
  [
    /^40P01/,
    (where) =>
      `${where} has ended the statement in a deadlock: a transaction of yours that locks rows of these tables must not wait for a lock`,
  ],
  [
    /^57014/,
    (where) =>
      `${where} has cancelled the statement: raise statement_timeout of the user of the locks (ALTER ROLE … SET statement_timeout), unless somebody called pg_cancel_backend()`,
  ],
  [
    /^53200/,
    (where) =>
      `${where} has no room for more locks, which hinders all its users: hold fewer, or raise max_locks_per_transaction`,
  ],
  [
    /^53300/,
    (where) =>
      `${where} has no connection left: use smaller pools or a pooler, or raise max_connections or the limit of the user (ALTER ROLE … CONNECTION LIMIT)`,
  ],
  [
    /^(42883|3F000)/,
    (where) =>
      `${where} lacks functions that were there when this process began: has somebody dropped them? "holdfast setup" makes them again`,
  ],
  [/^53100/, (where) => `the disk of ${where} is full: free some space, or enlarge it`],
  [/^(57P0|08)/, (where, text) => `${where} has closed the connection (${text.slice(6)})`],
];

const CONNECTION_LOST =
  /Connection terminated|Connection ended|timeout exceeded when trying to connect|\bE(CONN|PIPE|TIMEDOUT|HOST|NET|AI_AGAIN)\w*/;

/** Whether the connection that the error came by can't be used any more. */
export const isConnectionLost = (error: unknown): boolean =>
  /^(57P0|08)/.test(textOf(error)) || CONNECTION_LOST.test(textOf(error));

/** Whether the connection had ended before the statement: a pool opens another, and a single client does not. */
export const isClientClosed = (error: unknown): boolean => CLIENT_CLOSED.test(reasonOf(error));

/** Whether the server has given the statement up because of locks of others. */
export function isLockFailure(error: unknown): boolean {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: { code?: unknown } };
  return [code, cause?.code].some((one) => one === "55P03" || one === "40P01");
}

/** The error of a request whose row was found locked without waiting for it. */
export const lockedError = (where: string): unknown =>
  toStoreError(Object.assign(new Error("the row is locked"), { code: "55P03" }), where);

/** SQLSTATE and message. */
const textOf = (error: unknown): string =>
  `${(error as { code?: unknown } | null)?.code ?? ""} ${reasonOf(error)}`;

/** A client's error as an error of Holdfast; one that is not known stays as it is. */
export function toStoreError(error: unknown, where: string): unknown {
  if (HoldfastError.is(error)) return error;
  const message = reasonOf(error);
  const isolation = /HOLDFAST ISOLATION (.+)/.exec(message)?.[1];
  if (isolation !== undefined) {
    return new UnsupportedError(
      `the connections to ${where} have default_transaction_isolation = ${isolation}, and locks need "read committed": ` +
        "set it for their user (ALTER ROLE … SET default_transaction_isolation = 'read committed')",
    );
  }
  if (message.includes("HOLDFAST LAST TOKEN")) {
    return new UnsupportedError(
      `the next token would be beyond 2^53, because the clock of ${where} is wrong: correct it`,
    );
  }
  if (message.includes("HOLDFAST HIDDEN ROW")) {
    return new UnsupportedError(
      `the user at ${where} can't see rows of our tables that are there: disable row-level security and triggers on them`,
    );
  }
  const text = textOf(error);
  if (text.startsWith("42501")) {
    return new MissingRightError(
      `the user at ${where} lacks a right that Holdfast needs (${text.slice(6)}): let the owner of the database run ` +
        '"holdfast setup --store URL --grant USER", or the SQL that "holdfast setup --print" prints',
      { cause: safeCause(error), retryable: false },
    );
  }
  const find = (meanings: readonly Meaning[]): Meaning[1] | undefined =>
    meanings.find(([pattern]) => pattern.test(text))?.[1];
  const refusal = find(REFUSALS);
  const describe = refusal ?? find(TROUBLES);
  if (describe !== undefined) {
    return new StoreUnavailableError(describe(where, text), {
      cause: safeCause(error),
      retryable: refusal === undefined,
    });
  }
  if (!CONNECTION_LOST.test(text)) return error;
  return new StoreUnavailableError(`the connection to ${where} has been lost (${message})`, {
    cause: safeCause(error),
  });
}
