import { setImmediate as turn } from "node:timers/promises";
import { HoldfastError, UnsupportedError } from "../../core/errors.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type HolderInfo,
  modeOf,
  type NameInfo,
  type Position,
  type Push,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  type Store,
  type Traits,
} from "../../core/store.js";
import { checkNumber, checkOptions, orElse } from "../../core/validate.js";
import { type Connection, connectionOf, type RedisClient } from "./client.js";
import { explain } from "./explain.js";
import { escapePattern, keysOf, nameOfKey, patternOf, tagOf } from "./keys.js";
import { SCRIPTS, type Script } from "./scripts.js";
import { Wake } from "./wake.js";

export type { RedisClient } from "./client.js";

export interface RedisStoreOptions {
  /** Closes the client with the first `Locks` on the store that is closed. Default false: it is the caller's. */
  closeClient?: boolean;
  /** A grant and a renewal count when so many replicas have received them. Default 0. */
  replicas?: number;
}

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
    "a failover to a replica that had not heard of the grant",
    "a failover while the old primary still answers (min-replicas-to-write limits that)",
    "a restart of the server without its data, or a restored backup",
    "the server's clock set ahead, or a failover to a node whose clock is ahead",
    "eviction, unless maxmemory-policy is noeviction",
  ],
  cannot: {},
};

export const REDIS_CLUSTER_TRAITS: Traits = {
  ...REDIS_TRAITS,
  store: "Redis Cluster",
  cannot: { "many-names": "the names may lie on different nodes" },
};

const REPLICATED_MS = 1_000;
/** A claim waits for the subscription that it needs, to tell why it fails; so long, and PATIENCE at most. */
const LISTENS_MS = 1_000;
/** In a cluster: the answers of other nodes are not kept waiting for a silent one. */
const OWN_RENEWAL_MS = 1_000;
const RENEWED_AT_ONCE = 256;
/** How many names are looked at in one script. */
const INSPECTED_AT_ONCE = 100;
const SCANNED_AT_ONCE = "1000";

/** Of the ttl: several attempts fit into it. */
const PATIENCE = 1 / 6;

/** Before the grantId of a waiter that has to look. */
const LOOK = "look ";

/** So few that the server works on some while the client reads and writes others. */
const ACTS_AT_ONCE = 16;

/** A claim or a release, on its way to the server. */
interface Act {
  /** The first of them: in a cluster it decides the slot. */
  readonly name: string;
  readonly names: readonly string[];
  readonly args: readonly string[];
  answered(answer: unknown): void;
  failed(error: unknown): void;
}

interface Waiting {
  readonly name: string;
  readonly grantId: string;
  readonly seq: number;
  push(push: Push): void;
}

/** Locks on a Redis server: each step a script. */
export class RedisStore implements Store {
  readonly traits: Traits;
  readonly #connection: Connection;
  readonly #closeClient: boolean;
  readonly #replicas: number;
  readonly #wake: Wake;
  /** The waiters, by grantId, each with the ask that it waits by. */
  readonly #pushes = new Map<string, Waiting>();
  /** Renewals of the store's own accord, for the next batch. */
  #renewals: { readonly renewal: Renewal; answered(answer: RenewAnswer): void }[] = [];
  #acts: Act[] = [];
  #replicating: Promise<void> | null = null;
  #closed = false;

  constructor(client: RedisClient, options: RedisStoreOptions = {}) {
    checkOptions(options, "the options of redisStore", ["closeClient", "replicas"]);
    this.#connection = connectionOf(client);
    this.#closeClient = options.closeClient ?? false;
    this.#replicas = checkNumber(orElse(options.replicas, 0), "replicas", {
      min: 0,
      max: 16,
      integer: true,
    });
    if (this.#replicas > 0 && this.#connection.cluster) {
      throw new UnsupportedError(
        "replicas: on a cluster it would have to be the node of the name that is asked to wait for them",
      );
    }
    this.traits = this.#connection.cluster ? REDIS_CLUSTER_TRAITS : REDIS_TRAITS;
    const hear = {
      message: (text: string) => this.#told(text),
      missed: () => this.#look(),
    };
    this.#wake = new Wake(this.#connection, hear, () => this.#pushes.size > 0);
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const { losses } = this.#connection;
    const granted = !claim.queue ? this.#claim(claim, false) : this.#claimOrQueue(claim, push);
    return this.#replicas === 0 ? granted : this.#whenReplicated(granted, losses);
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    const { losses } = this.#connection;
    const withinMs = Math.min(...renewals.map(({ ttlMs }) => ttlMs)) * PATIENCE;
    const answers = await this.#renew(renewals, withinMs);
    // A waiter that learns of its grant from a renewal no longer needs its push, nor a subscription.
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.#forget(renewals[i]!);
    }
    if (!answers.some(({ kind }) => kind === "granted")) return answers;
    const lacking = await this.#replicated(losses).catch((error: unknown) => error);
    if (lacking === undefined) return answers;
    return answers.map((answer) => (answer.kind === "granted" ? unknown(lacking) : answer));
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    for (const { grantId } of releases) this.#pushes.delete(grantId);
    const answers = releases.map(({ name, grantId, unused }) =>
      this.#act([name], [unused ? "unused" : "release", grantId], toReleaseAnswer),
    );
    return answers.length === 1 ? [await answers[0]!] : Promise.all(answers);
  }

  async revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    const infos = await this.#ask<Json[]>(SCRIPTS.revoke, [name], [by.holder, by.why]);
    return list(infos).map(toHolder);
  }

  async resize(name: string, limit: number): Promise<number | null> {
    const before = await this.#run(SCRIPTS.resize, [name], [String(limit)]);
    return before === "" ? null : Number(before);
  }

  async inspect(name: string): Promise<NameInfo | null> {
    const [info] = await this.#inspect([name]);
    if (info instanceof Error) throw info;
    return info ?? null;
  }

  async list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    const keys = await this.#scan(patternOf(prefix));
    // The pattern may match inside a name, too.
    const names = [...new Set(keys.map(nameOfKey))]
      .filter((name) => name.startsWith(prefix))
      .sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const infos: NameInfo[] = [];
    for (let i = 0; i < names.length && infos.length < limit; i += INSPECTED_AT_ONCE) {
      const some = await this.#inspect(names.slice(i, i + INSPECTED_AT_ONCE));
      // What is wrong with one name is not the others' affair.
      infos.push(...some.filter(isInUse));
    }
    return infos.slice(0, limit);
  }

  /** Keys on all primaries that match, in no order, perhaps twice. */
  async #scan(pattern: string): Promise<readonly string[]> {
    const { keyPrefix } = this.#connection;
    const match = `${escapePattern(keyPrefix)}${pattern}`;
    const found: string[] = [];
    try {
      for (const server of await this.#connection.servers()) {
        let cursor = "0";
        do {
          const page = await server.run(SCRIPTS.scan, [cursor, match, SCANNED_AT_ONCE]);
          const [next, keys] = page as [unknown, readonly unknown[]];
          found.push(...keys.map((key) => textOf(key).slice(keyPrefix.length)));
          cursor = textOf(next);
        } while (cursor !== "0");
      }
    } catch (error) {
      throw this.#explain(error);
    }
    return found;
  }

  async close(): Promise<void> {
    // Other Locks may share the store: their waiters are still told, and later ones listen anew.
    if (!this.#closeClient && this.#pushes.size > 0) return;
    await this.#wake.close();
    if (!this.#closeClient || this.#closed) return;
    this.#closed = true;
    await this.#connection.close();
  }

  async #claimOrQueue(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const { grantId, seq } = claim;
    const waiting = { name: claim.names[0]!, grantId, seq, push };
    // Before the ticket is seen: its push may come before the answer.
    this.#pushes.set(grantId, waiting);
    const isListening = this.#wake.isOpen;
    const answer = await this.#claim(claim, true);
    // A name is free as a rule, and then nobody has to listen. Nor for a waiter that has given up.
    const mustListen = (): boolean => !isListening && this.#pushes.get(grantId) === waiting;
    if (answer.kind !== "queued" || !mustListen()) return answer;
    const opened = this.#wake.open();
    const patienceMs = Math.min(claim.ttlMs * PATIENCE, LISTENS_MS);
    const isOpen = await isDoneWithin(patienceMs, opened).catch((error: unknown) => {
      const explained = this.#explain(error);
      if (HoldfastError.is(explained) && !explained.retryable) throw explained;
      // The claim was answered, and the ticket stands: rejected, the waiter would take the store for silent.
      return false;
    });
    if (!isOpen) opened.then(() => waiting.push({ kind: "look" })).catch(() => {});
    if (!isOpen || !mustListen()) return answer;
    // The ticket has had its place since the claim, and no channel: it may have been granted untold.
    return this.#whileListening(claim);
  }

  async #whileListening(claim: Claim): Promise<ClaimAnswer> {
    const { names, grantId, seq, ttlMs } = claim;
    const answer = await this.#renewSoon({ name: names[0]!, grantId, seq, ttlMs });
    if (answer.kind === "unknown") throw answer.cause;
    if (answer.kind === "queued") return answer;
    // The ticket has run out meanwhile.
    if (answer.kind === "lost") return this.#claim(claim, true);
    this.#forget(claim);
    return { kind: "granted", grants: [answer.grant] };
  }

  /** Unless it has asked again since, and waits by that. */
  #forget({ grantId, seq }: { readonly grantId: string; readonly seq: number }): void {
    if ((this.#pushes.get(grantId)?.seq ?? seq) <= seq) this.#pushes.delete(grantId);
  }

  #claim(claim: Claim, queue: boolean): Promise<ClaimAnswer> {
    const { names, grantId, atLeastMs, ttlMs, seq, permits, limit, holder } = claim;
    const args = [
      `${queue ? "queue" : "claim"} ${names.length}`,
      grantId,
      String(atLeastMs),
      String(ttlMs),
      `${seq} ${permits} ${limit} ${holder}`,
    ];
    return this.#act(names, args, (answer) => {
      const told = isToken(answer)
        ? soleGrant(BigInt(answer), claim)
        : toClaimAnswer(JSON.parse(answer), names);
      if (queue && told.kind !== "queued") this.#forget(claim);
      return told;
    });
  }

  async #whenReplicated(claimed: Promise<ClaimAnswer>, losses: number): Promise<ClaimAnswer> {
    const answer = await claimed;
    if (answer.kind === "granted") await this.#replicated(losses);
    return answer;
  }

  /**
   * On the connection that wrote: WAIT covers no other's writes. What was answered in one turn shares
   * it. A client that connects anew may send it to another server, or after a repeated script that
   * had nothing to write: so the connection must have been the same since before the script was sent.
   */
  async #replicated(losses: number): Promise<void> {
    if (this.#replicas === 0) return;
    this.#replicating ??= turn().then(() => {
      this.#replicating = null;
      return this.#askReplicas();
    });
    await this.#replicating;
    if (this.#connection.losses === losses) return;
    throw new Error(
      "the connection was lost before the replicas had received it, so it does not count",
    );
  }

  async #askReplicas(): Promise<void> {
    const replicas = await this.#connection
      .wait(this.#replicas, REPLICATED_MS)
      .catch((error: unknown) => {
        throw this.#explain(error);
      });
    if (replicas >= this.#replicas) return;
    throw new Error(
      `only ${replicas} of ${this.#replicas} required replicas have received it after ${REPLICATED_MS} ms, so it does not count; are that many connected?`,
    );
  }

  #renew(renewals: readonly Renewal[], withinMs: number): Promise<readonly RenewAnswer[]> {
    const argsOf = ({ grantId, seq, ttlMs }: Renewal): string[] => [
      grantId,
      String(seq),
      String(ttlMs),
    ];
    const read = (answer: Json): RenewAnswer =>
      answer.kind === "unknown" ? unknown(this.#caught(answer.cause)) : toRenewAnswer(answer);
    return this.#batch(SCRIPTS.renewals, renewals, argsOf, read, { failed: unknown, withinMs });
  }

  /** With all that the store itself renews in this turn of the event loop. Never rejects. */
  #renewSoon(renewal: Renewal): Promise<RenewAnswer> {
    return new Promise((answered) => {
      this.#renewals.push({ renewal, answered });
      if (this.#renewals.length === 1) process.nextTick(() => this.#renewTogether());
    });
  }

  #renewTogether(): void {
    while (this.#renewals.length > 0) {
      const some = this.#renewals.splice(0, RENEWED_AT_ONCE);
      const renewals = some.map(({ renewal }) => renewal);
      this.#renew(renewals, OWN_RENEWAL_MS).then((answers) => {
        for (const [i, { answered }] of some.entries()) answered(answers[i]!);
      });
    }
  }

  async #inspect(names: readonly string[]): Promise<readonly (NameInfo | Error | null)[]> {
    const read = (info: Json, { name }: { name: string }): NameInfo | Error | null | undefined => {
      if (info === undefined) return undefined;
      if (info.problem === undefined) return toNameInfo(info, name);
      return this.#caught(info.problem) as Error;
    };
    const infos = new Map<string, NameInfo | Error | null>();
    while (infos.size < names.length) {
      const items = names.filter((name) => !infos.has(name)).map((name) => ({ name }));
      const some = await this.#batch(SCRIPTS.inspect, items, () => [], read);
      // A script answers for the first of its names at least, so this comes to an end.
      for (const [i, info] of some.entries()) {
        if (info !== undefined) infos.set(items[i]!.name, info);
      }
    }
    return names.map((name) => infos.get(name)!);
  }

  /**
   * One script for all; in a cluster, one for those that lie together. Where a failure is an answer, a
   * node that is silent does not keep the answers of the others for longer than that.
   */
  async #batch<T extends { readonly name: string }, Answer>(
    script: Script,
    items: readonly T[],
    argsOf: (item: T) => readonly string[],
    read: (answer: Json, item: T) => Answer,
    partly?: { failed(cause: unknown): Answer; withinMs: number },
  ): Promise<readonly Answer[]> {
    const answers = new Map<T, Answer>();
    const groups = this.#connection.cluster ? bySlot(items) : [items];
    await Promise.all(
      groups.map(async (some) => {
        const names = some.map(({ name }) => name);
        try {
          const asked = this.#ask<Json[]>(script, names, some.flatMap(argsOf));
          const alone = partly === undefined || groups.length === 1;
          const told = list(await (alone ? asked : within(partly.withinMs, asked)));
          for (const [i, item] of some.entries()) answers.set(item, read(told[i], item));
        } catch (cause) {
          if (partly === undefined) throw cause;
          for (const item of some) answers.set(item, partly.failed(cause));
        }
      }),
    );
    return items.map((item) => answers.get(item)!);
  }

  /** With all that is asked for in this turn of the event loop, in one command. */
  #act<T>(
    names: readonly string[],
    args: readonly string[],
    read: (answer: string) => T,
  ): Promise<T> {
    return new Promise((resolve, failed) => {
      const answered = (answer: unknown): void => {
        try {
          const text = textOf(answer);
          if (text.startsWith("!")) failed(this.#caught(text.slice(1)));
          else resolve(read(text));
        } catch (error) {
          failed(error);
        }
      };
      this.#acts.push({ name: names[0]!, names, args, answered, failed });
      // After all that the present answers set off, and before anything new is read.
      if (this.#acts.length === 1) process.nextTick(() => this.#flush());
    });
  }

  #explain(error: unknown): unknown {
    return explain(error, this.#connection);
  }

  /** Of a script, which went on with the others. */
  #caught(text: string): unknown {
    const error = new Error(text);
    this.#connection.caught(error);
    return this.#explain(error);
  }

  #flush(): void {
    const acts = this.#acts.splice(0);
    for (const together of this.#connection.cluster ? bySlot(acts) : [acts]) {
      for (let i = 0; i < together.length; i += ACTS_AT_ONCE) {
        this.#send(together.slice(i, i + ACTS_AT_ONCE));
      }
    }
  }

  #send(acts: readonly Act[]): void {
    const keys: string[] = [];
    const args = [...this.#caller];
    for (const act of acts) {
      for (const name of act.names) keys.push(...keysOf(name));
      args.push(...act.args);
    }
    this.#connection.run(SCRIPTS.acts, keys, args).then(
      (answers) => {
        if (acts.length === 1) acts[0]!.answered(answers);
        else
          for (const [i, act] of acts.entries()) act.answered((answers as unknown[] | null)?.[i]);
      },
      (error: unknown) => {
        const explained = this.#explain(error);
        for (const act of acts) act.failed(explained);
      },
    );
  }

  async #ask<T>(script: Script, names: readonly string[], args: readonly string[]): Promise<T> {
    return JSON.parse(await this.#run(script, names, args)) as T;
  }

  async #run(script: Script, names: readonly string[], args: readonly string[]): Promise<string> {
    const keys = names.flatMap(keysOf);
    try {
      return textOf(await this.#connection.run(script, keys, [...this.#caller, ...args]));
    } catch (error) {
      throw this.#explain(error);
    }
  }

  #told(text: string): void {
    if (text === "look") {
      this.#look();
      return;
    }
    if (text.startsWith(LOOK)) {
      this.#pushes.get(text.slice(LOOK.length))?.push({ kind: "look" });
      return;
    }
    const waiting = this.#pushes.get(text);
    if (waiting === undefined) return;
    // With replicas, another connection has written it: it counts after a renewal of our own.
    if (this.#replicas > 0) waiting.push({ kind: "look" });
    else void this.#confirm(waiting);
  }

  /**
   * A message proves nothing: anybody with the right to publish can send one, and a subscriber at a
   * replica hears of grants that the primary has taken back. So the server is asked, by a renewal
   * that extends nothing because its number is too low.
   */
  async #confirm(waiting: Waiting): Promise<void> {
    const { name, grantId } = waiting;
    const answer = await this.#renewSoon({ name, grantId, seq: 0, ttlMs: 0 });
    if (answer.kind === "queued" || this.#pushes.get(grantId) !== waiting) return;
    if (answer.kind !== "granted") waiting.push({ kind: "look" });
    else {
      this.#pushes.delete(grantId);
      waiting.push({ kind: "granted", grant: { ...answer.grant, handedOver: true } });
    }
  }

  /** As every script is told: how its waiters hear of a grant. In a cluster, publishing does not tell whether anybody was reached. */
  get #caller(): readonly [how: string, channel: string] {
    const how = this.#connection.cluster ? "0" : this.#wake.isOpen ? "1" : "2";
    return [how, this.#wake.name];
  }

  #look(): void {
    for (const { push } of this.#pushes.values()) push({ kind: "look" });
  }
}

export function redisStore(client: RedisClient, options: RedisStoreOptions = {}): RedisStore {
  return new RedisStore(client, options);
}

/** What a script answers with: numbers, text and lists, tokens as text. */
// biome-ignore lint/suspicious/noExplicitAny: read field by field right here
type Json = any;

/** Clients can be told to answer with something else. */
function textOf(reply: unknown): string {
  if (typeof reply === "string") return reply;
  const what = reply instanceof Uint8Array ? "bytes" : reply === null ? "null" : typeof reply;
  throw new UnsupportedError(
    `the Redis client answers with ${what} instead of text: pass one without a type mapping, which returns strings`,
  );
}

const unknown = (cause: unknown): RenewAnswer => ({ kind: "unknown", cause });

/** Lua has one kind of table: an empty list comes as an empty object. */
const list = <T>(value: readonly T[] | object): readonly T[] =>
  Array.isArray(value) ? (value as readonly T[]) : [];

const isInUse = (info: NameInfo | Error | null): info is NameInfo =>
  info !== null && !(info instanceof Error) && info.holders.length + info.waiters.length > 0;

/** False: not yet. Rejects with it. */
async function isDoneWithin(ms: number, done: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms).unref();
  });
  try {
    return await Promise.race([done.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}

async function within<T>(ms: number, asked: Promise<T>): Promise<T> {
  if (await isDoneWithin(ms, asked)) return asked;
  throw new Error(`no answer within ${Math.round(ms)} ms`);
}

function bySlot<T extends { readonly name: string }>(items: readonly T[]): readonly T[][] {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const tag = tagOf(item.name);
    const group = groups.get(tag);
    if (group === undefined) groups.set(tag, [item]);
    else group.push(item);
  }
  return [...groups.values()];
}

const toGrant = ({ token, floor, ttlMs, seq, handedOver }: Json): Grant => ({
  token: BigInt(token),
  floor: BigInt(floor),
  ttlMs,
  seq,
  handedOver,
});

/** The name was free: the answer is the token alone. */
const isToken = (answer: string): boolean => answer.charCodeAt(0) !== 0x7b;

const soleGrant = (token: bigint, { ttlMs, seq }: Claim): ClaimAnswer => ({
  kind: "granted",
  grants: [{ token, floor: token, ttlMs, seq, handedOver: false }],
});

const toPosition = ({ ahead, freeInMs, holder }: Json): Position => ({
  ahead,
  freeInMs: freeInMs ?? Number.POSITIVE_INFINITY,
  holder: holder ?? null,
});

function toClaimAnswer(answer: Json, names: readonly string[]): ClaimAnswer {
  switch (answer.kind) {
    case "granted":
      return { kind: "granted", grants: list<Json>(answer.grants).map(toGrant) };
    case "queued":
      return { kind: "queued", position: toPosition(answer.position) };
    case "busy":
      return { kind: "busy", name: names[answer.at]!, position: toPosition(answer.position) };
    case "mismatch":
      return { kind: "mismatch", name: names[answer.at]!, limit: answer.limit };
    case "full":
      return { kind: "full", name: names[answer.at]!, waiting: answer.waiting };
    default:
      return answer;
  }
}

function toRenewAnswer(answer: Json): RenewAnswer {
  switch (answer.kind) {
    case "granted":
      return { kind: "granted", grant: toGrant(answer.grant) };
    case "queued":
      return { kind: "queued", position: toPosition(answer.position) };
    default:
      return answer;
  }
}

const toReleaseAnswer = (answer: string): ReleaseAnswer =>
  answer === "released" ? answer : (JSON.parse(answer) as ReleaseAnswer);

const toHolder = ({ limit, token, ...rest }: Json): HolderInfo => ({
  ...rest,
  mode: modeOf({ permits: rest.permits, limit }),
  token: BigInt(token),
});

function toNameInfo(info: Json, name: string): NameInfo | null {
  const [holders, waiters, revoked] = [info.holders, info.waiters, info.revoked].map((some) =>
    list<Json>(some),
  ) as [Json[], Json[], Json[]];
  if (holders.length + waiters.length + revoked.length === 0) return null;
  return {
    name,
    limit: info.limit,
    holders: holders.map(toHolder),
    waiting: info.waiting,
    waiters: waiters.map(({ limit, ...rest }) => ({
      ...rest,
      mode: modeOf({ permits: rest.permits, limit }),
    })),
    revoked: revoked.map((one) => ({ ...one, token: BigInt(one.token) })),
  };
}
