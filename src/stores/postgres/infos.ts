import type { StoreClock } from "../../core/clock.js";
import type { HolderInfo, NameInfo } from "../../core/store.js";
import type { ClaimRecord } from "../shared/claim-record.js";
import { toHolderInfo, toNameInfo } from "../shared/name-info.js";

/** The claims on a name as record_of() in sql/operations.sql has them; times in µs. */
export interface DescribedName {
  readonly name: string;
  readonly now: number;
  readonly records: readonly DescribedClaim[];
}

interface DescribedClaim {
  readonly grantId: string;
  readonly place: number;
  readonly permits: number;
  readonly limit: number;
  readonly holder: string;
  readonly since: number;
  readonly expires: number;
  readonly closed: number;
  readonly atLeast: number;
  readonly token: string;
  readonly ended: ClaimRecord["ended"];
  readonly endedBy: string;
  readonly endedWhy: string;
}

export const readNameInfo = ({ name, now, records }: DescribedName): NameInfo | null =>
  toNameInfo(
    records.map((one) => toRecord(one, name)),
    clockAt(now),
    name,
  );

export const readHolderInfos = ({ name, now, records }: DescribedName): readonly HolderInfo[] =>
  records.map((one) => toHolderInfo(toRecord(one, name), now / 1_000, clockAt(now)));

/** The clock of a reply: its time stands for both clocks of the rule. */
const clockAt = (us: number): StoreClock => ({
  nowMs: () => us / 1_000,
  wallMs: () => us / 1_000,
});

const toRecord = (one: DescribedClaim, name: string): ClaimRecord => ({
  name,
  grantId: one.grantId,
  place: one.place,
  permits: one.permits,
  limit: one.limit,
  atLeastMs: one.atLeast / 1_000,
  holder: one.holder,
  sinceMs: one.since / 1_000,
  seq: 0,
  ttlMs: 0,
  expiresAtMs: one.expires / 1_000,
  token: BigInt(one.token),
  floor: 0n,
  closedUntilMs: one.closed / 1_000,
  ended: one.ended,
  endedBy: one.endedBy,
  endedWhy: one.endedWhy,
});
