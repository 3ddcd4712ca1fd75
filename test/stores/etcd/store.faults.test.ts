import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { fault } from "../../../src/verify/fault.js";
import { restarted } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeServerFaults } from "../../support/cluster-faults.js";
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
import { leaderOf, others, queue, SOON_MS } from "../../support/scene.js";
import { until } from "../../support/worker.js";

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

  describeServerFaults(() => ({
    cluster: three,
    safeMs: SAFE_MS,
    // A release that was sent twice is known to have freed the name.
    repeatedRelease: ["lost"],
    open: (members, options) => Scene.open(three, members, options),
    keepLeading: (member) => makeLeader(three, member),
  }));

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
