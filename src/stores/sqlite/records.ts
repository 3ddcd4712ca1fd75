import type { StoreClock } from "../../core/clock.js";
import type {
  MeterTake,
  Records,
  RecordWrite,
  StoredRecord,
  TakeAnswer,
  WriteAnswer,
} from "../../core/records.js";
import { type Meter, taken, writtenRecord } from "../records-rule.js";
import type { SqliteDatabase, SqliteStatement } from "./driver.js";
import { FORMAT, refuseOtherFormat } from "./schema.js";
import type { Writer } from "./writer.js";

interface RecordRow {
  value: string;
  version: string;
  /** Numbers go as text, because most drivers read them as doubles. */
  token: string;
  keep_us: number;
  expires_us: number;
}

interface MeterRow {
  since_us: number;
  used_units: number;
  full_at_us: number;
}

/** A record, and whether its expiry is further off than its keep: then the clock was set back. */
interface Found {
  readonly record: StoredRecord;
  readonly isAhead: boolean;
}

/** Each write deletes up to this many rows that are over: more than it adds, so that they do not pile up. */
const DELETED_PER_WRITE = 4;

/** Reads on one snapshot of the file, again while it is busy. */
type Read = <T>(read: () => T) => Promise<T>;

/** Records and meters in tables. They expire by the wall clock, because they survive a restart of the machine. */
export class SqliteRecords implements Records {
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #writer: Writer;
  readonly #clock: StoreClock;
  readonly #read: Read;
  readonly #hasFormat: SqliteStatement;
  readonly #findRecord: SqliteStatement;
  readonly #saveRecord: SqliteStatement;
  readonly #cutShort: SqliteStatement;
  readonly #deleteRecords: SqliteStatement;
  readonly #findMeter: SqliteStatement;
  readonly #saveMeter: SqliteStatement;
  readonly #deleteMeter: SqliteStatement;
  readonly #deleteMeters: SqliteStatement;

  constructor(db: SqliteDatabase, file: string, writer: Writer, clock: StoreClock, read: Read) {
    this.#db = db;
    this.#file = file;
    this.#writer = writer;
    this.#clock = clock;
    this.#read = read;
    this.#hasFormat = db.prepare(`SELECT 1 FROM holdfast_meta WHERE format = ${FORMAT}`);
    this.#findRecord = db.prepare("SELECT * FROM holdfast_records WHERE key = ?");
    this.#saveRecord = db.prepare(
      `INSERT INTO holdfast_records (key, value, version, token, keep_us, expires_us) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version,
           token = excluded.token, keep_us = excluded.keep_us, expires_us = excluded.expires_us`,
    );
    this.#cutShort = db.prepare(
      "UPDATE holdfast_records SET expires_us = ? + keep_us WHERE key = ?",
    );
    this.#deleteRecords = db.prepare(deleteSql("holdfast_records", "expires_us"));
    this.#findMeter = db.prepare("SELECT * FROM holdfast_meters WHERE key = ?");
    this.#saveMeter = db.prepare(
      "INSERT OR REPLACE INTO holdfast_meters (key, since_us, used_units, full_at_us) VALUES (?, ?, ?, ?)",
    );
    this.#deleteMeter = db.prepare("DELETE FROM holdfast_meters WHERE key = ?");
    this.#deleteMeters = db.prepare(deleteSql("holdfast_meters", "full_at_us"));
  }

  async read(key: string): Promise<StoredRecord | null> {
    const found = await this.#read(() => this.#find(key, this.#nowUs()));
    if (!found?.isAhead) return found?.record ?? null;
    return this.#writer.run(() => this.#open(key, this.#nowUs()));
  }

  /** The write is on the disk before the reply: a power cut must not bring back what it has replaced. */
  write(write: RecordWrite): Promise<WriteAnswer> {
    return this.#writer.run(() => this.#write(write, this.#nowUs()), { durable: true });
  }

  /** A power cut may lose the last takes. */
  take(take: MeterTake): Promise<TakeAnswer> {
    return this.#writer.run(() => this.#take(take, this.#nowUs()));
  }

  #write(write: RecordWrite, nowUs: number): WriteAnswer {
    this.#refuseNewerFormat();
    const record = this.#open(write.key, nowUs);
    const written = writtenRecord(record, write);
    if (written === null) return { kind: "refused", record };
    if (written !== record) {
      const { value, version, token } = written;
      const keepUs = Math.ceil(write.keepMs * 1_000);
      const expiresUs = nowUs + keepUs;
      this.#deleteRecords.run(nowUs);
      this.#saveRecord.run(write.key, value, version, String(token), keepUs, expiresUs);
    }
    return { kind: "written" };
  }

  #take(take: MeterTake, nowUs: number): TakeAnswer {
    this.#refuseNewerFormat();
    const row = this.#findMeter.get(take.key) as MeterRow | undefined;
    const before = row === undefined ? null : toMeter(row);
    const { meter, answer } = taken(before, take, nowUs);
    // Most refused takes change nothing, and cost no write.
    if (meter === null) this.#deleteMeter.run(take.key);
    else if (before === null || !isSame(before, meter)) {
      this.#deleteMeters.run(nowUs);
      this.#saveMeter.run(take.key, meter.sinceUs, meter.usedUnits, meter.fullAtUs);
    }
    return answer;
  }

  /** The record; null if there is none. Within a write transaction. */
  #open(key: string, nowUs: number): StoredRecord | null {
    const found = this.#find(key, nowUs);
    if (found?.isAhead) this.#cutShort.run(nowUs, key);
    return found?.record ?? null;
  }

  #find(key: string, nowUs: number): Found | null {
    const row = this.#findRecord.get(key) as RecordRow | undefined;
    if (row === undefined || row.expires_us <= nowUs) return null;
    const { value, version, token, keep_us, expires_us } = row;
    const record = { value, version, token: BigInt(token) };
    return { record, isAhead: expires_us > nowUs + keep_us };
  }

  /** A newer Holdfast may have changed the format while this process runs. */
  #refuseNewerFormat(): void {
    if (this.#hasFormat.get() === undefined) refuseOtherFormat(this.#db, this.#file);
  }

  #nowUs(): number {
    return Math.floor(this.#clock.wallMs() * 1_000);
  }
}

const deleteSql = (table: string, expiry: string): string =>
  `DELETE FROM ${table} WHERE key IN
     (SELECT key FROM ${table} WHERE ${expiry} <= ? ORDER BY ${expiry} LIMIT ${DELETED_PER_WRITE})`;

const toMeter = ({ since_us, used_units, full_at_us }: MeterRow): Meter => ({
  sinceUs: since_us,
  usedUnits: used_units,
  fullAtUs: full_at_us,
});

const isSame = (a: Meter, b: Meter): boolean =>
  a.sinceUs === b.sinceUs && a.usedUnits === b.usedUnits && a.fullAtUs === b.fullAtUs;
