import type { Keys } from "./keys.js";
import { decodeValue, foreignValueError, isNumeral } from "./queue.js";
import type { KeyValue } from "./rpc/messages.js";

/** The record that a grant was revoked, kept for people to see. */
export interface Revocation {
  readonly grantId: string;
  readonly holder: string;
  readonly token: string;
  readonly by: string;
  readonly why: string;
  /** The record's own lease: both are of one age. */
  readonly lease: string;
}

export const reasonOf = ({ by, why }: Pick<Revocation, "by" | "why">): string => `by ${by}: ${why}`;

/** The reason from a notice to a session. One that can't be read, as of a later format, counts all the same. */
export function reasonOfNotice(value: string): string {
  try {
    return reasonOf(decodeValue<Revocation>(value));
  } catch {
    return "by a notice that this version of Holdfast can't read";
  }
}

/** The oldest first; those of one step by their tokens. */
export function decodeRevocations(keys: Keys, kvs: readonly KeyValue[]): Revocation[] {
  const revocations = kvs.map(({ key, value, modRevision }) => {
    const { grantId } = keys.read(key);
    const decoded = decodeValue<Omit<Revocation, "grantId">>(value);
    const { holder, by, why, token, lease } = decoded;
    const isText = [holder, by, why].every((text) => typeof text === "string");
    if (!isText || !isNumeral(token) || !isNumeral(lease)) throw foreignValueError();
    return { ...decoded, grantId, modRevision };
  });
  return revocations.sort((one, two) =>
    Number(one.modRevision - two.modRevision || BigInt(one.token) - BigInt(two.token)),
  );
}
