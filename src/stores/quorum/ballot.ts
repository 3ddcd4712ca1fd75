import { askEach, type Limits, type Member } from "./member.js";
import type { NodeClaim, NodeClaimReply, QuorumNode } from "./node.js";

/** The result of one ballot. */
export type BallotOutcome =
  /** A majority of the nodes has recorded this number: it is the token. */
  | { readonly kind: "decided"; readonly number: number }
  /** Another ballot has a majority. */
  | { readonly kind: "busy"; readonly freeInMs: number; readonly holder: string }
  /**
   * Enough nodes have voted, and no ballot is known to have a majority. `holder`, `freeInMs`: of another ballot that
   * may have one, with the votes of nodes that did not reply; null and 0 if there is none.
   */
  | { readonly kind: "split"; readonly freeInMs: number; readonly holder: string | null }
  /** Fewer nodes than a majority have voted. */
  | { readonly kind: "unavailable"; readonly failures: readonly Error[] };

/** Nobody can have the name. */
export const NO_RIVAL: BallotOutcome = { kind: "split", freeInMs: 0, holder: null };

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

  constructor(members: readonly Member[], claim: NodeClaim, limits: Limits) {
    this.#members = members;
    this.#majority = majorityOf(members.length);
    this.#claim = claim;
    this.#limits = limits;
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
      const outcome = this.#whyNot();
      // The next reply may show that another ballot has a majority.
      const isOpen = outcome.kind === "split" && outcome.holder !== null;
      if (pending === 0 || !isOpen) this.#end(outcome);
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
    const unanswered = this.#claimed.filter((answer) => answer === undefined).length;
    const votesFor = (id: string): number => busy.filter((one) => one.id === id).length;
    const [rival] = [...busy].sort((a, b) => votesFor(b.id) - votesFor(a.id));
    const votes = rival === undefined ? 0 : votesFor(rival.id);
    if (rival === undefined || votes + unanswered < this.#majority) return NO_RIVAL;
    // The time at which a majority of the nodes is free, if those that did not reply are.
    const freeInMs = busy.map((one) => one.freeInMs).sort((a, b) => a - b);
    const last = Math.max(0, busy.length - (this.#members.length - this.#majority) - 1);
    const kind = votes >= this.#majority ? "busy" : "split";
    return { kind, freeInMs: freeInMs[last]!, holder: rival.holder };
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
