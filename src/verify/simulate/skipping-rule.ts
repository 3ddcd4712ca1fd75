import type {
  Claim,
  ClaimAnswer,
  HolderInfo,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
} from "../../core/store.js";
import type { DuePush, Rule } from "../../stores/rule.js";
import type { ClaimRecord } from "../../stores/shared/claim-record.js";

/** The clients that the store's pushes reach. */
export interface Subscribers {
  /** Whether a push would reach the client of this holder. */
  reaches(holder: string): boolean;
  skipped(record: ClaimRecord): void;
}

/**
 * The rule as Redis has it: when the push of a handover reaches nobody, the name passes to the next
 * waiter. A waiter whose own request is being answered is alive and keeps its grant, unless
 * `skipsAnswered`: then its reply says `granted`, and another waiter is granted, too.
 */
export function skippingRule(
  base: typeof Rule,
  subscribers: Subscribers,
  skipsAnswered = false,
): typeof Rule {
  return class extends base {
    /** A batch checks its handovers after each of its items. */
    readonly #seen = new WeakSet<DuePush>();

    override claim(claim: Claim): ClaimAnswer {
      return this.#passOn(super.claim(claim), claim.grantId);
    }

    override renew(renewal: Renewal): RenewAnswer {
      return this.#passOn(super.renew(renewal), renewal.grantId);
    }

    override release(release: Release): ReleaseAnswer {
      return this.#passOn(super.release(release));
    }

    override revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
      return this.#passOn(super.revoke(name, by));
    }

    override resize(name: string, limit: number): number | null {
      return this.#passOn(super.resize(name, limit));
    }

    #passOn<T>(answer: T, answered?: string): T {
      for (;;) {
        const fresh = this.handovers.find((one) => !this.#seen.has(one));
        if (fresh === undefined) return answer;
        this.#seen.add(fresh);
        const { record } = fresh;
        const isAnswered = record.grantId === answered && !skipsAnswered;
        if (isAnswered || subscribers.reaches(record.holder)) continue;
        this.handovers = this.handovers.filter((one) => one !== fresh);
        // The step that granted the claim may have been its own release.
        if (this.claims.find(record.name, record.grantId) !== record) continue;
        this.claims.remove(record);
        subscribers.skipped(record);
        this.advance(record.name, this.clock.nowMs());
      }
    }
  };
}
