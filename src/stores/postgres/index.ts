import { randomInt, randomUUID } from "node:crypto";
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
import { checkOptions } from "../../core/validate.js";
import {
  type DescribedClaims,
  type DescribedName,
  readClaimReply,
  readHolders,
  readNameInfo,
  readReleaseReply,
  readRenewReply,
} from "../shared/json-replies.js";
import { isInUse } from "../shared/name-info.js";
import { QueuedClaims } from "../shared/queued-claims.js";
import type { PostgresClient } from "./client.js";
import { Database } from "./database.js";
import { lockedError, toStoreError } from "./errors.js";
import { parseMessage } from "./messages.js";
import { PostgresRecords } from "./records.js";
import { requestBatcher } from "./request-batcher.js";
import { firstAfter, firstBeyond, storable } from "./text.js";

export type { PostgresClient } from "./client.js";
export type { PostgresSessionStore, PostgresSessionStoreOptions } from "./session/index.js";
export { postgresSessionStore } from "./session/index.js";

/** Options of `postgresStore`. */
export interface PostgresStoreOptions {
  /** The schema of the tables and functions, made at the first use. Default "holdfast". */
  schema?: string;
  /**
   * Whether every release is on disk before it is answered. Default false: after a crash of the server, a
   * released lease may be back until it expires.
   */
  durableRelease?: boolean;
  /** Closes the pool with the first `Locks` on the store that is closed. Default false: it is the caller's. */
  closeClient?: boolean;
}

/** The traits of the store with a lease table. */
export const POSTGRES_TRAITS: Traits = {
  store: "PostgreSQL",
  scope: "network",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 50,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "a crash or restart of the server with its data",
  ],
  grantsTwiceAfter: [
    "a failover to a standby that lacks the grant",
    "a failover while the old primary still answers",
    "a restored backup, or a crash with fsync = off",
    "the server's clock set ahead, or a failover to a server whose clock is ahead",
  ],
  cannot: {},
};

/** The traits behind a pooler in transaction mode, through which no messages arrive. */
export const POSTGRES_POLLED_TRAITS: Traits = {
  ...POSTGRES_TRAITS,
  store: "PostgreSQL behind a pooler",
  waiting: "polled",
};

const REQUESTS_PER_CALL = 64;
const RENEWALS_PER_CALL = 500;
const NAMES_PER_PAGE = 200;
/** After this many releases, the next part of the table is searched for names that are free. */
const RELEASES_PER_DELETION = 256;
const NAMES_PER_DELETION = 512;
const FREE_FOR_US = 60_000_000;
const DELETION_TIMEOUT_MS = 2_000;
/** The timeout of a request is a third of its ttl, within these bounds. */
const TIMEOUT_MS = { min: 500, max: 10_000 };
const RELEASE_TIMEOUT_MS = 3_500;

/** A claim or a release as requests() in sql/requests.sql reads it; times in µs. */
interface Request {
  readonly kind: "claim" | "queue" | "release" | "unused";
  readonly id: string;
  readonly names: readonly string[];
  readonly seq?: number;
  readonly permits?: number;
  readonly limit?: number;
  readonly ttl?: number;
  readonly atLeast?: number;
  readonly holder?: string;
}

/** Locks in tables of a PostgreSQL database: each step is one call of a function. */
export class PostgresStore implements Store {
  readonly records: PostgresRecords;
  readonly #database: Database;
  readonly #durableRelease: boolean;
  readonly #channel = `holdfast_${randomUUID().replaceAll("-", "")}`;
  readonly #queued: QueuedClaims;
  readonly #requests = requestBatcher<Request>({
    size: REQUESTS_PER_CALL,
    nameOf: ({ names }) => names[0]!,
    timeoutMsOf: ({ ttl }) => (ttl === undefined ? RELEASE_TIMEOUT_MS : timeoutMsOf(ttl / 1_000)),
    // An attempt at a held name is answered although the row is locked.
    isOrdered: ({ kind }) => kind !== "claim",
    isOpen: () => this.#database.isOpen,
    lockedError: () => lockedError(this.#database.where),
    call: (requests, ...lock) => {
      const isDurable = this.#durableRelease || requests.some(isClaim);
      const values = [JSON.stringify(requests), isDurable];
      return this.#callBatch("requests", values, ...lock);
    },
  });
  readonly #renewals = requestBatcher<Renewal>({
    size: RENEWALS_PER_CALL,
    nameOf: ({ name }) => name,
    timeoutMsOf: ({ ttlMs }) => timeoutMsOf(ttlMs),
    isOrdered: () => true,
    isOpen: () => this.#database.isOpen,
    lockedError: () => lockedError(this.#database.where),
    call: (renewals, ...lock) => {
      const values = [
        renewals.map(({ name }) => name),
        renewals.map(({ grantId }) => grantId),
        renewals.map(({ seq }) => seq),
        renewals.map(({ ttlMs }) => toUs(ttlMs)),
      ];
      return this.#callBatch("renewals", values, ...lock);
    },
  });
  /**
   * Starts at a random number, so that many processes with a few releases each delete as often as one that makes all
   * of them.
   */
  #releases = randomInt(RELEASES_PER_DELETION);
  #deletion: Promise<unknown> = Promise.resolve();

  constructor(client: PostgresClient, options: PostgresStoreOptions = {}) {
    checkOptions(options, "the options of postgresStore", [
      "schema",
      "durableRelease",
      "closeClient",
    ]);
    const traits = { maker: "postgresStore", detectsPooler: true };
    this.#database = new Database(client, options, traits);
    this.records = new PostgresRecords(this.#database);
    this.#durableRelease = options.durableRelease ?? false;
    this.#queued = new QueuedClaims(this.#channel, this.#database, {
      claim: (claim) => this.#claim(claim),
      renew: (renewal) => this.#renew(renewal),
      toStoreError: (error) => toStoreError(error, this.#database.where),
      message: (text) => this.#receive(text),
    });
  }

  open(): void {
    this.#database.open();
  }

  get traits(): Traits {
    return this.#database.deliversMessages ? POSTGRES_TRAITS : POSTGRES_POLLED_TRAITS;
  }

  /** Makes the schema unless it is there; every request does so first. Rejects if that fails. */
  setUp(): Promise<void> {
    return this.#database.setUp();
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    if (!claim.queue) return this.#claim(claim);
    if (this.#database.deliversMessages) return this.#queued.claim(claim, push);
    this.#queued.waiters.delete(claim.grantId);
    return this.#claim(claim);
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const answers = await Promise.all(renewals.map((renewal) => this.#renew(renewal)));
    this.#queued.waiters.removeSettled(renewals, answers);
    return answers;
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#queued.waiters.delete(grantId);
    const answers = await Promise.all(releases.map((release) => this.#release(release)));
    this.#deleteFreeNames(releases.length);
    return answers;
  }

  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const values = [name, storable(by.holder), storable(by.why)];
    const [revoked] = await this.#database.whileLocked((lockWaitMs) =>
      this.#database.callForJson<DescribedClaims>("revoke_name", [...values, lockWaitMs]),
    );
    return readHolders(revoked!);
  }

  async resize(name: string, limit: number): Promise<number | null> {
    const values = [name, limit];
    const [before] = await this.#database.whileLocked((lockWaitMs) =>
      this.#database.call<string | null>("resize_name", [...values, lockWaitMs]),
    );
    return before === null ? null : Number(before);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const [found] = await this.#describe(name, firstAfter(name), 1);
    return found === undefined ? null : readNameInfo(found, name);
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const infos: NameInfo[] = [];
    const beyond = firstBeyond(prefix);
    let first: string | undefined = prefix;
    while (first !== undefined && infos.length < limit) {
      const page = await this.#describe(first, beyond, NAMES_PER_PAGE);
      infos.push(...page.map((one) => readNameInfo(one, one.name)).filter(isInUse));
      first = page.length < NAMES_PER_PAGE ? undefined : firstAfter(page.at(-1)!.name);
    }
    return infos.slice(0, limit);
  }

  async close(): Promise<void> {
    if (!this.#database.leave(this.#queued.waiters.size > 0)) return;
    await this.#queued.close();
    // A pool that is ended leaves its last request without a reply, whose timeout would keep the process alive.
    await Promise.all([this.#deletion, this.records.deletion]);
    await this.#database.close();
  }

  async #claim(claim: Claim): Promise<ClaimAnswer> {
    const request: Request = {
      kind: claim.queue ? "queue" : "claim",
      id: claim.grantId,
      names: claim.names,
      seq: claim.seq,
      permits: claim.permits,
      limit: claim.limit,
      ttl: toUs(claim.ttlMs),
      atLeast: toUs(claim.atLeastMs),
      holder: storable(claim.holder),
    };
    return readClaimReply(await this.#requests.send(request), claim);
  }

  async #release({ name, grantId, unused }: Release): Promise<ReleaseAnswer> {
    const kind = unused ? "unused" : "release";
    const request: Request = { kind, id: grantId, names: [name] };
    return readReleaseReply(await this.#requests.send(request));
  }

  /** Never rejects. */
  async #renew(renewal: Renewal): Promise<RenewAnswer> {
    try {
      return readRenewReply(await this.#renewals.send(renewal), renewal);
    } catch (cause) {
      return { kind: "unknown", cause };
    }
  }

  async #callBatch(
    name: string,
    values: readonly unknown[],
    timeoutMs: number,
    lockWaitMs: number,
    waits: boolean,
  ): Promise<readonly (string | null)[]> {
    // Without a channel, the waiters of this process poll.
    const channel = this.#database.deliversMessages ? this.#channel : null;
    const all = [...values, channel, Math.ceil(lockWaitMs), waits];
    try {
      return await this.#database.callForTexts(name, all, timeoutMs);
    } finally {
      // A late claim, or its release, has added the listener again.
      if (!this.#database.isOpen) this.#database.detach();
    }
  }

  #describe(first: string, beyond: string | null, many: number): Promise<readonly DescribedName[]> {
    return this.#database.callForJson("describe_names", [first, beyond, many]);
  }

  #receive(text: string): void {
    const message = parseMessage(text);
    if (message === null) return;
    const { grantId, ...push } = message;
    this.#queued.waiters.push(grantId, push);
  }

  /** Deletes unused rows now and then, so that names which nobody uses again leave nothing behind. */
  #deleteFreeNames(released: number): void {
    this.#releases += released;
    if (this.#releases < RELEASES_PER_DELETION) return;
    this.#releases = 0;
    const values = [NAMES_PER_DELETION, FREE_FOR_US, DELETION_TIMEOUT_MS / 2];
    this.#deletion = this.#database
      .call("delete_free_names", values, DELETION_TIMEOUT_MS)
      // If this one fails, the next deletion tries the same rows.
      .catch(() => {});
  }
}

/**
 * Makes a store on a PostgreSQL database, by a pool of the package `pg` that you have built. It makes a schema
 * of its own at the first use. Throws `InvalidArgumentError` if the pool or an option can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { postgresStore } from "holdfast/stores/postgres";
 * import { Pool } from "pg";
 *
 * const pool = new Pool({ connectionString: "postgres://127.0.0.1/app", max: 4 });
 * const locks = createLocks(postgresStore(pool), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * await pool.end();
 * ```
 */
export function postgresStore(
  client: PostgresClient,
  options: PostgresStoreOptions = {},
): PostgresStore {
  return new PostgresStore(client, options);
}

const isClaim = ({ kind }: Request): boolean => kind === "claim" || kind === "queue";

const timeoutMsOf = (ttlMs: number): number =>
  Math.min(Math.max(ttlMs / 3, TIMEOUT_MS.min), TIMEOUT_MS.max);

const toUs = (ms: number): number => Math.round(ms * 1_000);
