import { shortId } from "./keys.js";
import { askEach, type Limits, type Member } from "./member.js";
import type { NodeClaim, NodeClaimReply, QuorumNode } from "./node.js";

/** The result of one ballot. */
export type BallotOutcome =
  /** A majority of the nodes has recorded this number: it is the token. */
  | { readonly kind: "decided"; readonly number: number }
  /** Another ballot has a majority. */
  | { readonly kind: "busy"; readonly freeInMs: number; readonly holder: string }
  /** Enough nodes have voted, and no ballot is known to have a majority. */
  | { readonly kind: "split"; readonly rival: Rival | null }
  /** Fewer nodes than a majority have voted. */
  | { readonly kind: "unavailable"; readonly failures: readonly Error[] };

/** Another ballot that may have a majority, with the votes of nodes that did not vote here. */
interface Rival {
  readonly freeInMs: number;
  readonly holder: string;
  /** The short ids of all other ballots that nodes have recorded. */
  readonly seen: ReadonlySet<string>;
  /** Two clients that have split the votes compare ids: one learns that it goes first, the other that it does not. */
  readonly goesFirst: boolean;
}

/** No other ballot is known that may have a majority. */
export const NO_RIVAL: BallotOutcome = { kind: "split", rival: null };

export const majorityOf = (nodes: number): number => Math.floor(nodes / 2) + 1;

/**
 * One attempt to get a name from a majority of the nodes, under an id of its own. It proposes one number to
 * all of them; nodes that can't take it record another. The rules that keep tokens unique and in order are in
 * docs/redlock.md; each was found to be needed.
 */
export class Ballot {
  readonly #members: readonly Member[];
  readonly #majority: number;
  readonly #claim: NodeClaim;
  readonly #limits: Limits;
  readonly #seenBefore: ReadonlySet<string>;
  readonly #claimed: (NodeClaimReply | Error | undefined)[];
  /** Answers to the request to raise the number; null in the first round. */
  #raised: (boolean | Error | undefined)[] | null = null;
  #target = 0;
  /** Nodes that did not answer the claim in time. They may have answered later requests, by another connection. */
  readonly #late = new Set<number>();
  /** How many nodes have recorded the proposed number, and whether any has answered otherwise. */
  #asProposed = 0;
  #isUnusual = false;
  #resolve: (outcome: BallotOutcome) => void = () => {};
  #isOver = false;
  #isGivenUp = false;

  /**
   * `seenBefore`: the ballots that an earlier one of the same claim has met. A client that got no majority takes back
   * its ballot before it asks again, so one that is met twice is taken for the holder's.
   */
  constructor(
    members: readonly Member[],
    claim: NodeClaim,
    limits: Limits,
    seenBefore: ReadonlySet<string>,
  ) {
    this.#members = members;
    this.#majority = majorityOf(members.length);
    this.#claim = claim;
    this.#limits = limits;
    this.#seenBefore = seenBefore;
    this.#claimed = members.map(() => undefined);
  }

  run(): Promise<BallotOutcome> {
    return new Promise((resolve) => {
      this.#resolve = resolve;
      const claim = (node: QuorumNode): Promise<NodeClaimReply> => node.claim(this.#claim);
      const answered = (answer: NodeClaimReply | Error, i: number): void => {
        this.#claimed[i] = answer;
        const isAsProposed = isRecorded(answer) && answer.number === this.#claim.number;
        if (isAsProposed) this.#asProposed++;
        else this.#isUnusual = true;
        // By far the most usual case: all answers so far are the same.
        if (this.#isUnusual || this.#asProposed >= this.#majority) this.#evaluate();
      };
      const silent = (): void => {
        for (const [i, answer] of this.#claimed.entries()) {
          if (answer === undefined) this.#late.add(i);
        }
        this.#evaluate();
      };
      askEach(this.#members, this.#limits, claim, answered, silent);
    });
  }

  /** Ends the ballot without a decision as soon as a majority of the nodes has voted. */
  giveUp(): void {
    this.#isGivenUp = true;
    this.#evaluate();
  }

  /** Whether the claim may still reach the node after its release, by another connection. */
  mayReach(index: number): boolean {
    const answer = this.#claimed[index];
    if (answer !== undefined) return answer instanceof Error;
    return this.#late.has(index) || this.#members[index]!.isSilent;
  }

  /** Whether the node has said that it has recorded the ballot. */
  isRecordedBy(index: number): boolean {
    return isRecorded(this.#claimed[index]);
  }

  #evaluate(): void {
    if (this.#isOver) return;
    if (this.#isGivenUp && this.#claimed.filter(isVote).length >= this.#majority) {
      this.#end(this.#whyNot());
      return;
    }
    if (this.#raised !== null) {
      this.#evaluateRaised(this.#raised);
      return;
    }
    const byNumber = new Map<number, number>();
    let recorded = 0;
    for (const answer of this.#claimed) {
      if (!isRecorded(answer)) continue;
      recorded++;
      const votes = (byNumber.get(answer.number) ?? 0) + 1;
      if (votes >= this.#majority) {
        this.#end({ kind: "decided", number: answer.number });
        return;
      }
      byNumber.set(answer.number, votes);
    }
    const pending = this.#pending(this.#claimed, isVote);
    if (recorded + pending < this.#majority) {
      const votes = this.#claimed.filter(isVote).length;
      if (pending > 0 && votes < this.#majority) return;
      // The next reply may show whether another ballot has a majority.
      if (pending === 0 || !this.#isRivalInDoubt) this.#end(this.#whyNot());
    } else if (Math.max(0, ...byNumber.values()) + pending < this.#majority) this.#raise();
  }

  /** Asks all nodes to raise their number to the highest one recorded: no other can get a majority any more. */
  #raise(): void {
    const raised: (boolean | Error | undefined)[] = this.#members.map(() => undefined);
    this.#raised = raised;
    this.#target = Math.max(...this.#claimed.filter(isRecorded).map(({ number }) => number));
    const { name, id } = this.#claim;
    const raise = (node: QuorumNode): Promise<boolean> => node.raise(name, id, this.#target);
    const answered = (answer: boolean | Error, i: number): void => {
      raised[i] = answer;
      this.#evaluate();
    };
    askEach(this.#members, this.#limits, raise, answered, () => this.#evaluate());
  }

  #evaluateRaised(raised: readonly (boolean | Error | undefined)[]): void {
    const yes = raised.filter((answer) => answer === true).length;
    if (yes >= this.#majority) this.#end({ kind: "decided", number: this.#target });
    else if (yes + this.#pending(raised, isBoolean) < this.#majority) this.#end(this.#whyNot());
  }

  /**
   * The number of replies to wait for. Those of nodes that were silent before count only if the others are no
   * majority: after a pause of this process, all nodes seem to have been silent.
   */
  #pending<T>(
    answers: readonly (T | undefined)[],
    isVote: (answer: T | undefined) => boolean,
  ): number {
    const missing = this.#members.filter((_, i) => answers[i] === undefined);
    const soon = missing.filter(({ isSilent }) => !isSilent).length;
    const votes = answers.filter(isVote).length;
    return votes + soon >= this.#majority ? soon : missing.length;
  }

  #whyNot(): BallotOutcome {
    const busy = this.#claimed.filter((answer) => isOf("busy", answer));
    const recorded = this.#claimed.filter(isRecorded).length;
    // A node may have been asked to raise the number before it has answered the claim.
    const late = this.#members.filter((one, i) => this.#claimed[i] === undefined && !one.isSilent);
    if (busy.length + recorded + late.length < this.#majority) {
      return { kind: "unavailable", failures: this.#failures() };
    }
    const rivals = this.#rivals;
    const known = rivals.find(({ id, votes }) => {
      return votes >= this.#majority || this.#seenBefore.has(id);
    });
    const rival = known ?? rivals[0];
    if (rival === undefined) return NO_RIVAL;
    // The time at which a majority of the nodes is free, if those that did not reply are.
    const times = busy.map((one) => one.freeInMs).sort((a, b) => a - b);
    const last = Math.max(0, busy.length - (this.#members.length - this.#majority) - 1);
    const [freeInMs, { holder }] = [times[last]!, rival];
    if (known !== undefined) return { kind: "busy", freeInMs, holder };
    const seen = new Set(busy.map(({ id }) => id));
    const own = shortId(this.#claim.id);
    const goesFirst = recorded > 0 && [...seen].every((id) => id < own);
    return { kind: "split", rival: { freeInMs, holder, seen, goesFirst } };
  }

  /** The other ballots that have a majority, or would have one with the votes of all nodes that have not voted. */
  get #rivals() {
    const busy = this.#claimed.filter((answer) => isOf("busy", answer));
    const unknown = this.#claimed.filter((answer) => !isVote(answer)).length;
    return busy
      .map((one) => ({ ...one, votes: busy.filter(({ id }) => id === one.id).length }))
      .filter(({ votes }) => votes + unknown >= this.#majority)
      .sort((a, b) => b.votes - a.votes);
  }

  get #isRivalInDoubt(): boolean {
    const [rival] = this.#rivals;
    return rival !== undefined && rival.votes < this.#majority;
  }

  #failures(): Error[] {
    return this.#claimed.flatMap((answer, i) => {
      const { where } = this.#members[i]!.node;
      if (answer === undefined) return [];
      if (answer instanceof Error) return [answer];
      if (answer.kind !== "recovering") return [];
      const forS = Math.ceil(answer.forMs / 1_000);
      return [new Error(`${where} is new or has lost data, and votes in ${forS} s`)];
    });
  }

  #end(outcome: BallotOutcome): void {
    this.#isOver = true;
    this.#resolve(outcome);
  }
}

type Answer = NodeClaimReply | Error | undefined;

const isOf = <K extends NodeClaimReply["kind"]>(
  kind: K,
  answer: Answer,
): answer is Extract<NodeClaimReply, { kind: K }> =>
  answer !== undefined && !(answer instanceof Error) && answer.kind === kind;

const isVote = (answer: Answer): boolean => isRecorded(answer) || isOf("busy", answer);

const isBoolean = (answer: unknown): boolean => typeof answer === "boolean";

const isRecorded = (answer: Answer): answer is Extract<NodeClaimReply, { kind: "recorded" }> =>
  isOf("recorded", answer);
