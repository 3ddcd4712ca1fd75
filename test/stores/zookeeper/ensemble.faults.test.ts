import { afterAll, beforeAll, expect, test } from "vitest";
import { fault } from "../../../src/verify/fault.js";
import { killed, restarted } from "../../../src/verify/faults/server.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Disk } from "../../../src/verify/lab/disk.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeServerFaults } from "../../support/cluster-faults.js";
import { describeWith } from "../../support/needs.js";
import { leaderOf, others, queue } from "../../support/scene.js";
import { until } from "../../support/worker.js";
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

  describeServerFaults(() => ({
    cluster: three,
    safeMs: SAFE_MS,
    repeatedRelease: [],
    open: (members, options) => Scene.open(three, members, options),
  }));

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

  test("the leader is killed after it has created a claim, and its reply is lost: the claim is found again", async () => {
    const leader = await leaderOf(three);
    const scene = await Scene.open(three, [leader, null], { ttl: 2 * SAFE_MS });
    const [one, two] = scene.workers as [Worker, Worker];
    const creating = scene.ways[0]!.loseReplies("name");
    await scene.inject(creating.fault);
    const acquiring = one.acquire("name");
    await until("its reply is lost", () => creating.struck > 0);
    const dead = killed(leader);
    await scene.inject(dead);
    const held = await acquiring;
    await scene.heal(creating.fault);
    expect(await scene.look()).toEqual({ holders: [held.token], waiters: 0 });
    const waiting = await queue(two);
    await scene.heal(dead);
    scene.expectNoLoss();
    expect(await one.release(held.op)).toBe("released");
    expect((await waiting.granted).token).toBeGreaterThan(held.token);
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 60_000);

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

  test("all servers are killed at once and come back with their data: leases go on, and tokens rise", async () => {
    // Longer than it takes to start three servers and to elect a leader on a busy machine.
    const scene = await Scene.open(three, [null, null], { ttl: 4 * SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const allAtOnce = fault(
      "all servers are killed",
      () => Promise.all(three.servers.map((one) => one.kill())),
      () => Promise.all(three.servers.map((one) => one.start())),
    );
    await scene.under(allAtOnce);
    for (const one of three.servers) await serves(one);
    await scene.isRenewed(held);
    expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
    scene.expectNoLoss();
    expect(await holder.release(held.op)).toBe("released");
    expect((await waiting.granted).token).toBeGreaterThan(held.token);
    await scene.ends(["S1", "S2", "S7", "L3"]);
  }, 120_000);

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
