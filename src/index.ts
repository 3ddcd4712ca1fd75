export type { Clock, StoreClock } from "./core/clock.js";
export { connect } from "./core/connect.js";
export {
  AcquireTimeoutError,
  ClosedError,
  type ErrorCode,
  HoldfastError,
  InvalidArgumentError,
  LeaseLostError,
  type LossReason,
  StaleTokenError,
  StoreUnavailableError,
  UnsupportedError,
} from "./core/errors.js";
export type { EventName, Events, Logger } from "./core/events.js";
export type { Lease, LeaseEvents, LeaseState, ReleaseResult } from "./core/lease.js";
export { createLocks, type Locks, type WithLockOptions } from "./core/locks.js";
export type { AcquireOptions, LocksOptions, Mode } from "./core/options.js";
export type { HolderInfo, NameInfo, Store, Traits, WaiterInfo } from "./core/store.js";
export type { Duration } from "./core/validate.js";
export type { Fence, Fenced } from "./fence/fence.js";
