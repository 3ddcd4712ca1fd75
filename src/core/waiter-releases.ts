import type { Acquisition } from "./acquisition.js";
import { HoldfastError } from "./errors.js";
import { LAST_REPLY_MS } from "./reply-timeout.js";
import type { ReleaseOutcome } from "./requests.js";
import type { ClaimAnswer } from "./store.js";

interface ReleaseOptions {
  /** Whether nobody has worked under the grant. Default true. */
  readonly unused?: boolean;
  /** Default: all names of the acquisition. */
  readonly names?: readonly string[];
  readonly timeoutMs?: number;
}

/** Releases a waiter's grants or ticket. Returns the outcome of the last name. */
export async function releaseClaim(
  { context: { requests }, call, names: all }: Acquisition,
  grantId: string,
  { unused = true, names = all, timeoutMs }: ReleaseOptions = {},
): Promise<ReleaseOutcome> {
  const owedMs = unused ? Math.max(call.ttlMs, call.atLeastMs) : call.ttlMs;
  const outcomes = names.map((name) =>
    requests.release({ name: requests.toStoreName(name), grantId, unused }, owedMs, timeoutMs),
  );
  return (await Promise.all(outcomes)).at(-1)!;
}

/**
 * Ends a wait that has timed out. The release of the ticket also shows whether the store still replies, because busy
 * and down are different errors. `claimError` is called after the release: on a busy event loop, the reply to the
 * claim may have arrived unread.
 */
export function releaseTimedOut(
  acquisition: Acquisition,
  grantId: string,
  claimError: () => HoldfastError | null,
): void {
  acquisition.end(null);
  void releaseClaim(acquisition, grantId, { timeoutMs: LAST_REPLY_MS }).then((outcome) => {
    acquisition.rejectTimedOut(claimError() ?? (HoldfastError.is(outcome) ? outcome : null));
  });
}

/** A claim under a former grantId may have arrived after that id's release: releases it again. */
export function releaseFormer(
  acquisition: Acquisition,
  grantId: string,
  reply: ClaimAnswer | HoldfastError,
): void {
  if (HoldfastError.is(reply) || reply.kind === "granted" || reply.kind === "queued") {
    void releaseClaim(acquisition, grantId);
  }
}

/** A claim whose reply comes after the end may have made a grant or a ticket that nobody else would release. */
export function releaseAfterEnd(
  acquisition: Acquisition,
  grantId: string,
  reply: ClaimAnswer | HoldfastError,
): void {
  const grants = !HoldfastError.is(reply) && reply.kind === "granted" ? reply.grants : [];
  for (const [i, name] of acquisition.names.entries()) {
    const lease = acquisition.leases?.[i];
    const grant = grants[i];
    // The lease rests on an older grant, so nobody else knows of the one in this reply.
    const isOrphaned = lease === undefined || (grant !== undefined && lease.isOlderThan(grant));
    // Otherwise the reply brings no new grant: it is the lease's own, or an older one that has ended. Work may go on
    // under the lease, even a lost one, until the caller releases it.
    if (!isOrphaned && !lease.releaseHasBegun) continue;
    const unused = isOrphaned || lease.isUnused;
    const release = (): unknown => releaseClaim(acquisition, grantId, { names: [name], unused });
    // On several connections, this release could overtake the lease's own, which would then find nothing and report
    // a loss.
    if (isOrphaned) void release();
    else void lease.release().then(release);
  }
}
