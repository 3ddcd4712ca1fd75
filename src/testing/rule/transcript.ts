import type { ClaimAnswer, Grant, NameInfo, Position, RenewAnswer } from "../../core/store.js";

/**
 * A part of the replies in which a store may differ from the rule:
 * `ahead`: how many waiters are ahead of a ticket, except that zero means the first;
 * `claim-position`: the whole position in the reply to a claim that is queued;
 * `ttl`: the ttl of a grant.
 */
export type Ignored = "ahead" | "claim-position" | "ttl";

/** Replies of a store without all that depends on time, so that two stores can be compared. */
export class Transcript {
  readonly #entries: unknown[] = [];
  readonly #ignored: ReadonlySet<Ignored>;
  readonly #tokens = new Map<string, Set<bigint>>();

  constructor(ignored: ReadonlySet<Ignored>) {
    this.#ignored = ignored;
  }

  add(entry: unknown): void {
    this.#entries.push(entry);
  }

  get length(): number {
    return this.#entries.length;
  }

  /** The entries from this index on. Each token is replaced by its rank among all tokens of its name. */
  toComparable(from: number): readonly unknown[] {
    const ranks = new Map(
      [...this.#tokens].map(([name, tokens]) => [
        name,
        [...tokens].sort((a, b) => (a < b ? -1 : 1)),
      ]),
    );
    const ranked = (value: unknown): unknown => {
      if (value instanceof Token) return `token ${ranks.get(value.name)!.indexOf(value.token)}`;
      if (Array.isArray(value)) return value.map(ranked);
      if (value === null || typeof value !== "object") return value;
      return Object.fromEntries(
        Object.entries(value)
          .filter(([, one]) => one !== undefined)
          .map(([key, one]) => [key, ranked(one)]),
      );
    };
    return this.#entries.slice(from).map(ranked);
  }

  claimed(answer: ClaimAnswer, names: readonly string[]): unknown {
    switch (answer.kind) {
      case "granted":
        return { granted: answer.grants.map((one, i) => this.grant(one, names[i]!)) };
      case "queued":
        if (this.#ignored.has("claim-position")) return "queued";
        return { queued: this.#position(answer.position) };
      case "busy":
        return { busy: names.indexOf(answer.name), position: this.#position(answer.position) };
      case "mismatch":
        return { mismatch: names.indexOf(answer.name), limit: answer.limit };
      default:
        return answer;
    }
  }

  renewed(answer: RenewAnswer, name: string): unknown {
    switch (answer.kind) {
      case "granted":
        return { granted: this.grant(answer.grant, name) };
      case "queued":
        return { queued: this.#position(answer.position) };
      default:
        return answer;
    }
  }

  info(info: NameInfo | null): unknown {
    if (info === null) return null;
    const isInUse = info.holders.length + info.waiters.length > 0;
    return {
      // A name with nothing left but revoked leases has the limit of one of them.
      limit: isInUse ? info.limit : null,
      holders: info.holders.map((one) => this.holder(one, info.name)),
      waiting: info.waiting,
      waiters: info.waiters.map(({ holder, mode, permits }) => ({ holder, mode, permits })),
      revoked: info.revoked.map(({ holder, by, why, token }) => ({
        holder,
        by,
        why,
        token: this.#token(token, info.name),
      })),
    };
  }

  holder(
    { holder, mode, permits, closed, token }: NameInfo["holders"][number],
    name: string,
  ): unknown {
    return { holder, mode, permits, closed, token: this.#token(token, name) };
  }

  grant({ token, floor, ttlMs, seq, handedOver }: Grant, name: string): unknown {
    return {
      seq,
      handedOver,
      token: this.#token(token, name),
      floor: this.#token(floor, name),
      ttlMs: this.#ignored.has("ttl") ? undefined : ttlMs,
    };
  }

  #position({ ahead, freeInMs, holder }: Position): unknown {
    return {
      ahead: this.#ignored.has("ahead") ? Math.min(ahead, 1) : ahead,
      isHeld: freeInMs < Number.POSITIVE_INFINITY,
      holder,
    };
  }

  #token(token: bigint, name: string): Token {
    const tokens = this.#tokens.get(name) ?? new Set();
    this.#tokens.set(name, tokens.add(token));
    return new Token(token, name);
  }
}

class Token {
  readonly token: bigint;
  readonly name: string;

  constructor(token: bigint, name: string) {
    this.token = token;
    this.name = name;
  }
}
