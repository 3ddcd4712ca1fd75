import { list, type Message, many, message, type Of, one, optional } from "./proto.js";

/** The messages of etcdserverpb and mvccpb that are used here, with their numbers; names are ours. */

export type Header = Of<typeof HEADER>;
const HEADER = message("ResponseHeader", {
  member: one(2, "uint64"),
  revision: one(3, "int64"),
  term: one(4, "uint64"),
});

const header = optional(1, HEADER);

export type KeyValue = Of<typeof KEY_VALUE>;
const KEY_VALUE = message("KeyValue", {
  key: one(1, "text"),
  createRevision: one(2, "int64"),
  modRevision: one(3, "int64"),
  version: one(4, "int64"),
  value: one(5, "text"),
  lease: one(6, "int64"),
});

export type WatchEvent = Of<typeof EVENT>;
const EVENT = message("Event", {
  type: one(1, ["PUT", "DELETE"]),
  /** The key; for a deletion, with the revision at which it was deleted. */
  kv: one(2, KEY_VALUE),
  prevKv: optional(3, KEY_VALUE),
});

/** Reads are always linearizable: there is no `serializable` here. */
export type Range = Of<typeof RANGE>;
export const RANGE = message("RangeRequest", {
  key: one(1, "text"),
  /** Keys below it; `"\0"` for no end. */
  rangeEnd: optional(2, "text"),
  limit: optional(3, "number"),
  revision: optional(4, "int64"),
  sortOrder: optional(5, ["NONE", "ASCEND", "DESCEND"]),
  sortTarget: optional(6, ["KEY", "VERSION", "CREATE", "MOD", "VALUE"]),
  keysOnly: optional(8, "bool"),
  countOnly: optional(9, "bool"),
  minModRevision: optional(10, "int64"),
  maxModRevision: optional(11, "int64"),
  minCreateRevision: optional(12, "int64"),
  maxCreateRevision: optional(13, "int64"),
});

const rangeReply = { kvs: many(2, KEY_VALUE), more: one(3, "bool"), count: one(4, "number") };

export type RangeReply = Of<typeof INNER_RANGE_REPLY>;
const INNER_RANGE_REPLY = message("RangeResponse", rangeReply);
export const RANGE_REPLY = message("RangeResponse", { header, ...rangeReply });

export type Put = Of<typeof PUT>;
const PUT = message("PutRequest", {
  key: one(1, "text"),
  value: one(2, "text"),
  lease: optional(3, "int64"),
  prevKv: optional(4, "bool"),
  ignoreValue: optional(5, "bool"),
  ignoreLease: optional(6, "bool"),
});

const PUT_REPLY = message("PutResponse", { prevKv: optional(2, KEY_VALUE) });

const DELETE = message("DeleteRangeRequest", {
  key: one(1, "text"),
  rangeEnd: optional(2, "text"),
  prevKv: optional(3, "bool"),
});

const DELETE_REPLY = message("DeleteRangeResponse", {
  deleted: one(2, "number"),
  prevKvs: many(3, KEY_VALUE),
});

/**
 * A comparison with every key in the range. If there is no key, it compares with a key of zeros; a
 * comparison by value is then never true.
 */
export type Compare = Of<typeof COMPARE>;
const COMPARE = message("Compare", {
  result: one(1, ["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
  target: one(2, ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"]),
  key: one(3, "text"),
  version: optional(4, "int64"),
  createRevision: optional(5, "int64"),
  modRevision: optional(6, "int64"),
  value: optional(7, "text"),
  lease: optional(8, "int64"),
  rangeEnd: optional(64, "text"),
});

const op = { range: optional(1, RANGE), put: optional(2, PUT), delete: optional(3, DELETE) };

const INNER_OP = message("RequestOp", op);
const INNER_TXN = message("TxnRequest", {
  compare: list(1, COMPARE),
  success: list(2, INNER_OP),
  failure: list(3, INNER_OP),
});

/** One of them. A `txn` has comparisons of its own, and no other inside it. */
export type Op = Of<typeof OP>;
const OP = message("RequestOp", { ...op, txn: optional(4, INNER_TXN) });

/** Nested by two levels; etcd has no limit. */
export type Txn = Of<typeof TXN>;
export const TXN = message("TxnRequest", {
  compare: list(1, COMPARE),
  success: list(2, OP),
  failure: list(3, OP),
});

const opReply = {
  range: optional(1, INNER_RANGE_REPLY),
  put: optional(2, PUT_REPLY),
  delete: optional(3, DELETE_REPLY),
};

const INNER_TXN_REPLY = message("TxnResponse", {
  succeeded: one(2, "bool"),
  responses: many(3, message("ResponseOp", opReply)),
});

/** As the operation was. */
export type OpReply = Of<typeof OP_REPLY>;
const OP_REPLY = message("ResponseOp", { ...opReply, txn: optional(4, INNER_TXN_REPLY) });

const TXN_REPLY = message("TxnResponse", {
  header,
  succeeded: one(2, "bool"),
  responses: many(3, OP_REPLY),
});

export const LEASE_GRANT = message("LeaseGrantRequest", { ttlS: one(1, "number") });

const LEASE_GRANT_REPLY = message("LeaseGrantResponse", {
  header,
  id: one(2, "int64"),
  ttlS: one(3, "number"),
});

export const LEASE_ID = message("LeaseRevokeRequest", { id: one(1, "int64") });

const LEASE_REVOKE_REPLY = message("LeaseRevokeResponse", { header });

export type KeepAliveReply = Of<typeof KEEP_ALIVE_REPLY>;
export const KEEP_ALIVE_REPLY = message("LeaseKeepAliveResponse", {
  header,
  id: one(2, "int64"),
  ttlS: one(3, "number"),
});

const TIME_TO_LIVE = message("LeaseTimeToLiveRequest", {
  id: one(1, "int64"),
  keys: one(2, "bool"),
});

const TIME_TO_LIVE_REPLY = message("LeaseTimeToLiveResponse", {
  header,
  ttlS: one(3, "number"),
  grantedTtlS: one(4, "number"),
});

const LEASE_KEYS_REPLY = message("LeaseTimeToLiveResponse", { keys: many(5, "text") });

export type WatchRange = Omit<Of<typeof WATCH_CREATE>, "progressNotify" | "watchId">;
/** `fragment` (8) is never requested: a revision comes whole. */
const WATCH_CREATE = message("WatchCreateRequest", {
  key: one(1, "text"),
  rangeEnd: optional(2, "text"),
  startRevision: optional(3, "int64"),
  progressNotify: one(4, "bool"),
  prevKv: optional(6, "bool"),
  watchId: one(7, "int64"),
});

export type WatchRequest = Of<typeof WATCH>;
const WATCH = message("WatchRequest", {
  create: optional(1, WATCH_CREATE),
  cancel: optional(2, message("WatchCancelRequest", { watchId: one(1, "int64") })),
});

export type WatchReply = Of<typeof WATCH_REPLY>;
export const WATCH_REPLY = message("WatchResponse", {
  header,
  watchId: one(2, "int64"),
  created: one(3, "bool"),
  canceled: one(4, "bool"),
  compactRevision: one(5, "int64"),
  cancelReason: one(6, "text"),
  events: many(11, EVENT),
});

const AUTHENTICATE = message("AuthenticateRequest", {
  name: one(1, "text"),
  password: one(2, "text"),
});

const AUTHENTICATE_REPLY = message("AuthenticateResponse", { header, token: one(2, "text") });

export const STATUS = message("StatusRequest", {});

const STATUS_HEADER = message("ResponseHeader", {
  cluster: one(1, "uint64"),
  member: one(2, "uint64"),
  revision: one(3, "int64"),
});

export type MemberStatus = Omit<Of<typeof STATUS_REPLY>, "header">;
const STATUS_REPLY = message("StatusResponse", {
  header: optional(1, STATUS_HEADER),
  version: one(2, "text"),
  dbSize: one(3, "int64"),
  leader: one(4, "uint64"),
  raftIndex: one(5, "uint64"),
  term: one(6, "uint64"),
  raftAppliedIndex: one(7, "uint64"),
  /** The errors that the member reports: no leader, an alarm. */
  errors: many(8, "text"),
  dbSizeInUse: one(9, "int64"),
  isLearner: one(10, "bool"),
  /** As configured, 0 for the default of 2 GB; reported since version 3.6, 0 before. */
  dbSizeQuota: one(12, "int64"),
});

const MEMBER_LIST = message("MemberListRequest", {});

export type ClusterMember = Of<typeof MEMBER>;
const MEMBER = message("Member", {
  id: one(1, "uint64"),
  /** Empty of one that was added and has never been started. */
  name: one(2, "text"),
  clientUrls: many(4, "text"),
  isLearner: one(5, "bool"),
});

const MEMBER_LIST_REPLY = message("MemberListResponse", { header, members: many(2, MEMBER) });

/** An RPC: where it lies, and its two messages. */
export interface Method<Request extends object, Reply extends object> {
  readonly path: string;
  readonly encode: (request: Request) => Buffer;
  readonly decode: (bytes: Buffer) => Reply;
}

function method<Request extends object, Reply extends object>(
  path: string,
  request: Message<Request>,
  reply: Message<Reply>,
): Method<Request, Reply> {
  return {
    path: `/etcdserverpb.${path}`,
    encode: (value) => request.encode(value),
    decode: (bytes) => reply.decode(bytes),
  };
}

const timeToLive = method("Lease/LeaseTimeToLive", TIME_TO_LIVE, TIME_TO_LIVE_REPLY);

export const METHODS = {
  txn: method("KV/Txn", TXN, TXN_REPLY),
  range: method("KV/Range", RANGE, RANGE_REPLY),
  leaseGrant: method("Lease/LeaseGrant", LEASE_GRANT, LEASE_GRANT_REPLY),
  leaseRevoke: method("Lease/LeaseRevoke", LEASE_ID, LEASE_REVOKE_REPLY),
  leaseKeepAlive: method("Lease/LeaseKeepAlive", LEASE_ID, KEEP_ALIVE_REPLY),
  leaseTimeToLive: timeToLive,
  leaseKeys: {
    ...timeToLive,
    decode: (bytes: Buffer) => ({ keys: LEASE_KEYS_REPLY.each(bytes, "keys") }),
  },
  watch: method("Watch/Watch", WATCH, WATCH_REPLY),
  authenticate: method("Auth/Authenticate", AUTHENTICATE, AUTHENTICATE_REPLY),
  status: method("Maintenance/Status", STATUS, STATUS_REPLY),
  memberList: method("Cluster/MemberList", MEMBER_LIST, MEMBER_LIST_REPLY),
};
