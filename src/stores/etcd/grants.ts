import type { SessionClaims } from "../shared/sessions/claims.js";
import type { ClosedNames } from "./closed-names.js";
import type { GrantedClaim } from "./queue.js";
import type { EtcdClaim, EtcdSession } from "./session-port.js";

/** Makes holders of claims whose turn has come. */
export class Grants {
  readonly #claims: SessionClaims<EtcdSession>;
  readonly #closedNames: ClosedNames;

  constructor(claims: SessionClaims<EtcdSession>, closedNames: ClosedNames) {
    this.#claims = claims;
    this.#closedNames = closedNames;
  }

  /**
   * The claim holds its name in etcd. The grant counts when the name is also closed for `atLeast`:
   * `atLeastLease` if that was done in the same step. False: the claim was over before that.
   */
  async complete(
    claim: EtcdClaim,
    granted: GrantedClaim,
    atLeastLease: bigint | null = null,
  ): Promise<boolean> {
    const { name, grantId } = claim;
    const { token, floor, atLeastMs } = granted;
    // A swept claim's key is being deleted, even if the claim was held before.
    if (!this.#claims.has(claim)) return false;
    if (claim.state === "held" && claim.token === token) return true;
    if (atLeastMs > 0) {
      if (atLeastLease !== null) this.#closedNames.add(name, grantId, atLeastLease, atLeastMs);
      else if (!(await this.#closedNames.close(name, grantId, granted))) return false;
    }
    if (!this.#claims.has(claim)) return false;
    this.#claims.markHeld(claim, token, floor);
    return true;
  }
}
