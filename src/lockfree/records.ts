import { assertOpen, type Context } from "../core/context.js";
import { ClosedError, UnsupportedError } from "../core/errors.js";
import type { Command } from "../core/events.js";
import type {
  MeterTake,
  Records,
  RecordWrite,
  StoredRecord,
  TakeAnswer,
  WriteAnswer,
} from "../core/records.js";

/** The records and meters of a `Locks`: in its namespace, each request with a timeout. */
export class NamespaceRecords {
  readonly #context: Context;
  readonly #records: Records;

  /** Throws UnsupportedError if the store has no records. `tool`: the tool that needs them. */
  constructor(context: Context, tool: string) {
    const { traits, records } = context.store;
    if (records === undefined || traits.cannot.records !== undefined) {
      throw new UnsupportedError(
        `${tool} needs records, which ${traits.store} does not have: ${traits.cannot.records ?? "the store offers none"}; ` +
          "use it on memory, SQLite, Redis or PostgreSQL",
      );
    }
    this.#context = context;
    this.#records = records;
  }

  async read(key: string): Promise<StoredRecord | null> {
    assertOpen(this.#context);
    return this.#run("read", "a record", () => this.#records.read(this.#keyOf(key)));
  }

  /** Works while the `Locks` closes, within its grace: the result of work that ends then must be recorded. */
  async write(write: RecordWrite): Promise<WriteAnswer> {
    if (this.#context.requests.isClosed) throw new ClosedError();
    return this.#run("write", "a record", () =>
      this.#records.write({ ...write, key: this.#keyOf(write.key) }),
    );
  }

  async take(take: MeterTake, timeoutMs?: number): Promise<TakeAnswer> {
    assertOpen(this.#context);
    const send = () => this.#records.take({ ...take, key: this.#keyOf(take.key) });
    return this.#run("take", "from a meter", send, timeoutMs);
  }

  #keyOf(key: string): string {
    return this.#context.requests.toStoreName(key);
  }

  async #run<T>(
    command: Command,
    rest: string,
    send: () => T | Promise<T>,
    timeoutMs?: number,
  ): Promise<T> {
    return this.#context.requests.run(command, send, timeoutMs, `${command} ${rest}`);
  }
}
