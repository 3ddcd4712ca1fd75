import { orElse } from "../../core/validate.js";
import { checkClient, type PostgresClient } from "./client.js";
import { Connections } from "./connections.js";
import { isLockFailure } from "./errors.js";
import { showMissingRight } from "./rights.js";
import { callSql, checkSchema, DEFAULT_SCHEMA, ensureSchema } from "./schema.js";

const CALL_TIMEOUT_MS = 10_000;
/** The longest that a statement waits for the lock of a row: meanwhile, nobody else has its connection. */
export const LOCK_WAIT_MS = 100;
/** The same for the first call of a request, and for later ones if many names are locked. */
export const SHORTEST_LOCK_WAIT_MS = 20;
/** How long calls are repeated whose row is locked. */
const LOCKED_FOR_MS = CALL_TIMEOUT_MS / 3;

interface StoreTraits {
  /** The function that the user has called, for its error. */
  readonly maker: string;
  /** Whether the store looks for a pooler before the first call. */
  readonly detectsPooler: boolean;
}

/** The connections of a store, and its schema, which the first call makes. Several `Locks` may share the store. */
export class Database extends Connections {
  readonly schema: string;
  readonly #closeClient: boolean;
  readonly #detectsPooler: boolean;
  #ready: Promise<void> | null = null;
  /** `Locks` that use the store. */
  #users = 0;
  /** False after the last use was ended: then no call is repeated because its row is locked. */
  isOpen = true;
  #isClosed = false;
  /** The last call that waits for a locked row. */
  #lastTurn: Promise<void> = Promise.resolve();

  constructor(
    client: PostgresClient,
    options: { schema?: string; closeClient?: boolean },
    { maker, detectsPooler }: StoreTraits,
  ) {
    checkClient(client, maker);
    const schema = checkSchema(orElse(options.schema, DEFAULT_SCHEMA));
    super(client);
    this.schema = schema;
    this.#closeClient = options.closeClient ?? false;
    this.#detectsPooler = detectsPooler;
  }

  /** Makes the schema unless it is there. If that fails, the next call tries again. */
  setUp(): Promise<void> {
    this.#ready ??= this.#setUp().catch(async (error: unknown) => {
      this.#ready = null;
      throw await this.showMissingRight(error);
    });
    return this.#ready;
  }

  async #setUp(): Promise<void> {
    if (this.#detectsPooler) await this.detectPooler(CALL_TIMEOUT_MS);
    await ensureSchema(this, this.schema);
  }

  /** The results of a function of the schema. */
  call<Result>(name: string, values: readonly unknown[], timeoutMs?: number): Promise<Result[]> {
    return this.#call(callSql(this.schema, name, values.length), values, timeoutMs);
  }

  /** The results of a function that returns JSON. They come as text: programs may have replaced pg's parser for JSON. */
  async callForJson<Result>(name: string, values: readonly unknown[]): Promise<Result[]> {
    const texts = await this.#call<string>(
      `${callSql(this.schema, name, values.length)}::pg_catalog.text`,
      values,
    );
    return texts.map((text) => JSON.parse(text));
  }

  /** The result of a function that returns an array of texts. It comes as text, too. */
  async callForTexts(
    name: string,
    values: readonly unknown[],
    timeoutMs: number,
  ): Promise<(string | null)[]> {
    const call = `pg_catalog.array_to_json(${callSql(this.schema, name, values.length)})::pg_catalog.text`;
    const [text] = await this.#call<string>(call, values, timeoutMs);
    return JSON.parse(text!);
  }

  async #call<Result>(
    call: string,
    values: readonly unknown[],
    timeoutMs = CALL_TIMEOUT_MS,
  ): Promise<Result[]> {
    await this.setUp();
    const text = `SELECT ${call} AS result`;
    const rows = await this.query<{ result: Result }>(text, values, timeoutMs).catch(
      async (error: unknown) => {
        throw await this.showMissingRight(error);
      },
    );
    return rows.map(({ result }) => result);
  }

  /**
   * Repeats a call that finds its row locked. One such call waits at a time, and not for long: in between, others get
   * the connection.
   */
  async whileLocked<Result>(call: (lockWaitMs: number) => Promise<Result>): Promise<Result> {
    const endsAtMs = performance.now() + LOCKED_FOR_MS;
    let failure: unknown;
    const again = (): Promise<Result> => {
      if (!this.isOpen || performance.now() >= endsAtMs) throw failure;
      return call(LOCK_WAIT_MS);
    };
    for (let isFirst = true; ; isFirst = false) {
      try {
        return await (isFirst ? call(SHORTEST_LOCK_WAIT_MS) : this.#inTurn(again));
      } catch (error) {
        if (!isLockFailure(error) || error === failure) throw error;
        failure = error;
      }
    }
  }

  #inTurn<Result>(call: () => Promise<Result>): Promise<Result> {
    const turn = this.#lastTurn.then(call);
    this.#lastTurn = turn.then(
      () => {},
      () => {},
    );
    return turn;
  }

  showMissingRight(error: unknown): Promise<unknown> {
    return showMissingRight(error, this, this.schema, CALL_TIMEOUT_MS);
  }

  open(): void {
    this.isOpen = true;
    this.#users++;
    this.listenToErrors();
  }

  /** Ends one use of the store. Returns false if the store stays open, for other users or for claims that are left. */
  leave(hasClaims: boolean): boolean {
    this.#users = Math.max(0, this.#users - 1);
    this.isOpen = !this.#closeClient && (this.#users > 0 || hasClaims);
    return !this.isOpen;
  }

  /** Closes the client if the store owns it, and otherwise removes what was added to it. */
  override async close(): Promise<void> {
    if (!this.#closeClient) {
      // Other Locks may have opened the store since `leave`, and still need the listener.
      if (this.#users === 0) this.detach();
    } else if (!this.#isClosed) {
      this.#isClosed = true;
      await super.close();
    }
  }
}
