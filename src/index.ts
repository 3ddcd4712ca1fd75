export { type ConnectOptions, connect } from "./connect.js";
export type { Clock, StoreClock } from "./core/clock.js";
export {
  AcquireTimeoutError,
  ClosedError,
  ConflictError,
  type ErrorCode,
  HoldfastError,
  InProgressError,
  InvalidArgumentError,
  LeaseLostError,
  type LossReason,
  OtherRequestError,
  QueueFullError,
  RateLimitedError,
  StaleTokenError,
  StoredFailureError,
  StoreUnavailableError,
  UnsupportedError,
} from "./core/errors.js";
export type { EventName, Events, Logger } from "./core/events.js";
export type { Lease, LeaseEvents, LeaseState, ReleaseResult } from "./core/lease.js";
export type { NameStatus } from "./core/name-status.js";
export type {
  AcquireOptions,
  LocksOptions,
  Mode,
  OnUnavailable,
  ReleaseOnExit,
} from "./core/options.js";
export type {
  ClaimMode,
  HolderInfo,
  RevokedInfo,
  Store,
  Traits,
  WaiterInfo,
} from "./core/store.js";
export type { Duration } from "./core/validate.js";
export type { OnLost } from "./core/work.js";
export type { EnterableFence, Fence, Fenced } from "./fence/fence.js";
export {
  createLocks,
  type Locks,
  type WithLockOptions,
} from "./locks.js";
export type { Deadlock, Stuck } from "./primitives/deadlocks.js";
export type { Election, ElectionOptions, Leader } from "./primitives/election.js";
export type { ListOptions } from "./primitives/inspection.js";
export type { MultiLease, MultiOptions, WithAllOptions } from "./primitives/multi.js";
export type { OnceOptions, OnceResult } from "./primitives/once.js";
export type { PermitOptions, Semaphore, WithPermitsOptions } from "./primitives/semaphore.js";
