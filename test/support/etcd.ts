import { afterAll, beforeAll, expect, onTestFinished, type TestContext } from "vitest";
import { ignore } from "../../src/conformance/subject.js";
import { createLocks, type Locks, type LocksOptions } from "../../src/index.js";
import {
  type EtcdClient,
  type EtcdStore,
  etcdStore,
  openEtcdClient,
} from "../../src/stores/etcd/index.js";
import { Keys } from "../../src/stores/etcd/keys.js";
import { Code, EtcdError } from "../../src/stores/etcd/rpc/errors.js";
import type { KeyValue, Op, Txn, WatchEvent } from "../../src/stores/etcd/rpc/messages.js";
import type { WatchListener } from "../../src/stores/etcd/rpc/watches.js";
import type { ServerCluster } from "../../src/verify/lab/cluster.js";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { ClusterScene, leaderOf, type SceneOptions } from "./scene.js";
import { until } from "./worker.js";

export type EtcdCluster = ServerCluster<EtcdServer>;

const lines = (text: string): string[] => text.split("\n").filter((line) => line !== "");

/** The keys with this prefix. */
export const keysOf = async (server: EtcdServer, prefix: string): Promise<string[]> =>
  lines(await server.ctl("get", "--prefix", prefix, "--keys-only"));

/** Resolves when the server watches the keys with this prefix, with how often each has been created since then. */
export async function creationsBelow(
  { address, port }: EtcdServer,
  prefix: string,
): Promise<ReadonlyMap<string, number>> {
  const client = await openEtcdClient({ endpoints: [`${address}:${port}`] });
  onTestFinished(() => client.close());
  const creations = new Map<string, number>();
  await new Promise<void>((resolve) => {
    client.watch(
      { key: prefix, rangeEnd: `${prefix}\u{10ffff}` },
      {
        created: () => resolve(),
        events(events) {
          for (const { type, kv } of events) {
            if (type !== "PUT" || kv.createRevision !== kv.modRevision) continue;
            creations.set(kv.key, (creations.get(kv.key) ?? 0) + 1);
          }
        },
        gap: () => {},
      },
    );
  });
  return creations;
}

/** Grants an etcd lease that nobody keeps alive; resolves with its number in base 16. */
export async function grantLease(server: EtcdServer, ttlS: number): Promise<string> {
  const granted = await server.ctl("lease", "grant", String(ttlS));
  // etcdctl pads with zeros, and keys of the lock RPC do not.
  return /lease 0*(\w+) granted/.exec(granted)![1]!;
}

/** All etcd leases of the server. */
export const leases = async (server: EtcdServer): Promise<string[]> =>
  lines(await server.ctl("lease", "list")).slice(1);

/** How many calls of the method the server has answered. */
export async function callsOf({ address, port }: EtcdServer, method: string): Promise<number> {
  const metrics = await (await fetch(`http://${address}:${port}/metrics`)).text();
  return [...metrics.matchAll(/^grpc_server_handled_total\{(.*)\} (\S+)$/gm)]
    .filter(([, labels]) => labels!.includes(`grpc_method="${method}"`))
    .reduce((sum, [, , count]) => sum + Number(count), 0);
}

export async function revisionOf(server: EtcdServer): Promise<string> {
  return fieldOf(await server.ctl("endpoint", "status", "--write-out=fields"), "Revision");
}

const fieldOf = (text: string, field: string): string =>
  new RegExp(`"${field}" : (\\d+)`).exec(text)![1]!;

/** Makes this member the leader: the others move leadership to it. */
export async function makeLeader(cluster: EtcdCluster, server: EtcdServer): Promise<void> {
  const status = await server.ctl("endpoint", "status", "--write-out=fields");
  const id = BigInt(fieldOf(status, "MemberID")).toString(16);
  await until(`${server.name} leads`, async () => {
    const leader = await cluster.leader().catch(() => undefined);
    if (leader === server) return true;
    await leader?.ctl("move-leader", id).catch(() => {});
    return false;
  });
}

/** Whole seconds, as etcd has them: short where a test waits for a loss … */
export const TTL_MS = 2_000;
/** … and longer where an election, and an attempt that meets silence, have to fit in. */
export const SAFE_MS = 3_000;

/** Workers on an etcd cluster. */
export class Scene extends ClusterScene<EtcdServer> {
  /** Starts a worker on each of these members; null leaves the member to chance. */
  static async open(
    cluster: EtcdCluster,
    members: readonly (EtcdServer | null)[],
    options: SceneOptions = {},
  ): Promise<Scene> {
    const scene = new Scene(cluster);
    await scene.start(members, { ttl: TTL_MS, ...options });
    return scene;
  }

  protected override async nothingIsLeft(): Promise<void> {
    const server = await leaderOf(this.cluster);
    // A session that was lost, or whose reply was, expires by itself.
    await until("no session is left", async () => (await leases(server)).length === 0);
    expect(await keysOf(server, "holdfast/")).toEqual([]);
  }
}

// One store on a healthy server.

/** Whole seconds, as etcd has them; the shortest, one, is too short for a busy machine. */
export const SHORT_MS = 2_000;
/** So long that nothing is renewed or reconciled within a test. */
export const LONG_MS = 60_000;
/** On a busy machine. */
export const GRACE_MS = 10_000;

export type Method = Exclude<keyof EtcdClient, "close">;
type Instead<M extends Method> = (
  send: () => ReturnType<EtcdClient[M]>,
  ...args: Parameters<EtcdClient[M]>
) => ReturnType<EtcdClient[M]>;

/** A client that records its calls, and carries them out as the test says. */
export class Wire {
  readonly client: EtcdClient;
  readonly inner: EtcdClient;
  /** The calls in order, without those that do not concern locks. */
  calls: Method[] = [];
  on: { [M in Method]?: Instead<M> } = {};
  /** The granted etcd leases, by the requested seconds. */
  readonly granted: { ttlS: number; lease: bigint }[] = [];

  constructor(inner: EtcdClient) {
    this.inner = inner;
    this.client = new Proxy(inner, {
      get: (_, method: keyof EtcdClient) => {
        const own = inner[method].bind(inner) as (...args: unknown[]) => unknown;
        if (method === "close") return own;
        return (...args: unknown[]) => {
          if (method !== "status" && method !== "memberList") this.calls.push(method);
          const send = (): unknown => own(...args);
          const instead = this.on[method] as ((...all: unknown[]) => unknown) | undefined;
          const answer = instead === undefined ? send() : instead(send, ...args);
          if (method === "leaseGrant") this.#note(args[0] as number, answer as never);
          return answer;
        };
      },
    });
  }

  count(method: Method): number {
    return this.calls.filter((one) => one === method).length;
  }

  /** The session for a ttl. */
  session(ttlMs: number): bigint {
    return this.granted.findLast(({ ttlS }) => ttlS * 1_000 === ttlMs)!.lease;
  }

  #note(ttlS: number, answer: Promise<{ id: bigint }>): void {
    answer.then(({ id }) => this.granted.push({ ttlS, lease: id })).catch(ignore);
  }
}

/** Holds back the events of watches. */
export class Later {
  /** How many deletions have been received since. */
  held = 0;
  #back: Map<WatchListener, WatchEvent[]> | null = null;

  constructor(wire: Wire) {
    wire.on.watch = (_, range, listener) => {
      const events: typeof listener.events = (some, revision) => {
        this.held += some.filter(({ type }) => type === "DELETE").length;
        if (this.#back === null) listener.events(some, revision);
        else this.#back.set(listener, [...(this.#back.get(listener) ?? []), ...some]);
      };
      return wire.inner.watch(range, { ...listener, events });
    };
  }

  holdBack(): void {
    this.held = 0;
    this.#back = new Map();
  }

  /** Delivers everything to each watch at once, as from a server that was behind. */
  letGo(): void {
    const back = this.#back ?? [];
    this.#back = null;
    for (const [listener, events] of back) listener.events(events, events.at(-1)!.kv.modRevision);
  }
}

export const noAnswer = (): EtcdError =>
  new EtcdError("no answer", { grpcCode: Code.UNAVAILABLE, executed: "unknown", endpoint: null });

/** The operations for success, also where several transactions are sent as one. */
export const opsOf = ({ success = [] }: Txn): Op[] =>
  success.flatMap((op) => (op.txn === undefined ? [op] : opsOf(op.txn)));

export const isRelease = (txn: Txn): boolean => opsOf(txn).some((op) => op.delete !== undefined);

/** True for a transaction that moves a claim to another session. */
export const isMove = (txn: Txn): boolean => opsOf(txn).some(({ put }) => put?.ignoreValue);

export const endpointOf = ({ address, port }: { address: string; port: number }): string =>
  `${address}:${port}`;

export const waitersAre = (locks: Locks, name: string, count: number): Promise<void> =>
  until(
    `${count} wait for ${name}`,
    async () => ((await locks.inspect(name))?.waiters.length ?? 0) === count,
  );

interface Fresh {
  readonly prefix: string;
  readonly keys: Keys;
  readonly store: EtcdStore;
  readonly wire: Wire;
  readonly locks: Locks;
  /** Another client, as another process would be. */
  another(options?: LocksOptions): Promise<{ store: EtcdStore; wire: Wire; locks: Locks }>;
  /** The claims on a name of `locks`. */
  claims(name: string): Promise<KeyValue[]>;
}

/** One server for all tests of a file; each has a prefix of its own. */
export class OneEtcd {
  lab!: Lab;
  server!: EtcdServer;
  /** A client that bypasses the store. */
  raw!: EtcdClient;
  #prefixes = 0;

  static forAll(): OneEtcd {
    const etcd = new OneEtcd();
    beforeAll(async () => {
      etcd.lab = await Lab.open();
      etcd.server = (await etcd.lab.etcd({ timing: "fast" })).servers[0]!;
      etcd.raw = await openEtcdClient({ endpoints: [endpointOf(etcd.server)] });
    });
    afterAll(async () => {
      await etcd.raw?.close();
      await etcd.lab?.close();
    });
    return etcd;
  }

  prefix(): string {
    return `test-${++this.#prefixes}/`;
  }

  async fresh(
    { onTestFinished }: Pick<TestContext, "onTestFinished">,
    options: LocksOptions = {},
    on: { address: string; port: number } = this.server,
  ): Promise<Fresh> {
    const prefix = this.prefix();
    const keys = new Keys(prefix);
    const another = async (more: LocksOptions = {}) => {
      const wire = new Wire(await openEtcdClient({ endpoints: [endpointOf(on)] }));
      const store = etcdStore(wire.client, { prefix, closeClient: true });
      const locks = createLocks(store, { ttl: SHORT_MS, ...options, ...more });
      onTestFinished(() => locks.close().catch(ignore));
      return { store, wire, locks };
    };
    const claims = async (name: string): Promise<KeyValue[]> =>
      (await this.raw.range(keys.name(`default:${name}`))).kvs;
    return { prefix, keys, another, claims, ...(await another()) };
  }

  async everything(prefix: string): Promise<KeyValue[]> {
    return (await this.raw.range({ key: prefix, rangeEnd: `${prefix.slice(0, -1)}0` })).kvs;
  }

  async isThere(key: string): Promise<boolean> {
    return (await this.raw.range({ key })).kvs.length > 0;
  }
}
