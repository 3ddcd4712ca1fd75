import { StoreUnavailableError } from "../../core/errors.js";
import { ZooKeeperError } from "./client/errors.js";

export const isCode = (error: unknown, ...codes: readonly ZooKeeperError["code"][]): boolean =>
  error instanceof ZooKeeperError && codes.includes(error.code);

/** The outcome is not known, or not yet: the same session may go on. */
export const isUnanswered = (error: unknown): boolean =>
  isCode(error, "CONNECTION_LOSS", "OPERATION_TIMEOUT", "SESSION_MOVED");

/** The link of a request ended, lost its connection or gave no reply: another link may do better. */
export const isInterruption = (error: unknown): boolean =>
  isUnanswered(error) || isCode(error, "SESSION_EXPIRED", "CLOSED");

/** Converts errors that a retry can't fix into errors of ours that are not retryable. */
export function toStoreError(error: unknown): unknown {
  if (!isCode(error, "NO_AUTH", "AUTH_FAILED", "INVALID_ACL", "UNIMPLEMENTED")) return error;
  const { message } = error as ZooKeeperError;
  const advice = isCode(error, "UNIMPLEMENTED")
    ? "Holdfast needs ZooKeeper 3.6 or later on all servers"
    : "check the user, the password and the ACL of Holdfast's root. Nodes that a client with a password " +
      "creates are its user's alone, and all others are open to everyone: all clients need the same user";
  return new StoreUnavailableError(
    `the ZooKeeper server refuses the request: ${message}; ${advice}`,
    {
      cause: error,
      retryable: false,
    },
  );
}
