import type { LostAnswer } from "../../core/store.js";
import { majorityOf } from "./ballot.js";
import type { NodeRenewReply } from "./node.js";

/** The result of the votes of all nodes on one renewal. */
export type RenewalResult =
  /** The expiry rests on the request with this number. */
  | { readonly kind: "renewed"; readonly seq: number; readonly ttlMs: number }
  | LostAnswer
  | {
      readonly kind: "unknown";
      readonly failures: readonly Error[];
      /** Nodes that had lost the record and have it again. */
      readonly filled: number;
      /** Nodes that say no. */
      readonly refused: number;
    };

/** Counts the answers of the nodes to one renewal. */
export class RenewalVotes {
  readonly #nodes: number;
  readonly #majority: number;
  /** The nodes that say yes, by the request that the expiry rests on. */
  readonly #yes = new Map<number, { ttlMs: number; votes: number }>();
  #filled = 0;
  #isTaken = false;
  #why: string | undefined;
  readonly #no = new Set<number>();
  readonly #failures: Error[] = [];

  constructor(nodes: number) {
    this.#nodes = nodes;
    this.#majority = majorityOf(nodes);
  }

  /** Whether more answers would not change the result. */
  get isDecided(): boolean {
    return this.#renewed !== null || this.#isLost;
  }

  add(reply: NodeRenewReply | Error, index: number): void {
    if (reply instanceof Error) this.#failures.push(reply);
    else if (reply.kind === "yes") {
      const { votes } = this.#yes.get(reply.seq) ?? { votes: 0 };
      this.#yes.set(reply.seq, { ttlMs: reply.ttlMs, votes: votes + 1 });
    }
    // The node has the record from now on, but may have forgotten a later ballot before.
    else if (reply.kind === "filled") this.#filled++;
    else if (reply.kind === "error") {
      const { cause } = reply;
      this.#failures.push(cause instanceof Error ? cause : new Error(String(cause)));
    } else {
      this.#no.add(index);
      this.#why ??= reply.why;
      this.#isTaken ||= reply.isTaken ?? false;
    }
  }

  result(): RenewalResult {
    const renewed = this.#renewed;
    if (renewed !== null && this.#why === undefined) return renewed;
    if (!this.#isLost) {
      const refused = this.#no.size;
      return { kind: "unknown", failures: this.#failures, filled: this.#filled, refused };
    }
    if (this.#why !== undefined) return { kind: "lost", reason: "revoked", why: this.#why };
    return { kind: "lost", reason: this.#isTaken ? "superseded" : "expired" };
  }

  /** Where a later request has reached only some nodes, no majority has one expiry. */
  get #renewed(): Extract<RenewalResult, { kind: "renewed" }> | null {
    for (const [seq, { ttlMs, votes }] of this.#yes) {
      if (votes >= this.#majority) return { kind: "renewed", seq, ttlMs };
    }
    return null;
  }

  /** One node that knows of a revocation is enough: others may have missed it, or forgotten it. */
  get #isLost(): boolean {
    return this.#why !== undefined || this.#nodes - this.#no.size < this.#majority;
  }
}
