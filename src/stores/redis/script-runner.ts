import { UnsupportedError } from "../../core/errors.js";
import { append } from "../shared/append.js";
import { type Json, listOf } from "../shared/json-replies.js";
import { within } from "../shared/timeout.js";
import type { Connection } from "./connection.js";
import { type StoreWords, toStoreError } from "./errors.js";
import { escapePattern } from "./keys.js";
import { SCRIPTS, type Script } from "./scripts.js";

const KEYS_PER_SCAN = "1000";

/** How a script that takes many items is called, and its reply read. */
export interface ItemScript<Item, Reply> {
  readonly script: Script;
  keysOf(item: Item): readonly string[];
  argsOf(item: Item): readonly string[];
  /** Reads the reply to one item; undefined if the script has not come to it. */
  read(reply: Json, item: Item): Reply;
  /** Turns a failure into the reply to the items that it concerns. Without it, one failure fails the call. */
  failed?(cause: unknown): Reply;
  /** In a cluster with `failed`: a silent node delays the replies of the others by no more than this. */
  readonly timeoutMs?: number;
}

/** Runs scripts on a Redis server or a cluster. */
export class ScriptRunner {
  readonly connection: Connection;
  readonly #store: StoreWords | undefined;

  constructor(connection: Connection, store?: StoreWords) {
    this.connection = connection;
    this.#store = store;
  }

  /** Runs a script whose reply is text. */
  async run(script: Script, keys: readonly string[], args: readonly string[]): Promise<string> {
    try {
      return textOf(await this.connection.run(script, keys, args));
    } catch (error) {
      throw this.toStoreError(error);
    }
  }

  /** Runs one script for all items; in a cluster, one for each slot. `firstArg` comes before the items' own. */
  async runForEach<Item, Reply>(
    items: readonly Item[],
    firstArg: string,
    { script, keysOf, argsOf, read, failed, timeoutMs }: ItemScript<Item, Reply>,
  ): Promise<readonly Reply[]> {
    const replies = new Map<Item, Reply>();
    const groups = this.connection.cluster ? bySlot(items, (item) => keysOf(item)[0]!) : [items];
    const runGroup = async (group: readonly Item[]): Promise<void> => {
      try {
        const args = [firstArg, ...group.flatMap(argsOf)];
        const running = this.run(script, group.flatMap(keysOf), args);
        const mayWait = failed === undefined || timeoutMs === undefined || groups.length === 1;
        const text = await (mayWait ? running : this.#within(timeoutMs, running));
        const list = listOf<Json>(JSON.parse(text));
        for (const [i, item] of group.entries()) replies.set(item, read(list[i], item));
      } catch (cause) {
        if (failed === undefined) throw cause;
        for (const item of group) replies.set(item, failed(cause));
      }
    };
    await Promise.all(groups.map(runGroup));
    return items.map((item) => replies.get(item)!);
  }

  /** The matching keys of all primaries, without the client's prefix, unordered, some perhaps twice. */
  async scan(pattern: string): Promise<readonly string[]> {
    const { keyPrefix } = this.connection;
    const match = `${escapePattern(keyPrefix)}${pattern}`;
    const found: string[] = [];
    try {
      for (const server of await this.connection.servers()) {
        let cursor = "0";
        do {
          const page = await server.run(SCRIPTS.scan, [cursor, match, KEYS_PER_SCAN]);
          const [next, keys] = page as [unknown, readonly unknown[]];
          found.push(...keys.map((key) => textOf(key).slice(keyPrefix.length)));
          cursor = textOf(next);
        } while (cursor !== "0");
      }
    } catch (error) {
      throw this.toStoreError(error);
    }
    return found;
  }

  toStoreError(error: unknown): unknown {
    return toStoreError(error, this.connection, this.#store);
  }

  /** The error of one item, which a script has caught to go on with the others. */
  caughtError(message: string): unknown {
    const error = new Error(message);
    this.connection.reportCaughtError(error);
    return this.toStoreError(error);
  }

  #within<T>(ms: number, running: Promise<T>): Promise<T> {
    const timeout = (): Error =>
      new Error(`a node of ${this.connection.where} gave no reply within ${Math.round(ms)} ms`);
    return within(ms, running, timeout, { unref: true });
  }
}

/** A client can be configured to return something other than text. */
export function textOf(reply: unknown): string {
  if (typeof reply === "string") return reply;
  const what = reply instanceof Uint8Array ? "bytes" : reply === null ? "null" : typeof reply;
  throw new UnsupportedError(
    `the Redis client returns ${what} instead of text: pass one without a type mapping, which returns strings`,
  );
}

/** Groups by the hash tag, which ends the first part of a key. */
export function bySlot<T>(
  items: readonly T[],
  keyOf: (item: T) => string,
): readonly (readonly T[])[] {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const key = keyOf(item);
    append(groups, key.slice(0, key.indexOf("}")), item);
  }
  return [...groups.values()];
}
