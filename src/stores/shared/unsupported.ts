import { refuseIfCannot } from "../../core/settings.js";
import { type Claim, modeOf, type Traits } from "../../core/store.js";

/** Throws UnsupportedError for a claim that needs a feature which the store's traits exclude. */
export function refuseUnsupported(traits: Traits, claim: Claim): void {
  const mode = modeOf(claim);
  if (mode === "permits") refuseIfCannot(traits, "permits", "semaphores");
  if (mode === "shared") refuseIfCannot(traits, "shared", 'mode "shared"');
  if (claim.names.length > 1) refuseIfCannot(traits, "many-names", "several names in one claim");
  if (claim.atLeastMs > 0) refuseIfCannot(traits, "at-least", "atLeast");
}
