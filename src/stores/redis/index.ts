import { setImmediate as turn } from "node:timers/promises";
import { StoreUnavailableError, UnsupportedError } from "../../core/errors.js";
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
import { checkNumber, orElse } from "../../core/validate.js";
import { type Connection, connectionOf, forgetCommand, type RedisClient } from "./client.js";
import { keysOf, nameOfKey, PREFIX, patternOf, tagOf } from "./keys.js";
import { SCRIPTS, type Script } from "./scripts.js";
import { Wake } from "./wake.js";

export type { RedisClient } from "./client.js";

export interface RedisStoreOptions {
  /** Closes the client with the store. Default false: it is the caller's. */
  closeClient?: boolean;
  /** A grant and a renewal count when so many replicas have them. Default 0. */
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
    "a restart of the server without its data",
    "a jump of the server's clock",
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
/** How many names are looked at in one script. */
const INSPECTED_AT_ONCE = 100;

/** Of the ttl: several attempts fit into it. */
const PATIENCE = 1 / 6;

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

/** Locks on a Redis server: each step a script. */
export class RedisStore implements Store {
  readonly traits: Traits;
  readonly #connection: Connection;
  readonly #closeClient: boolean;
  readonly #replicas: number;
  readonly #wake: Wake;
  /** Of those that wait, by their grantId, with the ask that they wait by. */
  readonly #pushes = new Map<string, { readonly seq: number; push(push: Push): void }>();
  #acts: Act[] = [];
  #replicating: Promise<void> | null = null;
  #closed = false;

  constructor(client: RedisClient, options: RedisStoreOptions = {}) {
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
      message: (text: string) => this.#handedOver(text),
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
    const argsOf = ({ grantId, seq, ttlMs }: Renewal): string[] => [
      grantId,
      String(seq),
      String(ttlMs),
    ];
    const failed = (cause: unknown): RenewAnswer => ({ kind: "unknown", cause });
    const { losses } = this.#connection;
    const read = (answer: Json): RenewAnswer =>
      answer.kind === "unknown" ? failed(this.#caught(answer.cause)) : toRenewAnswer(answer);
    const withinMs = Math.min(...renewals.map(({ ttlMs }) => ttlMs)) * PATIENCE;
    const answers = await this.#batch(SCRIPTS.renewals, renewals, argsOf, read, {
      failed,
      withinMs,
    });
    // Who learns it so is no longer waited for, and does not keep the subscription open.
    for (const [i, { kind }] of answers.entries()) {
      if (kind === "granted" || kind === "lost") this.#forget(renewals[i]!);
    }
    if (!answers.some(({ kind }) => kind === "granted")) return answers;
    const lacking = await this.#replicated(losses).catch((error: unknown) => error);
    if (lacking === undefined) return answers;
    return answers.map((answer) => (answer.kind === "granted" ? failed(lacking) : answer));
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
    const keys = await this.#connection.scan(patternOf(prefix));
    // The pattern may match inside a name, too.
    const names = [...new Set(keys.map((key) => nameOfKey(textOf(key))))]
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

  async close(): Promise<void> {
    // The waiters of other Locks on the same store still have to be told.
    if (!this.#closeClient && this.#pushes.size > 0) return;
    await this.#wake.close();
    if (!this.#closeClient || this.#closed) return;
    this.#closed = true;
    await this.#connection.close();
  }

  #claimOrQueue(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    if (this.#wake.isOpen) return this.#queue(claim, push);
    // The name is free as a rule, and then nobody has to listen.
    return this.#claim(claim, false).then(async (answer) => {
      if (answer.kind !== "busy") return answer;
      await this.#wake.open().catch((error: unknown) => {
        throw explain(error);
      });
      return this.#queue(claim, push);
    });
  }

  #queue(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    // Before the ticket is seen: its push may come before the answer.
    this.#pushes.set(claim.grantId, { seq: claim.seq, push });
    return this.#claim(claim, true);
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
    throw new Error("the connection was lost before the replicas had it: it does not count");
  }

  async #askReplicas(): Promise<void> {
    const replicas = await this.#connection.wait(this.#replicas, REPLICATED_MS);
    if (replicas >= this.#replicas) return;
    throw new Error(
      `${replicas} of ${this.#replicas} replicas have it after ${REPLICATED_MS} ms: it does not count`,
    );
  }

  async #inspect(names: readonly string[]): Promise<readonly (NameInfo | Error | null)[]> {
    const items = names.map((name) => ({ name }));
    const read = (info: Json, item: { name: string }): NameInfo | Error | null =>
      info.problem === undefined ? toNameInfo(info, item) : (this.#caught(info.problem) as Error);
    return this.#batch(SCRIPTS.inspect, items, () => [], read);
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

  /** Of a script, which went on with the others. */
  #caught(text: string): unknown {
    const error = new Error(text);
    this.#connection.caught(error);
    return explain(error);
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
    const args = [this.#skipsDead, this.#wake.name];
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
        const explained = explain(error);
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
      return textOf(await this.#connection.run(script, keys, [this.#skipsDead, ...args]));
    } catch (error) {
      throw explain(error);
    }
  }

  #handedOver(text: string): void {
    if (text === "look") {
      this.#look();
      return;
    }
    const told = readHandover(text);
    const waiting = told && this.#pushes.get(told.grantId);
    if (!waiting) return;
    // With replicas, another connection has written it: it counts after a renewal of our own.
    if (this.#replicas > 0) waiting.push({ kind: "look" });
    else {
      this.#pushes.delete(told.grantId);
      waiting.push({ kind: "granted", grant: told.grant });
    }
  }

  /** In a cluster, publishing does not tell whether somebody was reached. */
  get #skipsDead(): string {
    return this.#connection.cluster ? "0" : "1";
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

/** Lua has one kind of table: an empty list comes as an empty object. */
const list = <T>(value: readonly T[] | object): readonly T[] =>
  Array.isArray(value) ? (value as readonly T[]) : [];

const isInUse = (info: NameInfo | Error | null): info is NameInfo =>
  info !== null && !(info instanceof Error) && info.holders.length + info.waiters.length > 0;

async function within<T>(ms: number, asked: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const error = new Error(`no answer within ${Math.round(ms)} ms`);
    timer = setTimeout(() => reject(error), ms).unref();
  });
  try {
    return await Promise.race([asked, late]);
  } finally {
    clearTimeout(timer);
  }
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

function toNameInfo(info: Json, { name }: { name: string }): NameInfo | null {
  const [holders, waiters, revoked] = [info.holders, info.waiters, info.revoked].map((some) =>
    list<Json>(some),
  ) as [Json[], Json[], Json[]];
  if (holders.length + waiters.length + revoked.length === 0) return null;
  return {
    name,
    limit: info.limit,
    holders: holders.map(toHolder),
    waiters: waiters.map(({ limit, ...rest }) => ({
      ...rest,
      mode: modeOf({ permits: rest.permits, limit }),
    })),
    revoked: revoked.map((one) => ({ ...one, token: BigInt(one.token) })),
  };
}

/** Null: anybody may publish anything. */
function readHandover(text: string): { grantId: string; grant: Grant } | null {
  try {
    const [token, floor, ttlMs, seq, ...grantId] = text.split(" ");
    const grant = { token: BigInt(token!), floor: BigInt(floor!), ttlMs: Number(ttlMs) };
    return {
      grantId: grantId.join(" "),
      grant: { ...grant, seq: Number(seq), handedOver: true },
    };
  } catch {
    return null;
  }
}

/** Errors that no repetition mends, in words that help. */
function explain(error: unknown): unknown {
  forgetCommand(error);
  const text = error instanceof Error ? error.message : "";
  const format = /HOLDFAST FORMAT (\S+)/.exec(text)?.[1];
  if (format !== undefined) {
    return new UnsupportedError(
      `a name is kept in format ${format}, which this version of Holdfast does not know: use the version that wrote it`,
    );
  }
  if (text.includes("HOLDFAST LAST TOKEN")) {
    return new UnsupportedError("the next token would be beyond 2^53: the server's clock is wrong");
  }
  if (/HOLDFAST STRANGER|WRONGTYPE/.test(text)) {
    return new StoreUnavailableError(
      `a key that begins with ${JSON.stringify(PREFIX)} holds something that is not Holdfast's: delete it, or use another database`,
      { cause: error, retryable: false },
    );
  }
  if (/\b(NOAUTH|WRONGPASS|NOPERM)\b|can't run this command|No permissions/.test(text)) {
    return new StoreUnavailableError(`the Redis server refuses: ${text}`, {
      cause: error,
      retryable: false,
    });
  }
  return error;
}
