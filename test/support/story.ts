import type { ClaimAnswer, Grant, NameInfo, Position, RenewAnswer } from "../../src/core/store.js";

/** How exactly a store is compared. */
export interface Telling {
  /** What of a position is the same for all. */
  position(position: Position): unknown;
  /** And in the answer to a claim, if less. */
  queued?(position: Position): unknown;
  /** Whether a grant has the ttl that was asked for, and not what is left of a session. */
  readonly ttl: boolean;
}

/** What a store said, without what depends on time, so that two of them can be compared. */
export class Story {
  readonly said: unknown[] = [];
  readonly #telling: Telling;
  readonly #tokens = new Map<string, Set<bigint>>();

  constructor(telling: Telling) {
    this.#telling = telling;
  }

  /** Tokens by their rank among all of the name. */
  get told(): unknown {
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
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, ranked(one)]));
    };
    return ranked(this.said);
  }

  claimed(answer: ClaimAnswer, names: readonly string[]): object {
    const { position, queued } = this.#telling;
    switch (answer.kind) {
      case "granted":
        return { granted: answer.grants.map((one, i) => this.#grant(one, names[i]!)) };
      case "queued":
        return { queued: (queued ?? position)(answer.position) };
      case "busy":
        return { busy: names.indexOf(answer.name), position: position(answer.position) };
      case "mismatch":
        return { mismatch: names.indexOf(answer.name), limit: answer.limit };
      default:
        return answer;
    }
  }

  renewed(answer: RenewAnswer, name: string): unknown {
    if (answer.kind === "granted") return { granted: this.#grant(answer.grant, name) };
    return answer.kind === "queued" ? { queued: this.#telling.position(answer.position) } : answer;
  }

  info(info: NameInfo | null): unknown {
    if (info === null) return null;
    const inUse = info.holders.length + info.waiters.length > 0;
    return {
      // Otherwise it is that of one of the past.
      limit: inUse ? info.limit : null,
      holders: info.holders.map((one) => this.holder(one, info.name)),
      waiters: info.waiters.map(({ holder, mode, permits }) => ({ holder, mode, permits })),
      revoked: info.revoked.map(({ holder, by, why, token }) => ({
        holder,
        by,
        why,
        token: this.#token(token, info.name),
      })),
    };
  }

  holder({ holder, mode, permits, closed, token }: NameInfo["holders"][number], name: string) {
    return { holder, mode, permits, closed, token: this.#token(token, name) };
  }

  #grant({ token, floor, ttlMs, ...rest }: Grant, name: string): unknown {
    const ttl = this.#telling.ttl ? { ttlMs } : {};
    return { ...rest, ...ttl, token: this.#token(token, name), floor: this.#token(floor, name) };
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
