import { join } from "node:path";
import { expect, onTestFinished } from "vitest";
import { connect, type LocksOptions } from "../../src/index.js";
import type { Limits } from "../../src/verify/check/check.js";
import { type Fault, fault, together } from "../../src/verify/fault.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { type Member, ServerCluster } from "../../src/verify/lab/cluster.js";
import type { Site } from "../../src/verify/lab/server.js";
import { machineMs, TimeLine } from "../../src/verify/traffic/time-line.js";
import { Worker } from "../../src/verify/traffic/worker.js";
import { freshFolder } from "./sqlite.js";
import { eventsOf, expectKept, happens, until } from "./worker.js";

export const SOON_MS = 2_000;
/** For a busy machine: order and safety are checked, not speed. */
export const LIMITS = {
  lossMs: 1_000,
  wakeMs: 2_000,
  freeMs: 2_000,
  electionMs: 2_000,
  endMs: 3_000,
};

/** Resolves with the leader, as soon as there is one. */
export async function leaderOf<S extends Member>(cluster: ServerCluster<S>): Promise<S> {
  let leader: S | undefined;
  await until("one leads", async () => {
    leader = await cluster.leader().catch(() => undefined);
    return leader !== undefined;
  });
  return leader!;
}

/** Resolves when all members run and follow one leader. */
async function makeWhole<S extends Member>(cluster: ServerCluster<S>): Promise<void> {
  for (const one of cluster.servers) if (one.state === "paused") await one.resume();
  await Promise.all(cluster.servers.map((one) => one.start()));
  await leaderOf(cluster);
}

const schemeOf = ({ url }: { readonly url: string }): string => url.replace(/:.*/s, "");

/** A client's own proxies to the members of a cluster. */
export class Ways<S extends Member = Member> {
  readonly #proxies: ReadonlyMap<S, TcpProxy>;
  readonly url: string;

  private constructor(proxies: ReadonlyMap<S, TcpProxy>, scheme: string) {
    this.#proxies = proxies;
    this.url = `${scheme}://${[...proxies.values()].map(({ address, port }) => `${address}:${port}`)}`;
  }

  static async open<S extends Member>({ servers, url }: ServerCluster<S>): Promise<Ways<S>> {
    const proxies = new Map<S, TcpProxy>();
    for (const server of servers) {
      const proxy = await TcpProxy.open(server);
      onTestFinished(() => proxy.close());
      proxies.set(server, proxy);
    }
    return new Ways(proxies, schemeOf({ url }));
  }

  /** Cuts all proxies except the one to this member. */
  only(server: S): Fault {
    return together(...this.#except(server).map((proxy) => proxy.cut()));
  }

  cut(): Fault {
    const { name, ...both } = together(...this.#all().map((proxy) => proxy.cut()));
    return fault("a client cut off", both.inject, both.heal);
  }

  /** Everything that is sent to this member arrives so much later. */
  delay(server: S, delayMs: number): Fault {
    return this.#proxies.get(server)!.delay(delayMs, "to-server");
  }

  /** The server executes each request with this text, and its reply never arrives: the connection breaks. */
  loseReplies(when: string): { fault: Fault; readonly struck: number } {
    const all = this.#all().map((proxy) => proxy.loseReply({ when }));
    const { inject, heal } = together(...all);
    return {
      fault: fault("replies lost", inject, heal),
      get struck() {
        return all.reduce((sum, one) => sum + one.struck, 0);
      },
    };
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

  #except(server: S): TcpProxy[] {
    return this.#all().filter((proxy) => proxy !== this.#proxies.get(server));
  }
}

/** The result of an acquire. */
export interface Taken {
  readonly op: string;
  readonly token: bigint;
}

export interface SceneOptions extends LocksOptions {
  /** User and password, as in a URL. */
  readonly user?: string;
  /** The host of a worker: it has the network of that host, and no proxies of its own, but only its own member if it has one. */
  readonly sites?: readonly (Site | undefined)[];
}

let scenes = 0;

/** Workers on a cluster, and a counter behind a fence beside them. All faults end with the test. */
export abstract class ClusterScene<S extends Member> {
  readonly cluster: ServerCluster<S>;
  readonly timeLine = new TimeLine();
  readonly workers: Worker[] = [];
  readonly ways: Ways<S>[] = [];
  protected readonly namespace = `test-${++scenes}`;
  readonly #resourceFile = join(freshFolder(), "data.db");

  protected constructor(cluster: ServerCluster<S>) {
    this.cluster = cluster;
  }

  protected get limits(): Partial<Limits> {
    return LIMITS;
  }

  /** Resolves when the store holds nothing of the workers, which are closed. */
  protected abstract nothingIsLeft(): Promise<void>;

  /** Starts a worker on each of these members; null leaves the member to chance. */
  protected async start(members: readonly (S | null)[], options: SceneOptions): Promise<void> {
    onTestFinished(() => makeWhole(this.cluster));
    const starting = members.map(async (member, i) => {
      this.workers[i] = await this.#start(i, member, options);
    });
    await Promise.all(starting);
  }

  async #start(
    i: number,
    member: S | null,
    { user, sites, ...options }: SceneOptions,
  ): Promise<Worker> {
    const client = `w${i + 1}`;
    const site = sites?.[i];
    const ways = site === undefined ? await Ways.open(this.cluster) : undefined;
    if (ways !== undefined) this.ways[i] = ways;
    const only = member === null ? undefined : ways?.only(member);
    await only?.inject();
    const own = member === null ? this.cluster.servers : [member];
    const plain = ways?.url ?? new ServerCluster(schemeOf(this.cluster), own).url;
    const worker = await Worker.start({
      client,
      url: user === undefined ? plain : plain.replace("//", `//${user}@`),
      locks: {
        wait: "20s",
        commandTimeout: 1_000,
        namespace: this.namespace,
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
    const locks = await connect(this.cluster.url, { namespace: this.namespace });
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
    await this.nothingIsLeft();
    expectKept(this.timeLine, rules, this.limits);
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

export const others = <S extends Member>({ servers }: ServerCluster<S>, one: S): S[] =>
  servers.filter((other) => other !== one);
