import type { MeterTake, RecordWrite, StoredRecord, TakeAnswer } from "../core/records.js";

/**
 * The specification of records and meters. Stores that keep them in this process run this code; stores on
 * a server do the same in the server's language.
 */

/** The record that a write makes; null if its condition does not hold. `record`: null if there is none. */
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
}

/** The meter after the take, and the reply. `meter`: null if it is full. Null in the result: still full. */
export function taken(
  meter: Meter | null,
  { units, limit, perUs, burst }: MeterTake,
  nowUs: number,
): { readonly meter: Meter | null; readonly answer: TakeAnswer } {
  let { sinceUs, usedUnits } = meter ?? { sinceUs: nowUs, usedUnits: 0 };
  // The clock was set back: without this, the meter would stay empty for as long as it was ahead.
  if (sinceUs > nowUs) sinceUs = nowUs;
  if (usedUnits * perUs <= (nowUs - sinceUs) * limit) [sinceUs, usedUnits] = [nowUs, 0];
  // Whole periods are settled, and the numbers stay small.
  const periods = Math.min(Math.floor(usedUnits / limit), Math.floor((nowUs - sinceUs) / perUs));
  sinceUs += periods * perUs;
  usedUnits -= periods * limit;

  /** Time until `used` units fit into the burst. */
  const waitUs = (used: number): number =>
    Math.max(0, Math.ceil(((used - burst) * perUs) / limit) - (nowUs - sinceUs));
  const retryAfterUs = waitUs(usedUnits + units);
  const allowed = retryAfterUs === 0;
  if (allowed) usedUnits += units;
  const returned = Math.floor(((nowUs - sinceUs) * limit) / perUs);
  return {
    meter: usedUnits === 0 ? null : { sinceUs, usedUnits },
    answer: {
      allowed,
      remaining: Math.min(burst, Math.max(0, burst - usedUnits + returned)),
      retryAfterUs,
      fullInUs: waitUs(usedUnits + burst),
    },
  };
}
