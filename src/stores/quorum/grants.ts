import type { Clock } from "../../core/clock.js";
import type { StoreUnavailableError } from "../../core/errors.js";
import type { Grant, LostAnswer, ReleaseAnswer, RenewAnswer, Renewal } from "../../core/store.js";
import { LOST } from "../shared/lost.js";
import { type Ballot, majorityOf } from "./ballot.js";
import { unavailable } from "./errors.js";
import { askAll, type Limits, type Member } from "./member.js";
import type { NodeRenewal } from "./node.js";
import type { Releases } from "./releases.js";
import { type RenewalResult, RenewalVotes } from "./renewal-votes.js";

/** The parts of the ttl, and the longest times, after which a node counts as silent, and a request times out. */
const SILENT = { perTtl: 1 / 6, mostMs: 500 };
const TIMEOUT = { perTtl: 1 / 2, mostMs: 2_000 };
/** Expired grants are dropped from memory when there are this many more than after the last sweep. */
const SWEEP_EVERY = 1_000;

/** The most revocations whose reasons are kept in memory. */
const REVOKED_KNOWN = 1_000;

export const limitsOf = (ttlMs: number): Limits => ({
  silentMs: Math.min(ttlMs * SILENT.perTtl, SILENT.mostMs),
  timeoutMs: Math.min(ttlMs * TIMEOUT.perTtl, TIMEOUT.mostMs),
});

/** A grant of this process. */
export interface OwnGrant {
  readonly name: string;
  readonly grantId: string;
  /** The id of the ballot that was decided. */
  readonly id: string;
  readonly token: number;
  readonly holder: string;
  readonly closedUntilMs: number;
  readonly ttlMs: number;
  /** Says which nodes its claim may still reach. */
  readonly ballot: Pick<Ballot, "mayReach">;
}

/** A ballot to which all nodes have replied: no claim of it can arrive later. */
const ANSWERED: Pick<Ballot, "mayReach"> = { mayReach: () => false };

interface KeptGrant extends OwnGrant {
  ballot: Pick<Ballot, "mayReach">;
  /** When the record has expired on all nodes. */
  expiresAtMs: number;
  /** For each node, whether it had the record when it was released; undefined until it replies. */
  readonly released: (boolean | undefined)[];
}

/** The grants of this process, by grantId: renews and releases them on all nodes. */
export class Grants {
  readonly #members: readonly Member[];
  readonly #majority: number;
  readonly #clock: Clock;
  readonly #releases: Releases;
  readonly #grants = new Map<string, KeptGrant>();
  /** Grants that were revoked, by grantId, and why: a claim that comes later gets no other. */
  readonly #revoked = new Map<string, LostAnswer>();
  #sweepAt = SWEEP_EVERY;

  constructor(members: readonly Member[], clock: Clock, releases: Releases) {
    this.#members = members;
    this.#majority = majorityOf(members.length);
    this.#clock = clock;
    this.#releases = releases;
  }

  add(grant: OwnGrant): void {
    this.#sweep();
    const expiresAtMs = this.#clock.elapsedMs() + grant.ttlMs;
    this.#grants.set(grant.grantId, { ...grant, expiresAtMs, released: [] });
  }

  has(name: string, grantId: string): boolean {
    return this.#grants.get(grantId)?.name === name;
  }

  /** Whether no node can have the record any more: a renewal would store it again, without a vote. */
  hasExpired(grantId: string): boolean {
    const grant = this.#grants.get(grantId);
    return grant !== undefined && grant.expiresAtMs <= this.#clock.elapsedMs();
  }

  /** The answer to a claim whose grant was revoked. */
  whyRevoked(grantId: string): LostAnswer | undefined {
    return this.#revoked.get(grantId);
  }

  /** Whether a lease may still be in use. */
  get areInUse(): boolean {
    const nowMs = this.#clock.elapsedMs();
    return [...this.#grants.values()].some(({ expiresAtMs }) => expiresAtMs > nowMs);
  }

  /** Sends the renewals to all nodes, also those of unknown grants: their replies show whether the nodes reply at all. */
  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    if (renewals.length === 0) return [];
    const requests = renewals.map((renewal) => this.#toNodeRenewal(renewal));
    const votes = renewals.map(() => new RenewalVotes(this.#members.length));
    const counted = new Set<number>();
    await askAll(
      this.#members,
      limitsOf(Math.min(...renewals.map(({ ttlMs }) => ttlMs))),
      (node) => node.renew(requests),
      (answers) => {
        for (const [i, answer] of answers) {
          if (counted.has(i)) continue;
          counted.add(i);
          for (const [j, vote] of votes.entries()) {
            vote.add(answer instanceof Error ? answer : answer[j]!, i);
          }
        }
        return votes.every(({ isDecided }) => isDecided);
      },
    );
    return votes.map((vote, i) => this.#toRenewAnswer(vote, renewals[i]!));
  }

  /**
   * Resolves when a majority has replied; rejects if too few do, and may be called again then. `isAwaited`: another
   * process was notified that the name is free.
   */
  release(
    grantId: string,
    unused: boolean,
  ): Promise<{ answer: ReleaseAnswer; isAwaited: boolean }> {
    const { name, id, token, ttlMs, expiresAtMs, released, ballot } = this.#grants.get(grantId)!;
    const request = { name, id, number: token, unused, wakes: true, ballot };
    const limits = limitsOf(ttlMs);
    const keptMs = Math.max(0, expiresAtMs - this.#clock.elapsedMs());
    const failures: Error[] = [];
    let answers = 0;
    let isAwaited = false;
    let isOver = false;
    return new Promise((resolve, reject) => {
      this.#releases.send(request, { limits, keptMs }, (answer, i) => {
        answers++;
        if (answer instanceof Error) failures.push(answer);
        // An earlier attempt may have dropped it, whose answer was lost.
        else released[i] ||= answer !== "absent";
        isAwaited ||= answer === "awaited";
        if (isOver) return;
        let [had, absent] = [0, 0];
        for (const hadIt of released) {
          if (hadIt === true) had++;
          else if (hadIt === false) absent++;
        }
        const isLost = this.#members.length - absent < this.#majority;
        if (had >= this.#majority || isLost) {
          isOver = true;
          this.#grants.delete(grantId);
          if (!isLost) resolve({ answer: "released", isAwaited });
          else
            this.#findWhyLost(name, id, grantId).then((answer) => resolve({ answer, isAwaited }));
        } else if (answers === this.#members.length) {
          reject(unavailable(this.#members.length, failures));
        }
      });
    });
  }

  #toNodeRenewal({ name, grantId, seq, ttlMs }: Renewal): NodeRenewal {
    const grant = this.#grants.get(grantId);
    if (grant === undefined || grant.name !== name || grant.released.length > 0) {
      return { name, id: grantId, number: -1, ttlMs, seq, closedForMs: 0, holder: "" };
    }
    const { id, token, holder, closedUntilMs, ballot } = grant;
    // The ballot itself takes more memory than the grant.
    if (!this.#members.some((_, i) => ballot.mayReach(i))) grant.ballot = ANSWERED;
    const closedForMs = Math.max(0, closedUntilMs - this.#clock.elapsedMs());
    // The nodes may have extended the record by the time that the answer is lost.
    grant.expiresAtMs = Math.max(grant.expiresAtMs, this.#clock.elapsedMs() + ttlMs);
    return { name, id, number: token, ttlMs, seq, closedForMs, holder };
  }

  #toRenewAnswer(votes: RenewalVotes, { grantId }: Renewal): RenewAnswer {
    const result = votes.result();
    if (result.kind === "lost") return this.whyRevoked(grantId) ?? this.#lose(grantId, result);
    const grant = this.#grants.get(grantId);
    // Released meanwhile.
    if (grant === undefined) return LOST;
    if (result.kind === "renewed") {
      return { kind: "granted", grant: toGrant(grant.token, result.seq, result.ttlMs) };
    }
    return { kind: "unknown", cause: this.#notRenewed(result) };
  }

  #notRenewed({
    failures,
    filled,
    refused,
  }: Extract<RenewalResult, { kind: "unknown" }>): StoreUnavailableError {
    const more = [];
    if (filled > 0)
      more.push(`${filled} had lost the lease, have it again and vote for it next time`);
    if (refused > 0) more.push(`${refused} no longer have the lease`);
    return unavailable(this.#members.length, failures, { count: filled + refused, reasons: more });
  }

  #lose(grantId: string, answer: LostAnswer): LostAnswer {
    const grant = this.#grants.get(grantId);
    if (grant !== undefined) {
      // A minority may still have the record, and has just extended it.
      const { name, id, token, ttlMs, expiresAtMs, ballot } = grant;
      const keptMs = expiresAtMs - this.#clock.elapsedMs();
      const limits = { limits: limitsOf(ttlMs), keptMs };
      const request = { name, id, number: token, unused: false, wakes: true, ballot };
      this.#releases.send(request, limits, () => {});
    }
    this.#grants.delete(grantId);
    if (answer.reason === "revoked") {
      this.#revoked.set(grantId, answer);
      const [oldest] = this.#revoked.keys();
      if (this.#revoked.size > REVOKED_KNOWN) this.#revoked.delete(oldest!);
    }
    return answer;
  }

  /** The nodes have no record of the ballot; those that know of a revocation say so. */
  async #findWhyLost(name: string, id: string, grantId: string): Promise<LostAnswer> {
    const request = { name, id, number: -1, ttlMs: 0, seq: 0, closedForMs: 0, holder: "" };
    const votes = new RenewalVotes(this.#members.length);
    const answers = await askAll(
      this.#members,
      limitsOf(TIMEOUT.mostMs),
      (node) => node.renew([request]),
      (some) => this.#members.every(({ isSilent }, i) => some.has(i) || isSilent),
    );
    for (const [i, answer] of answers) votes.add(answer instanceof Error ? answer : answer[0]!, i);
    const result = votes.result();
    return result.kind === "lost" ? this.#lose(grantId, result) : LOST;
  }

  #sweep(): void {
    if (this.#grants.size < this.#sweepAt) return;
    const nowMs = this.#clock.elapsedMs();
    for (const [grantId, { expiresAtMs }] of this.#grants) {
      if (expiresAtMs <= nowMs) this.#grants.delete(grantId);
    }
    this.#sweepAt = this.#grants.size + SWEEP_EVERY;
  }
}

export const toGrant = (token: number, seq: number, ttlMs: number): Grant => {
  return { token: BigInt(token), floor: BigInt(token), ttlMs, seq, handedOver: false };
};
