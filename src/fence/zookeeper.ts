import {
  HoldfastError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../core/errors.js";
import { checkOptions, checkToken, orElse, show } from "../core/validate.js";
import type { Replied, ZooKeeperClient } from "../stores/zookeeper/client/client.js";
import { ZooKeeperError } from "../stores/zookeeper/client/errors.js";
import type { MultiPart, MultiResult } from "../stores/zookeeper/client/multi.js";
import { checkPath } from "../stores/zookeeper/client/paths.js";
import type { Acl } from "../stores/zookeeper/client/records.js";
import { isCode, isUnanswered } from "../stores/zookeeper/errors.js";
import { decodeName, encodeName } from "../stores/zookeeper/layout.js";
import { createPath } from "../stores/zookeeper/root.js";
import {
  checkFenced,
  checkResource,
  type Entry,
  type Fence,
  type Fenced,
  hasEntered,
  isStrict,
  refuseUnlessEntered,
} from "./fence.js";
import {
  checkListOptions,
  type FencedResource,
  type FenceListOptions,
  firstOf,
} from "./shared/list.js";
import { parseStored, STORED_FORMAT } from "./shared/stored-number.js";
import { TxGuards } from "./shared/tx-guards.js";

/** The parts of a `multi` of ZooKeeper before it is sent. `guard` adds a part to it. */
export type ZooKeeperTx = MultiPart[];

/** Options of `zookeeperFence`. */
export interface ZooKeeperFenceOptions {
  /** The node above the nodes of the fence; `/holdfast-fence` by default. It is made if it does not exist. */
  readonly root?: string | undefined;
  /** Rights on new nodes of the fence; those of the client by default. */
  readonly acl?: readonly Acl[] | undefined;
}

type Client = Pick<ZooKeeperClient, "create" | "getChildren" | "getData" | "multi" | "sync">;

interface NodeEntry extends Entry {
  readonly path: string;
}

/** The node of a resource. */
interface FenceNode {
  readonly highest: bigint;
  readonly version: number;
  readonly changedAtMs: number;
}

/** An entry that guards a transaction, and its part of it. The version follows other holders that pass too. */
interface Guard {
  readonly entry: NodeEntry;
  readonly check: { readonly op: "check"; readonly path: string; version: number };
}

const ROOT = "/holdfast-fence";
/** A step without a reply is repeated this often. Each attempt has the client's whole timeout. */
const ATTEMPTS = 3;

const guardsOf = new TxGuards<ZooKeeperTx, Guard>();

/**
 * A fence for data in ZooKeeper. `enter` and `guard` add a check of the fence's node to the `tx`, so that it
 * fails if a later holder has entered by the time it is committed.
 *
 * Entering is a step of its own, even with a `tx`. It ends with a write by the client of the fence: reads by
 * the same client then see everything that was written before.
 */
export class ZooKeeperFence implements Fence<ZooKeeperTx | undefined> {
  readonly #client: Client;
  readonly #root: string;
  readonly #acl: readonly Acl[] | undefined;
  /** Whether the root is likely to exist. */
  #hasRoot = false;

  constructor(client: Client, options: ZooKeeperFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["root", "acl"]);
    checkClient(client);
    this.#client = client;
    this.#root = checkPath(orElse(options.root, ROOT), "root");
    this.#acl = options.acl;
  }

  async enter(tx: ZooKeeperTx | undefined, resource: string, lease: Fenced): Promise<void> {
    const entry = this.#entry(tx, resource, lease);
    this.#addGuard(tx, entry, await this.#raise("enter", entry, { proves: true }));
  }

  /** With a `tx`, this reads, and writes only for a holder that has not entered: `commit` sends the check. */
  async guard(
    tx: ZooKeeperTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const strict = isStrict(options);
    const entry = this.#entry(tx, resource, lease);
    const proves = tx === undefined;
    this.#addGuard(tx, entry, await this.#raise("guard", entry, { strict, proves }));
  }

  /**
   * Commits a guarded transaction in one step. Rejects with `StaleTokenError` if the fence refused it, and with
   * `ZooKeeperError` if a part of your own failed: nothing was written then. The results are those of `multi`:
   * one for each part of the `tx`, the checks included.
   */
  async commit(tx: ZooKeeperTx): Promise<Replied<{ results: MultiResult<MultiPart>[] }>> {
    checkTx(tx);
    const guards = guardsOf.of(tx, this.#client);
    for (;;) {
      // The caller may have removed parts since `guard`.
      const removed = guards.flatMap(({ check }) => (tx.includes(check) ? [] : [check]));
      const parts: readonly MultiPart[] = [...tx, ...removed];
      try {
        const { results, reply } = await this.#client.multi(parts);
        return { results: results.slice(0, tx.length), reply };
      } catch (error) {
        if (!isRefused(error)) throw toFenceError(error, "commit");
        const isGuard = guards.some(({ check }) => check === parts[error.part!]);
        // Nothing was executed, so the same parts may be sent with the new versions.
        if ((await this.#follow(guards)) && isGuard) continue;
        throw isGuard ? toFenceError(error, "commit") : error;
      }
    }
  }

  /** The present value, because a `multi` reads nothing. */
  async highest(_tx: ZooKeeperTx | undefined, resource: string): Promise<bigint> {
    return (await this.#read(this.#path(resource)))?.highest ?? 0n;
  }

  /** The resources that it has seen, in the order of their UTF-8 bytes, and when a number was last changed. */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    const wanted = checkListOptions(options);
    const listed: FencedResource[] = [];
    for (const resource of firstOf(await this.#resources(), wanted)) {
      const node = await this.#read(this.#path(resource));
      if (node !== null)
        listed.push({ resource, highest: node.highest, enteredAtMs: node.changedAtMs });
    }
    return listed;
  }

  /** With a `tx`, the reset becomes a part of it, which fails if a holder enters meanwhile. */
  async reset(tx: ZooKeeperTx | undefined, resource: string, token: bigint): Promise<void> {
    const path = this.#path(resource);
    checkToken(token, "token");
    if (tx !== undefined) this.#checkTx(tx);
    for (;;) {
      const part = await this.#set("reset", path, await this.#read(path), token);
      if (tx !== undefined) {
        guardsOf.add(tx, this.#client);
        tx.push(part);
        return;
      }
      // Not repeated without a reply: the second reset could undo an entry that followed the first.
      if ((await this.#try("reset", part)) !== null) return;
    }
  }

  /**
   * Resolves with the node's version when this holder has entered. `strict`: refuses instead of entering.
   * `proves`: what was read is confirmed by a write, because a server that is cut off answers reads.
   */
  async #raise(
    what: string,
    entry: NodeEntry,
    { strict = false, proves }: { strict?: boolean; proves: boolean },
  ): Promise<number> {
    const { path, floor } = entry;
    for (let unanswered = 0; ; ) {
      const node = await this.#read(path);
      const highest = node?.highest ?? null;
      if (strict) refuseUnlessEntered(entry, highest);
      const entered = hasEntered(entry, highest);
      if (entered && !proves) return node!.version;
      const part: MultiPart = entered
        ? { op: "check", path, version: node!.version }
        : await this.#set(what, path, node, floor);
      // Repeated without a reply: the next attempt finds the value that this one wrote.
      const version = await this.#try(what, part).catch((error: StoreUnavailableError) => {
        if (!isUnanswered(error.cause) || ++unanswered === ATTEMPTS) throw error;
        return null;
      });
      if (version !== null) return version;
    }
  }

  /** Sends one part. Resolves with the version of the node after it, and with null if others came first. */
  async #try(what: string, part: MultiPart): Promise<number | null> {
    try {
      const [result] = (await this.#client.multi([part])).results;
      if ("stat" in result!) return result.stat.version;
      return part.op === "check" ? part.version! : 0;
    } catch (error) {
      if (isCode(error, "NO_NODE")) this.#hasRoot = false;
      if (isCode(error, "NO_NODE", "NODE_EXISTS", "BAD_VERSION")) return null;
      throw toFenceError(error, what);
    }
  }

  /** The write that sets the highest number, if the node is still as it was read. */
  async #set(
    what: string,
    path: string,
    node: FenceNode | null,
    highest: bigint,
  ): Promise<MultiPart> {
    const data = `${STORED_FORMAT}:${highest}`;
    if (node !== null) return { op: "setData", path, data, version: node.version };
    if (!this.#hasRoot) {
      await createPath(this.#client, this.#root, { acl: this.#acl }).catch((error) => {
        throw toFenceError(error, what);
      });
      this.#hasRoot = true;
    }
    return { op: "create", path, data, acl: this.#acl };
  }

  /** Takes over the present versions. Whether one had changed; throws for a holder that is refused. */
  async #follow(guards: readonly Guard[]): Promise<boolean> {
    let changed = false;
    for (const { entry, check } of guards) {
      const node = await this.#read(entry.path);
      refuseUnlessEntered(entry, node?.highest ?? null);
      changed ||= node!.version !== check.version;
      check.version = node!.version;
    }
    return changed;
  }

  async #resources(): Promise<string[]> {
    try {
      const { children } = await this.#client.getChildren(this.#root);
      return children.flatMap((one) => decodeName(one) ?? []);
    } catch (error) {
      if (isCode(error, "NO_NODE")) return [];
      throw toFenceError(error, "read");
    }
  }

  /** A server may be behind, so it catches up first. Both requests go in one round trip. */
  async #read(path: string): Promise<FenceNode | null> {
    try {
      const [, { data, stat }] = await Promise.all([
        this.#client.sync(path),
        this.#client.getData(path),
      ]);
      return {
        highest: highestIn(path, data.toString()),
        version: checkVersion(path, stat.version),
        changedAtMs: stat.mtimeMs,
      };
    } catch (error) {
      if (isCode(error, "NO_NODE")) return null;
      throw toFenceError(error, "read");
    }
  }

  #entry(tx: ZooKeeperTx | undefined, resource: string, lease: Fenced): NodeEntry {
    const { token, floor } = checkFenced(resource, lease);
    const path = this.#path(resource);
    if (tx !== undefined) this.#checkTx(tx);
    if (tx?.some((part) => part.path === path && part.op !== "check")) {
      throw new InvalidArgumentError(
        `this transaction resets the fence of ${JSON.stringify(resource)}: call guard before reset`,
      );
    }
    return { path, resource, token, floor };
  }

  #checkTx(tx: ZooKeeperTx): void {
    checkTx(tx);
    guardsOf.checkClient(tx, this.#client);
  }

  #addGuard(tx: ZooKeeperTx | undefined, entry: NodeEntry, version: number): void {
    if (tx === undefined) return;
    const check = { op: "check" as const, path: entry.path, version };
    guardsOf.add(tx, this.#client, { entry, check });
    tx.push(check);
  }

  #path(resource: string): string {
    const name = encodeName(checkResource(resource));
    return this.#root === "/" ? `/${name}` : `${this.#root}/${name}`;
  }
}

/**
 * Makes a fence for data in ZooKeeper. It keeps one node for each resource in the same ensemble. Read your
 * data by the same client: another one may be connected to a server that is behind.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { type ZooKeeperTx, zookeeperFence } from "holdfast/fence/zookeeper";
 * import { ZooKeeperClient } from "holdfast/zookeeper";
 *
 * const client = await ZooKeeperClient.open({ servers: ["127.0.0.1:2181"] });
 * const fence = zookeeperFence(client);
 * const locks = await connect("zookeeper://127.0.0.1:2181", { ttl: "20s" });
 * await locks.withLock("stock", { fence }, async (lease) => {
 *   const tx: ZooKeeperTx = [{ op: "setData", path: "/stock", data: "9" }];
 *   await fence.guard(tx, "stock", lease);
 *   await fence.commit(tx); // throws StaleTokenError if a later holder has entered
 * });
 * ```
 */
export function zookeeperFence(client: Client, options?: ZooKeeperFenceOptions): ZooKeeperFence {
  return new ZooKeeperFence(client, options);
}

function highestIn(path: string, value: string): bigint {
  const where = `the ZooKeeper node ${JSON.stringify(path)}`;
  return parseStored(value, { where, option: "root", digits: /^\d{1,19}$/ });
}

/** Versions wrap around after 2^31 changes, and ZooKeeper takes a check of -1 for "any". */
function checkVersion(path: string, version: number): number {
  if (version >= 0) return version;
  throw new UnsupportedError(
    `the ZooKeeper node ${JSON.stringify(path)} was changed 2^31 times, and can't guard any longer: use another resource`,
  );
}

function checkClient(client: unknown): void {
  if (typeof (client as Client | null | undefined)?.multi === "function") return;
  throw new InvalidArgumentError(
    `the client is ${show(client)}, and not one of ZooKeeperClient.open(…); pass one`,
  );
}

function checkTx(tx: unknown): void {
  if (Array.isArray(tx)) return;
  throw new InvalidArgumentError(
    `the transaction is ${show(tx)}; it must be a list of the parts of a multi`,
  );
}

/** The server refused one part of a multi, and executed none. */
const isRefused = (error: unknown): error is ZooKeeperError =>
  error instanceof ZooKeeperError && error.reply !== null && error.part !== null;

function toFenceError(error: unknown, what: string): HoldfastError {
  if (HoldfastError.is(error)) return error;
  const text = error instanceof Error ? error.message : String(error);
  // Again, it could make a change twice, or undo an entry that followed the first reset.
  const isOnce = what === "commit" || what === "reset";
  const retryable =
    error instanceof ZooKeeperError && error.retryable && !(isOnce && error.executed === "unknown");
  return new StoreUnavailableError(`the fence can't ${what}: ${text}`, { cause: error, retryable });
}
