import { AssertionError } from "node:assert";
import { describe, expect, test } from "vitest";
import type { Claim, ClaimAnswer, Release, ReleaseAnswer, Store } from "../../src/core/store.js";
import { type ClaimRecord, Rule } from "../../src/stores/rule.js";
import { conformance, runCase, type VirtualClock } from "../../src/testing/index.js";
import { type MemoryVariant, memorySubject } from "./subjects.js";

/** Stores and cores that are wrong in one way each, and the cases that have to say so. */
const MUTANTS: Record<string, { variant: () => MemoryVariant; caughtBy: string[] }> = {
  "delete without compare": {
    variant: () => ({ rule: DeleteWithoutCompare }),
    caughtBy: ["a stale release touches neither the successor nor the queue"],
  },
  "release that touches the successor": {
    variant: () => ({ rule: ReleaseDropsNextTicket }),
    caughtBy: ["a stale release touches neither the successor nor the queue"],
  },
  "token not atomic with the grant": {
    variant: () => ({ store: tokenAfterTheGrant() }),
    caughtBy: ["a token belongs to the moment of its grant"],
  },
  "token that repeats": {
    variant: () => ({ rule: TokenByClockAlone }),
    caughtBy: [
      "tokens rise for every new client, and never repeat",
      "tokens rise though the store's wall clock is set back",
      "50 contenders: never two holders, tokens unique and in order",
    ],
  },
  "a repeated ask that extends only locally": {
    variant: () => ({ rule: ExtendsOnlyLocally }),
    caughtBy: [
      "asking again with the same grantId finds the same grant and token, and extends it",
      "the watchdog keeps a lease for many ttls",
    ],
  },
  "obeys a renewal that was overtaken": {
    variant: () => ({ rule: ObeysTheLastHeard }),
    caughtBy: ["a renewal that was overtaken on its way changes nothing"],
  },
  barging: {
    variant: () => ({ rule: Barging }),
    caughtBy: [
      "shared, exclusive and permits follow one rule",
      "readers hold together, a writer alone",
    ],
  },
  "deadline counted from the reply": {
    variant: () => ({
      runtime: (runtime, clock) => ({
        ...runtime,
        seams: { ...runtime.seams, countFrom: () => clock.elapsedMs() },
      }),
    }),
    caughtBy: [
      "the deadline counts from before the claim was sent, not from its answer",
      "the deadline counts from before a renewal was sent, not from its answer",
      "an answer that comes after the ttl is no grant",
    ],
  },
  "deadline on the wall clock": {
    variant: () => ({
      runtime: (runtime, clock) => ({
        ...runtime,
        clock: {
          elapsedMs: () => clock.wallMs(),
          wallMs: () => clock.wallMs(),
          suspicions: () => 0,
          after: (ms, run) => clock.after(ms, run),
        },
      }),
    }),
    caughtBy: ["the wall clock decides nothing"],
  },
  "pushed grant without its sequence number": {
    variant: () => ({ seams: { restsOn: (_seq, lastSeq) => lastSeq } }),
    caughtBy: ["a push that comes too late is no grant"],
  },
  "fence that is not entered before the read": {
    variant: () => ({
      cell: (cell) => ({
        ...cell,
        fence: {
          enter: async () => {},
          guard: cell.fence.guard.bind(cell.fence),
          highest: cell.fence.highest.bind(cell.fence),
          reset: cell.fence.reset.bind(cell.fence),
        },
      }),
    }),
    caughtBy: ["withLock enters the fence before the first read, so no update is lost"],
  },
};

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
function tokenAfterTheGrant(): (store: Store, clock: VirtualClock) => Store {
  let counter = 0n;
  let asked = 0;
  return (store, clock) => ({
    traits: store.traits,
    claim: async (claim, push) => {
      const answer = await store.claim(claim, push);
      if (answer.kind !== "granted") return answer;
      if (asked++ === 0) await new Promise<void>((go) => clock.after(claim.ttlMs * 2, go));
      counter++;
      return {
        kind: "granted",
        grants: answer.grants.map((grant) => ({ ...grant, token: counter, floor: counter })),
      };
    },
    renew: (renewals) => store.renew(renewals),
    release: (releases) => store.release(releases),
    revoke: (name, by) => store.revoke(name, by),
    inspect: (name) => store.inspect(name),
    list: (prefix, limit) => store.list(prefix, limit),
    close: () => store.close(),
  });
}

describe("the suite catches, by name,", () => {
  for (const [mutant, { variant, caughtBy }] of Object.entries(MUTANTS)) {
    for (const name of caughtBy) {
      test(`${mutant}: ${name}`, async () => {
        const one = conformance.find((each) => each.name === name)!;
        await expect(runCase(one, await memorySubject(variant()))).rejects.toThrow(AssertionError);
        expect(await runCase(one, await memorySubject())).toBe("passed");
      });
    }
  }
});
