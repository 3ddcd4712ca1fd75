import { InvalidArgumentError } from "../../../core/errors.js";
import { guarded } from "../../../core/events.js";
import { OpCode, Xid } from "./codes.js";
import type { ServerEvent } from "./connection.js";
import type { Operation } from "./operations.js";
import type { Chroot } from "./paths.js";

/** A change of a node. `children-changed`: a child was added or removed. */
export type WatchEventType = "created" | "deleted" | "data-changed" | "children-changed";

/** A change of a watched node. */
export interface WatchEvent {
  /** The kind of change. */
  readonly type: WatchEventType;
  /** The node, which may be below a recursive watch. */
  readonly path: string;
  /** The transaction of the change; null if the server does not say, as before 3.9. */
  readonly zxid: bigint | null;
}

/** Called with each change. An error that it throws is an uncaught exception. */
export type WatchListener = (event: WatchEvent) => void;

/**
 * `data`, `exists` and `children` end with their first event. `persistent` and `recursive` stay.
 * `requested` waits for the reply that says which of them it becomes.
 */
export type WatchKind = "data" | "exists" | "children" | "persistent" | "recursive" | "requested";

/** In the order in which setWatches2 has them. */
const ON_SERVER = ["data", "exists", "children", "persistent", "recursive"] as const;
const TYPES: ReadonlyMap<number, WatchEventType> = new Map([
  [1, "created"],
  [2, "deleted"],
  [3, "data-changed"],
  [4, "children-changed"],
]);
/** The watches that end with an event. */
const ENDS: Readonly<Record<WatchEventType, readonly WatchKind[]>> = {
  created: ["data", "exists"],
  deleted: ["data", "exists", "children"],
  "data-changed": ["data", "exists"],
  "children-changed": ["children"],
};
/** Bytes of paths in one request to set watches again: far below a server's limit for a request. */
const BATCH_BYTES = 128 * 1024;

/** The watches of a client. The server forgets them with the connection, so that they are set again on the next. */
export class Watches {
  readonly #chroot: Chroot;
  readonly #listeners = new Map<WatchKind, Map<string, Set<WatchListener>>>();

  constructor(chroot: Chroot) {
    this.#chroot = chroot;
  }

  /**
   * Throws `InvalidArgumentError` for a watch that would end another: servers before 3.9 keep one mode
   * for each path of a client.
   */
  refuseConflict(kind: "persistent" | "recursive" | "requested", path: string): void {
    const other = (["persistent", "recursive"] as const).find(
      (one) => one !== kind && this.#listeners.get(one)?.has(path),
    );
    if (other === undefined) return;
    throw new InvalidArgumentError(
      `${JSON.stringify(path)} has a ${other} watch already, which another kind of watch at the same ` +
        "path would end on servers before 3.9: remove it first, or use another client",
    );
  }

  add(kind: WatchKind, path: string, listener: WatchListener): void {
    const paths = this.#listeners.get(kind) ?? new Map<string, Set<WatchListener>>();
    this.#listeners.set(kind, paths);
    const listeners = paths.get(path) ?? new Set();
    paths.set(path, listeners.add(listener));
  }

  remove(kind: WatchKind, path: string, listener: WatchListener): void {
    const paths = this.#listeners.get(kind);
    const listeners = paths?.get(path);
    listeners?.delete(listener);
    if (listeners?.size === 0) paths!.delete(path);
  }

  /** Whether any watch is at the path, or was requested. */
  has(path: string): boolean {
    return [...this.#listeners.values()].some((paths) => paths.has(path));
  }

  clear(): void {
    this.#listeners.clear();
  }

  /** Calls each listener that the event concerns once. */
  notice({ type: number, path: absolute, zxid }: ServerEvent): void {
    const type = TYPES.get(number);
    if (type === undefined) return;
    const path = this.#chroot.relative(absolute);
    const called = new Set(this.#of("persistent", path));
    for (const kind of ENDS[type]) {
      for (const listener of this.#of(kind, path)) called.add(listener);
      this.#listeners.get(kind)?.delete(path);
    }
    if (type !== "children-changed" && this.#listeners.has("recursive")) {
      for (const at of lineageOf(path)) {
        for (const listener of this.#of("recursive", at)) called.add(listener);
      }
    }
    const event = { type, path, zxid: zxid > 0n ? zxid : null };
    for (const listener of called) guarded(() => listener(event));
  }

  /** The requests that set all watches again: for changes since `lastZxid`, the server sends events at once. */
  restore(lastZxid: bigint): Operation<object>[] {
    const all = ON_SERVER.flatMap((kind, index) =>
      [...(this.#listeners.get(kind)?.keys() ?? [])].map((path) => ({
        index,
        path: this.#chroot.absolute(path),
      })),
    );
    const operations: Operation<object>[] = [];
    for (let from = 0, to = 0; from < all.length; from = to) {
      let bytes = 0;
      while (to < all.length && bytes < BATCH_BYTES) bytes += Buffer.byteLength(all[to++]!.path);
      operations.push(setWatches(lastZxid, all.slice(from, to)));
    }
    return operations;
  }

  #of(kind: WatchKind, path: string): Iterable<WatchListener> {
    return this.#listeners.get(kind)?.get(path) ?? [];
  }
}

const setWatches = (
  lastZxid: bigint,
  watches: readonly { index: number; path: string }[],
): Operation<object> => ({
  name: "setWatches",
  type: OpCode.setWatches2,
  xid: Xid.setWatches,
  path: null,
  isWrite: false,
  write(request) {
    request.long(lastZxid);
    for (const index of ON_SERVER.keys()) {
      request.texts(watches.filter((one) => one.index === index).map(({ path }) => path));
    }
  },
  read: () => ({}),
});

/** The path and those of its ancestors: "/a/b", "/a", "/". */
function lineageOf(path: string): string[] {
  const lineage = ["/"];
  for (let at = path.indexOf("/", 1); at !== -1; at = path.indexOf("/", at + 1)) {
    lineage.push(path.slice(0, at));
  }
  if (path !== "/") lineage.push(path);
  return lineage;
}
