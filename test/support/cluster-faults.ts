import { describe, expect, test } from "vitest";
import { together } from "../../src/verify/fault.js";
import { killed, paused } from "../../src/verify/faults/server.js";
import type { Member, ServerCluster } from "../../src/verify/lab/cluster.js";
import type { Host, Network } from "../../src/verify/lab/network.js";
import { LOOPBACK } from "../../src/verify/lab/server.js";
import type { TimeLine } from "../../src/verify/traffic/time-line.js";
import type { Worker } from "../../src/verify/traffic/worker.js";
import {
  type ClusterScene,
  expectUnavailable,
  leaderOf,
  others,
  queue,
  type SceneOptions,
} from "./scene.js";
import { eventsOf, until } from "./worker.js";

/** A cluster of three that rests on consensus, and how to work on it. */
export interface ClusterSubject<S extends Member> {
  readonly cluster: ServerCluster<S>;
  /** A ttl in which an election, and an attempt that meets silence, have room. */
  readonly safeMs: number;
  /** The outcomes of a release that had to be sent twice. */
  readonly repeatedRelease: readonly string[];
  /** Starts a worker on each of these members; null leaves the member to chance. */
  open(members: readonly (S | null)[], options?: SceneOptions): Promise<ClusterScene<S>>;
  /** Lets this member lead, if it leads no longer and the store can choose. */
  keepLeading?(member: S): Promise<void>;
}

type Three = [Worker, Worker, Worker];

/** The tests of members that die, and of clients that stop. `subject` is called in each test. */
export function describeServerFaults<S extends Member>(subject: () => ClusterSubject<S>): void {
  describe("the leader is killed", () => {
    test("with a renewal, a claim and a release in flight: each is carried out once, and the waiter gets its turn", async () => {
      const { cluster, open, safeMs, keepLeading, repeatedRelease } = subject();
      const leader = await leaderOf(cluster);
      const scene = await open([leader, leader, leader], { ttl: safeMs });
      const [renewing, claiming, releasing] = scene.workers as Three;
      const kept = await renewing.acquire("kept");
      const given = await releasing.acquire("name");
      const waiting = await queue(claiming);
      await keepLeading?.(leader);
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
      expect(["released", "unknown", ...repeatedRelease]).toContain(await released);
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
    });

    test("together with the holder: the name is free after its ttl and an election", async () => {
      const { cluster, open } = subject();
      const leader = await leaderOf(cluster);
      const scene = await open([leader, leader]);
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
      const { cluster, open, safeMs } = subject();
      const scene = await open([null, null, null], { ttl: safeMs });
      const { workers, timeLine } = scene;
      const traffic = workers.flatMap((one) => [
        one.loop({ name: "name", forMs: safeMs, holdMs: 10, writes: true }),
        one.loop({ name: "pool", forMs: safeMs, holdMs: 10, options: { limit: 2 } }),
      ]);
      await goesOn(timeLine);
      await scene.under(killed(await leaderOf(cluster)), () => goesOn(timeLine));
      expect(Math.min(...(await Promise.all(traffic)))).toBeGreaterThan(1);
      await scene.ends(["S1", "S2", "S3", "S7", "S8", "L3"]);
    });
  });

  test("the majority is lost: holders are notified in time, new callers get an outage, and all goes on when it is back", async () => {
    const { cluster, open } = subject();
    const scene = await open([null, null, null]);
    const [holder, waiter, other] = scene.workers as Three;
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const majority = cluster.servers.slice(0, 2).map((one) => killed(one));
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
  });

  test("a client is paused past its ttl: the next gets what it held and waited for, and it knows when it goes on", async () => {
    const scene = await subject().open([null, null, null]);
    const [sleeper, next, other] = scene.workers as Three;
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
    // Its ticket has expired with its lease.
    await until("it waits again", async () => (await scene.look("other")).waiters === 1);
    expect(await next.release(instead.op)).toBe("released");
    expect((await itsTurn.granted).token).toBeGreaterThan(instead.token);
    expect((await sleeper.acquire("second")).token).toBeGreaterThan(second.token);
    await scene.ends(["S1", "S2", "S3", "S4", "S6", "S7", "L3"]);
  });
}

export const hostOf = (network: Network, { address }: Member): Host =>
  network.hosts.find((one) => one.address === address)!;

export const hostsBut = (network: Network, host: Host): Host[] =>
  network.hosts.filter((one) => one !== host);

/** The tests of a network that breaks. Each member has a host of its own. */
export function describePartitions<S extends Member>(
  subject: () => ClusterSubject<S> & { readonly network: Network },
): void {
  test("the leader is cut off from the other members but not from its clients: they use another, and the lease stays", async () => {
    const { cluster, network, open, safeMs, keepLeading } = subject();
    const leader = await leaderOf(cluster);
    const scene = await open([leader, leader], { ttl: safeMs });
    const [holder, waiter] = scene.workers as [Worker, Worker];
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    await keepLeading?.(leader);
    const host = hostOf(network, leader);
    await scene.under(network.partition([host], hostsBut(network, host)), async () => {
      await scene.isRenewed(held);
      expect(await holder.look(held.op)).toBe(true);
      expect(await holder.release(held.op)).toBe("released");
      expect((await waiting.granted).token).toBeGreaterThan(held.token);
    });
    scene.expectNoLoss();
    await scene.ends(["S1", "S2", "S7", "L3"]);
  });

  test.each([
    ["the leader", true],
    ["a follower", false],
  ])(
    "%s is cut off with its clients: they are notified in time, others get the name, and all is well after healing",
    async (_whom, leads) => {
      const { cluster, network, open, keepLeading } = subject();
      const leader = await leaderOf(cluster);
      const alone = leads ? leader : others(cluster, leader)[0]!;
      const host = hostOf(network, alone);
      const scene = await open([alone, alone, null], { sites: [host, host, LOOPBACK] });
      const [holder, waiter, other] = scene.workers as Three;
      const held = await holder.acquire("name");
      const waiting = await queue(waiter);
      if (leads) await keepLeading?.(alone);
      const cut = network.partition([host], [...hostsBut(network, host), network.outside]);
      await scene.inject(cut);
      const [granted, lost] = await Promise.all([
        other.acquire("name"),
        scene.isLost(held),
        expectUnavailable(waiter, "free", 500),
      ]);
      expect(lost.reason).toBe("expired");
      await scene.expectRefused(held, granted);
      await scene.heal(cut);
      expect(await other.look(granted.op)).toBe(true);
      expect(await other.release(granted.op)).toBe("released");
      expect((await waiting.granted).token).toBeGreaterThan(granted.token);
      const free = await holder.acquire("free");
      expect(await holder.release(free.op)).toBe("released");
      await scene.ends(["S1", "S2", "S3", "S5", "S6", "S7", "L2", "L3"]);
    },
  );

  test("no member reaches another: nobody holds longer than allowed, and all goes on when they do", async () => {
    const { cluster, network, open } = subject();
    const leader = await leaderOf(cluster);
    const sites = [LOOPBACK, LOOPBACK, LOOPBACK];
    const scene = await open([leader, ...others(cluster, leader)], { sites });
    const [holder, waiter, other] = scene.workers as Three;
    const held = await holder.acquire("name");
    const waiting = await queue(waiter);
    const [a, b, c] = network.hosts as [Host, Host, Host];
    const apart = together(network.partition([a], [b, c]), network.partition([b], [c]));
    await scene.under(apart, async () => {
      await Promise.all([expectUnavailable(other, "free", 1_000), scene.isLost(held)]);
    });
    const granted = await waiting.granted;
    await scene.expectRefused(held, granted);
    expect(await waiter.release(granted.op)).toBe("released");
    await scene.ends(["S1", "S2", "S3", "S5", "S6", "S7", "L2", "L3"]);
  });
}

/** Acquires and releases a name again and again. */
async function goesOn(timeLine: TimeLine): Promise<void> {
  const grants = () => eventsOf(timeLine, "granted").length;
  const before = grants();
  await until("they go on", () => grants() > before + 6);
}
