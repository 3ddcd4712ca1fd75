import type { ClaimRecord, Claims } from "../shared/claim-record.js";
import { endOf } from "../shared/utf8.js";
import type { SqliteDatabase, SqliteStatement, SqliteValue } from "./driver.js";
import { FORMAT, refuseOtherFormat } from "./schema.js";
import { NeedsDurability, type Writer } from "./writer.js";

export interface SqliteRecord extends ClaimRecord {
  /** The socket in the wake folder at which the claim's process receives pushes. */
  readonly socketName: string;
}

interface Row {
  name: string;
  place: number;
  grant_id: string;
  permits: number;
  max_permits: number;
  at_least_ms: number;
  holder: string;
  since_ms: number;
  seq: number;
  ttl_ms: number;
  expires_ms: number;
  token: number;
  floor: number;
  closed_until_ms: number;
  ended: ClaimRecord["ended"];
  ended_by: string;
  ended_why: string;
  wake: string;
}

/** The columns that a step may change, in the order of `changingValues`. */
const CHANGING =
  "max_permits, since_ms, seq, ttl_ms, expires_ms, token, floor, closed_until_ms, ended, ended_by, ended_why";

const changingValues = (record: ClaimRecord): SqliteValue[] => [
  record.limit,
  record.sinceMs,
  record.seq,
  record.ttlMs,
  record.expiresAtMs,
  record.token,
  record.floor,
  record.closedUntilMs,
  record.ended,
  record.endedBy,
  record.endedWhy,
];

const LARGEST_TOKEN = BigInt(Number.MAX_SAFE_INTEGER);

/** The claims in the table. All changes are made inside the writer's transaction. */
export class SqliteClaims implements Claims {
  readonly #db: SqliteDatabase;
  readonly #file: string;
  readonly #writer: Writer;
  readonly #socketName: string;
  readonly #nowMs: () => number;
  readonly #next: SqliteStatement;
  readonly #find: SqliteStatement;
  readonly #ticketsBefore: SqliteStatement;
  readonly #lastPlace: SqliteStatement;
  readonly #insert: SqliteStatement;
  readonly #update: SqliteStatement;
  readonly #delete: SqliteStatement;
  readonly #drawToken: SqliteStatement;
  readonly #grants: SqliteStatement;
  readonly #names: SqliteStatement;
  readonly #sweep: SqliteStatement;

  /** `socketName`: for the claims that this process adds. */
  constructor(
    db: SqliteDatabase,
    file: string,
    writer: Writer,
    socketName: string,
    nowMs: () => number,
  ) {
    this.#db = db;
    this.#file = file;
    this.#writer = writer;
    this.#socketName = socketName;
    this.#nowMs = nowMs;
    this.#next = db.prepare(
      "SELECT * FROM holdfast_claims WHERE name = ? AND place > ? ORDER BY place LIMIT 1",
    );
    this.#find = db.prepare(
      "SELECT * FROM holdfast_claims WHERE name = ? AND grant_id = ? AND ended = 'no'",
    );
    this.#ticketsBefore = db.prepare(
      "SELECT count(*) AS n FROM holdfast_claims WHERE name = ? AND place < ? AND token = 0 AND expires_ms > ?",
    );
    this.#lastPlace = db.prepare("SELECT max(place) AS place FROM holdfast_claims WHERE name = ?");
    this.#insert = db.prepare(
      `INSERT INTO holdfast_claims (name, place, grant_id, permits, at_least_ms, holder, wake, ${CHANGING})
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#update = db.prepare(
      `UPDATE holdfast_claims SET (${CHANGING}) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         WHERE name = ? AND place = ?`,
    );
    this.#delete = db.prepare("DELETE FROM holdfast_claims WHERE name = ? AND place = ?");
    // The token is not drawn if a newer version of Holdfast has changed the format meanwhile.
    this.#drawToken = db.prepare(
      `UPDATE holdfast_meta SET last_token = max(last_token + 1, ?), grants = grants + 1
         WHERE format = ${FORMAT} RETURNING last_token`,
    );
    this.#grants = db.prepare("SELECT grants FROM holdfast_meta");
    this.#names = db.prepare(
      "SELECT DISTINCT name FROM holdfast_claims WHERE name >= ? AND name < ? ORDER BY name",
    );
    this.#sweep = db.prepare(
      `DELETE FROM holdfast_claims WHERE closed_until_ms <= ?
         AND (expires_ms <= ? OR expires_ms > ? + ttl_ms)`,
    );
  }

  /** Read row by row, because the reader usually stops at the first or second one. */
  *inOrder(name: string): Generator<SqliteRecord> {
    let row = this.#next.get(name, -1) as Row | undefined;
    while (row !== undefined) {
      yield this.#toRecord(row);
      row = this.#next.get(name, row.place) as Row | undefined;
    }
  }

  find(name: string, grantId: string): SqliteRecord | undefined {
    const row = this.#find.get(name, grantId) as Row | undefined;
    return row === undefined ? undefined : this.#toRecord(row);
  }

  ticketsBefore(name: string, place: number): number {
    return (this.#ticketsBefore.get(name, place, this.#nowMs()) as { n: number }).n;
  }

  lastPlace(name: string): number {
    return (this.#lastPlace.get(name) as { place: number | null }).place ?? 0;
  }

  add(record: ClaimRecord): void {
    this.#insert.run(
      record.name,
      record.place,
      record.grantId,
      record.permits,
      record.atLeastMs,
      record.holder,
      this.#socketName,
      ...changingValues(record),
    );
  }

  save(record: ClaimRecord): void {
    this.#update.run(...changingValues(record), record.name, record.place);
  }

  remove(record: ClaimRecord): void {
    this.#delete.run(record.name, record.place);
  }

  drawToken(least: bigint): bigint {
    if (!this.#writer.durable) throw new NeedsDurability();
    const row = this.#drawToken.get(least) as { last_token: number } | undefined;
    if (row === undefined) refuseOtherFormat(this.#db, this.#file);
    const token = BigInt(row!.last_token);
    if (token > LARGEST_TOKEN) {
      throw new RangeError(`the token ${token} is beyond 2^53: correct the clock of this machine`);
    }
    return token;
  }

  /** How many grants were ever made in the file. */
  countGrants(): number {
    return (this.#grants.get() as { grants: number } | undefined)?.grants ?? 0;
  }

  names(prefix: string): string[] {
    const rows = this.#names.all(prefix, endOf(prefix)) as { name: string }[];
    return rows.map((row) => row.name);
  }

  /** Removes expired claims on all names, also those that are never claimed again. */
  sweep(wallMs: number): void {
    const nowMs = this.#nowMs();
    this.#sweep.run(wallMs, nowMs, nowMs);
  }

  #toRecord(row: Row): SqliteRecord {
    // An expiry that is further off than its ttl was written before the machine restarted and its clock began at 0.
    const isOfThisBoot = row.expires_ms <= this.#nowMs() + row.ttl_ms;
    return {
      name: row.name,
      grantId: row.grant_id,
      place: row.place,
      permits: row.permits,
      limit: row.max_permits,
      atLeastMs: row.at_least_ms,
      holder: row.holder,
      sinceMs: row.since_ms,
      seq: row.seq,
      ttlMs: row.ttl_ms,
      expiresAtMs: isOfThisBoot ? row.expires_ms : Number.NEGATIVE_INFINITY,
      token: BigInt(row.token),
      floor: BigInt(row.floor),
      closedUntilMs: row.closed_until_ms,
      ended: row.ended,
      endedBy: row.ended_by,
      endedWhy: row.ended_why,
      socketName: row.wake,
    };
  }
}
