import { type Field, Message } from "./proto.js";

/** The messages of etcdserverpb and mvccpb that are used here, with their numbers; names are ours. */

export interface Header {
  member: bigint;
  revision: bigint;
  term: bigint;
}

export interface KeyValue {
  key: string;
  createRevision: bigint;
  modRevision: bigint;
  version: bigint;
  value: string;
  lease: bigint;
}

export interface WatchEvent {
  type: "PUT" | "DELETE";
  /** Of a deletion: the key, and the revision at which it went. */
  kv: KeyValue;
  prevKv?: KeyValue | undefined;
}

/** Reads are always linearizable: there is no `serializable` here. */
export interface Range {
  key: string;
  /** Keys below it; `"\0"` for no end. */
  rangeEnd?: string | undefined;
  limit?: number | undefined;
  revision?: bigint | undefined;
  sortOrder?: "NONE" | "ASCEND" | "DESCEND" | undefined;
  sortTarget?: "KEY" | "VERSION" | "CREATE" | "MOD" | "VALUE" | undefined;
  keysOnly?: boolean | undefined;
  countOnly?: boolean | undefined;
  minModRevision?: bigint | undefined;
  maxModRevision?: bigint | undefined;
  minCreateRevision?: bigint | undefined;
  maxCreateRevision?: bigint | undefined;
}

export interface Put {
  key: string;
  value: string;
  lease?: bigint | undefined;
  prevKv?: boolean | undefined;
  ignoreValue?: boolean | undefined;
  ignoreLease?: boolean | undefined;
}

interface Delete {
  key: string;
  rangeEnd?: string | undefined;
  prevKv?: boolean | undefined;
}

/** One of them. */
export interface Op {
  range?: Range | undefined;
  put?: Put | undefined;
  delete?: Delete | undefined;
  /** With comparisons of its own, and none inside it. */
  txn?: Txn | undefined;
}

/** Of every key in the range. Where there is none, of one that is all zeros; by its value, never true. */
export interface Compare {
  result: "EQUAL" | "GREATER" | "LESS" | "NOT_EQUAL";
  target: "VERSION" | "CREATE" | "MOD" | "VALUE" | "LEASE";
  key: string;
  version?: bigint | undefined;
  createRevision?: bigint | undefined;
  modRevision?: bigint | undefined;
  value?: string | undefined;
  lease?: bigint | undefined;
  rangeEnd?: string | undefined;
}

export interface RangeAnswer {
  kvs: KeyValue[];
  more: boolean;
  count: number;
}

export interface TxnAnswer {
  succeeded: boolean;
  responses: OpAnswer[];
}

/** As the operation was. */
export interface OpAnswer {
  range?: RangeAnswer | undefined;
  put?: { prevKv?: KeyValue | undefined } | undefined;
  delete?: { deleted: number; prevKvs: KeyValue[] } | undefined;
  txn?: TxnAnswer | undefined;
}

type Headed<T = object> = T & { header?: Header | undefined };

const one = (number: number, kind: Field["kind"]): readonly [number, Field] => [
  number,
  { kind, repeated: false },
];
const many = (number: number, kind: Field["kind"]): readonly [number, Field] => [
  number,
  { kind, repeated: true },
];

const HEADER = new Message<Header>("ResponseHeader", {
  member: one(2, "uint64"),
  revision: one(3, "int64"),
  term: one(4, "uint64"),
});

const header = one(1, HEADER);

const KEY_VALUE = new Message<KeyValue>("KeyValue", {
  key: one(1, "text"),
  createRevision: one(2, "int64"),
  modRevision: one(3, "int64"),
  version: one(4, "int64"),
  value: one(5, "text"),
  lease: one(6, "int64"),
});

const EVENT = new Message<WatchEvent>("Event", {
  type: one(1, ["PUT", "DELETE"]),
  kv: one(2, KEY_VALUE),
  prevKv: one(3, KEY_VALUE),
});

export const RANGE = new Message<Range>("RangeRequest", {
  key: one(1, "text"),
  rangeEnd: one(2, "text"),
  limit: one(3, "number"),
  revision: one(4, "int64"),
  sortOrder: one(5, ["NONE", "ASCEND", "DESCEND"]),
  sortTarget: one(6, ["KEY", "VERSION", "CREATE", "MOD", "VALUE"]),
  keysOnly: one(8, "bool"),
  countOnly: one(9, "bool"),
  minModRevision: one(10, "int64"),
  maxModRevision: one(11, "int64"),
  minCreateRevision: one(12, "int64"),
  maxCreateRevision: one(13, "int64"),
});

const rangeAnswer = { kvs: many(2, KEY_VALUE), more: one(3, "bool"), count: one(4, "number") };

export const RANGE_ANSWER = new Message<Headed<RangeAnswer>>("RangeResponse", {
  header,
  ...rangeAnswer,
});

const PUT = new Message<Put>("PutRequest", {
  key: one(1, "text"),
  value: one(2, "text"),
  lease: one(3, "int64"),
  prevKv: one(4, "bool"),
  ignoreValue: one(5, "bool"),
  ignoreLease: one(6, "bool"),
});

const DELETE = new Message<Delete>("DeleteRangeRequest", {
  key: one(1, "text"),
  rangeEnd: one(2, "text"),
  prevKv: one(3, "bool"),
});

const op = { range: one(1, RANGE), put: one(2, PUT), delete: one(3, DELETE) };

const opAnswer = {
  range: one(1, new Message<RangeAnswer>("RangeResponse", rangeAnswer)),
  put: one(
    2,
    new Message<NonNullable<OpAnswer["put"]>>("PutResponse", { prevKv: one(2, KEY_VALUE) }),
  ),
  delete: one(
    3,
    new Message<NonNullable<OpAnswer["delete"]>>("DeleteRangeResponse", {
      deleted: one(2, "number"),
      prevKvs: many(3, KEY_VALUE),
    }),
  ),
};

const COMPARE = new Message<Compare>("Compare", {
  result: one(1, ["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
  target: one(2, ["VERSION", "CREATE", "MOD", "VALUE", "LEASE"]),
  key: one(3, "text"),
  version: one(4, "int64"),
  createRevision: one(5, "int64"),
  modRevision: one(6, "int64"),
  value: one(7, "text"),
  lease: one(8, "int64"),
  rangeEnd: one(64, "text"),
});

export interface Txn {
  compare?: readonly Compare[] | undefined;
  success?: readonly Op[] | undefined;
  failure?: readonly Op[] | undefined;
}

type InnerOp = Omit<Op, "txn">;
type InnerOpAnswer = Omit<OpAnswer, "txn">;

const txn = (kind: Message<InnerOp>): Message<Txn> =>
  new Message<Txn>("TxnRequest", {
    compare: many(1, COMPARE),
    success: many(2, kind),
    failure: many(3, kind),
  });

/** Of two levels; etcd knows no bound. */
export const TXN = txn(
  new Message<Op>("RequestOp", { ...op, txn: one(4, txn(new Message<InnerOp>("RequestOp", op))) }),
);

const txnAnswer = (kind: Message<InnerOpAnswer>) => ({
  succeeded: one(2, "bool"),
  responses: many(3, kind),
});

const INNER_ANSWER = new Message<TxnAnswer>(
  "TxnResponse",
  txnAnswer(new Message<InnerOpAnswer>("ResponseOp", opAnswer)),
);

const TXN_ANSWER = new Message<Headed<TxnAnswer>>("TxnResponse", {
  header,
  ...txnAnswer(new Message<OpAnswer>("ResponseOp", { ...opAnswer, txn: one(4, INNER_ANSWER) })),
});

export const LEASE_GRANT = new Message<{ ttlS: number; id?: bigint }>("LeaseGrantRequest", {
  ttlS: one(1, "number"),
  id: one(2, "int64"),
});

const LEASE_GRANT_ANSWER = new Message<Headed<{ id: bigint; ttlS: number; error: string }>>(
  "LeaseGrantResponse",
  { header, id: one(2, "int64"), ttlS: one(3, "number"), error: one(4, "text") },
);

export const LEASE_ID = new Message<{ id: bigint }>("LeaseRevokeRequest", { id: one(1, "int64") });

const LEASE_REVOKE_ANSWER = new Message<Headed>("LeaseRevokeResponse", { header });

export interface KeepAliveAnswer extends Headed {
  id: bigint;
  ttlS: number;
}

export const KEEP_ALIVE_ANSWER = new Message<KeepAliveAnswer>("LeaseKeepAliveResponse", {
  header,
  id: one(2, "int64"),
  ttlS: one(3, "number"),
});

const TIME_TO_LIVE = new Message<{ id: bigint; keys: boolean }>("LeaseTimeToLiveRequest", {
  id: one(1, "int64"),
  keys: one(2, "bool"),
});

const TIME_TO_LIVE_ANSWER = new Message<Headed<{ ttlS: number; grantedTtlS: number }>>(
  "LeaseTimeToLiveResponse",
  { header, ttlS: one(3, "number"), grantedTtlS: one(4, "number") },
);

const LEASE_KEYS_ANSWER = new Message<{ keys: string[] }>("LeaseTimeToLiveResponse", {
  keys: many(5, "text"),
});

export interface WatchRange {
  key: string;
  rangeEnd?: string | undefined;
  startRevision?: bigint | undefined;
  prevKv?: boolean | undefined;
}

interface WatchCreate extends WatchRange {
  progressNotify?: boolean;
  watchId?: bigint;
}

export interface WatchRequest {
  create?: WatchCreate;
  cancel?: { watchId: bigint };
}

/** `fragment` (8) is never asked for: a revision comes whole. */
const WATCH = new Message<WatchRequest>("WatchRequest", {
  create: one(
    1,
    new Message<WatchCreate>("WatchCreateRequest", {
      key: one(1, "text"),
      rangeEnd: one(2, "text"),
      startRevision: one(3, "int64"),
      progressNotify: one(4, "bool"),
      prevKv: one(6, "bool"),
      watchId: one(7, "int64"),
    }),
  ),
  cancel: one(
    2,
    new Message<{ watchId: bigint }>("WatchCancelRequest", { watchId: one(1, "int64") }),
  ),
});

export interface WatchAnswer extends Headed {
  watchId: bigint;
  created: boolean;
  canceled: boolean;
  compactRevision: bigint;
  cancelReason: string;
  events: WatchEvent[];
}

export const WATCH_ANSWER = new Message<WatchAnswer>("WatchResponse", {
  header,
  watchId: one(2, "int64"),
  created: one(3, "bool"),
  canceled: one(4, "bool"),
  compactRevision: one(5, "int64"),
  cancelReason: one(6, "text"),
  events: many(11, EVENT),
});

const AUTHENTICATE = new Message<{ name: string; password: string }>("AuthenticateRequest", {
  name: one(1, "text"),
  password: one(2, "text"),
});

const AUTHENTICATE_ANSWER = new Message<Headed<{ token: string }>>("AuthenticateResponse", {
  header,
  token: one(2, "text"),
});

export const STATUS = new Message<object>("StatusRequest", {});

export interface MemberStatus {
  version: string;
  dbSize: bigint;
  leader: bigint;
  raftIndex: bigint;
  term: bigint;
  raftAppliedIndex: bigint;
  /** What is wrong with it by its own account: no leader, an alarm. */
  errors: string[];
  dbSizeInUse: bigint;
  isLearner: boolean;
  /** As configured, 0 for the default of 2 GB; told since version 3.6, 0 before. */
  dbSizeQuota: bigint;
}

const CLUSTER_HEADER = new Message<{ cluster: bigint; member: bigint }>("ResponseHeader", {
  cluster: one(1, "uint64"),
  member: one(2, "uint64"),
});

type StatusAnswer = MemberStatus & {
  header?: { cluster: bigint; member: bigint } | undefined;
};

const STATUS_ANSWER = new Message<StatusAnswer>("StatusResponse", {
  header: one(1, CLUSTER_HEADER),
  version: one(2, "text"),
  dbSize: one(3, "int64"),
  leader: one(4, "uint64"),
  raftIndex: one(5, "uint64"),
  term: one(6, "uint64"),
  raftAppliedIndex: one(7, "uint64"),
  errors: many(8, "text"),
  dbSizeInUse: one(9, "int64"),
  isLearner: one(10, "bool"),
  dbSizeQuota: one(12, "int64"),
});

export interface ClusterMember {
  id: bigint;
  /** Empty of one that was added and has never been started. */
  name: string;
  clientUrls: string[];
  isLearner: boolean;
}

const MEMBER_LIST = new Message<object>("MemberListRequest", {});

const MEMBER_LIST_ANSWER = new Message<Headed<{ members: ClusterMember[] }>>("MemberListResponse", {
  header,
  members: many(
    2,
    new Message<ClusterMember>("Member", {
      id: one(1, "uint64"),
      name: one(2, "text"),
      clientUrls: many(4, "text"),
      isLearner: one(5, "bool"),
    }),
  ),
});

/** An RPC: where it lies, and its two messages. */
export interface Method<Request extends object, Answer extends object> {
  readonly path: string;
  readonly encode: (request: Request) => Buffer;
  readonly decode: (bytes: Buffer) => Answer;
}

function method<Request extends object, Answer extends object>(
  path: string,
  request: Message<Request>,
  answer: Message<Answer>,
): Method<Request, Answer> {
  return {
    path: `/etcdserverpb.${path}`,
    encode: (value) => request.encode(value),
    decode: (bytes) => answer.decode(bytes),
  };
}

const timeToLive = method("Lease/LeaseTimeToLive", TIME_TO_LIVE, TIME_TO_LIVE_ANSWER);

export const METHODS = {
  txn: method("KV/Txn", TXN, TXN_ANSWER),
  range: method("KV/Range", RANGE, RANGE_ANSWER),
  leaseGrant: method("Lease/LeaseGrant", LEASE_GRANT, LEASE_GRANT_ANSWER),
  leaseRevoke: method("Lease/LeaseRevoke", LEASE_ID, LEASE_REVOKE_ANSWER),
  leaseKeepAlive: method("Lease/LeaseKeepAlive", LEASE_ID, KEEP_ALIVE_ANSWER),
  leaseTimeToLive: timeToLive,
  leaseKeys: {
    ...timeToLive,
    decode: (bytes: Buffer) => ({ keys: LEASE_KEYS_ANSWER.each(bytes, "keys") }),
  },
  watch: method("Watch/Watch", WATCH, WATCH_ANSWER),
  authenticate: method("Auth/Authenticate", AUTHENTICATE, AUTHENTICATE_ANSWER),
  status: method("Maintenance/Status", STATUS, STATUS_ANSWER),
  memberList: method("Cluster/MemberList", MEMBER_LIST, MEMBER_LIST_ANSWER),
};
