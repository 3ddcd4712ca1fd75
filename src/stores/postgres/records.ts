import { randomInt } from "node:crypto";
import type {
  MeterTake,
  Records,
  RecordWrite,
  StoredRecord,
  TakeAnswer,
  WriteAnswer,
} from "../../core/records.js";
import type { Database } from "./database.js";

/** A record as shown_record() in sql/records.sql describes it. */
type ShownRecord = Record<keyof StoredRecord, string>;
type WriteReply =
  | { readonly kind: "written" }
  | { readonly kind: "refused"; readonly record: ShownRecord | null };
type Table = "records" | "meters";

/** After this many requests, the next part of the table is searched for rows whose time is over. */
const REQUESTS_PER_DELETION = 256;
const ROWS_PER_DELETION = 512;
const DELETION_TIMEOUT_MS = 2_000;

/** Records and meters in tables of a PostgreSQL database: each step is one call of a function. */
export class PostgresRecords implements Records {
  /** The last deletion, which never rejects. */
  deletion: Promise<unknown> = Promise.resolve();
  readonly #database: Database;
  /**
   * Starts at a random number, so that many processes with a few requests each delete as often as one that sends all
   * of them.
   */
  #requests = randomInt(REQUESTS_PER_DELETION);
  /** The key up to which each table was searched. */
  readonly #searchedTo = new Map<Table, string>();

  constructor(database: Database) {
    this.#database = database;
  }

  async read(key: string): Promise<StoredRecord | null> {
    const values = [key];
    const [record] = await this.#database.whileLocked((lockWaitMs) =>
      this.#database.callForJson<ShownRecord | null>("read_record", [...values, lockWaitMs]),
    );
    return toRecord(record!);
  }

  async write({ key, value, version, keepMs, condition }: RecordWrite): Promise<WriteAnswer> {
    const expected = condition.kind === "version" ? condition.version : null;
    const token = condition.kind === "token" ? String(condition.token) : null;
    const keepUs = Math.ceil(keepMs * 1_000);
    const { kind } = condition;
    const values = [key, value, version, keepUs, kind, expected, token];
    const [reply] = await this.#database.whileLocked((lockWaitMs) =>
      this.#database.callForJson<WriteReply>("write_record", [...values, lockWaitMs]),
    );
    this.#deleteExpired("records", key);
    if (reply!.kind === "written") return reply!;
    return { kind: "refused", record: toRecord(reply!.record) };
  }

  /** After a crash of the server, the last takes may be lost. */
  async take({ key, units, limit, perUs, burst }: MeterTake): Promise<TakeAnswer> {
    const values = [key, units, limit, perUs, burst];
    const [reply] = await this.#database.whileLocked((lockWaitMs) =>
      this.#database.call<string>("take_from_meter", [...values, lockWaitMs]),
    );
    this.#deleteExpired("meters", key);
    const [remaining, retryAfterUs, fullInUs] = reply!.split(" ").map(Number) as [
      number,
      number,
      number,
    ];
    return { allowed: retryAfterUs === 0, remaining, retryAfterUs, fullInUs };
  }

  /** Deletes rows now and then, so that keys which nobody uses again leave nothing behind. */
  #deleteExpired(table: Table, key: string): void {
    this.#requests++;
    if (this.#requests < REQUESTS_PER_DELETION) return;
    this.#requests = 0;
    const first = this.#searchedTo.get(table) ?? key;
    const values = [table, first, ROWS_PER_DELETION, DELETION_TIMEOUT_MS / 2];
    this.deletion = this.#database
      .call<string>("delete_expired", values, DELETION_TIMEOUT_MS)
      .then(([last]) => this.#searchedTo.set(table, last!))
      // If this one fails, the next deletion tries the same rows.
      .catch(() => {});
  }
}

const toRecord = (record: ShownRecord | null): StoredRecord | null =>
  record && { ...record, token: BigInt(record.token) };
