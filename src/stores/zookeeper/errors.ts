import { StoreUnavailableError } from "../../core/errors.js";
import { ZooKeeperError } from "./client/errors.js";

export const isCode = (error: unknown, ...codes: readonly ZooKeeperError["code"][]): boolean =>
  error instanceof ZooKeeperError && codes.includes(error.code);

/** The outcome is not known, or not yet: the same session may go on. */
export const isUnanswered = (error: unknown): boolean =>
  isCode(error, "CONNECTION_LOSS", "OPERATION_TIMEOUT", "SESSION_MOVED");

/** Makes errors that no retry mends not retryable. */
export function toStoreError(error: unknown): unknown {
  if (!isCode(error, "NO_AUTH", "AUTH_FAILED", "INVALID_ACL", "UNIMPLEMENTED")) return error;
  return new StoreUnavailableError(
    `the ZooKeeper server refuses the request: ${(error as Error).message}; check the user, the ` +
      "password, the ACL of Holdfast's root, and that the servers are 3.6 or later",
    { cause: error, retryable: false },
  );
}
