import { StoreUnavailableError } from "../../core/errors.js";
import { Code, EtcdError } from "./rpc/errors.js";

/** The lease that is not found may also be one for `atLeast`, not the session's. */
export const isLeaseNotFound = (error: unknown): boolean =>
  error instanceof EtcdError &&
  error.grpcCode === Code.NOT_FOUND &&
  /lease not found/.test(error.message);

/** Converts errors that a retry can't fix into errors of ours that are not retryable. */
export function toStoreError(error: unknown): unknown {
  if (!(error instanceof EtcdError)) return error;
  const codes: readonly number[] = [Code.PERMISSION_DENIED, Code.UNAUTHENTICATED];
  if (!codes.includes(error.grpcCode) && !/authentication failed/.test(error.message)) return error;
  return new StoreUnavailableError(
    `the etcd server refuses the request: ${error.message}; check the user, the password and the ` +
      "role's rights on Holdfast's prefix",
    { cause: error, retryable: false },
  );
}

interface Reply {
  readonly revision: bigint;
  readonly knownRevision: bigint;
}

/** Reads and writes are linearizable: a revision falls only if the data was wiped or restored. */
export const hasFallen = ({ revision, knownRevision }: Reply): boolean => revision < knownRevision;

/** The revision is the token, so a claim made now would get a lower one than was given before. */
export class RevisionFell extends StoreUnavailableError {
  constructor({ revision, knownRevision }: Reply) {
    super(
      `etcd's revision fell from ${knownRevision} to ${revision}: its data was wiped or restored from ` +
        "a snapshot, and tokens fall with it. Stop all holders, raise tokenOffset by at least " +
        `${knownRevision} in all of them, and start them again`,
      { retryable: false },
    );
  }
}

export function refuseFallen<T extends Reply>(reply: T): T {
  if (hasFallen(reply)) throw new RevisionFell(reply);
  return reply;
}
