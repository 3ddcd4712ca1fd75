import { setTimeout as sleep } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { OneZooKeeper, TTL_MS } from "../../support/zookeeper-store.js";

describeWith(["zookeeper"], "the ZooKeeper store over many seconds", () => {
  const zookeeper = OneZooKeeper.forAll();

  test("a lease is lost on time when its server is silent, and the next acquire has another session", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const [cutOff, other] = [zookeeper.open(root, through).locks, zookeeper.open(root).locks];
    const lease = await cutOff.acquire("name");
    const lost = new Promise<number>((resolve) => {
      lease.signal.addEventListener("abort", () => resolve(performance.now()));
    });
    const waiting = other.acquire("name").then((next) => [next, performance.now()] as const);
    await sleep(TTL_MS);
    const silence = through.swallow("to-server");
    await silence.inject();
    const [next, grantedAtMs] = await waiting;
    expect(await lost).toBeLessThan(grantedAtMs);
    expect(await next.release()).toBe("released");
    await silence.heal();
    const again = await cutOff.acquire("name");
    expect(again.token).toBeGreaterThan(next.token);
    await again.release();
  });

  test("one write renews all leases: a thousand cost no more than one", async () => {
    const { locks } = zookeeper.open(zookeeper.root());
    const names = Array.from({ length: 1_000 }, (_, i) => `name-${i}`);
    const leases = await Promise.all(names.map((name) => locks.acquire(name)));
    await sleep(TTL_MS / 2);
    const before = await zookeeper.server.commands();
    await sleep(TTL_MS * 2);
    const used = (await zookeeper.server.commands()) - before;
    expect(leases.filter(({ state }) => state === "lost")).toEqual([]);
    expect(used).toBeLessThan(150);
    await Promise.all(leases.map((lease) => lease.release()));
  });

  test("an observer is told of changes, also after its session has ended", async () => {
    const root = zookeeper.root();
    const through = await zookeeper.proxy();
    const { store } = zookeeper.open(root, through);
    const { locks } = zookeeper.open(root);
    let changes = 0;
    const end = store.observe("default:name", () => changes++);
    onTestFinished(end);
    await until("it observes", () => changes > 0);
    const silence = through.swallow("to-server");
    await silence.inject();
    await sleep(11_000);
    await silence.heal();
    const before = changes;
    await until("it observes again", () => changes > before, 10_000);
    const seen = changes;
    await (await locks.acquire("name")).release();
    await until("it is told", () => changes > seen);
  }, 40_000);
});
