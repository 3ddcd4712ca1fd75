import type { Compare, Op, Range } from "./rpc/messages.js";

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

/** Of a range without keys, zero is compared. */
export const isEmpty = (range: Range): Compare => ({
  key: range.key,
  rangeEnd: range.rangeEnd,
  target: "CREATE",
  result: "EQUAL",
  createRevision: 0n,
});

/** Something may have gone, nothing has come or changed. */
export const unchangedSince = (range: Range, revision: bigint): Compare => ({
  key: range.key,
  rangeEnd: range.rangeEnd,
  target: "MOD",
  result: "LESS",
  modRevision: revision + 1n,
});

/** A put must not bring back what has gone. */
export const stillThere = (ops: readonly Op[]): Compare[] =>
  ops.flatMap(({ put }) => (put === undefined ? [] : [createdAt(put.key, 0n, "NOT_EQUAL")]));
