import type { MeterTake, RecordWrite, StoredRecord, TakeAnswer } from "../core/records.js";

/**
 * The specification of records and meters. Stores that keep them in this process run this code; stores on
 * a server do the same in the server's language.
 */

/**
 * The record after the write; null if its condition does not hold. `record` is the present one; null: there is none.
 */
export function writtenRecord(
  record: StoredRecord | null,
  { condition, value, version }: RecordWrite,
): StoredRecord | null {
  const token = record?.token ?? 0n;
  // The same write again: its reply was lost.
  if (record?.version === version) return record;
  switch (condition.kind) {
    case "absent":
      return record === null ? { value, version, token } : null;
    case "version":
      return record?.version === condition.version ? { value, version, token } : null;
    case "token":
      return token <= condition.token ? { value, version, token: condition.token } : null;
  }
}

/**
 * A meter that is not full: it is full at `sinceUs + usedUnits × perUs ÷ limit`. Whole numbers, so that
 * nothing is rounded, however often it is taken from.
 */
export interface Meter {
  readonly sinceUs: number;
  readonly usedUnits: number;
  /** The time from which the meter is full whatever numbers a later take has, so that stores can forget it. */
  readonly fullAtUs: number;
}

/** The meter after the take, and the reply. `stored`: null if it is full. Null in the result: still full. */
export function taken(
  stored: Meter | null,
  { units, limit, perUs, burst }: MeterTake,
  nowUs: number,
): { readonly meter: Meter | null; readonly answer: TakeAnswer } {
  const isFull = stored === null || stored.fullAtUs <= nowUs;
  let { sinceUs, usedUnits } = isFull ? { sinceUs: nowUs, usedUnits: 0 } : stored;
  // The clock was set back: without this, the meter would stay empty until the clock is there again.
  if (sinceUs > nowUs) sinceUs = nowUs;
  // Whole periods are settled first. All products below are at most perUs × (limit + burst), so they are exact.
  const periods = Math.floor((nowUs - sinceUs) / perUs);
  sinceUs += periods * perUs;
  usedUnits -= periods * limit;
  let returned = Math.floor(((nowUs - sinceUs) * limit) / perUs);
  // Under other numbers, more than today's burst may have been taken: the meter is empty, and owes nothing.
  usedUnits = Math.min(usedUnits, burst + returned);
  if (usedUnits * perUs <= (nowUs - sinceUs) * limit)
    [sinceUs, usedUnits, returned] = [nowUs, 0, 0];

  /** Time until `used` units fit into the burst. */
  const waitUs = (used: number): number =>
    Math.max(0, Math.ceil(((used - burst) * perUs) / limit) - (nowUs - sinceUs));
  const retryAfterUs = waitUs(usedUnits + units);
  const allowed = retryAfterUs === 0;
  if (allowed) usedUnits += units;
  const fullInUs = waitUs(usedUnits + burst);
  // Some meters take centuries.
  const fullAtUs = Math.min(nowUs + fullInUs, Number.MAX_SAFE_INTEGER);
  return {
    meter: usedUnits === 0 ? null : { sinceUs, usedUnits, fullAtUs },
    answer: { allowed, remaining: burst - usedUnits + returned, retryAfterUs, fullInUs },
  };
}
