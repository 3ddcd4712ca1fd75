export {
  type AddWatchOptions,
  type PersistentWatch,
  type ReadOptions,
  type Replied,
  type VersionOptions,
  ZooKeeperClient,
} from "../stores/zookeeper/client/client.js";
export type { ZooKeeperErrorCode } from "../stores/zookeeper/client/codes.js";
export {
  type ConnectionInfo,
  type Reply,
  ZooKeeperError,
} from "../stores/zookeeper/client/errors.js";
export type { ZooKeeperEvents } from "../stores/zookeeper/client/events.js";
export type {
  MultiPart,
  MultiReadPart,
  MultiReadResult,
  MultiResult,
} from "../stores/zookeeper/client/multi.js";
export type { Created, CreateOptions, Data } from "../stores/zookeeper/client/operations.js";
export type { ZooKeeperClientOptions, ZooKeeperTls } from "../stores/zookeeper/client/options.js";
export {
  type Acl,
  CREATOR_ACL,
  type CreateMode,
  type DigestLogin,
  digestAcl,
  OPEN_ACL,
  type Permission,
  type Stat,
} from "../stores/zookeeper/client/records.js";
export type { SessionState } from "../stores/zookeeper/client/session.js";
export type {
  WatchEvent,
  WatchEventType,
  WatchListener,
} from "../stores/zookeeper/client/watches.js";
