export {
  ConflictError,
  InProgressError,
  OtherRequestError,
  RateLimitedError,
  StoredFailureError,
} from "../core/errors.js";
export type { VersionedPlace } from "../core/place.js";
export { postgresRow } from "../postgres/versioned-row.js";
export { type HttpDocumentOptions, httpDocument } from "./http-document.js";
export { type IdempotentOptions, idempotent } from "./idempotent.js";
export { idempotentFetch } from "./idempotent-fetch.js";
export type { IdempotentHttpOptions } from "./idempotent-http.js";
export { type IdempotentRequest, idempotentNode } from "./idempotent-node.js";
export type { ResultCodec } from "./json-codec.js";
export {
  type KeyedQueue,
  type KeyedQueueOptions,
  keyedQueue,
  type QueueRunOptions,
} from "./keyed-queue.js";
export { ConflictStats, type OptimisticOptions, optimistic } from "./optimistic.js";
export { changing, etcdText, redisText, sqliteRow } from "./places.js";
export {
  type RateLimiter,
  type RateLimiterOptions,
  rateLimiter,
  type TakeResult,
} from "./rate-limiter.js";
export { limitFetch, limitNode, type RateLimitHttpOptions } from "./rate-limiter-http.js";
