import type { StoreClock } from "../../core/clock.js";
import { type HolderInfo, modeOf, type NameInfo, WAITERS_SHOWN } from "../../core/store.js";
import { type ClaimRecord, type Claims, endsInMs, isOver } from "./claim-record.js";

/** The part of a claim that people see. */
export type ShownClaim = Omit<
  ClaimRecord,
  "name" | "grantId" | "place" | "seq" | "ttlMs" | "floor"
>;

/** The result of a store's `inspect`. Changes nothing: claims that have ended are left out, not removed. */
export const inspectName = (claims: Claims, clock: StoreClock, name: string): NameInfo | null =>
  toNameInfo([...claims.inOrder(name)], clock, name);

/** The claims on a name, in order, as people see them; null: none is left. */
export function toNameInfo(
  records: readonly ShownClaim[],
  clock: StoreClock,
  name: string,
): NameInfo | null {
  const nowMs = clock.nowMs();
  const all = records.filter((one) => !isOver(one, nowMs, clock));
  if (all[0] === undefined) return null;
  const current = all.filter((one) => one.ended !== "revoked");
  const holders = current.filter((one) => one.token > 0n);
  const waiters = current.filter((one) => one.token === 0n);
  return {
    name,
    limit: (current[0] ?? all[0]).limit,
    holders: holders.map((one) => toHolderInfo(one, nowMs, clock)),
    waiting: waiters.length,
    waiters: waiters.slice(0, WAITERS_SHOWN).map((one) => ({
      holder: one.holder,
      mode: modeOf(one),
      permits: one.permits,
      waitingMs: nowMs - one.sinceMs,
      expiresInMs: one.expiresAtMs - nowMs,
    })),
    revoked: revokedInOrder(all).map((one) => ({
      holder: one.holder,
      token: one.token,
      by: one.endedBy,
      why: one.endedWhy,
      agoMs: nowMs - one.sinceMs,
    })),
  };
}

/** Whether somebody holds the name or waits for it. An error is no name. */
export const isInUse = (info: NameInfo | Error | null): info is NameInfo =>
  info !== null && !(info instanceof Error) && info.holders.length + info.waiters.length > 0;

/** The result of a store's `list`: the first `limit` of these names that somebody holds or waits for. */
export function listNames(
  claims: Claims,
  clock: StoreClock,
  names: Iterable<string>,
  limit: number,
): readonly NameInfo[] {
  const infos: NameInfo[] = [];
  for (const name of names) {
    const info = inspectName(claims, clock, name);
    if (isInUse(info)) infos.push(info);
    if (infos.length === limit) break;
  }
  return infos;
}

export function toHolderInfo(record: ShownClaim, nowMs: number, clock: StoreClock): HolderInfo {
  const closed = record.ended === "released" || record.expiresAtMs <= nowMs;
  return {
    holder: record.holder,
    mode: modeOf(record),
    token: record.token,
    permits: record.permits,
    heldMs: nowMs - record.sinceMs,
    expiresInMs: closed ? endsInMs(record, nowMs, clock) : record.expiresAtMs - nowMs,
    closed,
  };
}

/** The revoked ones of these claims, the latest last. Those of one moment stay in their order. */
export const revokedInOrder = <C extends ShownClaim>(records: readonly C[]): C[] =>
  records.filter((one) => one.ended === "revoked").sort((a, b) => a.sinceMs - b.sinceMs);
