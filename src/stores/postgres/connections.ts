import { StoreUnavailableError, UnsupportedError } from "../../core/errors.js";
import type { ListenerPort, Subscription, SubscriptionEvents } from "../shared/listener.js";
import { settlesWithin } from "../shared/timeout.js";
import {
  addressOfClient,
  cutOff,
  isInTransaction,
  isPool,
  type NewConnection,
  type Notification,
  newConnection,
  type PostgresClient,
  type PostgresConnection,
  type PostgresPool,
  processOf,
  takeFrom,
  trackTransactions,
  unref,
} from "./client.js";
import { onClientError } from "./client-errors.js";
import { isConnectionLost, toStoreError } from "./errors.js";

/** A message that a listener sends to itself arrives within this time, or messages do not arrive at all. */
const SELF_TEST_MS = 2_000;
const SELF_TEST = "self-test";
/** When messages did not arrive, listening is tried again after this time. */
const POLL_FOR_MS = 60_000;

/** Whose turn it is to ask for its session of the server: an even rhythm could meet two sessions in turn. */
const SESSION_PROBES = ["own", "other", "own", "own", "other", "own", "other", "own"] as const;

/** `sessions`: it keeps a session of the server for each client. `transactions`: it gives them to others in between. */
export type Pooler = "none" | "sessions" | "transactions";

const BACKEND = "SELECT pg_backend_pid() AS pid";

const isDirect = (connection: PostgresConnection, rows: readonly unknown[]): boolean =>
  processOf(connection) === (rows as [{ pid: number }])[0].pid;

interface Reply {
  readonly rows: readonly unknown[];
  readonly connection: PostgresConnection;
}

class NoReply extends StoreUnavailableError {}

/** Runs statements on the caller's pool or client, and opens the connection that listens. */
export class Connections implements ListenerPort {
  readonly where: string;
  readonly #client: PostgresClient;
  /** The last statement of a single client: it takes one at a time. */
  #last: Promise<unknown> = Promise.resolve();
  #isLost = false;
  readonly #onReconnect = new Set<() => void>();
  losses = 0;
  /** Every listening connection makes every NOTIFY of the server slower. */
  readonly closesIdle = true;
  #pollUntilMs = 0;
  #ignoreErrors: (() => void) | null = null;

  constructor(client: PostgresClient) {
    this.#client = client;
    this.where = addressOfClient(client);
    this.#listenToErrors();
    if (!isPool(client)) trackTransactions(client);
  }

  #listenToErrors(): void {
    this.#ignoreErrors ??= onClientError(this.#client, () => this.#lost());
  }

  /** Removes what was added to the caller's client, until the next statement. */
  detach(): void {
    this.#ignoreErrors?.();
    this.#ignoreErrors = null;
  }

  /** Runs one statement outside of any transaction. A connection that gives no reply within the time is cut off. */
  async query<Row>(
    text: string,
    values: readonly unknown[],
    timeoutMs: number,
  ): Promise<readonly Row[]> {
    return (await this.#query(text, values, timeoutMs)).rows as readonly Row[];
  }

  async #query(text: string, values: readonly unknown[], timeoutMs: number): Promise<Reply> {
    this.#listenToErrors();
    try {
      const reply = isPool(this.#client)
        ? await this.#byPool(this.#client, text, values, timeoutMs)
        : await this.#byClient(this.#client, text, values, timeoutMs);
      this.#replied();
      return reply;
    } catch (error) {
      if (error instanceof NoReply || isConnectionLost(error)) this.#lost();
      throw toStoreError(error, this.where);
    }
  }

  /** False behind a pooler in transaction mode, as the last attempt to listen has shown: waiters have to poll. */
  get deliversMessages(): boolean {
    return performance.now() >= this.#pollUntilMs;
  }

  /**
   * Finds out whether a pooler stands in between, and whether it can deliver messages. Null: it gave no second
   * session to compare with.
   */
  async detectPooler(timeoutMs: number): Promise<Pooler | null> {
    const { rows, connection } = await this.#query(BACKEND, [], timeoutMs);
    if (isDirect(connection, rows)) return "none";
    const probe = newConnection(this.#client);
    probe.on("error", () => {});
    // The pooler may have no room for another client.
    const sharing = this.#sharesSessions(probe, timeoutMs).catch(() => null);
    const isShared = (await settlesWithin(SELF_TEST_MS, sharing)) ? await sharing : null;
    cutOff(probe);
    if (isShared === false) return "sessions";
    this.#pollUntilMs = isShared ? Number.POSITIVE_INFINITY : performance.now() + POLL_FOR_MS;
    return isShared ? "transactions" : null;
  }

  /**
   * Whether a session of the server serves several clients in turn. To listen in one of those would leave it listening
   * for good, and prove nothing. A "no" may be wrong, and is tested when somebody listens.
   */
  async #sharesSessions(probe: NewConnection, timeoutMs: number): Promise<boolean> {
    await probe.connect();
    unref(probe);
    const sessions = { own: new Set<number>(), other: new Set<number>() };
    for (const who of SESSION_PROBES) {
      const rows =
        who === "own"
          ? (await probe.query(BACKEND)).rows
          : await this.query(BACKEND, [], timeoutMs);
      sessions[who].add((rows as [{ pid: number }])[0].pid);
      const [own, another] = sessions.own;
      if (another !== undefined || sessions.other.has(own!)) return true;
    }
    return false;
  }

  onReconnect(reconnected: () => void): () => void {
    this.#onReconnect.add(reconnected);
    return () => void this.#onReconnect.delete(reconnected);
  }

  async subscribe(
    channel: string,
    events: SubscriptionEvents,
    signal?: AbortSignal,
  ): Promise<Subscription> {
    const connection = newConnection(this.#client);
    let hasArrived = (): void => {};
    const arrived = new Promise<void>((resolve) => {
      hasArrived = resolve;
    });
    const abort = (): void => cutOff(connection);
    signal?.addEventListener("abort", abort, { once: true });
    connection.on("error", () => events.ended?.());
    connection.on("end", () => events.ended?.());
    connection.on("notification", (({ payload = "" }: Notification) => {
      if (payload === SELF_TEST) hasArrived();
      else events.message(payload);
    }) as (...args: never[]) => void);
    try {
      await connection.connect();
      unref(connection);
      await connection.query(`LISTEN "${channel}"`);
      await this.query("SELECT pg_notify($1, $2)", [channel, SELF_TEST], SELF_TEST_MS);
      if (!(await settlesWithin(SELF_TEST_MS, arrived, { unref: true }))) {
        // A connection on which nothing arrives says nothing about messages.
        const hasReplied = connection.query("SELECT 1");
        if (!(await settlesWithin(SELF_TEST_MS, hasReplied, { unref: true }))) {
          hasReplied.catch(() => {});
          throw new Error(`${this.where} gave no reply on the connection that listens`);
        }
        this.#pollUntilMs = performance.now() + POLL_FOR_MS;
        throw new Error(
          `messages of ${this.where} do not arrive: is there a pooler in transaction mode?`,
        );
      }
      signal?.throwIfAborted();
    } catch (error) {
      cutOff(connection);
      throw signal?.aborted ? signal.reason : error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    return {
      ping: () => connection.query("SELECT 1"),
      close: async () => cutOff(connection),
    };
  }

  async close(): Promise<void> {
    // Not detached: connections of the pool may still fail on their way out.
    await this.#client.end();
  }

  async #byPool(
    pool: PostgresPool,
    text: string,
    values: readonly unknown[],
    timeoutMs: number,
  ): Promise<Reply> {
    const startedAtMs = performance.now();
    const connecting = takeFrom(pool);
    // Not sent at all: the core has given the request up, and a later one may be under way.
    if (!(await settlesWithin(timeoutMs, connecting))) {
      connecting.then((late) => late.release()).catch(() => {});
      throw this.#noReply(timeoutMs, "no connection");
    }
    const connection = await connecting;
    trackTransactions(connection);
    const leftMs = startedAtMs + timeoutMs - performance.now();
    let isBroken = false;
    try {
      return await this.#run(connection, text, values, Math.max(leftMs, 1));
    } catch (error) {
      // An error of the server leaves the connection as it was.
      isBroken = (error as { severity?: unknown }).severity !== "ERROR";
      throw error;
    } finally {
      connection.release(isBroken);
    }
  }

  #byClient(
    connection: PostgresConnection,
    text: string,
    values: readonly unknown[],
    timeoutMs: number,
  ): Promise<Reply> {
    const run = (): Promise<Reply> => this.#run(connection, text, values, timeoutMs);
    const running = this.#last.then(run, run);
    this.#last = running;
    return running;
  }

  async #run(
    connection: PostgresConnection,
    text: string,
    values: readonly unknown[],
    timeoutMs: number,
  ): Promise<Reply> {
    // Nothing of ours enters the caller's transaction: it would keep our locks, and get our settings.
    if (isInTransaction(connection)) throw this.#inTransaction();
    const replied = connection.query(text, values);
    if (!(await settlesWithin(timeoutMs, replied))) {
      replied.catch(() => {});
      cutOff(connection);
      throw this.#noReply(timeoutMs, "no reply");
    }
    const { rows } = await replied;
    // It began while this statement was queued behind the caller's.
    if (isInTransaction(connection)) throw this.#inTransaction();
    return { rows, connection };
  }

  #inTransaction(): UnsupportedError {
    return new UnsupportedError(
      `the connection to ${this.where} is inside a transaction, which may be rolled back with the lock in it: ` +
        "pass postgresStore() a pool, or a client that nothing else uses",
    );
  }

  #noReply(timeoutMs: number, what: string): NoReply {
    return new NoReply(`${this.where}: ${what} within ${Math.round(timeoutMs)} ms`);
  }

  #lost(): void {
    this.losses++;
    this.#isLost = true;
  }

  #replied(): void {
    if (!this.#isLost) return;
    this.#isLost = false;
    for (const reconnected of [...this.#onReconnect]) reconnected();
  }
}
