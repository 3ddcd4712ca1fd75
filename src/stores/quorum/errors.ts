import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";

const NONE = { count: 0, reasons: [] };

/**
 * The error of a request that fewer nodes than a majority have granted. `failures`: why nodes can't vote.
 * `more`: how many other nodes have replied without a grant, and why.
 */
export function unavailable(
  nodes: number,
  failures: readonly Error[],
  more: { readonly count: number; readonly reasons: readonly string[] } = NONE,
): StoreUnavailableError {
  const reasons = [...new Set(failures.map(({ message }) => message)), ...more.reasons];
  // A node that has refused for good will refuse a retry, too.
  const refusals = failures.filter((one) => HoldfastError.is(one) && !one.retryable);
  return new StoreUnavailableError(
    `${failures.length + more.count} of the ${nodes} nodes of the quorum can't vote, ${majorityOf(nodes)} are needed: ${reasons.join("; ")}`,
    { cause: failures[0], retryable: nodes - refusals.length >= majorityOf(nodes) },
  );
}

/** Two nodes, by their addresses, are one server. */
export const sameServer = (one: string, other: string): InvalidArgumentError =>
  new InvalidArgumentError(
    `${one} and ${other} are the same Redis server: a quorum needs independent servers`,
  );
