import type { Clock } from "../core/clock.js";
import type { Runtime } from "../core/runtime.js";
import type { Claim, ClaimAnswer, Grant, Release, ReleaseAnswer, Store } from "../core/store.js";
import type { Fence } from "../fence/fence.js";
import { type ClaimRecord, Rule } from "../stores/rule.js";
import { delegate } from "./delegate.js";

/** A core, a store or a fence that is wrong in one way: what the suite and the checks have to find. */
export interface Mutant {
  readonly rule?: typeof Rule;
  readonly runtime?: (runtime: Runtime) => Runtime;
  /** Fresh for each run: it may remember. Between the core and each client's store. */
  readonly store?: () => (store: Store, clock: Clock) => Store;
  readonly fence?: <Tx>(fence: Fence<Tx>) => Fence<Tx>;
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

class Barging extends Rule {
  override claim(claim: Claim): ClaimAnswer {
    const name = claim.names[0]!;
    const inUse = [...this.claims.inOrder(name)]
      .filter((one) => one.token > 0n && one.expiresAtMs > this.clock.nowMs())
      .reduce((sum, one) => sum + one.permits, 0);
    if (claim.seq > 1 || inUse === 0 || inUse + claim.permits > claim.limit) {
      return super.claim(claim);
    }
    const token = this.drawToken();
    return {
      kind: "granted",
      grants: [{ token, floor: token, ttlMs: claim.ttlMs, seq: claim.seq, handedOver: false }],
    };
  }
}

/** SET, then INCR: the first client is paused between the two. */
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
        push(one.kind === "look" ? one : { ...one, grant: renumber(claim.grantId, one.grant) }),
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

export const MUTANTS = {
  "delete without compare": { rule: DeleteWithoutCompare },
  "release that touches the successor": { rule: ReleaseDropsNextTicket },
  "token not atomic with the grant": { store: tokenAfterTheGrant },
  "token that repeats": { rule: TokenByClockAlone },
  "a repeated ask that extends only locally": { rule: ExtendsOnlyLocally },
  "obeys a renewal that was overtaken": { rule: ObeysTheLastHeard },
  barging: { rule: Barging },
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
        suspicions: () => 0,
        after: (ms, run) => clock.after(ms, run),
      },
    }),
  },
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

export type MutantName = keyof typeof MUTANTS;
