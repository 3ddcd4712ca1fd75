import type { SessionKey } from "../shared/sessions/session.js";
import { endOf } from "../shared/utf8.js";
import type { Range } from "./rpc/messages.js";

/** Before every key, so that lock names never collide with data, and a role can be given just this. */
export const PREFIX = "holdfast/";

/** Names have no control characters, so no key of one name begins like another name's. */
const END = "\0";

/**
 * The keys under the prefix:
 *   n/NAME\0GRANT_ID         a claim, under its session's lease; the order of creation is the queue
 *   n/NAME\0GRANT_ID\0       the grant keeps the name closed by `atLeast`, under a lease of its own
 *   r/NAME\0GRANT_ID         the grant was revoked, by whom and why, under a lease of its own
 *   s/LEASE                  a session, under its lease
 *   s/LEASE/NAME\0GRANT_ID   a notice to that session that its grant was revoked, under the same lease
 */
export class Keys {
  readonly #prefix: string;

  constructor(prefix = PREFIX) {
    this.#prefix = prefix;
  }

  /** All keys of all names that begin so. */
  names(beginning: string): Range {
    return startingWith(`${this.#prefix}n/${beginning}`);
  }

  /** All claims on a name, with their keys for `atLeast`. */
  name(name: string): Range {
    return startingWith(`${this.#prefix}n/${name}${END}`);
  }

  claim(name: string, grantId: string): string {
    return `${this.#prefix}n/${name}${END}${grantId}`;
  }

  atLeast(name: string, grantId: string): string {
    return `${this.claim(name, grantId)}${END}`;
  }

  /** A claim's key, and that for `atLeast`. */
  claimAndAtLeast(name: string, grantId: string): Range {
    const key = this.claim(name, grantId);
    return { key, rangeEnd: `${key}${END}${END}` };
  }

  /** The key that keeps the claim's place in the queue: after its end, the one for `atLeast`. */
  inQueue(name: string, { grantId, hasEnded }: { grantId: string; hasEnded: boolean }): string {
    return hasEnded ? this.atLeast(name, grantId) : this.claim(name, grantId);
  }

  /** The claim that a key under `n/` belongs to. */
  read(key: string): { name: string; grantId: string; isAtLeast: boolean } {
    const [name = "", grantId = "", ...rest] = key.slice(this.#prefix.length + 2).split(END);
    return { name, grantId, isAtLeast: rest.length > 0 };
  }

  revoked(name: string): Range {
    return startingWith(`${this.#prefix}r/${name}${END}`);
  }

  revocation(name: string, grantId: string): string {
    return `${this.#prefix}r/${name}${END}${grantId}`;
  }

  session(lease: bigint): string {
    return `${this.#prefix}s/${lease.toString(16)}`;
  }

  notice(lease: bigint, name: string, grantId: string): string {
    return `${this.session(lease)}/${name}${END}${grantId}`;
  }

  /** Claims and notices among the keys under a session's lease; each is read when the caller comes to it. */
  *readUnder(lease: bigint, keys: Iterable<string>): Generator<SessionKey> {
    const [claims, notices] = [`${this.#prefix}n/`, `${this.session(lease)}/`];
    for (const key of keys) {
      const isClaim = key.startsWith(claims);
      if (!isClaim && !key.startsWith(notices)) continue;
      const rest = key.slice(isClaim ? claims.length : notices.length);
      const [name = "", grantId = ""] = rest.split(END);
      yield { key, name, grantId, isClaim };
    }
  }

  /** A session's key, and the notices to it. */
  sessionAndNotices(lease: bigint): Range {
    const key = this.session(lease);
    // "0" follows "/".
    return { key, rangeEnd: `${key}0` };
  }
}

/** All keys that begin so. */
function startingWith(beginning: string): Range {
  if (beginning.endsWith(END)) return { key: beginning, rangeEnd: `${beginning.slice(0, -1)}\x01` };
  return { key: beginning, rangeEnd: endOf(beginning) };
}
