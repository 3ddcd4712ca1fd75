import { setTimeout as pause } from "node:timers/promises";
import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import type { Random } from "../../../src/core/random.js";
import { MARKER, recordOf, shortId } from "../../../src/stores/quorum/keys.js";
import { RedisNode } from "../../../src/stores/quorum/redis-node.js";
import { SCRIPTS } from "../../../src/stores/quorum/scripts.js";
import { seededRandom } from "../../../src/testing/seeded-random.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { until } from "../../../src/verify/lab/until.js";
import { SimulatedServer } from "../../../src/verify/simulate/quorum/server.js";
import type { Caller } from "../../../src/verify/simulate/quorum/server-data.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";

const STEPS = 40;
const MAX_TTL_MS = 60_000;
const SPREAD = MAX_TTL_MS * 250;
const CLIENTS = ["a", "b"];
const IDS = ["id-1", "id-2", "id-3"];
/** The keys of a name must not be those of the other. */
const NAMES = ["one", "one:none"];
/** A lease that has expired before the next step. */
const SHORT_MS = 5;
const SHORT_IS_OVER_MS = 20;

/** Answers without the times, which differ. */
const TIMES = ["micros", "freeInMs", "forMs", "recoveringForMs", "heldMs", "expiresInMs", "agoMs"];

describeWith(["redis"], "the simulated node and the Lua scripts", () => {
  let lab: Lab;
  let server: RedisServer;
  let redis: Redis;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    redis = new Redis(server.port, server.address);
  });
  afterAll(async () => {
    await redis?.quit();
    await lab.close();
  });

  test("answer the same to random requests", { timeout: 600_000 }, async () => {
    const { runs, seed } = ruleRuns(15);
    const kinds = new Set<string>();
    for (let run = 0; run < runs; run++) {
      const pair = await Pair.open(redis, server, seed + run);
      try {
        for (const kind of await pair.run()) kinds.add(kind);
      } finally {
        await pair.close();
      }
    }
    for (const kind of ["recorded", "busy", "recovering", "yes", "filled", "no", "awaited"]) {
      expect(kinds, kind).toContain(kind);
    }
  });

  test("a release that is repeated after the ballot was kept out finds nothing", async () => {
    await redis.flushall();
    const client = new Redis(server.port, server.address);
    const node = new RedisNode(client, { maxTtlMs: MAX_TTL_MS, closeClient: true });
    onTestFinished(() => node.close());
    const { micros, marker } = await node.join();
    await node.settle(marker);
    const name = "kept out";
    const claim = { name, id: "id-1", number: micros, ttlMs: 60_000, seq: 1, atLeastMs: 0 };
    const claiming = { ...claim, register: "never", holder: "holder" } as const;
    expect((await node.claim(claiming)).kind).toBe("recorded");
    const release = { name, id: "id-1", number: micros, unused: false, wakes: true };
    expect(await node.release({ ...release, keptOutMs: 60_000 })).toBe("released");
    expect(await node.release({ ...release, keptOutMs: 0 })).toBe("absent");
    expect((await node.claim(claiming)).kind).toBe("busy");
    expect((await node.claim({ ...claiming, id: "id-2" })).kind).toBe("recorded");
  });

  test("a release that loads the script has a restarted server examined", async () => {
    await redis.flushall();
    const client = new Redis(server.port, server.address);
    const node = new RedisNode(client, { maxTtlMs: MAX_TTL_MS, closeClient: true });
    onTestFinished(() => node.close());
    const { micros, marker } = await node.join();
    await node.settle(marker);
    const one = { name: "restarted", id: "id-1", number: micros };
    const claim = { ...one, ttlMs: 60_000, seq: 1, atLeastMs: 0, holder: "holder" };
    expect((await node.claim({ ...claim, register: "never" })).kind).toBe("recorded");
    // The server restarts with old data behind a proxy that keeps the connections of clients.
    const settled = (await redis.get(MARKER))!;
    await redis.set(MARKER, settled.replace(/ \w+ /, " another "));
    await redis.script("FLUSH");
    const release = { ...one, unused: false, wakes: true, keptOutMs: 0 };
    expect(await node.release(release)).toBe("released");
    expect(await redis.get(MARKER)).toMatch(/ lost\d+$/);
  });

  /** A node that is in service at a server which syncs every write, and the marker of that. */
  async function durableNode(): Promise<{ client: Redis; node: RedisNode; settled: string }> {
    const client = new Redis(server.port, server.address);
    const node = new RedisNode(client, { maxTtlMs: MAX_TTL_MS, closeClient: true });
    onTestFinished(() => node.close());
    await node.settle((await node.join()).marker);
    const settled = (await redis.get(MARKER))!;
    expect(settled).toMatch(/ always 0$/);
    return { client, node, settled };
  }

  const claimOf = (name: string, id: string) =>
    ({
      name,
      id,
      number: 0,
      ttlMs: 60_000,
      seq: 1,
      atLeastMs: 0,
      register: "never",
      holder: "holder",
    }) as const;

  test.each([
    // A restarted server that has its users only after its first command.
    "WRONGPASS invalid username-password pair",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
  ])("%s, while the settings are read, is no loss of data", async (refusal) => {
    await redis.flushall();
    await redis.config("SET", "appendonly", "yes", "appendfsync", "always");
    const { client, node, settled } = await durableNode();
    await redis.set(MARKER, settled.replace(/ \w+ /, " another "));
    const call = vi.spyOn(client, "call");
    call.mockRejectedValueOnce(new Error(refusal));
    await expect(node.join()).rejects.toThrow(refusal.split(" ")[0]);
    expect(call).toHaveBeenCalledWith("CONFIG", "GET", "appendonly");
    expect((await node.join()).recoveringForMs).toBe(0);
    expect(await redis.get(MARKER)).toBe(settled);
  });

  test("settings that were read before the connection was lost are read again", async () => {
    await redis.flushall();
    await redis.config("SET", "appendonly", "yes", "appendfsync", "always");
    const { client, node } = await durableNode();
    const call = vi.spyOn(client, "call");
    call.mockImplementationOnce(async () => {
      client.emit("close");
      return ["appendonly", "yes"];
    });
    await node.join();
    call.mockClear();
    expect((await node.claim(claimOf("read again", "id-1"))).kind).toBe("recorded");
    expect(call).toHaveBeenCalledWith("CONFIG", "GET", "appendonly");
  });

  test("a server that was a replica for a moment, on the same connection, is examined again", async () => {
    await redis.flushall();
    await redis.config("SET", "appendonly", "yes", "appendfsync", "always");
    const { node, settled } = await durableNode();
    expect((await node.claim(claimOf("replica", "id-1"))).kind).toBe("recorded");
    // Its data are those of another server now, with the marker of that.
    await redis.set(MARKER, settled.replace(/ \w+ /, " another "));
    await expect(node.claim(claimOf("replica", "id-2"))).rejects.toThrow("has restarted");
    expect((await node.claim(claimOf("replica", "id-3"))).kind).toBe("busy");
    expect(await redis.get(MARKER)).toBe(settled);
  });

  test("nobody votes at a server whose script one client has loaded, and whose settings nobody has read", async () => {
    await redis.flushall();
    await redis.config("SET", "appendonly", "yes", "appendfsync", "always");
    const { node, settled } = await durableNode();
    const { node: other } = await durableNode();
    for (const [i, one] of [node, other].entries()) {
      expect((await one.claim(claimOf(`loaded ${i}`, "id-1"))).kind).toBe("recorded");
    }
    // A proxy that keeps the connections of clients leads to a server with a copy of the data.
    await redis.set(MARKER, settled.replace(/ \w+ /, " another "));
    await redis.script("FLUSH");
    await expect(node.claim(claimOf("loaded", "id-1"))).rejects.toThrow("has restarted");
    await expect(other.claim(claimOf("loaded", "id-2"))).rejects.toThrow("has restarted");
    expect((await other.claim(claimOf("loaded", "id-3"))).kind).toBe("recorded");
    expect(await redis.get(MARKER)).toBe(settled);
  });

  test("a node that got a lease again after all its data were deleted does not look new", async () => {
    await redis.flushall();
    const { node } = await durableNode();
    const { number, seq, ttlMs, holder, name, id } = claimOf("deleted", "id-1");
    await redis.flushall();
    const renewal = { name, id, number, seq, ttlMs, closedForMs: 0, holder };
    expect(await node.renew([renewal])).toEqual([{ kind: "filled" }]);
    const { isNew, recoveringForMs } = await node.join();
    expect(isNew).toBe(false);
    expect(recoveringForMs).toBeGreaterThan(0);
  });

  /** A claim at a server that has restarted with its data, its scripts and the connections of its clients. */
  async function claimAfterRestart(version: string): Promise<string> {
    await redis.flushall();
    await redis.config("SET", "appendonly", "no");
    const client = new Redis(server.port, server.address);
    // Only what the server says of itself is not real.
    const says = (runId: string) =>
      redis.set("info", `\nrun_id:${runId}\nredis_version:${version}`);
    const codeOf = (sha: string): string =>
      Object.values(SCRIPTS)
        .find((one) => one.sha === sha)!
        .code.replace("redis.call('INFO', 'server')", "redis.call('GET', 'info')");
    const evalsha = (sha: string, ...rest: [number, ...string[]]) =>
      redis.eval(codeOf(sha), ...rest);
    vi.spyOn(client, "evalsha").mockImplementation(evalsha as never);
    await says("one");
    const node = new RedisNode(client, { maxTtlMs: MAX_TTL_MS, closeClient: true });
    onTestFinished(() => node.close());
    await node.settle((await node.join()).marker);
    expect((await node.claim(claimOf("before", "id-1"))).kind).toBe("recorded");
    await says("two");
    return (await node.claim(claimOf("after", "id-1"))).kind;
  }

  test("before version 7, where a snapshot may hold the scripts, a node examines itself at every request", async () => {
    expect(await claimAfterRestart("6.2.14")).toBe("recovering");
    // It relies on the script, which a server that has restarted does not know.
    expect(await claimAfterRestart("7.0.0")).toBe("recorded");
  });
});

/** A real node and a simulated one that get the same requests. The simulated clock follows the real one. */
class Pair {
  readonly #redis: Redis;
  readonly #random: Random;
  readonly #seed: number;
  readonly #clients: readonly Redis[];
  readonly #nodes: readonly RedisNode[];
  readonly #simulated: SimulatedServer;
  /** As `RedisNode` remembers it, by client. */
  readonly #markers = CLIENTS.map(() => "");
  readonly #freed = { real: CLIENTS.map(() => 0), simulated: CLIENTS.map(() => 0) };
  readonly #kinds = new Set<string>();
  #numbers: number[] = [];
  #micros = 0;
  #restarts = 0;
  #endsSoon = false;

  private constructor(redis: Redis, server: RedisServer, seed: number) {
    this.#redis = redis;
    this.#random = seededRandom(seed);
    this.#seed = seed;
    this.#clients = CLIENTS.map(() => new Redis(server.port, server.address));
    const options = { maxTtlMs: MAX_TTL_MS, closeClient: true };
    this.#nodes = this.#clients.map((client) => new RedisNode(client, options));
    this.#simulated = new SimulatedServer("run", () => this.#micros);
  }

  static async open(redis: Redis, server: RedisServer, seed: number): Promise<Pair> {
    await redis.flushall();
    const pair = new Pair(redis, server, seed);
    for (const i of CLIENTS.keys()) await pair.#listen(i);
    for (const i of CLIENTS.keys()) await pair.#join(i);
    await pair.#settle(0);
    return pair;
  }

  async run(): Promise<ReadonlySet<string>> {
    for (let step = 0; step < STEPS; step++) {
      await this.#step(step);
    }
    const { real, simulated } = this.#freed;
    const areAllThere = (): boolean => real.every((count, i) => count >= simulated[i]!);
    await until("all waiters are told", 5_000, async () => areAllThere());
    expect(real, this.#where("messages")).toEqual(simulated);
    return this.#kinds;
  }

  async close(): Promise<void> {
    await Promise.all(this.#nodes.map((node) => node.close()));
  }

  async #step(step: number): Promise<void> {
    await this.#readClock();
    const { unit } = this.#random;
    const client = Math.floor(unit() * CLIENTS.length);
    const name = `${this.#seed} ${this.#pick(NAMES)}`;
    const id = this.#pick(IDS);
    const which = unit();
    const compare = async <T>(
      what: string,
      real: (node: RedisNode) => Promise<T>,
      simulated: (caller: Caller) => unknown,
    ): Promise<void> => this.#compare(`${step}: ${what}`, client, real, simulated);
    if (which < 0.35) {
      const claim = {
        name,
        id,
        number: this.#number(),
        ttlMs: this.#ttlMs(),
        seq: this.#seq(),
        atLeastMs: unit() < 0.15 ? 60_000 : 0,
        register: this.#pick(["never", "if-busy", "always"] as const),
        holder: `holder ${id}`,
      };
      await compare(
        `claim ${JSON.stringify(claim)}`,
        (node) => node.claim(claim),
        (caller) => this.#simulated.claim(caller, claim),
      );
    } else if (which < 0.45) {
      const number = unit() < 0.1 ? this.#number() + 172_800_000_000 : this.#number();
      await compare(
        `raise ${name} ${id} ${number}`,
        (node) => node.raise(name, id, number),
        (caller) => this.#simulated.raise(caller, name, id, number),
      );
    } else if (which < 0.65) {
      const renewals = Array.from({ length: 1 + Math.floor(unit() * 2) }, () => ({
        name: `${this.#seed} ${this.#pick(NAMES)}`,
        id: this.#pick(IDS),
        number: unit() < 0.1 ? -1 : this.#number(),
        ttlMs: this.#ttlMs(),
        seq: this.#seq(),
        closedForMs: unit() < 0.15 ? 60_000 : 0,
        holder: "holder",
      }));
      await compare(
        `renew ${JSON.stringify(renewals)}`,
        (node) => node.renew(renewals),
        () => this.#simulated.renew(renewals),
      );
    } else if (which < 0.8) {
      const number = unit() < 0.4 ? -1 : this.#number();
      const keptOutMs = unit() < 0.3 ? this.#ttlMs() : 0;
      const release = { name, id, number, unused: unit() < 0.5, wakes: unit() < 0.8, keptOutMs };
      await compare(
        `release ${JSON.stringify(release)}`,
        (node) => node.release(release),
        (caller) => this.#simulated.release(caller, release),
      );
    } else if (which < 0.83) {
      await compare(
        `pass ${name}`,
        (node) => node.pass(name),
        (caller) => this.#simulated.pass(caller, name),
      );
    } else if (which < 0.87) {
      const number = this.#number();
      const by = { holder: "holder", by: "operator", why: "stuck" };
      const revocation = { name, id: shortId(id), number, ...by };
      await compare(
        `revoke ${name} ${id}`,
        (node) => node.revoke(revocation),
        () => this.#simulated.revoke(revocation),
      );
    } else if (which < 0.9) await this.#join(client);
    else if (which < 0.94) await this.#settle(client);
    else if (which < 0.96) {
      await this.#redis.flushall();
      this.#simulated.flush();
      // A renewal that comes first shows that the node was in use, and then nobody settles it.
      if (unit() < 0.8) await this.#settle(client);
    } else if (which < 0.98) {
      await this.#redis.del(recordOf(name));
      this.#simulated.forget(name);
    } else await this.#restart();
    if (this.#endsSoon) await pause(SHORT_IS_OVER_MS);
    this.#endsSoon = false;
    await compare(
      "inspect",
      (node) => node.inspect([name]),
      () => [this.#simulated.inspect(name)],
    );
  }

  async #listen(client: number): Promise<void> {
    const { real, simulated } = this.#freed;
    await this.#nodes[client]!.listen({
      freed: () => void real[client]!++,
      missed: () => {},
      isNeeded: () => true,
    });
    this.#simulated.subscribe(CLIENTS[client]!, () => void simulated[client]!++);
  }

  async #join(client: number): Promise<void> {
    await this.#compare(
      "join",
      client,
      async (node) => ({ isOut: (await node.join()).recoveringForMs > 0 }),
      (caller) => ({ isOut: this.#simulated.join(caller).recoveringForMs > 0 }),
    );
  }

  async #settle(client: number): Promise<void> {
    const { marker } = await this.#nodes[client]!.join();
    await this.#readClock();
    const seen = this.#simulated.join(this.#callerOf(client)).marker;
    await this.#compare(
      "settle",
      client,
      (node) => node.settle(marker),
      (caller) => this.#simulated.settle(caller, seen),
    );
  }

  /** The server is another process, as far as the scripts can tell, and has its data. */
  async #restart(): Promise<void> {
    const marker = await this.#redis.get(MARKER);
    const runId = `run${++this.#restarts}`;
    if (marker !== null) await this.#redis.set(MARKER, marker.replace(/ \w+ /, ` ${runId} `));
    await this.#redis.script("FLUSH");
    this.#simulated.restart(runId, this.#simulated.copy());
    for (const i of CLIENTS.keys()) {
      this.#simulated.subscribe(CLIENTS[i]!, () => void this.#freed.simulated[i]!++);
    }
  }

  async #compare<T>(
    what: string,
    client: number,
    ask: (node: RedisNode) => Promise<T>,
    simulate: (caller: Caller) => unknown,
  ): Promise<void> {
    const real = await ask(this.#nodes[client]!);
    const micros = (real as { micros?: number } | undefined)?.micros;
    if (micros === undefined) await this.#readClock();
    else this.#micros = micros;
    const simulated = simulate(this.#callerOf(client));
    this.#markers[client] = this.#simulated.isInService ? this.#simulated.marker : "";
    expect(withoutTimes(simulated), this.#where(what)).toEqual(withoutTimes(real));
    this.#note(real);
  }

  /** Remembers numbers, so that later requests are near them. */
  #note(answer: unknown): void {
    for (const one of Array.isArray(answer) ? answer : [answer]) {
      if (typeof one === "string") this.#kinds.add(one);
      if (one?.kind !== undefined) this.#kinds.add(one.kind);
      if (one?.number !== undefined) this.#numbers = [...this.#numbers.slice(-3), one.number];
    }
  }

  #callerOf(client: number): Caller {
    const marker = this.#markers[client]!;
    return { marker, maxTtlMs: MAX_TTL_MS, fsync: "later", channel: CLIENTS[client]! };
  }

  async #readClock(): Promise<void> {
    const [seconds, micros] = await this.#redis.time();
    this.#micros = Number(seconds) * 1_000_000 + Number(micros);
  }

  /** Near the clock, at the limits of what a node accepts, or near earlier numbers. */
  #number(): number {
    const known = this.#numbers.length > 0 && this.#random.unit() < 0.5;
    if (known) return this.#pick(this.#numbers) + this.#pick([-1, 0, 0, 0, 1, 5_000]);
    return (
      this.#micros + this.#pick([1_000, 0.5, -0.5, 1.5, -1.5].map((of) => Math.floor(of * SPREAD)))
    );
  }

  #ttlMs(): number {
    const isShort = this.#random.unit() < 0.1;
    this.#endsSoon ||= isShort;
    return isShort ? SHORT_MS : 60_000;
  }

  #seq(): number {
    return 1 + Math.floor(this.#random.unit() * 3);
  }

  #pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.#random.unit() * from.length)]!;
  }

  #where(what: string): string {
    return `seed ${this.#seed}, ${what}`;
  }
}

function withoutTimes(answer: unknown): unknown {
  return JSON.parse(
    JSON.stringify(answer ?? null, (key, value) => {
      if (TIMES.includes(key)) return undefined;
      return typeof value === "bigint" ? String(value) : value;
    }),
  );
}
