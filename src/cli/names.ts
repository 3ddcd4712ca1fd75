import type { NameStatus } from "../core/name-status.js";
import type { HolderInfo, WaiterInfo } from "../core/store.js";
import { formatMs, printable } from "./output.js";

/** `holdfast ls` shows no more names than this. */
export const MOST_NAMES = 1_000;

/** The mode of a holder or waiter, in a word. A store that others can write may hold text for a number. */
export function modeText(one: HolderInfo | WaiterInfo, limit: number | null): string {
  return one.mode === "permits" ? printable(`${one.permits} of ${limit}`) : one.mode;
}

/** How many wait for a name. `knowsWaiters`: whether waiters have a place in the store. */
export const waitersText = (info: NameStatus, knowsWaiters: boolean): string =>
  knowsWaiters ? String(info.waiting) : "?";

/** The options that keep a name closed after the work. */
export const CLOSED_BY = "(--at-least or --once-per)";

/** The run that used up the period, and when the next period begins; null if there is none. */
export function ranAlready(info: NameStatus | null): string | null {
  const last = info?.holders.find((one) => one.closed);
  if (last === undefined) return null;
  const [began, next] = [Date.now() - last.heldMs, Date.now() + last.expiresInMs];
  return (
    `has been run in this period: ${printable(last.holder)} began ${formatMs(last.heldMs)} ago (${clockTime(began)}); ` +
    `next in ${formatMs(last.expiresInMs)} (${clockTime(next)})`
  );
}

/** Why a name can't be acquired, to follow the name; null if it looks free. */
export function whyBusy(info: NameStatus | null): string | null {
  const first = info?.holders[0];
  if (info === null || first === undefined) {
    const waiter = info?.waiters[0];
    return waiter === undefined
      ? null
      : `is about to be granted to ${printable(waiter.holder)}, which waits`;
  }
  if (first.closed) {
    return `is closed for another ${formatMs(first.expiresInMs)} by ${printable(first.holder)} ${CLOSED_BY}`;
  }
  const more = info.holders.length - 1;
  return (
    `is held by ${printable(first.holder)}${more > 0 ? ` and ${more} more` : ""}, ` +
    `for ${formatMs(first.heldMs)} (since ${clockTime(Date.now() - first.heldMs)})`
  );
}

/** The local time of day, with the date when it is not today's. */
export function clockTime(wallMs: number): string {
  const at = new Date(wallMs);
  const pad = (part: number): string => String(part).padStart(2, "0");
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}
