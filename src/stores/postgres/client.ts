import { InvalidArgumentError } from "../../core/errors.js";
import { show } from "../../core/validate.js";
import { addressOf } from "../url.js";

/** The default port of a server. */
export const PORT = 5432;

/** A pool of `pg`, or a client of it that is connected. */
export type PostgresClient = PostgresPool | PostgresConnection;

/** The part of `pg`'s Pool that the store uses. */
export interface PostgresPool extends SourceOf<PooledConnection> {
  end(): Promise<void>;
  on(event: "error", listener: (error: Error) => void): unknown;
  off(event: "error", listener: (error: Error) => void): unknown;
  readonly options: object;
}

/** A pool that lends its connections, by a callback as `pg` does. */
export interface SourceOf<Connection> {
  connect(lent: (error: Error | undefined, connection: Connection | undefined) => void): unknown;
}

/** The part of `pg`'s Client that the store uses. */
export interface PostgresConnection {
  query(text: string, values?: readonly unknown[]): Promise<{ rows: readonly unknown[] }>;
  end(): Promise<void>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  off(event: string, listener: () => void): unknown;
}

interface PooledConnection extends PostgresConnection {
  release(destroy?: boolean): void;
}

/** Further members of `pg`'s objects, which not every version has. */
interface Internals {
  readonly Client?: unknown;
  readonly options?: object;
  readonly connectionParameters?: object;
  readonly password?: unknown;
  readonly ssl?: unknown;
  readonly connectionString?: string;
  readonly host?: string;
  readonly port?: number;
  readonly processID?: number | null;
  getTransactionStatus?(): string | null;
  readonly connection?: {
    readonly stream?: { destroy(): void; unref?(): void };
    on?(event: "readyForQuery", listener: (message?: { status?: string }) => void): unknown;
  };
}

/** A connection that is not open yet. */
export type NewConnection = PostgresConnection & { connect(): Promise<unknown> };

type ClientClass = new (options: object) => NewConnection;

export type Notification = { readonly channel: string; readonly payload?: string };

export const isPool = (client: unknown): client is PostgresPool => {
  const { connect, options } = (client ?? {}) as Partial<PostgresPool>;
  return typeof connect === "function" && options !== undefined;
};

export function checkClient(
  client: unknown,
  taker = "postgresStore",
): asserts client is PostgresClient {
  const { connect, query, end } = (client ?? {}) as Record<string, unknown>;
  if ([connect, query, end].every((method) => typeof method === "function")) return;
  throw new InvalidArgumentError(
    `${taker}() takes a Pool or a connected Client of the package pg, not ${show(client)}`,
  );
}

/** The address, without user and password. */
export function addressOfClient(client: PostgresClient): string {
  const internals = client as Internals;
  const options: Internals = isPool(client) ? client.options : internals;
  const { connectionString = "" } = options;
  const url = URL.canParse(connectionString) ? new URL(connectionString) : null;
  const host = url?.hostname || options.host || "localhost";
  return `PostgreSQL at ${addressOf(host, Number(url?.port || options.port || PORT))}`;
}

/** A connection beside those of the caller's pool, by the same options. */
export function newConnection(client: PostgresClient): NewConnection {
  const internals = client as Internals;
  if (isPool(client)) return new (internals.Client as ClientClass)(client.options);
  const { connectionParameters, password, ssl } = internals;
  // `pg` leaves both out of the parameters, so that they are not printed.
  return new (client.constructor as ClientClass)({ ...connectionParameters, password, ssl });
}

/**
 * The statement that reads which process of the server runs it. As text, because programs may have replaced pg's
 * parsers for all other types.
 */
export const BACKEND = "SELECT pg_catalog.pg_backend_pid()::pg_catalog.text AS pid";

/** Whether the reply to BACKEND shows that no pooler stands in between: a pooler tells its clients another number. */
export const isDirect = (connection: PostgresConnection, rows: readonly unknown[]): boolean =>
  String((connection as Internals).processID) === (rows as [{ pid: string }])[0].pid;

/** Connections of pools whose "error" events we listen to. */
const listenedTo = new WeakSet<object>();

/**
 * Takes a connection out of the pool. An "error" event that nobody listens to ends the process, and a pool does
 * not listen to a connection that is in use. We listen before the callback returns: the server may have sent its
 * last message together with the one that opened the connection.
 */
export function takeFrom<Connection extends { on(event: "error", listener: () => void): unknown }>(
  pool: SourceOf<Connection>,
): Promise<Connection> {
  return new Promise((resolve, reject) => {
    pool.connect((error, connection) => {
      if (connection === undefined) {
        reject(error);
        return;
      }
      if (!listenedTo.has(connection)) connection.on("error", () => {});
      listenedTo.add(connection);
      resolve(connection);
    });
  });
}

/** The transaction status in the server's last message, by connection. */
const statuses = new WeakMap<object, string>();

/** Versions of `pg` before 8.21 have no `getTransactionStatus`: for them, the status is read from the server's messages. */
export function trackTransactions(connection: PostgresConnection): void {
  const internals = connection as Internals;
  if (internals.getTransactionStatus !== undefined || statuses.has(connection)) return;
  statuses.set(connection, "");
  internals.connection?.on?.("readyForQuery", (message) => {
    statuses.set(connection, message?.status ?? "");
  });
}

/**
 * The status in the last reply: "I" outside of a transaction, "T" in one, "E" in one that has failed; null if it is
 * not known.
 */
export const transactionStatus = (connection: object): string | null =>
  ((connection as Internals).getTransactionStatus?.() ?? statuses.get(connection)) || null;

/** Whether a transaction was open after the last reply. */
export const isInTransaction = (connection: PostgresConnection): boolean =>
  ["T", "E"].includes(transactionStatus(connection) ?? "");

/** Closes the socket without a goodbye message, which a server that hangs would not read. */
export const cutOff = (connection: PostgresConnection): void =>
  (connection as Internals).connection?.stream?.destroy();

/** The connection no longer keeps the process alive. */
export const unref = (connection: PostgresConnection): void =>
  (connection as Internals).connection?.stream?.unref?.();
