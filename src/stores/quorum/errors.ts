import { HoldfastError, InvalidArgumentError, StoreUnavailableError } from "../../core/errors.js";
import { majorityOf } from "./ballot.js";

/** Fewer nodes than a majority have answered. `more`: what else is known. */
export function unavailable(
  nodes: number,
  failures: readonly Error[],
  more?: string,
): StoreUnavailableError {
  const reasons = [...new Set(failures.map(({ message }) => message))];
  if (more !== undefined) reasons.push(more);
  // A node that refuses for good answers no better the next time.
  const refusals = failures.filter((one) => HoldfastError.is(one) && !one.retryable);
  return new StoreUnavailableError(
    `${failures.length} of the ${nodes} nodes of the quorum can't vote, ${majorityOf(nodes)} are needed: ${reasons.join("; ")}`,
    { cause: failures[0], retryable: nodes - refusals.length >= majorityOf(nodes) },
  );
}

/** Two nodes, by their addresses, are one server. */
export const sameServer = (one: string, other: string): InvalidArgumentError =>
  new InvalidArgumentError(
    `${one} and ${other} are the same Redis server: a quorum needs independent servers`,
  );
