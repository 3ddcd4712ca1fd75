import type { NodeClaimReply, QuorumNode } from "../../../stores/quorum/node.js";
import { forwardTo } from "./forward.js";
import type { QuorumMutant } from "./mutant.js";
import { SimulatedServer } from "./server.js";
import type { Caller } from "./server-data.js";

/** How long this mutant keeps a counter that no claim has used, in µs. */
const COUNTER_KEPT = 1_500_000;

class ForgetsTheCounter extends SimulatedServer {
  #used = new Map<string, number>();

  protected override last(name: string): { highest: number; claimed: number } {
    const micros = this.micros();
    const isKept = micros - (this.#used.get(name) ?? micros) < COUNTER_KEPT;
    this.#used.set(name, micros);
    return isKept ? super.last(name) : { highest: 0, claimed: 0 };
  }
}

class TakesALowerNumber extends SimulatedServer {
  protected override takes(
    proposed: number,
    highest: number,
    micros: number,
    spread: number,
  ): boolean {
    return super.takes(proposed, Math.min(highest, proposed - 1), micros, spread);
  }
}

class ClaimRaisesNothing extends SimulatedServer {
  protected override claimed(): void {}
}

class ClaimRaisesOnlyTheMaximum extends SimulatedServer {
  protected override claimed(name: string, number: number): void {
    this.setLast(name, number, this.last(name).claimed);
  }
}

class RaisesWithoutHolding extends SimulatedServer {
  protected override mayRaise(): boolean {
    return true;
  }
}

class RaisesToALowerNumber extends SimulatedServer {
  protected override isHigher(): boolean {
    return true;
  }
}

class RaiseRaisesNothing extends SimulatedServer {
  protected override raised(): void {}
}

class RaiseRaisesOnlyTheMaximum extends SimulatedServer {
  protected override raised(name: string, number: number): void {
    const { highest, claimed } = this.last(name);
    this.setLast(name, Math.max(highest, number), claimed);
  }
}

class ExtendsWhateverTheBase extends SimulatedServer {
  protected override mayExtend(): boolean {
    return true;
  }
}

class FillsInAlways extends SimulatedServer {
  protected override mayFillIn(): boolean {
    return true;
  }
}

class ReleaseLetsItBeFilledIn extends SimulatedServer {
  protected override closesFillIn(): boolean {
    return false;
  }
}

class ReleasesAnyRecord extends SimulatedServer {
  protected override mayDelete(): boolean {
    return true;
  }
}

class VotesWithoutItsData extends SimulatedServer {
  protected override examine(caller: Caller): number {
    super.examine(caller);
    return 0;
  }
}

/** All ballots of one acquire have one id. */
function oneIdForAllBallots(nodes: readonly QuorumNode[]): readonly QuorumNode[] {
  const ids = new Map<string, string>();
  const idOf = (id: string): string => ids.get(id) ?? id;
  return nodes.map((node) =>
    forwardTo(node, {
      claim: (claim) => {
        ids.set(claim.id, `${claim.name} ${claim.holder}`);
        return node.claim({ ...claim, id: idOf(claim.id) });
      },
      raise: (name, id, number) => node.raise(name, idOf(id), number),
      renew: (renewals) => node.renew(renewals.map((one) => ({ ...one, id: idOf(one.id) }))),
      release: (release) => node.release({ ...release, id: idOf(release.id) }),
    }),
  );
}

/** Takes the first number that a node answers for the number of all. */
function anyNumbersAreAMajority(nodes: readonly QuorumNode[]): readonly QuorumNode[] {
  const first = new Map<string, number>();
  return nodes.map((node) =>
    forwardTo(node, {
      claim: async (claim): Promise<NodeClaimReply> => {
        const reply = await node.claim(claim);
        if (reply.kind !== "recorded") return reply;
        const number = first.get(claim.id) ?? reply.number;
        first.set(claim.id, number);
        return { ...reply, number };
      },
    }),
  );
}

function filledInIsAVote(nodes: readonly QuorumNode[]): readonly QuorumNode[] {
  return nodes.map((node) =>
    forwardTo(node, {
      renew: async (renewals) => {
        const replies = await node.renew(renewals);
        return replies.map((reply, i) => {
          const { seq, ttlMs } = renewals[i]!;
          return reply.kind === "filled" ? { kind: "yes", seq, ttlMs } : reply;
        });
      },
    }),
  );
}

/** Each leaves out one rule of the quorum; docs/redlock.md has the rules. */
export const QUORUM_MUTANTS = {
  "a counter that expires": { server: ForgetsTheCounter },
  "a claim that takes a number below the highest": { server: TakesALowerNumber },
  "a claim that raises no counter": { server: ClaimRaisesNothing },
  "a claim that raises only the maximum": { server: ClaimRaisesOnlyTheMaximum },
  "a raise without holding the name": { server: RaisesWithoutHolding },
  "a raise to a lower number": { server: RaisesToALowerNumber },
  "a raise that raises no counter": { server: RaiseRaisesNothing },
  "a raise that raises only the maximum": { server: RaiseRaisesOnlyTheMaximum },
  "a renewal whatever the base": { server: ExtendsWhateverTheBase },
  "a fill-in after a later ballot": { server: FillsInAlways },
  "a fill-in after the release": { server: ReleaseLetsItBeFilledIn },
  "a release of another's record": { server: ReleasesAnyRecord },
  "a node that votes without its data": { server: VotesWithoutItsData },
  "one id for all ballots of a claim": { nodes: oneIdForAllBallots },
  "a majority of different numbers": { nodes: anyNumbersAreAMajority },
  "a fill-in that is a vote at once": { nodes: filledInIsAVote },
} as const satisfies Record<string, QuorumMutant>;

/** The name of a mutant of the quorum. */
export type QuorumMutantName = keyof typeof QUORUM_MUTANTS;
