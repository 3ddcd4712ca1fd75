import { StoreUnavailableError } from "../../core/errors.js";

interface Answered {
  readonly revision: bigint;
  readonly knownRevision: bigint;
}

/** Reads and writes are linearizable: a revision falls only if the data was wiped or restored. */
export const hasFallen = ({ revision, knownRevision }: Answered): boolean =>
  revision < knownRevision;

/** The revision is the token, so a claim made now would get a lower one than was given before. */
export class RevisionFell extends StoreUnavailableError {
  constructor({ revision, knownRevision }: Answered) {
    super(
      `etcd's revision fell from ${knownRevision} to ${revision}: its data was wiped or restored from ` +
        "a snapshot, and tokens fall with it. Stop all holders, raise tokenOffset by at least " +
        `${knownRevision} in all of them, and start them again`,
      { retryable: false },
    );
  }
}

export function refuseFallen<T extends Answered>(answer: T): T {
  if (hasFallen(answer)) throw new RevisionFell(answer);
  return answer;
}
