import { StoreUnavailableError, UnsupportedError } from "../../core/errors.js";
import type { ListenerPort, Subscription, SubscriptionEvents } from "../shared/listener.js";
import { settlesWithin } from "../shared/timeout.js";
import {
  addressOfClient,
  BACKEND,
  cutOff,
  isDirect,
  isInTransaction,
  isPool,
  type NewConnection,
  type Notification,
  newConnection,
  type PostgresClient,
  type PostgresConnection,
  type PostgresPool,
  takeFrom,
  trackTransactions,
  unref,
} from "./client.js";
import { onClientError } from "./client-errors.js";
import { isClientClosed, isConnectionLost, toStoreError } from "./errors.js";
import { type LiteralValue, literal } from "./text.js";

/** A listener sends itself a message: if it does not arrive within this time, no messages arrive. */
const SELF_TEST_MS = 2_000;
const SELF_TEST = "self-test";
/** While messages do not arrive, waiters poll for this long before the store tries to listen again. */
const POLL_FOR_MS = 60_000;

/**
 * The order in which two connections of ours ask which session of the server they have. It is uneven because a
 * pooler that hands out sessions in turn could otherwise give each connection the same session every time.
 */
const SESSION_PROBES = ["own", "other", "own", "own", "other", "own", "other", "own"] as const;
/** With other clients at the pooler, one round of probes fails to see shared sessions about once in a thousand times. */
const PROBE_ROUNDS = 4;
const PROBES_TIMEOUT_MS = 5_000;

/** `sessions`: each client keeps its session of the server. `transactions`: another client may get it after each transaction. */
export type Pooler = "none" | "sessions" | "transactions";

interface Statement {
  readonly text: string;
  readonly values: readonly unknown[];
  readonly timeoutMs: number;
}

interface Reply {
  readonly rows: readonly unknown[];
  readonly connection: PostgresConnection;
}

/** From here to the end of the transaction, names without a schema are the server's own. */
export const OWN_PATH = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)";

class NoReply extends StoreUnavailableError {
  /** The name that users see. */
  override name = StoreUnavailableError.name;
}

/** Runs statements on the caller's pool or client, and opens the connection that listens. */
export class Connections implements ListenerPort {
  readonly where: string;
  readonly #client: PostgresClient;
  /** The last statement on a single client, which takes one at a time. */
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
    this.listenToErrors();
    if (!isPool(client)) trackTransactions(client);
  }

  protected listenToErrors(): void {
    this.#ignoreErrors ??= onClientError(this.#client, () => this.#lost());
  }

  /** Removes our listener from the caller's client, until the next statement. */
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
    return (await this.#query({ text, values, timeoutMs })).rows as readonly Row[];
  }

  /**
   * Runs one statement that finds no functions and operators but the server's own. Another user may have made some
   * that fit a call better, and they would run with our rights. The values become parts of the text, because the
   * search path counts for one transaction, and the server takes no parameters for several statements in one message.
   */
  queryCatalogs<Row>(
    text: string,
    values: readonly LiteralValue[],
    timeoutMs: number,
  ): Promise<readonly Row[]> {
    const all = text.replaceAll(/\$(\d+)/g, (_, number) => literal(values[Number(number) - 1]!));
    return this.query(`${OWN_PATH};\n${all}`, [], timeoutMs);
  }

  async #query(statement: Statement): Promise<Reply> {
    this.listenToErrors();
    try {
      const reply = isPool(this.#client)
        ? await this.#byPool(this.#client, statement)
        : await this.#byClient(this.#client, statement);
      this.#replied();
      return reply;
    } catch (error) {
      if (error instanceof NoReply || isConnectionLost(error)) this.#lost();
      throw toStoreError(error, this.where);
    }
  }

  /**
   * Whether waiters can be notified. If not, the last attempt to listen has failed, as behind a pooler in
   * transaction mode, and waiters have to poll.
   */
  get deliversMessages(): boolean {
    return performance.now() >= this.#pollUntilMs;
  }

  /**
   * Finds out whether a pooler stands in between, and of which kind. Null if there is one that gave us no second
   * connection to compare with.
   */
  async detectPooler(timeoutMs: number): Promise<Pooler | null> {
    const { rows, connection } = await this.#query({
      text: BACKEND,
      values: [],
      timeoutMs,
    });
    if (isDirect(connection, rows)) return "none";
    const probe = newConnection(this.#client);
    probe.on("error", () => {});
    // The pooler may have no room for another client.
    const sharing = this.#sharesSessions(probe, timeoutMs).catch(() => null);
    const isShared = (await settlesWithin(PROBES_TIMEOUT_MS, sharing)) ? await sharing : null;
    cutOff(probe);
    if (isShared === false) return "sessions";
    this.#pollUntilMs = isShared ? Number.POSITIVE_INFINITY : performance.now() + POLL_FOR_MS;
    return isShared ? "transactions" : null;
  }

  /**
   * Whether the pooler gives one session of the server to several clients in turn. LISTEN is not tried in such a
   * session: the session would go on listening for its next clients. A wrong "no" is found when a waiter listens.
   */
  async #sharesSessions(probe: NewConnection, timeoutMs: number): Promise<boolean> {
    await probe.connect();
    unref(probe);
    const sessions = { own: new Set<string>(), other: new Set<string>() };
    for (let i = 0; i < PROBE_ROUNDS * SESSION_PROBES.length; i++) {
      const prober = SESSION_PROBES[i % SESSION_PROBES.length]!;
      const rows =
        prober === "own"
          ? (await probe.query(BACKEND)).rows
          : await this.query(BACKEND, [], timeoutMs);
      sessions[prober].add((rows as [{ pid: string }])[0].pid);
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
      await this.query("SELECT pg_catalog.pg_notify($1, $2)", [channel, SELF_TEST], SELF_TEST_MS);
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
      throw signal?.aborted ? signal.reason : asLost(error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    return {
      ping: () => connection.query("SELECT 1"),
      close: async () => cutOff(connection),
    };
  }

  async close(): Promise<void> {
    // The listener stays: connections of the pool may still report errors while they close.
    await this.#client.end();
  }

  async #byPool(pool: PostgresPool, statement: Statement): Promise<Reply> {
    const { timeoutMs } = statement;
    const startedAtMs = performance.now();
    const connecting = takeFrom(pool);
    // After the timeout, the statement is not sent at all: the core has given the request up, and may have sent a
    // later one.
    if (!(await settlesWithin(timeoutMs, connecting))) {
      connecting.then((late) => late.release()).catch(() => {});
      throw this.#noReply(timeoutMs, "no connection");
    }
    const connection = await connecting;
    trackTransactions(connection);
    const leftMs = startedAtMs + timeoutMs - performance.now();
    // The event loop was blocked while the pool had the connection ready.
    if (leftMs <= 0) {
      connection.release();
      throw this.#noReply(timeoutMs, "no connection");
    }
    let isBroken = false;
    try {
      return await this.#run(connection, statement, leftMs);
    } catch (error) {
      // An error of the server leaves the connection as it was.
      isBroken = (error as { severity?: unknown }).severity !== "ERROR";
      throw asLost(error);
    } finally {
      connection.release(isBroken);
    }
  }

  #byClient(connection: PostgresConnection, statement: Statement): Promise<Reply> {
    const run = (): Promise<Reply> => this.#run(connection, statement);
    const running = this.#last.then(run, run);
    this.#last = running;
    return running;
  }

  async #run(
    connection: PostgresConnection,
    { text, values, timeoutMs }: Statement,
    leftMs = timeoutMs,
  ): Promise<Reply> {
    // No statement of ours runs in the caller's transaction, which would keep our row locks and get our settings.
    if (isInTransaction(connection)) throw this.#inTransaction();
    const replied = connection.query(text, values);
    if (!(await settlesWithin(leftMs, replied))) {
      replied.catch(() => {});
      cutOff(connection);
      throw this.#noReply(timeoutMs, "no reply");
    }
    // Several statements have several replies.
    const { rows } = [await replied].flat().at(-1)!;
    // The caller's transaction began while this statement was queued behind its first one.
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

/** The server has ended a connection that was just opened: another attempt opens another one. */
const asLost = (error: unknown): unknown =>
  isClientClosed(error) ? new Error("Connection terminated", { cause: error }) : error;
