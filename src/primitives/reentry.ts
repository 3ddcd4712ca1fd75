import { AsyncLocalStorage } from "node:async_hooks";
import { InvalidArgumentError, LeaseLostError } from "../core/errors.js";
import type { HeldLease } from "../core/held-lease.js";
import type { Lease, LeaseState, ReleaseResult } from "../core/lease.js";
import { LeaseView } from "../core/lease-view.js";
import { CLAIM, type claimOf } from "../core/proved-grant.js";
import type { SequencerOptions } from "../core/sequencer.js";
import type { ClaimMode } from "../core/store.js";
import type { Duration } from "../core/validate.js";

/** The lease of some work, which calls inside that work may share, and the scopes around it. */
interface Scope {
  readonly owner: object;
  /**
   * Null when the work is over: code that goes on in its context must keep neither the lease nor the outer scopes in
   * memory.
   */
  lease: Lease | null;
  readonly joined: Set<JoinedLease>;
  readonly outer: Scope | undefined;
}

/** Made when first needed, because on older Node versions its mere existence makes every promise a little slower. */
let scopes: AsyncLocalStorage<Scope> | undefined;

/** Runs `fn` so that calls inside it, and nowhere else, can join the lease. */
export async function shareWithin<T>(
  owner: object,
  lease: HeldLease,
  fn: () => Promise<T>,
): Promise<T> {
  scopes ??= new AsyncLocalStorage();
  let outer = scopes.getStore();
  // Scopes that are over are left out: work that starts its successor, again and again, would drag along a growing
  // chain.
  while (outer?.lease === null) outer = outer.outer;
  const scope: Scope = { owner, lease, joined: new Set(), outer };
  // Work that outlives its context holds nothing any more. It is notified before the name is free, also when the
  // caller releases the lease itself.
  const end = (): void => {
    scope.lease = null;
    for (const joined of scope.joined) joined.outlive();
  };
  lease.beforeRelease(end);
  try {
    return await scopes.run(scope, fn);
  } finally {
    end();
  }
}

/** The lease of the innermost work around this call that holds the name; null when there is none. */
export function join(
  owner: object,
  name: string,
  mode: ClaimMode,
  signal: AbortSignal | undefined,
): Lease | null {
  for (let scope = scopes?.getStore(); scope !== undefined; scope = scope.outer) {
    const { lease } = scope;
    if (lease === null || scope.owner !== owner || lease.name !== name) continue;
    // Nobody else may get the name while the outer work goes on in the belief that it holds it.
    if (lease.state === "lost") lease.assertHeld();
    if (lease.mode === "shared" && mode === "exclusive") {
      throw new InvalidArgumentError(
        `${JSON.stringify(name)} is held shared here and can't be made exclusive: two readers that ` +
          "both tried would wait for each other. Take it exclusively from the start",
      );
    }
    signal?.throwIfAborted();
    const all = scope.joined;
    const joined = new JoinedLease(lease, () => all.delete(joined));
    all.add(joined);
    return joined;
  }
  return null;
}

/**
 * The lease of the outer work under another object: it has the same token and the same end, but a release of its
 * own.
 */
class JoinedLease extends LeaseView {
  readonly #lease: Lease;
  readonly #left: () => void;
  #over: "no" | "released" | "outlived" = "no";
  #error: LeaseLostError | null = null;

  constructor(lease: Lease, left: () => void) {
    super(lease);
    this.#lease = lease;
    this.#left = left;
  }

  override get state(): LeaseState {
    if (this.#over === "released") return "released";
    const { state } = this.#lease;
    return this.#over === "outlived" || state === "released" ? "lost" : state;
  }

  override get remainingMs(): number {
    return this.#over === "no" ? this.#lease.remainingMs : 0;
  }

  override assertHeld(): void {
    this.#assertShared();
    super.assertHeld();
  }

  override [CLAIM](): ReturnType<typeof claimOf> {
    this.#assertShared();
    return super[CLAIM]();
  }

  override async renew(ttl?: Duration): Promise<void> {
    this.#assertShared();
    await super.renew(ttl);
  }

  override async release(): Promise<ReleaseResult> {
    if (this.#over === "no") {
      const { state } = this;
      if (state === "lost") return "lost";
      this.#over = "released";
      this.unlisten();
      this.#left();
    }
    return this.#over === "released" ? "released" : "lost";
  }

  override sequencer(options?: SequencerOptions): string {
    this.#assertShared();
    return super.sequencer(options);
  }

  /** The work around it has ended. */
  outlive(): void {
    if (this.#over !== "no") return;
    this.#over = "outlived";
    this.#left();
    this.unlisten(this.#ended());
  }

  #assertShared(): void {
    if (this.#over !== "no") throw this.#ended();
  }

  #ended(): LeaseLostError {
    this.#error ??= new LeaseLostError(
      this.#lease,
      "released",
      this.#over === "outlived" ? { detail: "the work that it was part of has ended" } : {},
    );
    return this.#error;
  }
}
