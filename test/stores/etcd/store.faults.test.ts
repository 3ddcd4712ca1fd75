import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { fault, together } from "../../../src/verify/fault.js";
import { killed, paused, restarted } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { machineMs, type TimeLine } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import {
  callsOf,
  creationsBelow,
  type EtcdCluster,
  keysOf,
  makeLeader,
  revisionOf,
  SAFE_MS,
  Scene,
  TTL_MS,
} from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { expectUnavailable, leaderOf, others, queue, SOON_MS } from "../../support/scene.js";
import { eventsOf, until } from "../../support/worker.js";

/** So long that no lease expires in a test: whatever happens sooner was notified. */
const LONG_MS = 30_000;
/** Longer than the client waits for a reply before it asks another member. */
const LATE_MS = 1_500;

describeWith(["etcd"], "etcd under faults", () => {
  let lab: Lab;
  let three: EtcdCluster;
  beforeAll(async () => {
    lab = await Lab.open();
    three = await lab.etcd({ nodes: 3 });
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
      await makeLeader(three, leader);
      const [stuck, dead] = [paused(leader), killed(leader)];
      await scene.inject(stuck);
      await scene.ways[0]!.sends();
      const underWay = [scene.ways[1]!.sends(), scene.ways[2]!.sends()];
      const acquiring = claiming.acquire("other");
      const released = releasing.release(given.op);
      await Promise.all(underWay);
      await scene.inject(dead);
      const [other, granted] = await Promise.all([
        acquiring,
        waiting.granted,
        scene.isRenewed(kept),
      ]);
      // A release that was sent twice is known to have freed the name.
      expect(["released", "unknown", "lost"]).toContain(await released);
      scene.expectSoon(given, granted);
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
    });

    test("together with the holder: the name is free after its ttl and an election", async () => {
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
    });

    test("under load: one holder at a time, permits within their limit, no update lost", async () => {
      const scene = await Scene.open(three, [null, null, null], { ttl: SAFE_MS });
      const { workers, timeLine } = scene;
      const forMs = 3_000;
      const traffic = workers.flatMap((one) => [
        one.loop({ name: "name", forMs, holdMs: 10, writes: true }),
        one.loop({ name: "pool", forMs, holdMs: 10, options: { limit: 2 } }),
      ]);
      await goesOn(timeLine);
      await scene.under(killed(await leaderOf(three)), () => goesOn(timeLine));
      expect(Math.min(...(await Promise.all(traffic)))).toBeGreaterThan(1);
      await scene.ends(["S1", "S2", "S3", "S7", "S8", "L3"]);
    });
  });

  test("the leader changes, and a follower restarts with clients on it: the lease survives, and no loss is reported", async () => {
    const leader = await leaderOf(three);
    const next = others(three, leader)[0]!;
    const scene = await Scene.open(three, [leader, leader], { ttl: SAFE_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    await makeLeader(three, leader);
    await scene.under(fault(`${next.name} takes the lead`, () => makeLeader(three, next)));
    await scene.isRenewed(held);
    expect(await holder.look(held.op)).toBe(true);
    expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
    await scene.under(restarted(leader));
    await scene.isRenewed(held);
    expect(await holder.look(held.op)).toBe(true);
    expect(await scene.look()).toEqual({ holders: [held.token], waiters: 1 });
    scene.expectNoLoss();
    expect(await holder.release(held.op)).toBe("released");
    scene.expectSoon(held, await waiting.granted);
    await scene.ends(["S1", "S2", "S7", "L3"]);
  });

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
    await scene.ends(["S1", "S2", "S3", "S4", "S5", "S6", "S7", "L2", "L3"]);
  });

  test("a client is paused past its ttl: the next gets what it held and waited for, and it knows when it goes on", async () => {
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
    expect((await scene.look()).holders).toEqual([granted.token]);
    scene.expectSoon(given, instead, TTL_MS + SOON_MS);
    await until("it waits again", async () => (await scene.look("other")).waiters === 1);
    expect(await next.release(instead.op)).toBe("released");
    expect((await itsTurn.granted).token).toBeGreaterThan(instead.token);
    expect((await sleeper.acquire("second")).token).toBeGreaterThan(second.token);
    await scene.ends(["S1", "S2", "S3", "S4", "S6", "S7", "L3"]);
  });

  test("claims that arrive after they were made elsewhere and released leave nothing behind", async () => {
    const leader = await leaderOf(three);
    const scene = await Scene.open(three, [leader]);
    const [late] = scene.workers as [Worker];
    const names = Array.from({ length: 10 }, (_, i) => `name-${i}`);
    const creations = await creationsBelow(leader, "holdfast/n/");
    // Longer than an attempt, which then goes to another member; the cancellation of the first arrives
    // as much later as its claim, so that the server executes the claim.
    const slow = scene.ways[0]!.delay(leader, LATE_MS);
    await scene.inject(slow, { sparesStore: true });
    const granted = await Promise.all(names.map((name) => late.acquire(name)));
    // The first attempt has cost a part of the ttl: a release that a slow disk holds up for the rest is "unknown".
    for (const { op } of granted) expect(["released", "unknown"]).toContain(await late.release(op));
    await until("a claim arrives again", () => Math.max(...creations.values()) > 1);
    const claims = () => keysOf(leader, "holdfast/n/");
    await until("none is left", async () => (await claims()).length === 0, TTL_MS + SOON_MS);
    await scene.heal(slow);
    expect(await late.acquire("name-0")).toMatchObject({ token: expect.any(BigInt) });
    await scene.ends(["S1", "S2", "S7", "L3"]);
  });

  test("events that a waiter missed are compacted: it still gets its turn, and soon", async () => {
    const scene = await Scene.open(three, [null, null], { ttl: LONG_MS });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const cut = scene.ways[1]!.cut();
    await scene.inject(cut, { sparesStore: true });
    expect(await holder.release(held.op)).toBe("released");
    const [server] = three.servers;
    await server!.ctl("put", "noise", "");
    await server!.ctl("compact", await revisionOf(server!));
    await scene.heal(cut);
    const healedMs = machineMs();
    const granted = await waiting.granted;
    expect(machineMs() - healedMs).toBeLessThan(SOON_MS);
    expect(granted.token).toBeGreaterThan(held.token);
    await scene.ends(["S1", "S2", "S7", "L2", "L3"]);
  });

  test("the tokens of a user run out while one client holds and one waits: neither notices", async () => {
    const flags = { "auth-token-ttl": "1", "bcrypt-cost": "4" };
    const guarded = await lab.etcd({ nodes: 3, flags });
    const [server] = guarded.servers;
    for (const command of [
      "user add root:secret",
      "user grant-role root root",
      "user add app:secret",
      "role add app",
      "role grant-permission app readwrite --prefix=true holdfast/",
      "user grant-role app app",
      "auth enable",
    ]) {
      await server!.ctl(...command.split(" "));
    }
    const logins = async (): Promise<number> => {
      const counts = guarded.servers.map((one) => callsOf(one, "Authenticate"));
      return (await Promise.all(counts)).reduce((a, b) => a + b, 0);
    };
    // A token that is used lives on; expired ones are removed once a second. So renewals are farther apart.
    const scene = await Scene.open(guarded, [null, null], { ttl: 7_500, user: "app:secret" });
    onTestFinished(() => Promise.all(guarded.servers.map((one) => one.kill())).then(() => {}));
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const before = await logins();
    await scene.isRenewed(held);
    expect(await logins()).toBeGreaterThan(before);
    // The watch is opened again, with a token that has expired.
    await scene.under(scene.ways[1]!.cut());
    expect(await holder.look(held.op)).toBe(true);
    expect(await holder.release(held.op)).toBe("released");
    scene.expectSoon(held, await waiting.granted);
    scene.expectNoLoss();
    await server!.ctl("--user", "root:secret", "auth", "disable");
    await scene.ends(["S1", "S2", "S7", "L3"]);
  });
});

/** Acquires and releases a name again and again. */
async function goesOn(timeLine: TimeLine): Promise<void> {
  const grants = () => eventsOf(timeLine, "granted").length;
  const before = grants();
  await until("they go on", () => grants() > before + 6);
}
