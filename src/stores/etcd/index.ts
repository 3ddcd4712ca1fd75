import { InvalidArgumentError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { claimOf } from "../../core/proved-grant.js";
import { systemRuntime } from "../../core/runtime.js";
import type {
  Claim,
  ClaimAnswer,
  HolderInfo,
  NameInfo,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../../core/store.js";
import { checkOptions, checkText, orElse } from "../../core/validate.js";
import { PendingClaims } from "../shared/sessions/pending-claims.js";
import { attemptClaim } from "./claim-attempt.js";
import { EtcdContext } from "./context.js";
import { isLeaseNotFound, toStoreError } from "./errors.js";
import { Keys, PREFIX } from "./keys.js";
import { release } from "./releases.js";
import { EtcdRenewalBatch } from "./renewal-batch.js";
import { checkClient, type EtcdClient } from "./rpc/client.js";
import { createdAt } from "./rpc/compare.js";
import type { Compare } from "./rpc/messages.js";
import type { EtcdProof } from "./session-port.js";
import { ClusterTraits } from "./versions.js";

export type { EtcdClient, EtcdClientOptions } from "./rpc/client.js";
export { openEtcdClient } from "./rpc/client.js";

/** Options of `etcdStore`. */
export interface EtcdStoreOptions {
  /** Closes the client with the store. Default false: the client is the caller's. */
  closeClient?: boolean;
  /** Before every key; `holdfast/` by default. */
  prefix?: string;
}

/** The traits of the store on etcd. A connected store has more exact traits of its own cluster. */
export const ETCD_TRAITS: Traits = {
  store: "etcd",
  scope: "network",
  liveness: "session",
  waiting: "pushed",
  fair: true,
  minTtlMs: 1_000,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "the loss of any minority of the members, their leader included",
    "a restart of all members with their data",
    "jumps of the members' clocks",
  ],
  grantsTwiceAfter: [],
  // Four operations each, of 128.
  namesAtOnce: 30,
  cannot: {
    records:
      "a record with an expiry of its own would need a lease of the server for each, and etcd is slow with many leases",
  },
};

/**
 * Locks in etcd. A claim is a key under the lease of a session, and the order in which keys were
 * created is the queue: who holds a name follows from its keys alone, and nothing is written at a
 * handover. Made by `etcdStore`.
 */
export class EtcdStore implements Store {
  readonly #client: EtcdClient;
  readonly #closeClient: boolean;
  readonly #traits: ClusterTraits;
  readonly #context: EtcdContext;
  readonly #pendingClaims: PendingClaims<bigint, EtcdProof>;

  /** `faults`: those of this cluster's versions, if they are known; otherwise they are read when the first session begins. */
  constructor(client: EtcdClient, options: EtcdStoreOptions = {}, faults?: readonly string[]) {
    checkClient(client, ', or use connect("etcd://…")');
    checkOptions(options, "the options of etcdStore", ["closeClient", "prefix"]);
    const prefix = checkText(orElse(options.prefix, PREFIX), "prefix", 1, 255);
    this.#client = client;
    this.#closeClient = options.closeClient ?? false;
    this.#traits = new ClusterTraits(client, ETCD_TRAITS, faults);
    const { clock } = systemRuntime();
    this.#context = new EtcdContext(client, clock, new Keys(prefix), () => this.#traits.update());
    const { sessions, claims } = this.#context;
    this.#pendingClaims = new PendingClaims(clock, sessions, claims, {
      attempt: (pending, own) => attemptClaim(this.#context, pending, own),
      mayBeExpired: isLeaseNotFound,
    });
  }

  /** `grantsTwiceAfter` follows the versions and members of the cluster. */
  get traits(): Traits {
    return this.#traits.current;
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    return this.#pendingClaims.claim(claim, push).catch(rethrow);
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    return new EtcdRenewalBatch(this.#context, renewals).send();
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    return release(this.#context, releases).catch(rethrow);
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#context.operations.revoke(name, by).catch(rethrow);
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#context.operations.resize(name, limit).catch(rethrow);
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#context.operations.inspect(name).catch(rethrow);
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#context.operations.list(prefix, limit).catch(rethrow);
  }

  observe(name: string, changed: () => void): () => void {
    return this.#context.waiters.observeName(name, changed);
  }

  async close(): Promise<void> {
    const { claims, closedNames, waiters, sessions } = this.#context;
    // Other Locks on the same store still have claims.
    if (!this.#closeClient && !claims.isEmpty) return;
    claims.close();
    closedNames.stop();
    waiters.close(this.#closeClient);
    await sessions.close(this.#closeClient);
    if (this.#closeClient) await this.#client.close();
  }
}

/**
 * Makes a store on an etcd cluster, by a client of `openEtcdClient`. Throws `InvalidArgumentError`
 * if the client or an option can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { etcdStore, openEtcdClient } from "holdfast/stores/etcd";
 *
 * const client = await openEtcdClient({ endpoints: ["127.0.0.1:2379"] });
 * const locks = createLocks(etcdStore(client, { closeClient: true }), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * ```
 */
export function etcdStore(client: EtcdClient, options: EtcdStoreOptions = {}): EtcdStore {
  return new EtcdStore(client, options);
}

/**
 * A comparison for a transaction of yours: it succeeds only while the lease's claim stands. The lease may be one name of
 * those that are held together, `lease.of(name)`. This is
 * the fence for data in the same etcd. It publishes no `holdfast:stale-token`: etcd does not tell which
 * comparison was false.
 *
 * @example
 * await client.txn({ compare: [guardTxn(lease)], success: [{ put: { key, value } }] });
 */
export function guardTxn(
  lease: Pick<Lease, "token" | "floor" | "signal" | "assertHeld">,
  options: Pick<EtcdStoreOptions, "prefix"> = {},
): Compare {
  checkOptions(options, "the options of guardTxn", ["prefix"]);
  const { store, name, grantId, token } = claimOf(lease);
  if (store.traits.store !== ETCD_TRAITS.store) {
    throw new InvalidArgumentError(
      `guardTxn needs a lease of an etcd store, and this one is of ${store.traits.store}`,
    );
  }
  return createdAt(new Keys(options.prefix).claim(name, grantId), token);
}

function rethrow(error: unknown): never {
  throw toStoreError(error);
}
