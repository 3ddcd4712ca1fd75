import type { Awaitable } from "./awaitable.js";

/**
 * Small records and meters beside the locks of a store, for the tools of `holdfast/lockfree`. A store
 * that has none says why in `traits.cannot.records`.
 *
 * Every method is one atomic step. A rejection means *unknown*: the step may or may not have happened.
 */
export interface Records {
  /** Null: there is no record, or its time is over. */
  read(key: string): Awaitable<StoredRecord | null>;

  /**
   * Writes a record if its condition holds. A client that got no reply sends the same write again: while the
   * record is the one that it made, the reply is `written`, and nothing changes. Once another write has
   * replaced that record, the reply is `refused`, which then does not say whether this write was executed.
   */
  write(write: RecordWrite): Awaitable<WriteAnswer>;

  /** Takes from a meter if it has as much, by the store's clock. Takes nothing otherwise. */
  take(take: MeterTake): Awaitable<TakeAnswer>;
}

/** The most bytes of UTF-8 that a record's value may have. */
export const MOST_RECORD_BYTES = 1_000_000;

/** A record as the store has it. */
export interface StoredRecord {
  /** The value as it was written. */
  readonly value: string;
  /** Identifies the write that made the record: two writes never have the same. */
  readonly version: string;
  /** The highest token that has written the record; 0n if no write had one. */
  readonly token: bigint;
}

/** A request to write a record. */
export interface RecordWrite {
  /** The record to write. */
  readonly key: string;
  /** At most MOST_RECORD_BYTES bytes of UTF-8: well-formed, and without U+0000, which PostgreSQL can't store. */
  readonly value: string;
  /** Random; one per write. */
  readonly version: string;
  /**
   * The record is gone this long after the write, by the store's clock: more than 0, and at most a year. If the
   * clock is set back meanwhile, it is gone at the latest this long after the next request for it.
   */
  readonly keepMs: number;
  /**
   * - `absent`: there is no record.
   * - `version`: the record is the one that this write made.
   * - `token`: there is no record, or its token is not higher. The record then has this token.
   *
   * The other two keep the record's token.
   * No tool of `holdfast/lockfree` writes by `token`. It is for a record that each holder of a lock replaces
   * without a read, such as a checkpoint: an earlier holder can't overwrite that of a later one.
   *
   * A copy of a write may arrive late, when its client has written again. By `version` it then changes nothing.
   * By `token` it overwrites records of the same token, so write once for each token, and by `version` after that.
   */
  readonly condition:
    | { readonly kind: "absent" }
    | { readonly kind: "version"; readonly version: string }
    | { readonly kind: "token"; readonly token: bigint };
}

/** The reply to a write. */
export type WriteAnswer =
  | { readonly kind: "written" }
  /** The condition does not hold. `record` is the one that is there; null: none is. */
  | { readonly kind: "refused"; readonly record: StoredRecord | null };

/**
 * A request to take from a meter. The meter holds `burst` units when it is full, and gets `limit` units
 * back in each `perUs`, evenly. All numbers are whole. Takes from one meter usually give the same numbers;
 * other numbers apply from that take on, and a meter that has less than nothing by them is empty.
 */
export interface MeterTake {
  /** The meter to take from. It is full until the first take. */
  readonly key: string;
  /** How many units to take, at most `burst`. Zero takes nothing, and shows what is there. */
  readonly units: number;
  readonly limit: number;
  readonly perUs: number;
  readonly burst: number;
}

/**
 * `perUs × (limit + burst)` is at most this, so that stores whose numbers are doubles count exactly: 50,000
 * units a day, or a million an hour, with a burst of as many.
 */
export const MOST_METER_PRODUCT = 2 ** 53 - 1;

/** The reply to a take. */
export interface TakeAnswer {
  readonly allowed: boolean;
  /** Whole units that are left. */
  readonly remaining: number;
  /** Time until the same take can succeed, if nobody else takes; 0 if it was allowed. */
  readonly retryAfterUs: number;
  /** Time until the meter is full, if nobody takes. */
  readonly fullInUs: number;
}
