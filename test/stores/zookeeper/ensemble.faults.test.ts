import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { together } from "../../../src/verify/fault.js";
import { killed, paused, restarted } from "../../../src/verify/faults/server.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Disk } from "../../../src/verify/lab/disk.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import type { TimeLine } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import { expectUnavailable, leaderOf, others, queue } from "../../support/scene.js";
import { eventsOf, until } from "../../support/worker.js";
import { openClient } from "../../support/zookeeper.js";
import {
  addressOf,
  CONFIG,
  type Ensemble,
  SAFE_MS,
  Scene,
  serves,
} from "../../support/zookeeper-scene.js";

describeWith(["zookeeper"], "ZooKeeper under faults", () => {
  let lab: Lab;
  let three: Ensemble;
  beforeAll(async () => {
    lab = await Lab.open();
    three = await lab.zookeeper({ nodes: 3, config: CONFIG });
  });
  afterAll(() => lab?.close());

  describe("the leader is killed", () => {
    test("with a renewal, a claim and a release in flight: each is carried out once, and the waiter gets its turn", async () => {
      const leader = await leaderOf(three);
      const scene = await Scene.open(three, [leader, leader, leader], { ttl: SAFE_MS });
      const [renewing, claiming, releasing] = scene.workers as [Worker, Worker, Worker];
      const kept = await renewing.acquire("kept");
      const given = await releasing.acquire("name");
      const waiting = await queue(claiming);
      const [stuck, dead] = [paused(leader), killed(leader)];
      await scene.inject(stuck);
      const underWay = scene.ways.map((way) => way.sends());
      const acquiring = claiming.acquire("other");
      const released = releasing.release(given.op);
      await Promise.all(underWay);
      await scene.inject(dead);
      const [other, granted] = await Promise.all([
        acquiring,
        waiting.granted,
        scene.isRenewed(kept),
      ]);
      expect(["released", "unknown"]).toContain(await released);
      expect(granted.token).toBeGreaterThan(given.token);
      expect(await scene.look()).toEqual({ holders: [granted.token], waiters: 0 });
      expect((await scene.look("other")).holders).toEqual([other.token]);
      expect((await scene.look("kept")).holders).toEqual([kept.token]);
      await scene.heal(dead);
      await scene.heal(stuck);
      expect(await renewing.look(kept.op)).toBe(true);
      expect(await claiming.look(other.op)).toBe(true);
      expect(await claiming.look(granted.op)).toBe(true);
      scene.expectNoLoss();
      await scene.ends(["S1", "S2", "S7", "L3"]);
    }, 60_000);

    test("together with the holder: the name is free after its session and an election", async () => {
      const leader = await leaderOf(three);
      const scene = await Scene.open(three, [leader, leader]);
      const [holder, waiter] = scene.workers as [Worker, Worker];
      const held = await holder.acquire("name");
      const waiting = await queue(waiter);
      const dead = killed(leader);
      await Promise.all([scene.inject(dead), holder.kill()]);
      const granted = await waiting.granted;
      expect(granted.token).toBeGreaterThan(held.token);
      await scene.heal(dead);
      await scene.ends(["S1", "S2", "S7", "L1", "L3"]);
    }, 60_000);

    test("under load: one holder at a time, permits within their limit, no update lost", async () => {
      const scene = await Scene.open(three, [null, null, null], { ttl: SAFE_MS });
      const { workers, timeLine } = scene;
      const forMs = 5_000;
      const traffic = workers.flatMap((one) => [
        one.loop({ name: "name", forMs, holdMs: 10, writes: true }),
        one.loop({ name: "pool", forMs, holdMs: 10, options: { limit: 2 } }),
      ]);
      await goesOn(timeLine);
      await scene.under(killed(await leaderOf(three)), () => goesOn(timeLine));
      expect(Math.min(...(await Promise.all(traffic)))).toBeGreaterThan(1);
      await scene.ends(["S1", "S2", "S3", "S7", "S8", "L3"]);
    }, 60_000);
  });

  test("replies to a claim, a waiting claim and a release are lost: each is found again, and none is left behind", async () => {
    const scene = await Scene.open(three, [null, null], { ttl: SAFE_MS });
    const [one, two] = scene.workers as [Worker, Worker];
    // The container of a name is made with its first claim.
    const known = await one.acquire("known");
    expect(await one.release(known.op)).toBe("released");
    for (const name of ["unknown", "known"]) {
      const creating = scene.ways[0]!.loseReplies(name);
      await scene.inject(creating.fault);
      const held = await one.acquire(name);
      await scene.heal(creating.fault);
      expect(creating.struck, name).toBeGreaterThan(0);
      expect((await scene.look(name)).holders).toEqual([held.token]);
      const queueing = scene.ways[1]!.loseReplies(name);
      await scene.inject(queueing.fault);
      const waiting = await queue(two, name);
      await scene.heal(queueing.fault);
      expect(queueing.struck, name).toBeGreaterThan(0);
      expect(await scene.look(name)).toEqual({ holders: [held.token], waiters: 1 });
      const releasing = scene.ways[0]!.loseReplies(name);
      await scene.inject(releasing.fault);
      expect(["released", "unknown"]).toContain(await one.release(held.op));
      await scene.heal(releasing.fault);
      expect(releasing.struck, name).toBeGreaterThan(0);
      const granted = await waiting.granted;
      expect(granted.token).toBeGreaterThan(held.token);
      expect(await scene.look(name)).toEqual({ holders: [granted.token], waiters: 0 });
      expect(await two.release(granted.op)).toBe("released");
    }
    scene.expectNoLoss();
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 90_000);

  test("all servers restart one after another with clients on them: sessions move, and nothing is lost", async () => {
    const scene = await Scene.open(three, [null, null], { ttl: SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    for (const server of three.servers) {
      await scene.under(restarted(server));
      await serves(server);
      await scene.isRenewed(held);
      expect(await holder.look(held.op)).toBe(true);
      expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
    }
    scene.expectNoLoss();
    expect(await holder.release(held.op)).toBe("released");
    scene.expectSoon(held, await waiting.granted);
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 90_000);

  test("the majority is lost: holders are notified in time, new callers get an outage, and all goes on when it is back", async () => {
    const scene = await Scene.open(three, [null, null, null]);
    const [holder, waiter, other] = scene.workers as [Worker, Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const majority = three.servers.slice(0, 2).map((one) => killed(one));
    await scene.under(together(...majority), async () => {
      await Promise.all([
        expectUnavailable(other, "free", 0),
        expectUnavailable(other, "free", 1_000),
        expectUnavailable(other, "name", 1_000),
      ]);
      expect((await scene.isLost(held)).reason).toBe("expired");
    });
    const granted = await waiting.granted;
    await scene.expectRefused(held, granted);
    expect(await holder.release(held.op)).toBe("lost");
    const free = await other.acquire("free");
    expect(await other.release(free.op)).toBe("released");
    expect(await waiter.release(granted.op)).toBe("released");
    await scene.ends(["S1", "S2", "S3", "S4", "S5", "S6", "S7", "L3"]);
  }, 60_000);

  test("a client is paused past its session: the next gets what it held and waited for, and it knows when it goes on", async () => {
    const scene = await Scene.open(three, [null, null, null]);
    const [sleeper, next, other] = scene.workers as [Worker, Worker, Worker];
    const held = await sleeper.acquire("name");
    const second = await sleeper.acquire("second");
    const given = await other.acquire("other");
    const itsTurn = await queue(sleeper, "other");
    const after = await queue(next, "other");
    sleeper.pause();
    await other.release(given.op);
    const [granted, instead] = await Promise.all([next.acquire("name"), after.granted]);
    sleeper.resume();
    expect(await sleeper.look(held.op)).toBe(false);
    expect(await sleeper.look(second.op)).toBe(false);
    await scene.expectRefused(held, granted);
    expect(await sleeper.release(held.op)).toBe("lost");
    expect(await next.look(granted.op)).toBe(true);
    expect(await next.release(instead.op)).toBe("released");
    // Its ticket went with its session, so it has queued again.
    const late = await itsTurn.granted;
    expect(late.token).toBeGreaterThan(instead.token);
    expect(await next.release(granted.op)).toBe("released");
    const again = await sleeper.acquire("name");
    expect(again.token).toBeGreaterThan(granted.token);
    await scene.ends(["S1", "S2", "S3", "S4", "S6", "S7", "L3"]);
  }, 60_000);

  test("the wall clocks of a server and a client jump: no lease ends early or late", async () => {
    const ofServer = await FalseClock.open(lab, "the server's clock");
    const ofClient = await FalseClock.open(lab, "the client's clock");
    const sites = [ofServer.site(), LOOPBACK, LOOPBACK];
    const own = await lab.zookeeper({ nodes: 3, sites, config: CONFIG });
    const scene = await Scene.open(own, [null, null], {
      ttl: SAFE_MS,
      sites: [ofClient.site(), LOOPBACK],
    });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    for (const byMs of [3_600_000, -3_600_000]) {
      for (const clock of [ofServer, ofClient]) {
        await scene.under(clock.jump(byMs), () => scene.isRenewed(held));
        await scene.isRenewed(held);
        expect(await holder.look(held.op)).toBe(true);
        expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
      }
    }
    scene.expectNoLoss();
    expect(await holder.release(held.op)).toBe("released");
    expect((await waiting.granted).token).toBeGreaterThan(held.token);
    await scene.ends(["S1", "S2", "S7", "L3"]);
    for (const one of own.servers) await one.kill();
  }, 90_000);
});

describeWith(["zookeeper", "loop mounts"], "ZooKeeper with a disk that is full", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  test("one server stops, its clients go on at the others, and it comes back", async () => {
    const disk = await Disk.open(lab);
    // Otherwise a server takes 64 MB for its log in advance.
    const config = { ...CONFIG, preAllocSize: "64" };
    const sites = [disk.site(), LOOPBACK, LOOPBACK];
    const ensemble: Ensemble = await lab.zookeeper({ nodes: 3, sites, config });
    const full = ensemble.servers[0]!;
    const scene = await Scene.open(ensemble, [full, full], { ttl: SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const filler = await openClient({ servers: others(ensemble, full).map(addressOf) });
    await filler.create("/filler");
    await scene.under(disk.full(), async () => {
      // It then runs on, but serves nobody.
      await until(
        "it has stopped serving",
        async () => {
          await filler.setData("/filler", "x".repeat(20_000)).catch(() => {});
          return /not currently serving/.test(await full.ask("srvr"));
        },
        30_000,
      );
      await scene.isRenewed(held);
    });
    expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
    await full.restart();
    await serves(full);
    scene.expectNoLoss();
    expect(await holder.release(held.op)).toBe("released");
    scene.expectSoon(held, await waiting.granted);
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 120_000);
});

/** Acquires and releases a name again and again. */
async function goesOn(timeLine: TimeLine): Promise<void> {
  const grants = () => eventsOf(timeLine, "granted").length;
  const before = grants();
  await until("they go on", () => grants() > before + 6);
}
