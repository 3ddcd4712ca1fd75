/** The numbers by which requests name their operation. */
export const OpCode = {
  create: 1,
  delete: 2,
  exists: 3,
  getData: 4,
  setData: 5,
  getAcl: 6,
  setAcl: 7,
  getChildren: 8,
  sync: 9,
  ping: 11,
  getChildren2: 12,
  check: 13,
  multi: 14,
  create2: 15,
  removeWatches: 18,
  createContainer: 19,
  multiRead: 22,
  auth: 100,
  getEphemerals: 103,
  setWatches2: 105,
  addWatch: 106,
  close: -11,
} as const;

/** In a multi: the part failed, or the list of parts is over. */
export const PART_ERROR = -1;

/** Fixed request numbers. All others are above 0. */
export const Xid = { event: -1, ping: -2, auth: -4, setWatches: -8 } as const;

interface Meaning {
  readonly number: number;
  readonly text: string;
  /** Whether the same request may succeed later. */
  readonly retryable?: true;
}

/** ZooKeeper's error codes with what happened and what to do. The first three are also ours. */
const MEANINGS = {
  CONNECTION_LOSS: { number: -4, text: "the connection was lost", retryable: true },
  OPERATION_TIMEOUT: { number: -7, text: "no reply came in time", retryable: true },
  SESSION_EXPIRED: {
    number: -112,
    text: "the session is over, and its ephemeral nodes with it: open another client",
  },
  SYSTEM_ERROR: { number: -1, text: "the server failed: look in its log" },
  RUNTIME_INCONSISTENCY: { number: -2, text: "another part of the same multi failed" },
  DATA_INCONSISTENCY: { number: -3, text: "the server found its data damaged: look in its log" },
  MARSHALLING_ERROR: { number: -5, text: "the server could not read the request" },
  UNIMPLEMENTED: {
    number: -6,
    text: "the server does not know this request: ZooKeeper 3.6 or later is needed",
  },
  BAD_ARGUMENTS: { number: -8, text: "the server refuses the arguments" },
  UNKNOWN_SESSION: { number: -12, text: "the server does not know the session" },
  NO_NODE: { number: -101, text: "the node, or the parent of a new node, does not exist" },
  NO_AUTH: {
    number: -102,
    text: "the node's ACL does not permit it: check the user, the password and the ACL",
  },
  BAD_VERSION: {
    number: -103,
    text: "the node has another version: others changed it, so read it again",
  },
  NO_CHILDREN_FOR_EPHEMERALS: {
    number: -108,
    text: "the parent is ephemeral, and such nodes have no children: choose another parent",
  },
  NODE_EXISTS: { number: -110, text: "the node exists already" },
  NOT_EMPTY: { number: -111, text: "the node has children: delete them first" },
  INVALID_CALLBACK: { number: -113, text: "the server refuses the watch" },
  INVALID_ACL: {
    number: -114,
    text: "the ACL is not valid: an ACL for the creator needs a client with auth",
  },
  AUTH_FAILED: { number: -115, text: "the server refuses the authentication" },
  CLOSED: { number: -116, text: "the client is closed: open another one" },
  SESSION_MOVED: {
    number: -118,
    text: "the session is in use on another connection",
    retryable: true,
  },
  NOT_READ_ONLY: {
    number: -119,
    text: "the server has no majority and serves reads only",
    retryable: true,
  },
  EPHEMERAL_ON_LOCAL_SESSION: { number: -120, text: "local sessions have no ephemeral nodes" },
  NO_WATCHER: { number: -121, text: "the server has no such watch" },
  REQUEST_TIMEOUT: {
    number: -122,
    text: "the server gave the request up: it may have been executed",
    retryable: true,
  },
  QUOTA_EXCEEDED: { number: -125, text: "the quota of the path is used up" },
  THROTTLED: {
    number: -127,
    text: "the server has too many requests: send it again later",
    retryable: true,
  },
} as const satisfies Readonly<Record<string, Meaning>>;

/** The name of an error: ZooKeeper's own, or `UNKNOWN` for a number that has no name here. */
export type ZooKeeperErrorCode = keyof typeof MEANINGS | "UNKNOWN";

const UNKNOWN: Meaning = { number: 0, text: "the server refuses the request" };

/** What the code means, and whether a repetition may help. */
export const meaningOf = (code: ZooKeeperErrorCode): Meaning =>
  code === "UNKNOWN" ? UNKNOWN : MEANINGS[code];

const names = new Map<number, ZooKeeperErrorCode>(
  Object.entries(MEANINGS).map(([name, { number }]) => [number, name as ZooKeeperErrorCode]),
);

/** The name of a number that a server replied. */
export const codeOf = (number: number): ZooKeeperErrorCode => names.get(number) ?? "UNKNOWN";
