import { shortId } from "../../../stores/quorum/keys.js";
import type { NodeNameInfo, NodeRevocation } from "../../../stores/quorum/node.js";
import { FORMAT } from "../../../stores/quorum/scripts.js";

/** A client's part in a request that has to know whether the server has all its data. */
export interface Caller {
  /** The marker as the client last saw it while the node was in service; otherwise empty. */
  readonly marker: string;
  readonly maxTtlMs: number;
  readonly fsync: "always" | "later" | "unknown";
  /** Where the client listens. */
  readonly channel: string;
}

/** The ballot that has a name on this node. Times in µs. */
export interface NodeRecord {
  readonly id: string;
  number: number;
  readonly base: number;
  expiry: number;
  seq: number;
  ttlMs: number;
  since: number;
  closed: number;
  readonly holder: string;
}

/** The highest number of all recordings, and of those without fill-ins. */
export interface Last {
  readonly highest: number;
  readonly claimed: number;
}

export interface Marker {
  readonly runId: string;
  readonly maxTtlMs: number;
  readonly fsync: Caller["fsync"];
  /** The kind of loss that was found: data, or any trace of use. Empty: the node is in service. */
  readonly state: "" | "lost" | "new";
  /** When that was found, in µs; 0: the node is in service. */
  readonly since: number;
}

export interface Waiting {
  readonly channels: string[];
  expiry: number;
}

export type Revocation = NodeRevocation & { readonly at: number };

export interface Data {
  marker: Marker | null;
  readonly records: Map<string, NodeRecord>;
  /** By name: the ballot that is over, and until when its claim is refused. */
  readonly over: Map<string, { readonly id: string; readonly until: number }>;
  /** Many names share a counter. */
  readonly last: Map<number, Last>;
  readonly waiting: Map<string, Waiting>;
  readonly revoked: Map<string, { readonly list: readonly Revocation[]; readonly expiry: number }>;
}

export const noData = (): Data => ({
  marker: null,
  records: new Map(),
  over: new Map(),
  last: new Map(),
  waiting: new Map(),
  revoked: new Map(),
});

export const textOf = ({ runId, maxTtlMs, fsync, state, since }: Marker): string =>
  `${FORMAT} ${runId} ${maxTtlMs} ${fsync} ${state}${since}`;

/** More time left than was ever given: the clock was set back since. */
export function countFromNow(record: NodeRecord, micros: number): void {
  const setBack = record.expiry - record.ttlMs * 1_000 - micros;
  if (setBack <= 0) return;
  record.expiry -= setBack;
  record.since = Math.max(0, record.since - setBack);
  record.closed = Math.max(0, record.closed - setBack);
}

/** A name that `atLeast` keeps closed is held by nobody. */
export const isHeldBy = (record: NodeRecord, id: string, micros: number): boolean =>
  record.id === id && record.expiry > micros;

/** The record as an inspection shows it. */
export const describeRecord = (
  { id, number, holder, since, expiry, closed }: NodeRecord,
  micros: number,
): NodeNameInfo["record"] => ({
  id: shortId(id),
  number,
  holder,
  heldMs: (micros - since) / 1_000,
  expiresInMs: ((expiry > micros ? expiry : closed) - micros) / 1_000,
  closed: expiry <= micros,
});
