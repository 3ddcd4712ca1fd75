import { onAbort } from "../../../core/abort.js";
import { checkBoolean, checkOptions } from "../../../core/validate.js";
import type { ConnectionInfo, Reply } from "./errors.js";
import { checkListener, Listeners, type ZooKeeperEvents } from "./events.js";
import type { MultiPart, MultiReadPart, MultiReadResult, MultiResult } from "./multi.js";
import * as multis from "./multi.js";
import type { Created, CreateOptions, Data, Operation } from "./operations.js";
import * as operations from "./operations.js";
import { checkedSettings, type ZooKeeperClientOptions } from "./options.js";
import type { Chroot } from "./paths.js";
import type { Acl, EncodedAcl, Stat } from "./records.js";
import { Session, type SessionState } from "./session.js";
import { Watches, type WatchKind, type WatchListener } from "./watches.js";

/** A result, and when and where it was answered. */
export type Replied<T = unknown> = T & {
  /** When and where the request was sent and answered. */
  readonly reply: Reply;
};

/** Options of a read. */
export interface ReadOptions {
  /** Called once, at the next change of what was read. */
  readonly watch?: WatchListener | undefined;
}

/** Options of `addWatch`. */
export interface AddWatchOptions {
  /** Also watches all nodes below, with the events `created`, `deleted` and `data-changed`; false by default. */
  readonly recursive?: boolean | undefined;
}

/** A watch that stays until it is removed or the session ends. */
export interface PersistentWatch {
  /** When and where the watch was set first. */
  readonly reply: Reply;
  /** Ends the watch here at once, and on the server as soon as it can be reached. Never rejects. */
  remove(): Promise<void>;
}

/** Options of a write. */
export interface VersionOptions {
  /** Refuses the write unless the node has this version; every version by default. */
  readonly version?: number | undefined;
}

/**
 * A session on a ZooKeeper ensemble. Requests are sent in the order of the calls without waiting for
 * replies, and the server executes them in that order. All of them reject with `InvalidArgumentError` before
 * anything is sent, and with `ZooKeeperError` otherwise. The client ends with its session: after `lost`,
 * open another one. An idle client keeps no process alive.
 */
export class ZooKeeperClient {
  readonly #chroot: Chroot;
  readonly #acl: EncodedAcl;
  readonly #listeners = new Listeners();
  readonly #watches: Watches;
  readonly #session: Session;

  private constructor(options: ZooKeeperClientOptions) {
    const settings = checkedSettings(options);
    this.#chroot = settings.chroot;
    this.#acl = settings.acl;
    this.#watches = new Watches(settings.chroot);
    this.#session = new Session(settings, this.#listeners, this.#watches);
    for (const [event, listener] of Object.entries(options.on ?? {})) {
      this.on(event as keyof ZooKeeperEvents, listener);
    }
  }

  /**
   * Opens a session. Resolves when a server has granted it. Rejects with `InvalidArgumentError` for a
   * wrong option, with `ZooKeeperError` (`CONNECTION_LOSS`) if no server grants a session in time, and with the reason
   * of `signal` if that aborts.
   *
   * @example
   * const client = await ZooKeeperClient.open({ servers: ["zk1:2181", "zk2:2181", "zk3:2181"] });
   * const { path, stat } = await client.create("/jobs/job-", { mode: "ephemeral-sequential" });
   * console.log(path, stat.czxid);
   * await client.close();
   */
  static async open(options: ZooKeeperClientOptions): Promise<ZooKeeperClient> {
    const client = new ZooKeeperClient(options);
    const { signal } = options;
    signal?.throwIfAborted();
    const stopListening = signal && onAbort(signal, () => void client.close());
    try {
      await client.#session.open();
    } finally {
      stopListening?.();
      signal?.throwIfAborted();
    }
    return client;
  }

  /**
   * By the clock: `lost` after the deadline, also before the event. It may become `connected` again if a
   * stalled process then reads replies that were waiting for it.
   */
  get state(): SessionState {
    return this.#session.state;
  }

  /** The session's number, which is the `ephemeralOwner` of its nodes. */
  get sessionId(): bigint {
    return this.#session.ticket.id;
  }

  /** The timeout that the server granted. */
  get sessionTimeoutMs(): number {
    return this.#session.ticket.timeoutMs;
  }

  /** When the session counts as lost, on the client's clock, if nothing more is answered; never ahead once it is over. */
  get aliveUntilMs(): number {
    return this.#session.aliveUntilMs;
  }

  /** The highest transaction in any reply. A server that is behind it refuses the session. */
  get lastZxid(): bigint {
    return this.#session.ticket.lastZxid;
  }

  /** The connection in use; null if there is none. */
  get connection(): ConnectionInfo | null {
    return this.#session.connection;
  }

  /** Adds a listener. */
  on<E extends keyof ZooKeeperEvents>(event: E, listener: ZooKeeperEvents[E]): void {
    this.#listeners.on(event, listener);
  }

  /** Removes a listener. */
  off<E extends keyof ZooKeeperEvents>(event: E, listener: ZooKeeperEvents[E]): void {
    this.#listeners.off(event, listener);
  }

  /** Creates a node; its parent must exist. */
  async create(path: string, options: CreateOptions = {}): Promise<Replied<Created>> {
    checkOptions(options, "the options of create", ["data", "mode", "acl"]);
    return this.#send(operations.create(this.#chroot, path, options, this.#acl));
  }

  /** Deletes a node without children. */
  async delete(path: string, options: VersionOptions = {}): Promise<Replied> {
    return this.#send(operations.remove(this.#chroot, path, versionOf(options)));
  }

  /** The node's state; null if it does not exist, and `watch` is then called when it is created. */
  async exists(path: string, options: ReadOptions = {}): Promise<Replied<{ stat: Stat | null }>> {
    const watch = watchOf(options);
    const operation = operations.exists(this.#chroot, path, watch !== undefined);
    return this.#read(operation, path, watch, ({ stat }) => (stat === null ? "exists" : "data"));
  }

  /** The node's data and state. */
  async getData(
    path: string,
    options: ReadOptions = {},
  ): Promise<Replied<{ data: Buffer; stat: Stat }>> {
    const watch = watchOf(options);
    const operation = operations.getData(this.#chroot, path, watch !== undefined);
    return this.#read(operation, path, watch, () => "data");
  }

  /** Replaces the node's data. */
  async setData(
    path: string,
    data: Data,
    options: VersionOptions = {},
  ): Promise<Replied<{ stat: Stat }>> {
    return this.#send(operations.setData(this.#chroot, path, data, versionOf(options)));
  }

  /** The names of the node's children in no order, and the node's state. */
  async getChildren(
    path: string,
    options: ReadOptions = {},
  ): Promise<Replied<{ children: string[]; stat: Stat }>> {
    const watch = watchOf(options);
    const operation = operations.getChildren(this.#chroot, path, watch !== undefined);
    return this.#read(operation, path, watch, () => "children");
  }

  /** The node's ACL and state. */
  async getAcl(path: string): Promise<Replied<{ acl: Acl[]; stat: Stat }>> {
    return this.#send(operations.getAcl(this.#chroot, path));
  }

  /** Replaces the node's ACL; `version` is that of the ACL, `aversion` in the state. */
  async setAcl(
    path: string,
    acl: readonly Acl[],
    options: VersionOptions = {},
  ): Promise<Replied<{ stat: Stat }>> {
    return this.#send(operations.setAcl(this.#chroot, path, acl, versionOf(options)));
  }

  /**
   * Resolves when the server has caught up with the leader: reads after it see all earlier writes. A leader
   * that has lost its majority answers too, until it notices.
   */
  async sync(path: string): Promise<Replied> {
    return this.#send(operations.sync(this.#chroot, path));
  }

  /** The paths of this session's ephemeral nodes that begin with this path; of all by default. */
  async getEphemerals(prefix = "/"): Promise<Replied<{ paths: string[] }>> {
    return this.#send(operations.getEphemerals(this.#chroot, prefix));
  }

  /** Executes all parts or none, in one transaction. The error's `part` says which one failed. */
  async multi<const P extends readonly MultiPart[]>(
    parts: P,
  ): Promise<Replied<{ results: { [I in keyof P]: MultiResult<P[I]> } }>> {
    const { results, reply } = await this.#send(multis.multi(this.#chroot, parts, this.#acl));
    return { results: results as { [I in keyof P]: MultiResult<P[I]> }, reply };
  }

  /** Reads several nodes in one request; each part has a result or an error of its own. */
  async multiRead<const P extends readonly MultiReadPart[]>(
    parts: P,
  ): Promise<Replied<{ results: { [I in keyof P]: MultiReadResult<P[I]> } }>> {
    const { results, reply } = await this.#send(multis.multiRead(this.#chroot, parts));
    return { results: results as { [I in keyof P]: MultiReadResult<P[I]> }, reply };
  }

  /** Watches a node until `remove()`, and with `recursive` all nodes below it. After `reconnected`, read again. */
  async addWatch(
    path: string,
    options: AddWatchOptions,
    listener: WatchListener,
  ): Promise<PersistentWatch> {
    checkOptions(options, "the options of addWatch", ["recursive"]);
    checkListener(listener);
    const isRecursive = checkBoolean(options.recursive ?? false, "recursive");
    const kind = isRecursive ? "recursive" : "persistent";
    const operation = operations.addWatch(this.#chroot, path, isRecursive);
    this.#watches.refuseConflict(kind, path);
    // One function for each watch, so that its removal leaves others with the same listener.
    const own: WatchListener = (event) => listener(event);
    // Before the reply, so that a removal at the same path leaves the watch on the server.
    this.#watches.add(kind, path, own);
    try {
      const { reply } = await this.#send(operation);
      return { reply, remove: () => this.#removeWatch(kind, path, own) };
    } catch (error) {
      this.#watches.remove(kind, path, own);
      throw error;
    }
  }

  /**
   * Ends the session, and the server deletes its ephemeral nodes; if no server replies within a second, that
   * happens after the session's timeout at the latest. Requests without a reply fail with `CLOSED`. Never rejects.
   */
  close(): Promise<void> {
    return this.#session.close();
  }

  async #removeWatch(kind: WatchKind, path: string, listener: WatchListener): Promise<void> {
    this.#watches.remove(kind, path, listener);
    // The server removes all watches of a path together.
    if (this.#watches.has(path)) return;
    await this.#send(operations.removeWatches(this.#chroot, path)).catch(() => {});
  }

  #read<T extends object>(
    operation: Operation<T>,
    path: string,
    watch: WatchListener | undefined,
    kindOf: (value: T) => WatchKind,
  ): Promise<Replied<T>> {
    if (watch === undefined) return this.#send(operation);
    this.#watches.refuseConflict("requested", path);
    this.#watches.add("requested", path, watch);
    const answered = (value: T | null): void => {
      this.#watches.remove("requested", path, watch);
      if (value !== null) this.#watches.add(kindOf(value), path, watch);
    };
    return this.#send(operation, answered);
  }

  /** `answered` is called in the step in which the reply is read: the next event may be behind it already. */
  #send<T extends object>(
    operation: Operation<T>,
    answered?: (value: T | null) => void,
  ): Promise<Replied<T>> {
    return new Promise((resolve, reject) => {
      this.#session.send(operation, {
        succeeded(value, reply) {
          answered?.(value);
          resolve({ ...value, reply });
        },
        failed(error) {
          answered?.(null);
          reject(error);
        },
      });
    });
  }
}

function versionOf(options: VersionOptions): number | undefined {
  checkOptions(options, "the options", ["version"]);
  return options.version;
}

function watchOf(options: ReadOptions): WatchListener | undefined {
  checkOptions(options, "the options", ["watch"]);
  if (options.watch !== undefined) checkListener(options.watch);
  return options.watch;
}
