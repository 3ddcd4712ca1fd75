import { createHash } from "node:crypto";
import { BUCKETS, bucketOf, escapePattern } from "../redis/keys.js";

/**
 * Every key and channel of a quorum begins with it: a server can also carry a Redis store. The scripts know it,
 * and `lock:`, and find the marker and the waiting processes of a name by themselves.
 */
export const PREFIX = "holdfast-quorum:";

export const MARKER = `${PREFIX}marker`;

export const recordOf = (name: string): string => `${PREFIX}lock:${name}`;
const counterAt = (bucket: number): string => `${PREFIX}last:${bucket}`;
/** Many names share a counter, which is never deleted. */
export const counterOf = (name: string): string => counterAt(bucketOf(name));
export const ALL_COUNTERS = Array.from({ length: BUCKETS }, (_, bucket) => counterAt(bucket));
export const revokedOf = (name: string): string => `${PREFIX}revoked:${name}`;

/** Matches the records of all names with this prefix. */
export const patternOf = (prefix: string): string => `${recordOf(escapePattern(prefix))}*`;
export const nameOfRecord = (key: string): string => key.slice(recordOf("").length);

/** Tells people which ballot is meant, without its secret id. The scripts know it, too. */
export const shortId = (id: string): string =>
  createHash("sha1").update(id).digest("hex").slice(0, 12);
