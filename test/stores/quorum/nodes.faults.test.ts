import { readdirSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type Locks } from "../../../src/index.js";
import { limitsOf } from "../../../src/stores/quorum/grants.js";
import { INSPECTION_LIMITS } from "../../../src/stores/quorum/inspection.js";
import { MARKER, recordOf } from "../../../src/stores/quorum/keys.js";
import { together } from "../../../src/verify/fault.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { killed, paused, restarted, wiped } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisOptions, RedisServer } from "../../../src/verify/lab/redis.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import {
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
import { quiet } from "../../support/redis.js";
import { eventsOf, happens, until } from "../../support/worker.js";

/** So long that no lease expires in a test, and the time limits of a node are as long as they can be. */
const LONG_MS = 30_000;
/** A node that has not answered in this time is silent. */
const { silentMs: SILENT_MS } = limitsOf(LONG_MS);

describeWith(["redis"], "nodes of a quorum fail", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("two of five are killed: leases are kept and granted as before", async () => {
    const servers = await startNodes(lab);
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url]);
    const [holder, waiter] = workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = queue(waiter);
    await waiting.stands;
    await inject(timeLine, together(...servers.slice(0, 2).map(killed)));
    const killedMs = machineMs();
    await until("it is renewed", () => renewals(timeLine, held.op, killedMs) >= 3);
    expect(await holder.look(held.op)).toBe(true);
    expect(await holder.write(held.op)).toBe(true);
    expect(await holder.release(held.op)).toBe("released");
    const granted = await waiting.granted;
    expect(granted.token).toBeGreaterThan(held.token);
    expect(await waiter.write(granted.op)).toBe(true);
    const others = await waiter.loop({ name: "other", rounds: 20, holdMs: 1, writes: true });
    expect(others).toBe(20);
    await closeAll(workers);
    expect(await withRecords(servers.slice(2))).toEqual([]);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S7", "L3"]);
  });

  test("three of five are killed: acquires fail in time, the holder notices its loss, and all goes on when they are back", async () => {
    const servers = await startNodes(lab, { persistence: "always" });
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url, url]);
    const [holder, waiter, other] = workers as [Worker, Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = queue(waiter);
    await waiting.stands;
    const down = together(...servers.slice(0, 3).map(killed));
    await inject(timeLine, down);
    const askedMs = machineMs();
    await expect(other.acquire("other", { wait: 800 })).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
    });
    expect(machineMs() - askedMs).toBeLessThan(5_000);
    await expect(other.acquire("other", { wait: 0 })).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
    });
    const lost = await happens(timeLine, "lost", ({ op }) => op === held.op);
    expect(lost.reason).toBe("expired");
    await heal(timeLine, down);
    const granted = await waiting.granted;
    await expectRefused(holder, held, waiter, granted);
    expect(await holder.release(held.op)).toBe("lost");
    expect(await waiter.release(granted.op)).toBe("released");
    expect(await other.loop({ name: "other", rounds: 5, holdMs: 1 })).toBe(5);
    await nothingIsLeft(servers);
    await closeAll(workers);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S4", "S6", "S7", "L3"]);
  });

  test("closing while three of five are down ends in time and leaves nothing open", async () => {
    const servers = await startNodes(lab);
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: LONG_MS });
    const [holder, waiter] = workers as [Worker, Worker];
    await holder.acquire("name");
    const waiting = queue(waiter);
    await waiting.stands;
    await inject(timeLine, together(...servers.slice(0, 3).map(killed)));
    await closeAll(workers);
    expect(eventsOf(timeLine, "left").map(({ timers, sockets }) => [timers, sockets])).toEqual([
      [0, 0],
      [0, 0],
    ]);
  });

  test("one of five is paused: no request waits for it", async () => {
    const servers = await startNodes(lab);
    const locks = await connect(urlOf(servers), { ttl: LONG_MS });
    onTestFinished(() => locks.close());
    const shortestMs = async (act: () => Promise<unknown>): Promise<number> => {
      const times: number[] = [];
      for (let i = 0; i < 5; i++) {
        const fromMs = performance.now();
        await act();
        times.push(performance.now() - fromMs);
      }
      return Math.min(...times);
    };
    await (await locks.acquire("name")).release();
    await servers[2]!.pause();
    onTestFinished(() => servers[2]!.resume());
    // The very first acquire after the pause, too.
    const fromMs = performance.now();
    const first = await locks.acquire("first");
    expect(performance.now() - fromMs).toBeLessThan(SILENT_MS);
    for (const act of [
      () => first.renew(LONG_MS),
      () => locks.tryAcquire("first"),
      () => locks.withLock("other", async () => {}),
    ]) {
      expect(await shortestMs(act), `${act}`).toBeLessThan(SILENT_MS);
    }
    // These wait for it once, to find out that it is silent.
    for (const act of [
      () => locks.inspect("first"),
      () => locks.list(),
      () => locks.forceRelease("absent", { why: "test" }),
    ]) {
      expect(await shortestMs(act), `${act}`).toBeLessThan(INSPECTION_LIMITS.silentMs);
    }
    expect(await first.release()).toBe("released");
  });

  test("one of three is paused, and two clients split the votes of the others: one gets the name", async () => {
    const servers = await startNodes(lab, [{}, {}, {}]);
    const [first, second, third] = servers as [RedisServer, RedisServer, RedisServer];
    // Each client reaches one of the two servers at once, and the other one when the stall is over.
    const stalled = await startProxies([first, second]);
    const [toFirst, toSecond] = stalled as [TcpProxy, TcpProxy];
    const urls = [urlOf([first, toSecond, third]), urlOf([toFirst, second, third])];
    const clients = await Promise.all(urls.map((url) => connect(url, { ttl: LONG_MS })));
    onTestFinished(async () => void (await Promise.all(clients.map((locks) => locks.close()))));
    for (const locks of clients) await (await locks.acquire("name")).release();
    const readers = [first, second].map(({ url }) => quiet(new Redis(url)));
    onTestFinished(() => {
      for (const redis of readers) redis.disconnect();
    });
    await third.pause();
    onTestFinished(() => third.resume());
    async function race<T>(name: string, run: (locks: Locks) => Promise<T>): Promise<T[]> {
      const stall = together(...stalled.map((proxy) => proxy.stall("to-server")));
      await stall.inject();
      const running = Promise.all(clients.map(run));
      running.catch(() => {});
      await until("each has a vote", async () => {
        const votes = readers.map((redis) => redis.exists(recordOf(`default:${name}`)));
        return (await Promise.all(votes)).every((count) => count === 1);
      });
      await stall.heal();
      return running;
    }
    const leases = await race("name", (locks) => locks.tryAcquire("name"));
    expect(leases.filter((lease) => lease !== null)).toHaveLength(1);
    const runs = await race("job", (locks) => locks.once("job", { every: "1h" }, async () => {}));
    expect(runs.filter(({ ran }) => ran)).toHaveLength(1);
  });

  /** Data are lost in all of these ways, and the node does not vote until maxTtl is over. */
  describe("one of five loses data", () => {
    const MAX_TTL_MS = 10_000;
    // On a busy machine, a shorter lease is lost between two renewals.
    const TTL_MS = 3_000;

    async function loses(server: RedisServer, how: string): Promise<void> {
      if (how === "FLUSHALL") await server.cli("flushall");
      else if (how === "restarted empty") await server.wipe();
      else {
        await server.kill();
        if (how === "truncated append-only file") {
          const folder = join(server.dataFolder, "appendonlydir");
          const file = readdirSync(folder).find((name) => name.endsWith(".incr.aof"))!;
          truncateSync(join(folder, file), statSync(join(folder, file)).size - 20);
        }
        await server.start();
      }
    }

    test.each<[string, RedisOptions]>([
      ["restarted empty", { persistence: "always" }],
      ["FLUSHALL", { persistence: "always" }],
      ["restarted with an old snapshot", {}],
      ["restarted with appendfsync everysec", { persistence: "everysec" }],
      ["truncated append-only file", { persistence: "everysec" }],
    ])("%s: it keeps leases, and is out of the vote for maxTtl", async (how, options) => {
      const servers = await startNodes(lab, [options, {}, {}, {}, {}]);
      const [struck, ...rest] = servers as [RedisServer, ...RedisServer[]];
      const url = urlOf(servers, `${MAX_TTL_MS}ms`);
      const { workers, timeLine } = await startQuorumWorkers([url, url], {
        ttl: TTL_MS,
        commandTimeout: 3_000,
      });
      const [holder, other] = workers as [Worker, Worker];
      await other.loop({ name: "other", rounds: 1, holdMs: 1 });
      if (how === "restarted with an old snapshot") await struck.cli("save");
      const held = await holder.acquire("name");
      await until("all nodes have it", async () => hasRecord(struck));
      timeLine.now({ kind: "injected", fault: how });
      const lostMs = machineMs();
      await loses(struck, how);
      timeLine.now({ kind: "healed", fault: how });
      // With two others paused, the vote of this node is needed.
      const away = together(...rest.slice(0, 2).map(paused));
      await until("it has the lease again", async () => hasRecord(struck));
      await inject(timeLine, away);
      // Its connection to the node may have to be opened again first.
      await until("it is refused", async () => {
        const error = await rejection(other.acquire("other", { wait: 0 }));
        expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
        return error.message.includes("has lost data");
      });
      expect(machineMs() - lostMs).toBeLessThan(MAX_TTL_MS);
      const awayMs = machineMs();
      await until("it is renewed", () => renewals(timeLine, held.op, awayMs) >= 2);
      expect(await holder.look(held.op)).toBe(true);
      // The vote of the node counts again.
      const granted = await other.acquire("other");
      expect(machineMs() - lostMs).toBeGreaterThan(MAX_TTL_MS - 100);
      expect(await hasRecord(struck, "other")).toBe(true);
      await heal(timeLine, away);
      expect(await other.release(granted.op)).toBe("released");
      expect(await holder.look(held.op)).toBe(true);
      expect(await holder.release(held.op)).toBe("released");
      await nothingIsLeft(servers);
      await closeAll(workers);
      expectAllKept(timeLine, ["S1", "S2", "S7", "L3"]);
    });

    test("not with appendfsync always: a restarted node votes at once", async () => {
      const servers = await startNodes(lab, [{ persistence: "always" }, {}, {}, {}, {}]);
      const [struck, ...rest] = servers as [RedisServer, ...RedisServer[]];
      const url = urlOf(servers, "1h");
      const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: LONG_MS });
      const [holder, other] = workers as [Worker, Worker];
      const held = await holder.acquire("name");
      await inject(timeLine, restarted(struck));
      expect(await hasRecord(struck)).toBe(true);
      await heal(timeLine, restarted(struck));
      const away = together(...rest.slice(0, 2).map(paused));
      await inject(timeLine, away);
      const granted = await other.acquire("other");
      expect(granted.token).toBeGreaterThan(held.token);
      expect((await struck.cli("get", MARKER)).split(" ").at(-1)).toBe("0");
      await heal(timeLine, away);
      expect(await holder.look(held.op)).toBe(true);
      await closeAll(workers);
      expectAllKept(timeLine, ["S7", "L3"]);
    });

    test("a replica that was promoted behind its address: with appendfsync always, too, it does not vote", async () => {
      const servers = await startNodes(lab, Array(3).fill({ persistence: "always" }));
      const [primary, other, third] = servers as [RedisServer, RedisServer, RedisServer];
      const replica = await lab.redis({ persistence: "always", replicaOf: primary });
      onTestFinished(() => replica.kill());
      const target = { address: primary.address, port: primary.port };
      await using proxy = await TcpProxy.open(target);
      const locks = await connect(urlOf([proxy, other, third], "1h"), { ttl: LONG_MS });
      onTestFinished(() => locks.close());
      const lease = await locks.acquire("name");
      await replica.synced();
      expect(await hasRecord(replica)).toBe(true);
      await replica.promote();
      target.port = replica.port;
      await primary.kill();
      // With another one paused, the vote of this node is needed.
      await third.pause();
      onTestFinished(() => third.resume());
      // Its connection to the node may have to be opened again first.
      await until("it is refused", async () => {
        const error = await rejection(locks.acquire("other", { wait: 0 }));
        expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
        return error.message.includes("has lost data");
      });
      expect(await replica.cli("get", MARKER)).toMatch(/ always lost\d+$/);
      // It takes renewals.
      await lease.renew();
      expect(await lease.release()).toBe("released");
    });

    test.each([
      ["none", true],
      ["always", false],
    ] as const)(
      "one of three was down at a run of once, another one restarts after it, persistence %s: it runs again within the period: %s",
      async (persistence, runsAgain) => {
        const servers = await startNodes(lab, Array(3).fill({ persistence }));
        const [, second, third] = servers as [RedisServer, RedisServer, RedisServer];
        const locks = await connect(urlOf(servers, `${TTL_MS}ms`), { ttl: TTL_MS });
        onTestFinished(() => locks.close());
        const run = () => locks.once("job", { every: "1h" }, async () => {});
        await third.kill();
        expect(await run()).toMatchObject({ ran: true });
        await third.start();
        await second.kill();
        await second.start();
        await until(
          "all vote",
          async () => {
            await locks.withLock("other", async () => {}).catch(() => {});
            const markers = await Promise.all(servers.map((server) => server.cli("get", MARKER)));
            return markers.every((marker) => marker.endsWith(" 0"));
          },
          30_000,
        );
        expect(await run()).toMatchObject({ ran: runsAgain });
      },
    );

    test("and two never had the lease: nobody else gets the name", async () => {
      const servers = await startNodes(lab, { persistence: "always" });
      const url = urlOf(servers, "30s");
      const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: LONG_MS });
      const [holder, other] = workers as [Worker, Worker];
      await other.loop({ name: "other", rounds: 1, holdMs: 1 });
      const down = together(...servers.slice(3).map(killed));
      await inject(timeLine, down);
      // A renewal would give the lease to the other two nodes.
      const held = await holder.acquire("name", { renew: false });
      await heal(timeLine, down);
      await inject(timeLine, wiped(servers[2]!));
      expect(await hasRecord(servers[2]!)).toBe(false);
      const refused = await other.acquire("name", { wait: 2_000 }).catch(({ code }) => code);
      expect(refused).toBe("ACQUIRE_TIMEOUT");
      expect(await holder.look(held.op)).toBe(true);
      expect(await holder.write(held.op)).toBe(true);
      await heal(timeLine, wiped(servers[2]!));
      await closeAll(workers);
      expectAllKept(timeLine, ["S7", "L3"]);
    });
  });
});
