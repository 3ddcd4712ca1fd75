import type { Member } from "./member.js";
import type { NodeClaim, NodeClaimReply } from "./node.js";

/** The result of one ballot. */
export type BallotOutcome =
  /** A majority of the nodes has recorded this number: it is the token. */
  | { readonly kind: "decided"; readonly number: number }
  /** Another ballot has a majority, or may have one. */
  | { readonly kind: "busy"; readonly freeInMs: number; readonly holder: string }
  /** Enough nodes have voted, and nobody has a majority. */
  | { readonly kind: "split" }
  /** Fewer nodes than a majority have voted. */
  | { readonly kind: "unavailable"; readonly failures: readonly Error[] };

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
  readonly #timeoutMs: number;
  readonly #claimed: (NodeClaimReply | Error | undefined)[];
  /** Answers to the request to raise the number; null in the first round. */
  #raised: (boolean | Error | undefined)[] | null = null;
  #target = 0;
  #resolve: (outcome: BallotOutcome) => void = () => {};
  #isOver = false;

  constructor(members: readonly Member[], claim: NodeClaim, timeoutMs: number) {
    this.#members = members;
    this.#majority = majorityOf(members.length);
    this.#claim = claim;
    this.#timeoutMs = timeoutMs;
    this.#claimed = members.map(() => undefined);
  }

  run(): Promise<BallotOutcome> {
    return new Promise((resolve) => {
      this.#resolve = resolve;
      for (const [i, member] of this.#members.entries()) {
        member.ask(
          this.#timeoutMs,
          (node) => node.claim(this.#claim),
          (answer) => {
            this.#claimed[i] = answer;
            this.#evaluate();
          },
        );
      }
    });
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
    const pending = this.#pending(this.#claimed);
    if (recorded + pending < this.#majority) this.#endUndecided();
    else if (Math.max(0, ...byNumber.values()) + pending < this.#majority) this.#raise();
  }

  /** No number can get a majority any more: from now on only the highest one counts. */
  #raise(): void {
    const raised: (boolean | Error | undefined)[] = this.#members.map(() => undefined);
    this.#raised = raised;
    this.#target = Math.max(...this.#claimed.filter(isRecorded).map(({ number }) => number));
    const { name, id } = this.#claim;
    for (const [i, member] of this.#members.entries()) {
      member.ask(
        this.#timeoutMs,
        (node) => node.raise(name, id, this.#target),
        (answer) => {
          raised[i] = answer;
          this.#evaluate();
        },
      );
    }
  }

  #evaluateRaised(raised: readonly (boolean | Error | undefined)[]): void {
    const yes = raised.filter((answer) => answer === true).length;
    if (yes >= this.#majority) this.#end({ kind: "decided", number: this.#target });
    else if (yes + this.#pending(raised) < this.#majority) this.#endUndecided();
  }

  /** Too few votes are left. Only a majority of them tells a name that is held from nodes that are down. */
  #endUndecided(): void {
    const voted = this.#claimed.filter((one) => isOf("busy", one) || isRecorded(one)).length;
    const isOpen = voted < this.#majority && voted + this.#pending(this.#claimed) >= this.#majority;
    if (!isOpen) this.#end(this.#whyNot());
  }

  /** How many answers may still come soon. A node that was silent before is not waited for. */
  #pending(answers: readonly unknown[]): number {
    return answers.filter((answer, i) => answer === undefined && !this.#members[i]!.isSilent)
      .length;
  }

  #whyNot(): BallotOutcome {
    const busy = this.#claimed.filter((answer) => isOf("busy", answer));
    const recorded = this.#claimed.filter(isRecorded).length;
    if (busy.length + recorded < this.#majority) {
      return { kind: "unavailable", failures: this.#failures() };
    }
    const unanswered = this.#claimed.filter((answer) => answer === undefined).length;
    const rival = busy.find(({ id }) => {
      const votes = busy.filter((other) => other.id === id).length;
      return votes + unanswered >= this.#majority;
    });
    if (rival === undefined) return { kind: "split" };
    // Until then, so many of the nodes are free that a majority is.
    const freeInMs = busy.map((one) => one.freeInMs).sort((a, b) => a - b);
    const last = Math.max(0, busy.length - (this.#members.length - this.#majority) - 1);
    return { kind: "busy", freeInMs: freeInMs[last]!, holder: rival.holder };
  }

  #failures(): Error[] {
    return this.#claimed.flatMap((answer, i) => {
      const { where } = this.#members[i]!.node;
      if (answer === undefined) return [new Error(`${where} has not answered lately`)];
      if (answer instanceof Error) return [answer];
      if (answer.kind !== "recovering") return [];
      const forS = Math.ceil(answer.forMs / 1_000);
      return [new Error(`${where} has lost data and votes again in ${forS} s`)];
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

const isRecorded = (answer: Answer): answer is Extract<NodeClaimReply, { kind: "recorded" }> =>
  isOf("recorded", answer);
