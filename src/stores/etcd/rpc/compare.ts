import type { Compare, Range } from "./messages.js";

export const createdAt = (
  key: string,
  createRevision: bigint,
  result: Compare["result"] = "EQUAL",
): Compare => ({ key, target: "CREATE", result, createRevision });

export const modifiedAt = (key: string, modRevision: bigint): Compare => ({
  key,
  target: "MOD",
  result: "EQUAL",
  modRevision,
});

/** A range without keys compares as zero. */
export const isEmpty = (range: Range): Compare => ({
  key: range.key,
  rangeEnd: range.rangeEnd,
  target: "CREATE",
  result: "EQUAL",
  createRevision: 0n,
});

/** Keys may have gone, but none has come or changed. */
export const unchangedSince = (range: Range, revision: bigint): Compare => ({
  key: range.key,
  rangeEnd: range.rangeEnd,
  target: "MOD",
  result: "LESS",
  modRevision: revision + 1n,
});

export const valueAbove = (key: string, value: string): Compare => ({
  key,
  target: "VALUE",
  result: "GREATER",
  value,
});

export const valueBelow = (key: string, value: string): Compare => ({
  key,
  target: "VALUE",
  result: "LESS",
  value,
});
