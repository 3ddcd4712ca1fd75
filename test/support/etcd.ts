import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, type TestContext } from "vitest";
import { ignore } from "../../src/conformance/subject.js";
import { connect, createLocks, type Locks, type LocksOptions } from "../../src/index.js";
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
import { type Fault, fault, together } from "../../src/verify/fault.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import type { ServerCluster } from "../../src/verify/lab/cluster.js";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { Site } from "../../src/verify/lab/server.js";
import { machineMs, TimeLine } from "../../src/verify/traffic/time-line.js";
import { Worker } from "../../src/verify/traffic/worker.js";
import { freshFolder } from "./sqlite.js";
import { eventsOf, expectKept, happens, until } from "./worker.js";

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

/** Resolves with the leader, as soon as there is one. */
export async function leaderOf(cluster: EtcdCluster): Promise<EtcdServer> {
  let leader: EtcdServer | undefined;
  await until("one leads", async () => {
    leader = await cluster.leader().catch(() => undefined);
    return leader !== undefined;
  });
  return leader!;
}

/** Resolves when all members run and follow one leader. */
async function makeWhole(cluster: EtcdCluster): Promise<void> {
  for (const one of cluster.servers) if (one.state === "paused") await one.resume();
  await Promise.all(cluster.servers.map((one) => one.start()));
  await leaderOf(cluster);
}

/** A client's own proxies to the members of a cluster. */
export class Ways {
  readonly #proxies: ReadonlyMap<EtcdServer, TcpProxy>;
  readonly url: string;

  private constructor(proxies: ReadonlyMap<EtcdServer, TcpProxy>) {
    this.#proxies = proxies;
    this.url = `etcd://${[...proxies.values()].map(({ address, port }) => `${address}:${port}`)}`;
  }

  static async open({ servers }: EtcdCluster): Promise<Ways> {
    const proxies = new Map<EtcdServer, TcpProxy>();
    for (const server of servers) {
      const proxy = await TcpProxy.open(server);
      onTestFinished(() => proxy.close());
      proxies.set(server, proxy);
    }
    return new Ways(proxies);
  }

  /** Cuts all proxies except the one to this member. */
  only(server: EtcdServer): Fault {
    return together(...this.#except(server).map((proxy) => proxy.cut()));
  }

  cut(): Fault {
    const { name, ...both } = together(...this.#all().map((proxy) => proxy.cut()));
    return fault("a client cut off", both.inject, both.heal);
  }

  /** Everything that is sent to this member arrives so much later. */
  delay(server: EtcdServer, delayMs: number): Fault {
    return this.#proxies.get(server)!.delay(delayMs, "to-server");
  }

  /** Resolves when the client has something in flight that was not when this was called. */
  sends(): Promise<void> {
    const sent = () =>
      this.#all().reduce((sum, { traffic }) => sum + traffic["to-server"].chunks, 0);
    const before = sent();
    return until("it sends", () => sent() > before);
  }

  #all(): TcpProxy[] {
    return [...this.#proxies.values()];
  }

  #except(server: EtcdServer): TcpProxy[] {
    return this.#all().filter((proxy) => proxy !== this.#proxies.get(server));
  }
}

/** Whole seconds, as etcd has them: short where a test waits for a loss … */
export const TTL_MS = 2_000;
/** … and longer where an election, and an attempt that meets silence, have to fit in. */
export const SAFE_MS = 3_000;
export const SOON_MS = 2_000;
/** For a busy machine: order and safety are checked, not speed. */
const LIMITS = { lossMs: 1_000, wakeMs: 2_000, freeMs: 2_000, electionMs: 2_000, endMs: 3_000 };
/** The result of an acquire. */
export interface Taken {
  readonly op: string;
  readonly token: bigint;
}

export interface SceneOptions extends LocksOptions {
  /** User and password, as in a URL. */
  readonly user?: string;
  /** The host of a worker: it has the network of that host, and no proxies of its own. */
  readonly sites?: readonly (Site | undefined)[];
}

let scenes = 0;

/** Workers on a cluster, and a counter behind a fence beside them. All faults end with the test. */
export class Scene {
  readonly cluster: EtcdCluster;
  readonly timeLine = new TimeLine();
  readonly workers: Worker[] = [];
  readonly ways: Ways[] = [];
  readonly #namespace = `test-${++scenes}`;
  readonly #resourceFile = join(freshFolder(), "data.db");

  private constructor(cluster: EtcdCluster) {
    this.cluster = cluster;
  }

  /** Starts a worker on each of these members; null leaves the member to chance. */
  static async open(
    cluster: EtcdCluster,
    members: readonly (EtcdServer | null)[],
    options: SceneOptions = {},
  ): Promise<Scene> {
    onTestFinished(() => makeWhole(cluster));
    const scene = new Scene(cluster);
    const starting = members.map(async (member, i) => {
      scene.workers[i] = await scene.#start(i, member, options);
    });
    await Promise.all(starting);
    return scene;
  }

  async #start(
    i: number,
    member: EtcdServer | null,
    { user, sites, ...options }: SceneOptions,
  ): Promise<Worker> {
    const client = `w${i + 1}`;
    const site = sites?.[i];
    const ways = site === undefined ? await Ways.open(this.cluster) : undefined;
    if (ways !== undefined) this.ways[i] = ways;
    const only = member === null ? undefined : ways?.only(member);
    await only?.inject();
    const plain = ways?.url ?? this.cluster.url;
    const worker = await Worker.start({
      client,
      url: user === undefined ? plain : plain.replace("//", `//${user}@`),
      locks: {
        ttl: TTL_MS,
        wait: "20s",
        commandTimeout: 1_000,
        namespace: this.#namespace,
        ...options,
      },
      timeLine: this.timeLine,
      resourceFile: this.#resourceFile,
      ...(site === undefined ? {} : { site }),
    });
    onTestFinished(() => worker.kill());
    // By now the worker is connected, and has a session.
    await worker.release((await worker.acquire(`of ${client}`)).op);
    await only?.heal();
    return worker;
  }

  async inject(fault: Fault, more: { sparesStore?: boolean } = {}): Promise<void> {
    this.timeLine.now({ kind: "injected", fault: fault.name, ...more });
    onTestFinished(() => fault.heal());
    await fault.inject();
  }

  async heal(fault: Fault): Promise<void> {
    await fault.heal();
    this.timeLine.now({ kind: "healed", fault: fault.name });
  }

  async under(fault: Fault, act = async () => {}): Promise<void> {
    await this.inject(fault);
    await act();
    await this.heal(fault);
  }

  /** Resolves when the lease is good for longer than by any request before this call, or that moment. */
  async isRenewed({ op }: Taken, fromMs = machineMs()): Promise<void> {
    const { ttlMs } = eventsOf(this.timeLine, "asked").find((asked) => asked.op === op)!;
    await happens(
      this.timeLine,
      "renewed",
      (renewed) => renewed.op === op && renewed.untilMs > fromMs + ttlMs,
    );
  }

  /** Resolves when the worker is notified of the loss; the rules check whether it was in time. */
  isLost({ op }: Taken): Promise<{ reason: string }> {
    return happens(this.timeLine, "lost", (lost) => lost.op === op);
  }

  /** The state of the name, read on a connection of its own. */
  async look(name = "name"): Promise<{ holders: bigint[]; waiters: number }> {
    const locks = await connect(this.cluster.url, { namespace: this.#namespace });
    try {
      const info = await locks.inspect(name);
      const holders = info?.holders.map(({ token }) => token) ?? [];
      return { holders, waiters: info?.waiters.length ?? 0 };
    } finally {
      await locks.close();
    }
  }

  /** All close; then no claim and no session is left, and these rules were kept. */
  async ends(rules: readonly string[]): Promise<void> {
    await Promise.all(this.workers.map((one) => one.close()));
    const server = await leaderOf(this.cluster);
    // A session that was lost, or whose reply was, expires by itself.
    await until("no session is left", async () => (await leases(server)).length === 0);
    expect(await keysOf(server, "holdfast/")).toEqual([]);
    expectKept(this.timeLine, rules, LIMITS);
  }

  /** The later grant has the higher token; once its holder has entered, the earlier one can't write. */
  async expectRefused(old: Taken, granted: Taken): Promise<void> {
    expect(granted.token).toBeGreaterThan(old.token);
    expect(await this.#who(granted).write(granted.op)).toBe(true);
    expect(await this.#who(old).write(old.op)).toBe(false);
  }

  /** The time from one release to the next grant. */
  expectSoon(released: Taken, next: Taken, soonMs = SOON_MS): void {
    expect(next.token).toBeGreaterThan(released.token);
    const from = eventsOf(this.timeLine, "releasing").find(({ op }) => op === released.op)!;
    const to = eventsOf(this.timeLine, "granted").find(({ op }) => op === next.op)!;
    expect(to.atMs - from.atMs).toBeLessThan(soonMs);
  }

  expectNoLoss(): void {
    expect(eventsOf(this.timeLine, "lost")).toEqual([]);
  }

  #who({ op }: Taken): Worker {
    return this.workers.find(({ client }) => op.startsWith(`${client}.`))!;
  }
}

/** Waits for the name, and resolves when its ticket is in the queue. */
export async function queue(worker: Worker, name = "name"): Promise<{ granted: Promise<Taken> }> {
  const op = `${worker.client}.waits for ${name}`;
  const granted = worker.acquire(name, {}, op);
  granted.catch(() => {});
  await happens(worker.timeLine, "queued", (event) => event.op === op);
  return { granted };
}

export async function expectUnavailable(worker: Worker, name: string, wait: number): Promise<void> {
  const outcome = await worker.acquire(name, { wait }).then(
    () => "granted",
    ({ code }) => code,
  );
  expect(outcome).toBe("STORE_UNAVAILABLE");
}

export const others = ({ servers }: EtcdCluster, one: EtcdServer): EtcdServer[] =>
  servers.filter((other) => other !== one);

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
