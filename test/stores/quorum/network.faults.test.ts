import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type LocksOptions } from "../../../src/index.js";
import { SCRIPTS } from "../../../src/stores/quorum/scripts.js";
import { type Fault, together } from "../../../src/verify/fault.js";
import type { ProxyFault, Strikes, TcpProxy } from "../../../src/verify/faults/proxy.js";
import { killed } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import {
  byQuorum,
  closeAll,
  expectAllKept,
  expectRefused,
  hasRecord,
  heal,
  inject,
  nothingIsLeft,
  queue,
  renewals,
  startNodes,
  startProxies,
  startQuorumWorkers,
  urlOf,
  withRecords,
} from "../../support/quorum.js";
import { eventsOf, happens, until } from "../../support/worker.js";

/** So long that no lease expires in a test, and no ticket is renewed soon: whatever happens was notified. */
const LONG_MS = 30_000;
const NOT_POLLED: LocksOptions = { ttl: LONG_MS, poll: { min: "20s", max: "20s" } };
/** Far below the time of a poll or of a lease, far above what a busy machine needs. */
const SOON_MS = 5_000;
/** A silent subscription is noticed by a ping, five seconds after it was opened. */
const BEFORE_PING_MS = 3_000;

const isBallot = (request: Buffer): boolean => request.includes(SCRIPTS.ballots.sha);
const has = (request: Buffer, argument: RegExp): boolean => argument.test(request.toString());
const isClaim = (request: Buffer): boolean => isBallot(request) && has(request, /\n[+*]\d \d/);
const isRelease = (request: Buffer): boolean => isBallot(request) && has(request, /\n[-~]-?\d/);
const isRenewal = (request: Buffer): boolean => request.includes(SCRIPTS.renewals.sha);

describeWith(["redis"], "the network of a quorum fails", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  /** One client behind proxies, and another one with its own connections. */
  async function startBehind(options: LocksOptions = {}) {
    const servers = await startNodes(lab);
    const proxies = await startProxies(servers);
    const urls = [urlOf(proxies), urlOf(servers)];
    const started = await startQuorumWorkers(urls, options);
    const [struck, other] = started.workers as [Worker, Worker];
    // The scripts are loaded, so that the request itself fails.
    for (const one of [struck, other]) {
      const { op } = await one.acquire(`of ${one.client}`);
      await one.renew(op, 1_500);
      await one.release(op);
    }
    // A release that is still on its way would be struck, too.
    await nothingIsLeft(servers);
    return { ...started, servers, proxies, struck, other };
  }

  const haveRecord = async (servers: readonly RedisServer[]): Promise<boolean> =>
    (await Promise.all(servers.map((server) => hasRecord(server)))).every((has) => has);

  describe.each<[string, (proxy: TcpProxy, strikes: Strikes) => ProxyFault]>([
    ["replies are lost", (proxy, one) => proxy.loseReply(one)],
    ["replies are lost in silence", (proxy, one) => proxy.loseReply({ ...one, silent: true })],
    ["connections are reset in mid-request", (proxy, one) => proxy.resetMidCommand(one)],
  ])("%s on three of five nodes", (_what, faultOf) => {
    const strikes = (proxies: readonly TcpProxy[], when: (request: Buffer) => boolean) =>
      proxies.slice(0, 3).map((proxy) => faultOf(proxy, { when }));
    const allStruck = (faults: readonly ProxyFault[]): Promise<void> =>
      until("it strikes", () => faults.every(({ struck }) => struck === 1));

    test("for a claim: there is one grant, and nothing of the first ballot is left", async () => {
      const { workers, timeLine, servers, proxies, struck } = await startBehind({ ttl: LONG_MS });
      const faults = strikes(proxies, isClaim);
      await inject(timeLine, together(...faults), { sparesStore: true });
      const fromMs = machineMs();
      const acquiring = struck.acquire("name");
      await allStruck(faults);
      await heal(timeLine, together(...faults));
      const granted = await acquiring;
      expect(machineMs() - fromMs).toBeLessThan(2 * SOON_MS);
      await until("all have it", () => haveRecord(servers));
      expect(await struck.write(granted.op)).toBe(true);
      expect(await struck.release(granted.op)).toBe("released");
      await nothingIsLeft(servers);
      await closeAll(workers);
      expectAllKept(timeLine, ["S7", "L3"]);
    });

    test("for a renewal: the lease stays", async () => {
      const { workers, timeLine, servers, proxies, struck, other } = await startBehind({
        ttl: 3_000,
      });
      const held = await struck.acquire("name");
      const waiting = queue(other);
      await waiting.stands;
      const faults = strikes(proxies, isRenewal);
      await inject(timeLine, together(...faults), { sparesStore: true });
      await allStruck(faults);
      const struckMs = machineMs();
      await heal(timeLine, together(...faults));
      await until("it is renewed", () => renewals(timeLine, held.op, struckMs) >= 2);
      expect(await struck.look(held.op)).toBe(true);
      expect(eventsOf(timeLine, "lost")).toEqual([]);
      expect(await struck.release(held.op)).toBe("released");
      expect((await waiting.granted).token).toBeGreaterThan(held.token);
      await closeAll(workers);
      expect(await withRecords(servers)).toEqual([]);
      expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
    });

    test("for a release: the next is granted soon, and repeated releases do it no harm", async () => {
      const { workers, timeLine, servers, proxies, struck, other } = await startBehind({
        ttl: LONG_MS,
      });
      const held = await struck.acquire("name");
      const waiting = queue(other);
      await waiting.stands;
      const faults = strikes(proxies, isRelease);
      await inject(timeLine, together(...faults), { sparesStore: true });
      const fromMs = machineMs();
      await struck.release(held.op);
      await allStruck(faults);
      await heal(timeLine, together(...faults));
      const granted = await waiting.granted;
      expect(machineMs() - fromMs).toBeLessThan(SOON_MS);
      expect(granted.token).toBeGreaterThan(held.token);
      await sleep(500);
      expect(await other.look(granted.op)).toBe(true);
      expect(await struck.acquire("name", { wait: 300 }).catch(({ code }) => code)).toBe(
        "ACQUIRE_TIMEOUT",
      );
      expect(await other.release(granted.op)).toBe("released");
      await nothingIsLeft(servers);
      await closeAll(workers);
      expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
    });
  });

  test("close waits for the slow answer of a node to a release, which then has no record", async () => {
    const { workers, timeLine, servers, proxies, struck } = await startBehind({ ttl: LONG_MS });
    const { op } = await struck.acquire("name");
    await until("all have it", () => haveRecord(servers));
    const slow = proxies[0]!.delay(250, "to-server");
    await inject(timeLine, slow, { sparesStore: true });
    expect(await struck.release(op)).toBe("released");
    await closeAll(workers);
    expect(await withRecords(servers)).toEqual([]);
    await heal(timeLine, slow);
    expectAllKept(timeLine, ["S7", "L3"]);
  });

  test("a lease that was granted in a race stands on a bare majority: one failure more, and its holder is notified of the loss", async () => {
    const { workers, timeLine, servers, proxies, struck, other } = await startBehind({
      ttl: 2_000,
    });
    const cut = together(...proxies.slice(3).map((proxy) => proxy.cut()));
    await inject(timeLine, cut, { sparesStore: true });
    const held = await struck.acquire("name");
    // Two nodes vote for it, and number its vote above the lease: they take the lease no more.
    await expect(other.acquire("name", { wait: 500 })).rejects.toMatchObject({
      code: "ACQUIRE_TIMEOUT",
    });
    await heal(timeLine, cut);
    const healedMs = machineMs();
    await until("it is renewed", () => renewals(timeLine, held.op, healedMs) >= 3);
    const has = await Promise.all(servers.map((server) => hasRecord(server)));
    expect(has).toEqual([true, true, true, false, false]);
    await inject(timeLine, killed(servers[0]!));
    const lost = await happens(timeLine, "lost", ({ op }) => op === held.op);
    expect(lost.reason).toBe("expired");
    const granted = await other.acquire("name");
    await expectRefused(struck, held, other, granted);
    await closeAll(workers);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S6", "S7", "L3"]);
  });

  test("connections are cut one by one under load: all go on, one holder at a time, no update lost", async () => {
    const servers = await startNodes(lab);
    const ways = await Promise.all([1, 2, 3].map(() => startProxies(servers)));
    const { workers, timeLine } = await startQuorumWorkers(
      ways.map((proxies) => urlOf(proxies)),
      { ttl: 3_000 },
    );
    let isOver = false;
    const work = async (one: Worker): Promise<void> => {
      while (!isOver) await one.loop({ name: "name", forMs: 1_000, holdMs: 5, writes: true });
    };
    const traffic = workers.map(work);
    const grants = (): number => eventsOf(timeLine, "granted").length;
    for (let node = 0; node < servers.length; node++) {
      const cut = together(...ways.map((proxies) => proxies[node]!.cut()));
      await inject(timeLine, cut, { sparesStore: true });
      const before = grants();
      await until("they go on without the node", () => grants() > before + 10);
      await heal(timeLine, cut);
    }
    isOver = true;
    await Promise.all(traffic);
    expect(eventsOf(timeLine, "lost")).toEqual([]);
    await nothingIsLeft(servers);
    await closeAll(workers);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S7", "L3"]);
  });

  describe("a waiter in another process", () => {
    test("is woken by the release, also the first time that it waits", async () => {
      const servers = await startNodes(lab);
      const url = urlOf(servers);
      const { workers, timeLine } = await startQuorumWorkers([url, url], NOT_POLLED);
      const [holder, waiter] = workers as [Worker, Worker];
      for (let i = 1; i <= 5; i++) {
        const held = await holder.acquire("name");
        const op = `waits.${i}`;
        const waiting = waiter.acquire("name", {}, op);
        await happens(timeLine, "queued", (event) => event.op === op);
        const fromMs = machineMs();
        expect(await holder.release(held.op)).toBe("released");
        const granted = await waiting;
        expect(machineMs() - fromMs).toBeLessThan(SOON_MS);
        expect(await waiter.release(granted.op)).toBe("released");
      }
      await closeAll(workers);
      expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
    });

    test.each([
      ["four", [1, 2, 3, 4]],
      ["the first", [0]],
    ])(
      "is woken while its subscriptions to %s of five nodes are silent",
      async (_which, silent) => {
        const { workers, timeLine, proxies, struck, other } = await startBehind(NOT_POLLED);
        const held = await other.acquire("name");
        const waiting = queue(struck);
        await waiting.stands;
        // Silent, not cut: a client that notices the loss of its subscription looks by itself.
        const fault = together(
          ...silent.map((i) => proxies[i]!.swallow("to-client", { only: "subscription" })),
        );
        await inject(timeLine, fault, { sparesStore: true });
        await sleep(300);
        const fromMs = machineMs();
        expect(await other.release(held.op)).toBe("released");
        const granted = await waiting.granted;
        expect(machineMs() - fromMs).toBeLessThan(BEFORE_PING_MS);
        expect(await struck.release(granted.op)).toBe("released");
        await heal(timeLine, fault);
        await closeAll(workers);
        expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
      },
    );

    test("is woken after all its subscriptions were cut while nobody waited", async () => {
      const { workers, timeLine, proxies, struck, other } = await startBehind(NOT_POLLED);
      const waits = async (op: string): Promise<number> => {
        const held = await other.acquire("name");
        const waiting = struck.acquire("name", {}, op);
        await happens(timeLine, "queued", (event) => event.op === op);
        await sleep(300);
        const fromMs = machineMs();
        await other.release(held.op);
        await struck.release((await waiting).op);
        return machineMs() - fromMs;
      };
      expect(await waits("before")).toBeLessThan(SOON_MS);
      const cut = together(...proxies.map((proxy) => proxy.cut({ only: "subscription" })));
      await inject(timeLine, cut, { sparesStore: true });
      await sleep(2_500);
      await heal(timeLine, cut);
      expect(await waits("after")).toBeLessThan(SOON_MS);
      await closeAll(workers);
      expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
    });
  });

  test("three clients split the votes of five nodes: one of them soon gets the name, then the others", async () => {
    const servers = await startNodes(lab);
    const ways = await Promise.all([1, 2, 3].map(() => startProxies(servers)));
    const { workers, timeLine } = await startQuorumWorkers(
      ways.map((proxies) => urlOf(proxies)),
      { ttl: LONG_MS, wait: LONG_MS },
    );
    const store = await byQuorum(servers);
    onTestFinished(() => store.close());
    await Promise.all(workers.map((one) => one.loop({ name: one.client, rounds: 1, holdMs: 1 })));
    // The claims of each client come first to some nodes, and much later to the others.
    const firstOf = [[0, 1], [2, 3], [4]];
    const late: Fault = together(
      ...ways.flatMap((proxies, client) =>
        proxies
          .filter((_, node) => !firstOf[client]!.includes(node))
          .map((proxy) => proxy.delay(400, "to-server")),
      ),
    );
    await late.inject();
    const fromMs = machineMs();
    const acquiring = workers.map((one) => one.acquire("name"));
    for (const one of acquiring) one.catch(() => {});
    await until("the votes are split", async () => {
      const notes = (await store.inspect("default:name"))?.notes ?? [];
      return workers.every(({ client }) => notes.some((note) => note.includes(`${client} `)));
    });
    await late.heal();
    const release = async (i: number): Promise<void> => {
      const { op } = await acquiring[i]!;
      await workers[i]!.release(op);
    };
    await Promise.all([0, 1, 2].map(release));
    expect(machineMs() - fromMs).toBeLessThan(2 * SOON_MS);
    await nothingIsLeft(servers);
    await closeAll(workers);
    expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
  });

  test("a client's own earlier vote does not stand in its way", async () => {
    const { workers, timeLine, servers, proxies, struck } = await startBehind({ ttl: LONG_MS });
    // Two nodes record the ballot, do not get its release, and three are away.
    const away = together(...proxies.slice(2).map((proxy) => proxy.cut()));
    const kept = together(
      ...proxies.slice(0, 2).map((proxy) => proxy.resetMidCommand({ when: isRelease, times: 1e9 })),
    );
    await inject(timeLine, together(away, kept), { sparesStore: true });
    await expect(struck.acquire("name", { wait: 1_500 })).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
    });
    expect(await hasRecord(servers[0]!)).toBe(true);
    expect(await hasRecord(servers[1]!)).toBe(true);
    const fromMs = machineMs();
    const acquiring = struck.acquire("name");
    await sleep(300);
    // With one of the others away, the votes of both nodes are needed.
    await heal(timeLine, together(away, kept));
    await inject(timeLine, proxies[4]!.cut(), { sparesStore: true });
    await inject(timeLine, proxies[3]!.cut(), { sparesStore: true });
    const granted = await acquiring;
    expect(machineMs() - fromMs).toBeLessThan(2 * SOON_MS);
    expect(await struck.write(granted.op)).toBe(true);
    expect(await struck.release(granted.op)).toBe("released");
    await closeAll(workers);
    expectAllKept(timeLine, ["S7", "L3"]);
  });

  describe("the same server behind two addresses", () => {
    const REFUSED = {
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining("same Redis server"),
    };

    test.each(["never used", "in use"])("is refused by servers %s", async (state) => {
      const servers = await startNodes(lab);
      const [proxy] = (await startProxies(servers)) as [TcpProxy];
      if (state === "in use") await (await connect(urlOf(servers))).close();
      await expect(connect(urlOf([...servers.slice(0, 4), proxy]))).rejects.toMatchObject(REFUSED);
      await expect(connect(urlOf([proxy, ...servers.slice(0, 4)]))).rejects.toMatchObject(REFUSED);
    });

    test("gets no second vote if it is found late, and is refused then", async () => {
      const servers = await startNodes(lab);
      await (await connect(urlOf(servers))).close();
      const [proxy] = (await startProxies(servers)) as [TcpProxy];
      const cut = proxy.cut();
      await cut.inject();
      const locks = await connect(urlOf([...servers.slice(0, 4), proxy]), { ttl: LONG_MS });
      onTestFinished(() => locks.close());
      await (await locks.acquire("before")).release();
      await cut.heal();
      await until("it is refused", async () => {
        const outcome = await locks.acquire("name", { wait: 0 }).then(
          (lease) => lease.release(),
          (error) => error,
        );
        return outcome?.code === "INVALID_ARGUMENT";
      });
      await expect(locks.acquire("name")).rejects.toMatchObject(REFUSED);
    });
  });
});
