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

/** By name: the number, what happened and what to do, and whether the same request may succeed later. */
const ERRORS = {
  CONNECTION_LOSS: [-4, "the connection was lost", true],
  OPERATION_TIMEOUT: [-7, "no reply came in time", true],
  SESSION_EXPIRED: [-112, "the session has expired, or must be treated so: open another client"],
  CLOSED: [-116, "the client is closed: open another one"],
  NO_NODE: [-101, "the node, or the parent of a new node, does not exist"],
  NODE_EXISTS: [-110, "the node exists already"],
  BAD_VERSION: [-103, "others have changed the node: read it again"],
  NOT_EMPTY: [-111, "the node has children: delete them first"],
  NO_CHILDREN_FOR_EPHEMERALS: [-108, "the parent is ephemeral, and can't have children"],
  NO_AUTH: [-102, "the node's ACL does not permit it: check the user, the password and the ACL"],
  INVALID_ACL: [-114, "the ACL is not valid: an ACL for the creator needs a client with auth"],
  AUTH_FAILED: [-115, "the server refuses the user or the password"],
  SESSION_MOVED: [-118, "the session is in use on another connection", true],
  NOT_READ_ONLY: [-119, "the server has no majority, and serves reads only", true],
  REQUEST_TIMEOUT: [-122, "the server gave the request up", true],
  THROTTLED: [-127, "the server has too many requests: send it again later", true],
  QUOTA_EXCEEDED: [-125, "the quota of the path is used up"],
  NO_WATCHER: [-121, "the server has no such watch"],
  UNIMPLEMENTED: [-6, "the server does not know this request: use ZooKeeper 3.6 or later"],
  BAD_ARGUMENTS: [-8, "the server refuses the arguments"],
  MARSHALLING_ERROR: [-5, "the server could not read the request"],
  RUNTIME_INCONSISTENCY: [-2, "another part of the same multi failed"],
  DATA_INCONSISTENCY: [-3, "the server found its data damaged: look in its log"],
  SYSTEM_ERROR: [-1, "the server failed: look in its log"],
  UNKNOWN: [0, "the server refuses the request"],
} as const satisfies Readonly<Record<string, readonly [number, string, true?]>>;

/** The name of an error: ZooKeeper's own, or `UNKNOWN` for a number that has no name here. */
export type ZooKeeperErrorCode = keyof typeof ERRORS;

/** The meaning of a code: the event, the advice, and whether the same request may succeed later. */
export function meaningOf(code: ZooKeeperErrorCode): { text: string; retryable: boolean } {
  const [, text, retryable = false] = ERRORS[code];
  return { text, retryable };
}

const names = new Map(
  Object.entries(ERRORS).map(([name, [number]]) => [number as number, name as ZooKeeperErrorCode]),
);

/** The name of a number that a server replied. */
export const codeOf = (number: number): ZooKeeperErrorCode => names.get(number) ?? "UNKNOWN";
