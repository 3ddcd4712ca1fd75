import type { LostAnswer, Release } from "../../../core/store.js";
import type { SessionClaims } from "./claims.js";
import type { Session } from "./session.js";

/** From here on the claim's key is an orphan, whatever becomes of the release. Returns whether it was held. */
export function giveUp<S extends Session<unknown>>(
  claims: SessionClaims<S>,
  { name, grantId }: Release,
): boolean {
  const claim = claims.get(name, grantId);
  if (claim === undefined) return false;
  claims.drop(claim);
  return claim.state === "held";
}

/** The answer to a release that deleted nothing. `mayBeDone`: an earlier attempt, without a reply, may have deleted it. */
export async function answerMissing(
  context: { whyLost(name: string, grantId: string): Promise<LostAnswer> },
  { name, grantId }: Release,
  mayBeDone: boolean,
): Promise<LostAnswer> {
  const lost = await context.whyLost(name, grantId);
  // A release that was repeated is no loss.
  if (mayBeDone && lost.reason !== "revoked") {
    throw new Error(`the reply to the release of ${JSON.stringify(name)} was lost`);
  }
  return lost;
}
