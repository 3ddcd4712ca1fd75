import { randomUUID } from "node:crypto";
import { UnsupportedError } from "../../core/errors.js";
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
import { checkNumber, checkOptions, orElse } from "../../core/validate.js";
import {
  type Json,
  readClaimReply,
  readHolders,
  readNameInfo,
  readReleaseReply,
  toRenewAnswer,
} from "../shared/json-replies.js";
import type { LocalWaiter } from "../shared/local-waiters.js";
import { isInUse } from "../shared/name-info.js";
import { QueuedClaims } from "../shared/queued-claims.js";
import { slices } from "../shared/slices.js";
import { settleBatch, TurnBatcher } from "../shared/turn-batcher.js";
import { compareUtf8 } from "../shared/utf8.js";
import { connectionOf, type RedisClient } from "./client.js";
import { keysOf, nameOfKey, PREFIX, patternOf } from "./keys.js";
import { parsePushMessage } from "./push-message.js";
import { RedisRecords } from "./records.js";
import { MOST_REPLICAS, Replicas } from "./replicas.js";
import { RequestBatcher } from "./request-batcher.js";
import { ScriptRunner } from "./script-runner.js";
import { SCRIPTS } from "./scripts.js";

export type { RedisClient } from "./client.js";

/** Options of `redisStore`. */
export interface RedisStoreOptions {
  /** Closes the client with the first `Locks` on the store that is closed. Default false: it is the caller's. */
  closeClient?: boolean;
  /** A grant, a renewal and a written record count when this many replicas have received them. Default 0. */
  replicas?: number;
}

/** The traits of the store on a single Redis server, with or without replicas. */
export const REDIS_TRAITS: Traits = {
  store: "Redis",
  scope: "network",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 20,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "a restart of the server with its data (appendfsync always)",
  ],
  grantsTwiceAfter: [
    "a failover to a replica that had not received the grant",
    "a failover while the old primary still answers (min-replicas-to-write limits that)",
    "a restart of the server without its data, or a restored backup",
    "the server's clock set ahead, or a failover to a node whose clock is ahead",
    "eviction, unless maxmemory-policy is noeviction",
  ],
  cannot: {},
};

/** The traits of the store on a Redis Cluster. */
export const REDIS_CLUSTER_TRAITS: Traits = {
  ...REDIS_TRAITS,
  store: "Redis Cluster",
  cannot: { "many-names": "the names may lie on different nodes" },
};

/** The timeout of a request, as a share of its ttl: several attempts fit into a ttl. */
const TIMEOUT_PER_TTL = 1 / 6;
/** In a cluster, a silent node delays renewals on other nodes by no more than this. */
const OWN_RENEWAL_TIMEOUT_MS = 1_000;
const RENEWALS_PER_SCRIPT = 256;
const INSPECTIONS_PER_SCRIPT = 100;

/** Locks on a Redis server or cluster: each step is one script. */
export class RedisStore implements Store {
  readonly traits: Traits;
  readonly records: RedisRecords;
  readonly #runner: ScriptRunner;
  readonly #closeClient: boolean;
  readonly #replicas: Replicas;
  readonly #queued: QueuedClaims;
  readonly #requests: RequestBatcher;
  /** Renewals by which the store itself confirms grants and tickets, those of one turn in one script. Never reject. */
  readonly #ownRenewals = new TurnBatcher<Renewal, RenewAnswer>((all) => {
    for (const batch of slices(all, RENEWALS_PER_SCRIPT)) {
      const renewals = batch.map(({ request }) => request);
      const renewed = this.#renew(renewals, OWN_RENEWAL_TIMEOUT_MS);
      settleBatch(batch, renewed, { replyTo: (answers, at) => answers[at]! });
    }
  });
  /** The first argument of every script: whether this process listens to its channel, and the channel (see names.lua). */
  readonly #caller: { readonly listening: string; readonly notListening: string };
  /** With `replicas`: waiters that a message has notified of their grant, which their next renewal proves. */
  readonly #notified = new WeakSet<LocalWaiter>();
  #closed = false;

  constructor(client: RedisClient, options: RedisStoreOptions = {}) {
    checkOptions(options, "the options of redisStore", ["closeClient", "replicas"]);
    const connection = connectionOf(client);
    this.#closeClient = options.closeClient ?? false;
    const replicas = checkNumber(orElse(options.replicas, 0), "replicas", {
      min: 0,
      max: MOST_REPLICAS,
      integer: true,
    });
    if (replicas > 0 && connection.cluster) {
      throw new UnsupportedError(
        "replicas can't be waited for on a cluster: WAIT covers one node, and names are on many; leave the option out",
      );
    }
    this.traits = connection.cluster ? REDIS_CLUSTER_TRAITS : REDIS_TRAITS;
    this.#runner = new ScriptRunner(connection);
    this.#replicas = new Replicas(this.#runner, replicas);
    this.records = new RedisRecords(this.#runner, this.#replicas);
    const channel = `${PREFIX}wake:${randomUUID()}`;
    const [listening, notListening] = connection.cluster ? ["0", "0"] : ["1", "2"];
    this.#caller = {
      listening: `${listening} ${channel}`,
      notListening: `${notListening} ${channel}`,
    };
    this.#queued = new QueuedClaims(channel, connection, {
      claim: (claim) => this.#claim(claim),
      renew: (renewal) => this.#ownRenewals.send(renewal),
      toStoreError: (error) => this.#runner.toStoreError(error),
      message: (text) => this.#receive(text),
    });
    this.#requests = new RequestBatcher(this.#runner, SCRIPTS.requests, {
      usual: () => [this.#callerArg],
    });
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const { losses } = this.#runner.connection;
    const claimed = claim.queue ? this.#queued.claim(claim, push) : this.#claim(claim);
    return this.#replicas.required === 0 ? claimed : this.#whenReplicated(claimed, losses);
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const { losses } = this.#runner.connection;
    const timeoutMs = Math.min(...renewals.map(({ ttlMs }) => ttlMs)) * TIMEOUT_PER_TTL;
    const answers = this.#markHandovers(renewals, await this.#renew(renewals, timeoutMs));
    this.#queued.waiters.removeSettled(renewals, answers);
    if (!answers.some(({ kind }) => kind === "granted")) return answers;
    const failure = await this.#replicas.receive(losses).catch((error: unknown) => error);
    if (failure === undefined) return answers;
    return answers.map((answer) => (answer.kind === "granted" ? unknown(failure) : answer));
  }

  release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#queued.waiters.delete(grantId);
    // A single release, the usual case, makes one promise less.
    if (releases.length === 1) {
      return this.#release(releases[0]!, (reply) => [readReleaseReply(reply)]);
    }
    return Promise.all(releases.map((release) => this.#release(release, readReleaseReply)));
  }

  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const args = [this.#callerArg, by.holder, by.why];
    return readHolders(JSON.parse(await this.#runner.run(SCRIPTS.revoke, keysOf(name), args)));
  }

  async resize(name: string, limit: number): Promise<number | null> {
    const args = [this.#callerArg, String(limit)];
    const before = await this.#runner.run(SCRIPTS.resize, keysOf(name), args);
    return before === "" ? null : Number(before);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const [info] = await this.#inspect([name]);
    if (info instanceof Error) throw info;
    return info ?? null;
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const keys = await this.#runner.scan(patternOf(prefix));
    const names = [...new Set(keys.map(nameOfKey))]
      // The pattern may match inside a name, too.
      .filter((name) => name.startsWith(prefix))
      .sort(compareUtf8);
    const infos: NameInfo[] = [];
    for (const some of slices(names, INSPECTIONS_PER_SCRIPT)) {
      if (infos.length >= limit) break;
      // A name that can't be read does not hide the others.
      infos.push(...(await this.#inspect(some)).filter(isInUse));
    }
    return infos.slice(0, limit);
  }

  async close(): Promise<void> {
    // Other Locks may share the store: their waiters are still notified, and later ones subscribe again.
    if (!this.#closeClient && this.#queued.waiters.size > 0) return;
    await this.#queued.close();
    if (!this.#closeClient || this.#closed) return;
    this.#closed = true;
    await this.#runner.connection.close();
  }

  get #callerArg(): string {
    return this.#queued.isListening ? this.#caller.listening : this.#caller.notListening;
  }

  #claim(claim: Claim): Promise<ClaimAnswer> {
    const { names, grantId, atLeastMs, ttlMs, seq, permits, limit, holder, queue } = claim;
    const kind = queue ? "queue" : "claim";
    const request = `${kind} ${names.length} ${atLeastMs} ${ttlMs} ${seq} ${permits} ${limit} ${holder}`;
    const keys = names.length === 1 ? keysOf(names[0]!) : names.flatMap(keysOf);
    return this.#requests.send(keys, [grantId, request], (reply) => readClaimReply(reply, claim));
  }

  #release<T>({ name, grantId, unused }: Release, read: (reply: string) => T): Promise<T> {
    const args = [grantId, unused ? "unused" : "release"];
    return this.#requests.send(keysOf(name), args, read);
  }

  async #whenReplicated(claimed: Promise<ClaimAnswer>, losses: number): Promise<ClaimAnswer> {
    const answer = await claimed;
    if (answer.kind === "granted") await this.#replicas.receive(losses);
    return answer;
  }

  /** Never rejects. */
  #renew(renewals: readonly Renewal[], timeoutMs: number): Promise<readonly RenewAnswer[]> {
    return this.#runner.runForEach(renewals, this.#callerArg, {
      script: SCRIPTS.renewals,
      keysOf: ({ name }) => keysOf(name),
      argsOf: ({ grantId, seq, ttlMs }) => [grantId, String(seq), String(ttlMs)],
      read: (reply: Json): RenewAnswer =>
        reply.kind === "unknown"
          ? unknown(this.#runner.caughtError(reply.cause))
          : toRenewAnswer(reply),
      failed: unknown,
      timeoutMs,
    });
  }

  async #inspect(names: readonly string[]): Promise<readonly (NameInfo | Error | null)[]> {
    const infos = new Map<string, NameInfo | Error | null>();
    while (infos.size < names.length) {
      const missing = names.filter((name) => !infos.has(name));
      const some = await this.#runner.runForEach(missing, this.#callerArg, {
        script: SCRIPTS.inspect,
        keysOf,
        argsOf: () => [],
        read: (info: Json, name) => {
          if (info === undefined) return undefined;
          if (info.problem !== undefined) return this.#runner.caughtError(info.problem) as Error;
          // The script counts all waiters, and describes the first of them.
          const shown = readNameInfo(info, name);
          return shown && { ...shown, waiting: info.waiting };
        },
      });
      // A script replies for the first of its names at least, so this comes to an end.
      for (const [i, info] of some.entries()) {
        if (info !== undefined) infos.set(missing[i]!, info);
      }
    }
    return names.map((name) => infos.get(name)!);
  }

  #receive(text: string): void {
    const message = parsePushMessage(text);
    if (message === null) return;
    if (!("grantId" in message)) this.#queued.waiters.pushLookToAll();
    else if (message.kind === "look") {
      this.#queued.waiters.push(message.grantId, { kind: "look" });
    } else {
      const waiter = this.#queued.waiters.find(message.grantId);
      if (waiter === undefined) return;
      if (this.#replicas.required === 0) void this.#confirm(waiter);
      else {
        // Another connection has written the grant, so it counts only after a renewal on this one.
        this.#notified.add(waiter);
        waiter.push({ kind: "look" });
      }
    }
  }

  /** A renewal that proves a grant after its message was not what the waiter learned it from. */
  #markHandovers(
    renewals: readonly Renewal[],
    answers: readonly RenewAnswer[],
  ): readonly RenewAnswer[] {
    if (this.#replicas.required === 0) return answers;
    return answers.map((answer, i) => {
      const waiter = this.#queued.waiters.find(renewals[i]!.grantId);
      if (answer.kind !== "granted" || waiter === undefined) return answer;
      return { ...answer, grant: { ...answer.grant, handedOver: this.#notified.has(waiter) } };
    });
  }

  /**
   * A message proves nothing: anybody with the right to publish can send one, and a subscriber at a replica
   * receives messages of grants that the primary has taken back. So a renewal confirms the grant; it extends
   * nothing, because its number is too low.
   */
  async #confirm(waiter: LocalWaiter): Promise<void> {
    const { names, grantId } = waiter.claim;
    const answer = await this.#ownRenewals.send({ name: names[0]!, grantId, seq: 0, ttlMs: 0 });
    if (answer.kind === "queued" || !this.#queued.waiters.has(waiter)) return;
    if (answer.kind !== "granted") waiter.push({ kind: "look" });
    else {
      const grant = { ...answer.grant, handedOver: true };
      this.#queued.waiters.push(grantId, { kind: "granted", grant });
    }
  }
}

/**
 * Makes a store on a Redis server or a Redis Cluster, by a client of ioredis or node-redis that you
 * have built. Throws `InvalidArgumentError` if the client or an option can't be used.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { redisStore } from "holdfast/stores/redis";
 * import { Redis } from "ioredis";
 *
 * const client = new Redis("redis://127.0.0.1:6379");
 * const locks = createLocks(redisStore(client), { ttl: "30s" });
 * await locks.withLock("order:123", async (lease) => console.log(lease.token));
 * await locks.close();
 * await client.quit();
 * ```
 */
export function redisStore(client: RedisClient, options: RedisStoreOptions = {}): RedisStore {
  return new RedisStore(client, options);
}

const unknown = (cause: unknown): RenewAnswer => ({ kind: "unknown", cause });
