import type { Clock } from "../core/clock.js";
import type { Runtime } from "../core/runtime.js";
import type {
  Claim,
  ClaimAnswer,
  Grant,
  HolderInfo,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
} from "../core/store.js";
import type { Fence } from "../fence/fence.js";
import { type NameState, Rule } from "../stores/rule.js";
import { type ClaimRecord, toGrant } from "../stores/shared/claim-record.js";
import { delegate } from "./delegate.js";

/** A core, a store or a fence with one mistake. The suite and the checks have to find it. */
export interface Mutant {
  /** The broken rule, for a store that takes one, such as `MemoryStore`. */
  readonly rule?: typeof Rule;
  /** Breaks the clock or the seams of a core. */
  readonly runtime?: (runtime: Runtime) => Runtime;
  /** Makes a wrapper around the store of each client; a fresh one for each run, because it may have state. */
  readonly store?: () => (store: Store, clock: Clock) => Store;
  /** Breaks a fence. */
  readonly fence?: <Tx>(fence: Fence<Tx>) => Fence<Tx>;
  /**
   * The simulator's store, which skips waiters that its push does not reach, also skips one that
   * the same call replies to.
   */
  readonly skipsAnswered?: boolean;
}

class DeleteWithoutCompare extends Rule {
  override release({ name }: Release): ReleaseAnswer {
    const [first] = this.claims.inOrder(name);
    if (first === undefined) return { kind: "lost", reason: "expired" };
    this.claims.remove(first);
    this.advance(name, this.clock.nowMs());
    return "released";
  }
}

class ReleaseDropsNextTicket extends Rule {
  override release(release: Release): ReleaseAnswer {
    const answer = super.release(release);
    const next = [...this.claims.inOrder(release.name)].find((one) => one.token === 0n);
    if (answer !== "released" && next !== undefined) this.claims.remove(next);
    return answer;
  }
}

class TokenByClockAlone extends Rule {
  protected override drawToken(): bigint {
    return BigInt(Math.floor(this.clock.wallMs() * 1_000));
  }
}

/** How long this mutant keeps a token counter that is not used. */
const COUNTER_KEPT_MS = 60_000;

class ForgetsTheLastToken extends Rule {
  #last = 0n;
  #drawnAtMs = 0;

  protected override drawToken(): bigint {
    const nowMs = this.clock.nowMs();
    const least = BigInt(Math.floor(this.clock.wallMs() * 1_000));
    const isKept = nowMs - this.#drawnAtMs < COUNTER_KEPT_MS;
    this.#last = isKept && this.#last >= least ? this.#last + 1n : least;
    this.#drawnAtMs = nowMs;
    return this.#last;
  }
}

class ExtendsOnlyLocally extends Rule {
  protected override extend(record: ClaimRecord, by: { seq: number; ttlMs: number }): void {
    record.seq = by.seq;
  }
}

class ObeysTheLastHeard extends Rule {
  protected override extend(record: ClaimRecord, by: { seq: number; ttlMs: number }): void {
    record.seq = by.seq;
    record.expiresAtMs = this.clock.nowMs() + by.ttlMs;
  }
}

class RevivesExpiredTickets extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    const ticket = this.claims.find(claim.names[0]!, claim.grantId);
    if (ticket?.token === 0n) this.extend(ticket, claim, this.clock.nowMs());
    return super.claim(claim);
  }
}

class Barging extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    const name = claim.names[0]!;
    const inUse = [...this.claims.inOrder(name)]
      .filter((one) => one.token > 0n && one.expiresAtMs > this.clock.nowMs())
      .reduce((sum, one) => sum + one.permits, 0);
    const fits = inUse > 0 && inUse + claim.permits <= claim.limit;
    if (claim.seq > 1 || claim.names.length > 1 || !fits) return super.claim(claim);
    const token = this.drawToken();
    return {
      kind: "granted",
      grants: [{ token, floor: token, ttlMs: claim.ttlMs, seq: claim.seq, handedOver: false }],
    };
  }
}

class GrantsWhoeverFits extends Rule {
  protected override advance(name: string, nowMs: number): NameState {
    const state = super.advance(name, nowMs);
    if (state.firstTicket === undefined) return state;
    const holders = [...this.claims.inOrder(name)].filter((one) => one.token > 0n);
    let inUse = holders.reduce((sum, one) => sum + one.permits, 0);
    for (const one of this.claims.inOrder(name)) {
      if (one.token > 0n || inUse + one.permits > one.limit) continue;
      this.handOver(one, holders, nowMs);
      inUse += one.permits;
    }
    return state;
  }
}

class TellsNobodyOfAShorterLease extends Rule {
  protected override lookIfEndsSooner(): void {}
}

class FloorIsTheOwnToken extends Rule {
  protected override grant(
    record: ClaimRecord,
    holders: readonly ClaimRecord[],
    nowMs: number,
  ): void {
    super.grant(record, holders, nowMs);
    record.floor = record.token;
  }
}

class TrustsTheCallersLimit extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    for (const name of claim.names) {
      for (const one of this.claims.inOrder(name)) {
        one.limit = claim.limit;
        this.claims.save(one);
      }
    }
    return super.claim(claim);
  }
}

class ResizesHoldersAlone extends Rule {
  override resize(name: string, limit: number): number | null {
    const before = super.resize(name, limit);
    for (const one of [...this.claims.inOrder(name)]) {
      if (one.token > 0n || before === null) continue;
      one.limit = before;
      this.claims.save(one);
    }
    return before;
  }
}

class GivesTheRevokedTokenAgain extends Rule {
  #last = 0n;

  override revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    const holding = [...this.claims.inOrder(name)].filter((one) => one.ended === "no");
    this.#last = holding.findLast((one) => one.token > 0n)?.token ?? 0n;
    return super.revoke(name, by);
  }

  protected override drawToken(): bigint {
    const last = this.#last;
    this.#last = 0n;
    return last > 0n ? last : super.drawToken();
  }
}

class RevokesTheQueueToo extends Rule {
  override revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    for (const one of [...this.claims.inOrder(name)]) {
      if (one.token === 0n) this.claims.remove(one);
    }
    return super.revoke(name, by);
  }
}

class RenewsTheRevoked extends Rule {
  override renew(renewal: Renewal): RenewAnswer {
    const answer = super.renew(renewal);
    if (answer.kind !== "lost" || answer.reason !== "revoked") return answer;
    const revoked = [...this.claims.inOrder(renewal.name)].find(
      (one) => one.grantId === renewal.grantId,
    )!;
    const { seq, ttlMs } = renewal;
    return { kind: "granted", grant: { ...toGrant(revoked, false), seq, ttlMs } };
  }
}

class GrantsTheRevokedAgain extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    for (const name of claim.names) {
      for (const one of [...this.claims.inOrder(name)]) {
        if (one.ended === "revoked" && one.grantId === claim.grantId) this.claims.remove(one);
      }
    }
    return super.claim(claim);
  }
}

class RevokesWhoComesNext extends Rule {
  override revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    this.advance(name, this.clock.nowMs());
    return super.revoke(name, by);
  }
}

class ClosesThoughUnused extends Rule {
  override release(release: Release): ReleaseAnswer {
    return super.release({ ...release, unused: false });
  }
}

class OpensAtTheRelease extends Rule {
  override release(release: Release): ReleaseAnswer {
    return super.release({ ...release, unused: true });
  }
}

class SomeOfTheNames extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    const grants: Grant[] = [];
    for (const name of claim.names) {
      const answer = super.claim({ ...claim, names: [name] });
      if (answer.kind !== "granted") return answer;
      grants.push(...answer.grants);
    }
    return { kind: "granted", grants };
  }
}

/** Grants first and draws the token afterwards; the first client is paused between the two. */
function tokenAfterTheGrant(): (store: Store, clock: Clock) => Store {
  const drawn = new Map<string, bigint>();
  let counter = 0n;
  let asked = 0;
  const renumber = (grantId: string, grant: Grant): Grant => {
    const token = drawn.get(grantId) ?? ++counter;
    drawn.set(grantId, token);
    return { ...grant, token, floor: token };
  };
  return (store, clock) => ({
    ...delegate(store),
    claim: async (claim, push) => {
      const answer = await store.claim(claim, (one) =>
        push(one.kind === "granted" ? { ...one, grant: renumber(claim.grantId, one.grant) } : one),
      );
      if (answer.kind !== "granted") return answer;
      if (asked++ === 0) await new Promise<void>((go) => clock.after(claim.ttlMs * 2, go));
      return {
        kind: "granted",
        grants: answer.grants.map((grant) => renumber(claim.grantId, grant)),
      };
    },
    renew: async (renewals) =>
      (await store.renew(renewals)).map((answer, i) =>
        answer.kind === "granted"
          ? { ...answer, grant: renumber(renewals[i]!.grantId, answer.grant) }
          : answer,
      ),
  });
}

/** Takes a missing reply to a renewal for the last known grant. */
function missingAnswerIsARenewal(): (store: Store, clock: Clock) => Store {
  const known = new Map<string, Grant>();
  return (store) => ({
    ...delegate(store),
    renew: async (renewals) => {
      const answers = await store.renew(renewals);
      return renewals.map(({ grantId, name, seq, ttlMs }, i): RenewAnswer => {
        const answer = answers[i];
        const before = known.get(`${grantId} ${name}`);
        if (answer?.kind === "granted") known.set(`${grantId} ${name}`, answer.grant);
        if (answer !== undefined) return answer;
        return before === undefined
          ? { kind: "unknown", cause: new Error("no answer") }
          : { kind: "granted", grant: { ...before, seq, ttlMs } };
      });
    },
  });
}

/** A client that reads replies from one stream: surplus replies of a batch become those of the next. */
function surplusAnswersTheNext(): (store: Store, clock: Clock) => Store {
  return (store) => {
    let left: readonly RenewAnswer[] = [];
    return {
      ...delegate(store),
      renew: async (renewals) => {
        const answers = [...left, ...(await store.renew(renewals))];
        left = answers.slice(renewals.length);
        return answers.slice(0, renewals.length);
      },
    };
  };
}

/** Takes a missing reply for a release that was executed. */
function missingAnswerIsARelease(): (store: Store, clock: Clock) => Store {
  return (store) => ({
    ...delegate(store),
    release: async (releases) => {
      const answers = await store.release(releases);
      return releases.map((_, i) => answers[i] ?? "released");
    },
  });
}

/** All mutants, by their mistake. A suite proves itself by finding each. */
export const MUTANTS = {
  "delete without compare": { rule: DeleteWithoutCompare },
  "release that touches the successor": { rule: ReleaseDropsNextTicket },
  "token not atomic with the grant": { store: tokenAfterTheGrant },
  "token that repeats": { rule: TokenByClockAlone },
  "token counter that expires": { rule: ForgetsTheLastToken },
  "a repeated ask that extends only locally": { rule: ExtendsOnlyLocally },
  "obeys a renewal that was overtaken": { rule: ObeysTheLastHeard },
  "an expired ticket that a claim revives": { rule: RevivesExpiredTickets },
  barging: { rule: Barging },
  "readers that pass a waiting writer": { rule: GrantsWhoeverFits },
  "a handover to a shorter lease that no waiter is told of": { rule: TellsNobodyOfAShorterLease },
  "a floor that shuts out who still holds": { rule: FloorIsTheOwnToken },
  "a semaphore that trusts the caller's limit": { rule: TrustsTheCallersLimit },
  "resize that grants beyond the new limit": { rule: ResizesHoldersAlone },
  "forced release that gives the token again": { rule: GivesTheRevokedTokenAgain },
  "forced release that drops the queue": { rule: RevokesTheQueueToo },
  "forced release that a renewal undoes": { rule: RenewsTheRevoked },
  "forced release that a late ask undoes": { rule: GrantsTheRevokedAgain },
  "forced release of who comes next": { rule: RevokesWhoComesNext },
  "an unused grant that closes the name": { rule: ClosesThoughUnused },
  "a release that opens the name before its time": { rule: OpensAtTheRelease },
  "some of several names": { rule: SomeOfTheNames },
  "deadline counted from the reply": {
    runtime: (runtime) => ({
      ...runtime,
      seams: { ...runtime.seams, countFrom: () => runtime.clock.elapsedMs() },
    }),
  },
  "deadline on the wall clock": {
    runtime: ({ clock, ...rest }) => ({
      ...rest,
      clock: {
        elapsedMs: () => clock.wallMs(),
        wallMs: () => clock.wallMs(),
        unexplainedMs: () => 0,
        after: (ms, run) => clock.after(ms, run),
      },
    }),
  },
  "a missing answer that counts as a renewal": { store: missingAnswerIsARenewal },
  "a missing answer that counts as a release": { store: missingAnswerIsARelease },
  "surplus answers that answer the next batch": { store: surplusAnswersTheNext },
  "handover past a waiter that the call answers": { skipsAnswered: true },
  "pushed grant without its sequence number": {
    runtime: (runtime) => ({
      ...runtime,
      seams: { ...runtime.seams, restsOn: (_seq, lastSeq) => lastSeq },
    }),
  },
  "fence that is not entered before the read": {
    fence: (fence) => ({
      enter: async () => {},
      guard: fence.guard.bind(fence),
      highest: fence.highest.bind(fence),
      reset: fence.reset.bind(fence),
    }),
  },
} as const satisfies Record<string, Mutant>;

/** The name of a mutant. */
export type MutantName = keyof typeof MUTANTS;
