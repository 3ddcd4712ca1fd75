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
import type { SessionProof } from "../shared/sessions/session.js";
import { observeAgain } from "../shared/sessions/waiters.js";
import { refuseUnsupported } from "../shared/unsupported.js";
import { ClaimAttempt } from "./claim-attempt.js";
import { ZooKeeperClient } from "./client/client.js";
import { checkedSettings, type ZooKeeperClientOptions } from "./client/options.js";
import { checkPath } from "./client/paths.js";
import { CREATOR_ACL } from "./client/records.js";
import { ZooKeeperContext } from "./context.js";
import { isCode, toStoreError } from "./errors.js";
import { Layout, ROOT } from "./layout.js";
import type { Link, SessionOptions } from "./link.js";
import { Operations } from "./operations.js";
import { release } from "./releases.js";
import { ZooKeeperRenewalBatch } from "./renewal-batch.js";

/**
 * Options of `zookeeperStore`: those of a client, without the ones that follow from the ttl. With `auth`, `acl` is
 * `CREATOR_ACL` by default: only clients with the same user and password can use the locks.
 */
export interface ZooKeeperStoreOptions
  extends Omit<
    ZooKeeperClientOptions,
    "sessionTimeoutMs" | "pingIntervalMs" | "on" | "signal" | "clock"
  > {
  /** The node that everything is kept below; `/holdfast` by default. It is made if it does not exist. */
  readonly root?: string | undefined;
}

const NO_SERVER_CLOCK =
  "ZooKeeper has no clock that all its servers share, so nothing opens a name again after its session has ended";

/** The traits of the store on ZooKeeper. */
export const ZOOKEEPER_TRAITS: Traits = {
  store: "ZooKeeper",
  scope: "network",
  liveness: "session",
  waiting: "pushed",
  fair: true,
  minTtlMs: 500,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "the loss of any minority of the servers, their leader included",
    "a restart of all servers with their data",
    "jumps of the servers' clocks",
  ],
  grantsTwiceAfter: [
    "a setting of minSessionTimeout below two ticks on the servers",
    "a reconnect to a server with a shorter maxSessionTimeout than before, if its reply is lost",
  ],
  namesAtOnce: 1,
  cannot: {
    "many-names": "ZooKeeper's transactions can't check that a name is free",
    "at-least": NO_SERVER_CLOCK,
    "own-ttl":
      "all leases of a session of ZooKeeper have one ttl: pass the ttl to connect or createLocks",
    records:
      "ZooKeeper has no clock that all its servers share, so nothing would end a record in time",
  },
};

/** Enough for the names of one read, each with thousands of waiters. */
const DEFAULTS = { maxReplyBytes: 32 * 1024 * 1024 };

/**
 * Locks in ZooKeeper. A claim is an ephemeral sequential node, and the order of the nodes is the queue: who
 * holds a name follows from its nodes alone, and nothing is written at a handover. Made by `zookeeperStore`.
 */
export class ZooKeeperStore implements Store {
  readonly traits = ZOOKEEPER_TRAITS;
  readonly #context: ZooKeeperContext;
  readonly #operations: Operations;
  readonly #pendingClaims: PendingClaims<Link, SessionProof>;
  #users = 0;
  #isClosed = false;

  constructor(options: ZooKeeperStoreOptions) {
    const { root, ...client } = options;
    const acl = client.auth === undefined ? {} : { acl: CREATOR_ACL };
    // Refused now, not with the first claim.
    checkedSettings(client);
    const layout = new Layout(checkPath(checkText(orElse(root, ROOT), "root", 1, 1_000), "root"));
    const { clock } = systemRuntime();
    const open = (session: SessionOptions) =>
      ZooKeeperClient.open({ ...DEFAULTS, ...acl, ...client, ...session, clock });
    this.#context = new ZooKeeperContext(open, clock, layout);
    const { sessions, claims, links } = this.#context;
    this.#operations = new Operations(links, layout);
    this.#pendingClaims = new PendingClaims(clock, sessions, claims, {
      attempt: (pending, [own]) => new ClaimAttempt(this.#context, pending, own!).run(),
      mayBeExpired: (error) => isCode(error, "SESSION_EXPIRED", "CLOSED", "NO_NODE"),
    });
  }

  async claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    refuseUnsupported(this.traits, claim);
    return this.#pendingClaims.claim(claim, push).catch(rethrow);
  }

  renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    return new ZooKeeperRenewalBatch(this.#context, renewals).send();
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    return release(this.#context, releases).catch(rethrow);
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#operations.revoke(name, by).catch(rethrow);
  }

  resize(name: string, limit: number): Promise<number | null> {
    return this.#operations.resize(name, limit).catch(rethrow);
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#operations.inspect(name).catch(rethrow);
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#operations.list(prefix, limit).catch(rethrow);
  }

  observe(name: string, changed: () => void): () => void {
    return observeAgain(changed, async (observer) => {
      if (this.#isClosed) return () => {};
      return this.#context.links.use(({ watches }) => watches.observe(name, observer));
    });
  }

  open(): void {
    this.#isClosed = false;
    this.#context.links.reopen();
    this.#users++;
  }

  async close(): Promise<void> {
    this.#users = Math.max(0, this.#users - 1);
    if (this.#users > 0) return;
    this.#isClosed = true;
    const { claims, sessions, links } = this.#context;
    claims.close();
    // Both mark what they end before anything is awaited: other Locks may open the store meanwhile.
    await Promise.all([sessions.close(false), links.close()]);
  }
}

/**
 * Makes a store on a ZooKeeper ensemble. It opens its sessions itself, one for each ttl, because a session's
 * timeout follows from the ttl, and a client ends with its session. Throws `InvalidArgumentError` if an option
 * can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { zookeeperStore } from "holdfast/stores/zookeeper";
 *
 * const store = zookeeperStore({ servers: ["127.0.0.1:2181"] });
 * const locks = createLocks(store, { ttl: "20s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * ```
 */
export function zookeeperStore(options: ZooKeeperStoreOptions): ZooKeeperStore {
  checkOptions(options, "the options of zookeeperStore", [
    ...["servers", "chroot", "requestTimeoutMs", "connectTimeoutMs", "acl", "auth", "tls"],
    ...["maxReplyBytes", "random", "root"],
  ]);
  return new ZooKeeperStore(options);
}

function rethrow(error: unknown): never {
  throw toStoreError(error);
}
