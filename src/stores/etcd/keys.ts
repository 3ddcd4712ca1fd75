import type { Range } from "./rpc/messages.js";

/** Before every key, so that lock names never collide with data, and a role can be given just this. */
export const PREFIX = "holdfast/";

/** Names have no control characters, so nothing of one name begins like another's. */
const END = "\0";

/**
 * What is kept under the prefix:
 *   n/NAME\0GRANT_ID         a claim, under the session of who claims; the order of creation is the queue
 *   n/NAME\0GRANT_ID\0       it closes the name by `atLeast`, under a lease of its own
 *   r/NAME\0GRANT_ID         it was revoked, by whom and why, under a lease of its own
 *   s/LEASE                  a session lives, under its lease
 *   s/LEASE/NAME\0GRANT_ID   a notice to that session, under the same: a grant of it was revoked
 */
export class Keys {
  readonly #prefix: string;

  constructor(prefix = PREFIX) {
    this.#prefix = prefix;
  }

  /** Everything of all names that begin so. */
  names(beginning: string): Range {
    return within(`${this.#prefix}n/${beginning}`);
  }

  /** Claims on a name, and what closes it. */
  name(name: string): Range {
    return within(`${this.#prefix}n/${name}${END}`);
  }

  claim(name: string, grantId: string): string {
    return `${this.#prefix}n/${name}${END}${grantId}`;
  }

  closure(name: string, grantId: string): string {
    return `${this.claim(name, grantId)}${END}`;
  }

  /** What a key under `n/` belongs to. */
  read(key: string): { name: string; grantId: string; isClosure: boolean } {
    const [name = "", grantId = "", ...rest] = key.slice(this.#prefix.length + 2).split(END);
    return { name, grantId, isClosure: rest.length > 0 };
  }

  revoked(name: string): Range {
    return within(`${this.#prefix}r/${name}${END}`);
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

  /** What a key under a session belongs to; null if it is none of ours, or the session's own. A notice is not the claim itself. */
  readUnder(
    lease: bigint,
    key: string,
  ): { name: string; grantId: string; isNotice: boolean } | null {
    const notices = `${this.session(lease)}/`;
    const isNotice = key.startsWith(notices);
    if (!isNotice && !key.startsWith(`${this.#prefix}n/`)) return null;
    const [name = "", grantId = ""] = key
      .slice(isNotice ? notices.length : this.#prefix.length + 2)
      .split(END);
    return { name, grantId, isNotice };
  }

  /** A session's key, and the notices to it. */
  sessionAndNotices(lease: bigint): Range {
    const key = this.session(lease);
    // "0" follows "/".
    return { key, rangeEnd: `${key}0` };
  }
}

/** All keys that begin so. Every beginning ends in a byte that has a next: names do not, so they get the highest. */
function within(beginning: string): Range {
  if (beginning.endsWith(END)) return { key: beginning, rangeEnd: `${beginning.slice(0, -1)}\x01` };
  return { key: beginning, rangeEnd: `${beginning}\u{10ffff}` };
}
