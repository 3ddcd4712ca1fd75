import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../core/errors.js";
import { unknownOutcome } from "../core/place.js";
import {
  checkOptions,
  checkText,
  checkToken,
  type Duration,
  orElse,
  parseDuration,
  show,
} from "../core/validate.js";
import { connectionOf, type RedisClient } from "../stores/redis/client.js";
import { replyError, wasNotSent } from "../stores/redis/errors.js";
import { escapePattern, FENCE_PREFIX } from "../stores/redis/keys.js";
import { ScriptRunner } from "../stores/redis/script-runner.js";
import { SCRIPTS } from "../stores/redis/scripts.js";
import { within } from "../stores/shared/timeout.js";
import {
  checkFenced,
  checkResource,
  type Fence,
  type Fenced,
  isStrict,
  notEntered,
  stale,
} from "./fence.js";
import {
  checkListOptions,
  type FencedResource,
  type FenceListOptions,
  firstOf,
} from "./shared/list.js";
import { parseStored, STORED_FORMAT } from "./shared/stored-number.js";

/** Commands that run together with the check of the token, in one step. */
export interface RedisTx {
  /** Each is the words of one command: `["SET", "stock:{hat}", "6"]`. */
  readonly commands: (readonly (string | number)[])[];
}

/** Options of `redisFence`. */
export interface RedisFenceOptions {
  /** The prefix of every key of the fence. No prefix may begin with another one. Default: `holdfast:fence:`. */
  readonly prefix?: string | undefined;
  /** How long a step waits for its reply, if the client has no shorter `commandTimeout`. Default 10 s. */
  readonly timeout?: Duration | undefined;
}

interface Guard {
  readonly key: string;
  readonly resource: string;
  readonly token: bigint;
  readonly floor: bigint;
  readonly strict: boolean;
}

const FORMAT = `${STORED_FORMAT}:`;
/** Numbers have one width, because the script compares them as text: Lua's numbers end at 2^53. */
const DIGITS = 20;
/** The most words that Lua can pass to a command. */
const MOST_WORDS = 4_000;

/** The guards of a transaction, which `commit` sends with it. */
interface Notes {
  readonly fence: RedisFence;
  readonly guards: Guard[];
  /** Keys that the transaction's own commands reset: a cluster finds the node by them. */
  readonly resetKeys: string[];
}

const notesOf = new WeakMap<RedisTx, Notes>();

/**
 * A fence for data in Redis. `guard` notes the check in the `tx`, and `commit` runs check and commands as
 * one script: nothing comes between them.
 */
export class RedisFence implements Fence<RedisTx | undefined> {
  readonly #runner: ScriptRunner;
  readonly #prefix: string;
  readonly #timeoutMs: number;

  constructor(client: RedisClient, options: RedisFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["prefix", "timeout"]);
    this.#prefix = checkText(orElse(options.prefix, FENCE_PREFIX), "prefix", 1, 255);
    this.#timeoutMs = parseDuration(orElse(options.timeout, "10s"), "timeout", {
      min: 1,
      max: 3_600_000,
    });
    this.#runner = new ScriptRunner(connectionOf(client, "redisFence"), {
      prefix: this.#prefix,
      page: "docs/fences.md",
      maker: "redisFence",
    });
  }

  /** Takes effect at once, also with a `tx`: a holder may enter at any time. */
  async enter(tx: RedisTx | undefined, resource: string, lease: Fenced): Promise<void> {
    const guard = this.#guard(tx, resource, lease, false);
    await this.#run([guard], []);
    if (tx !== undefined) this.#notes(tx).guards.push(guard);
  }

  /** With a `tx`, nothing is sent: `commit` checks the token. */
  async guard(
    tx: RedisTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const guard = this.#guard(tx, resource, lease, isStrict(options));
    if (tx === undefined) await this.#run([guard], []);
    else this.#notes(tx).guards.push(guard);
  }

  /**
   * Checks the token and runs the commands, in one step; resolves to their replies. Rejects with
   * `StaleTokenError` if a later holder has entered, and then no command was run; with `StoreUnavailableError`
   * if commands may have been executed. Redis does not roll back: if a command fails, those before it have been.
   */
  async commit(tx: RedisTx): Promise<readonly unknown[]> {
    checkTx(tx);
    if (!notesOf.has(tx)) {
      throw new InvalidArgumentError(
        "this transaction is not guarded: call guard with it before commit",
      );
    }
    const { guards, resetKeys } = this.#notes(tx);
    const keys = [...guards.map(({ key }) => key), ...resetKeys];
    return this.#run(guards, tx.commands, [...keys, ...this.#keysBeside(keys[0], tx.commands)]);
  }

  /** The present value, because a transaction reads nothing before it is committed. */
  async highest(_tx: RedisTx | undefined, resource: string): Promise<bigint> {
    const key = this.#key(resource);
    const get = ["GET", this.#runner.connection.keyPrefix + key];
    const [value] = await this.#run([], [get], [key], null);
    return highestIn(key, value as string | null);
  }

  /**
   * The resources that it has seen, in the order of their UTF-8 bytes. It scans all keys of the server. Redis
   * does not tell when a number was raised.
   */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    const wanted = checkListOptions(options);
    const keys = await this.#runner.scan(`${escapePattern(this.#prefix)}*`);
    const resources = new Set(keys.flatMap((key) => this.#resourceOf(key) ?? []));
    const listed: FencedResource[] = [];
    for (const resource of firstOf([...resources], wanted)) {
      const highest = await this.highest(undefined, resource);
      listed.push({ resource, highest, enteredAtMs: null });
    }
    return listed;
  }

  /** With a `tx`, the reset becomes its last command. */
  async reset(tx: RedisTx | undefined, resource: string, token: bigint): Promise<void> {
    const key = this.#key(resource);
    const value = FORMAT + digitsOf(checkToken(token, "token"));
    const command = ["SET", this.#runner.connection.keyPrefix + key, value];
    if (tx === undefined) {
      await this.#run([], [command], [key], `The number of ${show(resource)}`);
      return;
    }
    checkTx(tx);
    this.#notes(tx).resetKeys.push(key);
    tx.commands.push(command);
  }

  /** The key of a resource. In a cluster, the keys of guarded commands must have the same hash tag. */
  keyOf(resource: string): string {
    return this.#key(resource);
  }

  async #run(
    guards: readonly Guard[],
    commands: RedisTx["commands"],
    keys = guards.map(({ key }) => key),
    written: string | null = commands.length === 0 ? null : "What the commands write",
  ): Promise<readonly unknown[]> {
    const args = [
      String(guards.length),
      ...guards.flatMap(({ token, floor, strict }) => [
        digitsOf(token),
        digitsOf(floor),
        strict ? "strict" : "",
      ]),
      ...commands.flatMap((words) => [String(words.length), ...words.map(String)]),
    ];
    const { connection } = this.#runner;
    const { allLosses } = connection;
    const [outcome, ...rest] = await this.#send(keys, args, written);
    if (outcome === "done") return rest;
    if (outcome === "failed") throw this.#failed(keys, commands, Number(rest[0]), String(rest[1]));
    refuseBytes(outcome);
    const { key, resource, token } = guards[Number(rest[0]) - 1]!;
    if (outcome === "foreign") highestIn(key, String(rest[1]));
    const highest = BigInt(rest[1] as string);
    const refused = outcome === "stale" ? stale : notEntered;
    const error = refused(resource, token, highest);
    // ioredis has sent the script again: it may have been executed before the later holder entered.
    if (written !== null && connection.allLosses !== allLosses) {
      const why = `the connection to ${connection.where} was lost on the way, and the commands, sent again, were refused (${error.message})`;
      throw unknownOutcome(written, why, error);
    }
    throw error;
  }

  /**
   * In a cluster, the words of commands that have the hash tag of the key: the keys, and perhaps other words. A
   * node that has only a part of a slot refuses a script that names such keys (TRYAGAIN); otherwise it would take
   * a key that the other node has for one that is missing.
   */
  #keysBeside(key: string | undefined, commands: RedisTx["commands"]): string[] {
    const { cluster, keyPrefix } = this.#runner.connection;
    const tag = cluster && key !== undefined ? hashTagOf(keyPrefix + key) : null;
    if (tag === null) return [];
    const words = commands.flatMap(([, ...rest]) => rest.map(String));
    // The client will put its prefix before each.
    const ours = words.filter((word) => hashTagOf(word) === tag && word.startsWith(keyPrefix));
    return [...new Set(ours)].map((word) => word.slice(keyPrefix.length));
  }

  async #send(
    keys: readonly string[],
    args: readonly string[],
    written: string | null,
  ): Promise<readonly unknown[]> {
    const { connection } = this.#runner;
    const timeout = (): StoreUnavailableError =>
      new StoreUnavailableError(
        `no reply from ${connection.where} within the ${this.#timeoutMs} ms of the fence`,
      );
    try {
      const running = connection.run(SCRIPTS.fence, keys, args);
      return (await within(this.#timeoutMs, running, timeout)) as unknown[];
    } catch (error) {
      const known = outsideNode(keys, String(error)) ?? this.#runner.toStoreError(error);
      // Without a reply, the commands may have been executed, or may still be.
      const isLost =
        known instanceof StoreUnavailableError &&
        replyError(error, connection) === null &&
        !wasNotSent(error);
      throw written !== null && isLost ? unknownOutcome(written, known.message, known) : known;
    }
  }

  /** The error of one of the user's commands: those before it have been executed. */
  #failed(
    keys: readonly string[],
    commands: RedisTx["commands"],
    number: number,
    message: string,
  ): unknown {
    const outside = outsideNode(keys, message);
    if (outside !== null) return outside;
    const error = this.#runner.caughtError(message);
    if (HoldfastError.is(error) && error.retryable) return error;
    return new InvalidArgumentError(
      `command ${number}, ${commands[number - 1]?.[0]}, failed: ${message}. Commands before it have been executed`,
    );
  }

  #notes(tx: RedisTx): Notes {
    const notes = notesOf.get(tx) ?? { fence: this, guards: [], resetKeys: [] };
    if (notes.fence !== this) {
      throw new InvalidArgumentError(
        "another fence has guarded this transaction, perhaps on another server: use one fence for a transaction",
      );
    }
    notesOf.set(tx, notes);
    return notes;
  }

  #guard(tx: RedisTx | undefined, resource: string, lease: Fenced, strict: boolean): Guard {
    const { token, floor } = checkFenced(resource, lease);
    if (tx !== undefined) checkTx(tx);
    return { key: this.#key(resource), resource, token, floor, strict };
  }

  /** Null for a key that no fence has made. */
  #resourceOf(key: string): string | null {
    const rest = key.slice(this.#prefix.length);
    const resource = rest.startsWith(":") ? rest.slice(1) : /^\{(.+)\}$/s.exec(rest)?.[1];
    return resource !== undefined && this.#key(resource) === key ? resource : null;
  }

  /** A resource with a hash tag keeps it; otherwise the whole resource is the tag. */
  #key(resource: string): string {
    checkResource(resource);
    return /\{[^}]+\}/.test(resource)
      ? `${this.#prefix}:${resource}`
      : `${this.#prefix}{${resource}}`;
  }
}

/**
 * Makes a fence for data in Redis, on one server or a cluster. It keeps one key for each resource, without
 * an expiry.
 *
 * @example
 * ```ts
 * import { Redis } from "ioredis";
 * import { connect } from "holdfast";
 * import { redisFence, type RedisTx } from "holdfast/fence/redis";
 *
 * const redis = new Redis();
 * const fence = redisFence(redis);
 * const locks = await connect("redis://127.0.0.1:6379");
 * await locks.withLock("stock:{hat}", { fence }, async (lease) => {
 *   const count = Number(await redis.get("count:{hat}"));
 *   const tx: RedisTx = { commands: [["SET", "count:{hat}", count - 1]] };
 *   await fence.guard(tx, "stock:{hat}", lease);
 *   await fence.commit(tx); // throws StaleTokenError if a later holder has entered
 * });
 * ```
 */
export function redisFence(client: RedisClient, options?: RedisFenceOptions): RedisFence {
  return new RedisFence(client, options);
}

/** The part of a key that decides its slot in a cluster; null: the whole key does. */
const hashTagOf = (key: string): string | null => /^[^{]*\{([^}]+)\}/s.exec(key)?.[1] ?? null;

const digitsOf = (number: bigint): string => String(number).padStart(DIGITS, "0");

function highestIn(key: string, value: string | null): bigint {
  if (value === null) return 0n;
  const where = `the Redis key ${JSON.stringify(key)}`;
  return parseStored(value, { where, option: "prefix", digits: /^\d{20}$/ });
}

function outsideNode(keys: readonly string[], message: string): InvalidArgumentError | null {
  if (!/CROSSSLOT|non local key/.test(message)) return null;
  return new InvalidArgumentError(
    `the keys of the commands are not where ${JSON.stringify(keys[0])} is: in a cluster, write its hash tag, the part in braces, into every key. Commands before the one that failed have been executed`,
  );
}

/** Refuses a reply that is not text, in which a refusal of the fence would look like a success. */
function refuseBytes(outcome: unknown): void {
  if (typeof outcome === "string") return;
  throw new UnsupportedError(
    "the Redis client returns something other than text, so the fence can't read its reply: pass one without a type mapping. The commands may have been executed",
  );
}

function checkTx(tx: RedisTx): void {
  if (!Array.isArray(tx?.commands)) {
    throw new InvalidArgumentError(`the transaction is ${show(tx)}; it must be { commands: [] }`);
  }
  for (const words of tx.commands) {
    const isCommand =
      Array.isArray(words) &&
      words.length > 0 &&
      words.length <= MOST_WORDS &&
      // A copy, because `every` passes over holes.
      [...words].every((word) => typeof word === "string" || Number.isFinite(word));
    if (!isCommand) {
      throw new InvalidArgumentError(
        `a command is ${show(words)}; it must be a list of 1 to ${MOST_WORDS} words, each a string or a finite number: ["SET", "key", "value"]`,
      );
    }
  }
}
