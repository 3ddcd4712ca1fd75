import { reasonOf, safeCause } from "../core/cause.js";
import { StoreUnavailableError, UnsupportedError } from "../core/errors.js";
import { transactionStatus } from "../stores/postgres/client.js";
import { isClientClosed, isConnectionLost } from "../stores/postgres/errors.js";
import { settlesWithin, within } from "../stores/shared/timeout.js";
import { addressOfTx, type PostgresTx } from "./tx.js";

/** A client of a pool of `pg`. */
export interface TransactionClient extends PostgresTx {
  /** Runs one statement with parameters `$1`, `$2`, …. */
  // biome-ignore lint/suspicious/noExplicitAny: as in `pg`, where rows are of any type unless it is named
  query<Row extends object = any>(
    text: string,
    // biome-ignore lint/suspicious/noExplicitAny: as in `pg`
    values?: any[],
  ): Promise<{ rows: Row[]; rowCount: number | null }>;
  /** Calls the listener when the connection is lost. */
  on(event: "error", listener: (error: Error) => void): unknown;
  /** Takes a listener back. */
  off(event: "error", listener: (error: Error) => void): unknown;
  /** Gives the client back to its pool, or closes its connection. */
  release(destroy?: boolean): void;
}

/** The timeout of a COMMIT, which checks deferred constraints, and may wait for the disk and for standbys. */
const COMMIT_MS = 30_000;
/** The timeout of a ROLLBACK, at a server that hangs. */
const ROLLBACK_MS = 5_000;

/** A transaction that we end: until then the client is ours, afterwards its pool's. */
export class OpenTransaction<Client extends TransactionClient> {
  readonly client: Client;
  readonly where: string;
  #isLost = false;
  isOver = false;
  // Without a listener, a connection that is lost between two statements would end the process.
  readonly #onError = (): void => {
    this.#isLost = true;
  };

  constructor(client: Client) {
    this.client = client;
    this.where = addressOfTx(client);
    client.on("error", this.#onError);
  }

  /** Rejects with the reason unless PostgreSQL has committed the transaction. */
  async commit(): Promise<void> {
    if (this.#isLost) {
      this.end("close");
      throw this.#lost(new Error("the connection was lost before COMMIT was sent"));
    }
    if (transactionStatus(this.client) === "I") {
      this.end("give back");
      throw new UnsupportedError(
        "the function has ended its transaction itself, and the lock with it: leave BEGIN, COMMIT and ROLLBACK to withTransactionLock",
      );
    }
    let reply: { command?: string };
    try {
      reply = await within(
        COMMIT_MS,
        this.client.query("COMMIT") as Promise<{ command?: string }>,
        () => new Error(`within ${COMMIT_MS} ms`),
      );
    } catch (error) {
      throw this.#uncommitted(error);
    }
    this.end("give back");
    // PostgreSQL answers so, and without an error, if a statement had failed.
    if (reply.command !== "ROLLBACK") return;
    throw new UnsupportedError(
      "PostgreSQL has rolled the transaction back, because one of its statements had failed: let that error leave the function, or use a savepoint",
    );
  }

  /** Ends the transaction. Resolves to the error to throw instead of this one: that the connection was lost, if it was. */
  async rollback(error: unknown): Promise<unknown> {
    if (this.isOver) return error;
    try {
      if (await settlesWithin(ROLLBACK_MS, this.client.query("ROLLBACK"))) {
        this.end("give back");
        return error;
      }
    } catch {
      // The connection is lost: PostgreSQL has rolled the transaction back itself.
    }
    this.end("close");
    // The step that takes the lock has put the error of `pg` into one of ours.
    const reason = error instanceof StoreUnavailableError ? error.cause : error;
    return isConnectionLost(reason) || isClientClosed(reason) ? this.#lost(error) : error;
  }

  /** Closing the connection while a statement is running also closes the socket at once. */
  end(how: "give back" | "close"): void {
    this.isOver = true;
    this.client.off("error", this.#onError);
    this.client.release(how === "close");
  }

  /** The server's own error says that nothing was committed, and is about the caller's data: a constraint. */
  #uncommitted(error: unknown): unknown {
    if ((error as { severity?: unknown }).severity === "ERROR") {
      this.end("give back");
      return error;
    }
    this.end("close");
    return new StoreUnavailableError(
      `${this.where} gave no reply to COMMIT (${reasonOf(error)}): whether the transaction was committed is not known; look before you repeat it`,
      { cause: safeCause(error), retryable: false },
    );
  }

  #lost(cause: unknown): StoreUnavailableError {
    return new StoreUnavailableError(
      `the connection to ${this.where} was lost during the transaction: nothing was committed, and the lock has ended`,
      { cause: safeCause(cause) },
    );
  }
}
