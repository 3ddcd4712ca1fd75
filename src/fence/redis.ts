import { InvalidArgumentError, UnsupportedError } from "../core/errors.js";
import { checkOptions, checkText, checkToken, orElse, show } from "../core/validate.js";
import { connectionOf, type RedisClient } from "../stores/redis/client.js";
import { ScriptRunner } from "../stores/redis/script-runner.js";
import { SCRIPTS } from "../stores/redis/scripts.js";
import { checkFenced, type Fence, type Fenced, isStrict, notEntered, stale } from "./fence.js";

/** Commands that run together with the check of the token, in one step. */
export interface RedisTx {
  /** Each is the words of one command: `["SET", "stock:{hat}", "6"]`. */
  readonly commands: (readonly (string | number)[])[];
}

/** Options of `redisFence`. */
export interface RedisFenceOptions {
  /** The prefix of every key of the fence. Default: `holdfast:fence:`. */
  readonly prefix?: string | undefined;
}

interface Guard {
  readonly key: string;
  readonly resource: string;
  readonly token: bigint;
  readonly floor: bigint;
  readonly strict: boolean;
}

const PREFIX = "holdfast:fence:";
const FORMAT = "1:";
/** Numbers have one width, because the script compares them as text: Lua's numbers end at 2^53. */
const DIGITS = 20;
/** The most words that Lua can pass to a command. */
const MOST_WORDS = 4_000;

/** The guards that `commit` sends with a transaction. */
const guardsOf = new WeakMap<RedisTx, Guard[]>();

/**
 * A fence for data in Redis. `guard` notes the check in the `tx`, and `commit` runs check and commands as
 * one script: nothing comes between them.
 */
export class RedisFence implements Fence<RedisTx | undefined> {
  readonly #runner: ScriptRunner;
  readonly #prefix: string;

  constructor(client: RedisClient, options: RedisFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["prefix"]);
    this.#prefix = checkText(orElse(options.prefix, PREFIX), "prefix", 1, 255);
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
    addGuard(tx, guard);
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
    else addGuard(tx, guard);
  }

  /**
   * Checks the token and runs the commands, in one step; resolves to their replies. Rejects with
   * `StaleTokenError` if a later holder has entered, and then no command was run. Redis does not roll
   * back: if a command fails, those before it have been executed.
   */
  async commit(tx: RedisTx): Promise<readonly unknown[]> {
    checkTx(tx);
    const guards = guardsOf.get(tx);
    if (guards === undefined) {
      throw new InvalidArgumentError(
        "this transaction is not guarded: call guard with it before commit",
      );
    }
    return this.#run(guards, tx.commands);
  }

  /** The present value, because a transaction reads nothing before it is committed. */
  async highest(_tx: RedisTx | undefined, resource: string): Promise<bigint> {
    const key = this.#key(resource);
    const [value] = await this.#run([], [["GET", this.#runner.connection.keyPrefix + key]], [key]);
    return highestIn(key, value as string | null);
  }

  /** With a `tx`, the reset becomes its last command. */
  async reset(tx: RedisTx | undefined, resource: string, token: bigint): Promise<void> {
    const key = this.#key(resource);
    const value = FORMAT + digitsOf(checkToken(token, "token"));
    const command = ["SET", this.#runner.connection.keyPrefix + key, value];
    if (tx === undefined) {
      await this.#run([], [command], [key]);
      return;
    }
    checkTx(tx);
    tx.commands.push(command);
    guardsOf.set(tx, guardsOf.get(tx) ?? []);
  }

  /** The key of a resource. In a cluster, the keys of guarded commands must have the same hash tag. */
  keyOf(resource: string): string {
    return this.#key(resource);
  }

  async #run(
    guards: readonly Guard[],
    commands: RedisTx["commands"],
    keys = guards.map(({ key }) => key),
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
    const [outcome, ...rest] = await this.#send(keys, args);
    if (outcome === "done") return rest;
    const { key, resource, token } = guards[Number(rest[0]) - 1]!;
    if (outcome === "foreign") highestIn(key, String(rest[1]));
    const highest = BigInt(rest[1] as string);
    throw outcome === "stale"
      ? stale(resource, token, highest)
      : notEntered(resource, token, highest);
  }

  async #send(keys: readonly string[], args: readonly string[]): Promise<readonly unknown[]> {
    try {
      return (await this.#runner.connection.run(SCRIPTS.fence, keys, args)) as unknown[];
    } catch (error) {
      if (/CROSSSLOT|non local key/.test(String(error))) {
        throw new InvalidArgumentError(
          `the keys of the commands are not where ${JSON.stringify(keys[0])} is: in a cluster, write its hash tag, the part in braces, into every key`,
        );
      }
      throw this.#runner.toStoreError(error);
    }
  }

  #guard(tx: RedisTx | undefined, resource: string, lease: Fenced, strict: boolean): Guard {
    const { token, floor } = checkFenced(resource, lease);
    if (tx !== undefined) checkTx(tx);
    return { key: this.#key(resource), resource, token, floor, strict };
  }

  /** A resource with a hash tag keeps it; otherwise the whole resource is the tag. */
  #key(resource: string): string {
    checkText(resource, "the resource", 1, 255);
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

const digitsOf = (number: bigint): string => String(number).padStart(DIGITS, "0");

function highestIn(key: string, value: string | null): bigint {
  if (value === null) return 0n;
  if (value.startsWith(FORMAT) && /^\d{20}$/.test(value.slice(FORMAT.length)))
    return BigInt(value.slice(FORMAT.length));
  const isNewer = /^\d+:/.test(value) && !value.startsWith(FORMAT);
  throw new UnsupportedError(
    isNewer
      ? `the Redis key ${JSON.stringify(key)} has format ${show(value.split(":")[0])}, and this version of Holdfast knows 1: use the version that wrote it`
      : `the Redis key ${JSON.stringify(key)} holds ${show(value)}, which is no fence: give the fence a prefix of its own`,
  );
}

function addGuard(tx: RedisTx | undefined, guard: Guard): void {
  if (tx === undefined) return;
  const guards = guardsOf.get(tx) ?? [];
  guards.push(guard);
  guardsOf.set(tx, guards);
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
      words.every((word) => typeof word === "string" || typeof word === "number");
    if (!isCommand) {
      throw new InvalidArgumentError(
        `a command is ${show(words)}; it must be a list of 1 to ${MOST_WORDS} words: ["SET", "key", "value"]`,
      );
    }
  }
}
