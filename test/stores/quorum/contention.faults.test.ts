import { expect, onTestFinished, test } from "vitest";
import { killed, paused } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import {
  closeAll,
  expectAllKept,
  heal,
  inject,
  startNodes,
  startQuorumWorkers,
  urlOf,
  withRecords,
} from "../../support/quorum.js";
import { eventsOf, until } from "../../support/worker.js";

const WORKERS = 20;
const TTL_MS = 3_000;

describeWith(["redis"], "contention for a quorum", () => {
  test("20 processes contend while holders are killed and paused and nodes fail: one holder at a time, no update lost", async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const servers = await startNodes(lab, { persistence: "always" });
    const url = urlOf(servers);
    const urls = Array.from({ length: WORKERS }, () => url);
    const { workers, timeLine } = await startQuorumWorkers(urls, { ttl: TTL_MS, wait: "1m" });
    let isOver = false;
    /** Works until the test has seen enough, however slow the machine is. */
    const work = async (one: Worker): Promise<number> => {
      let rounds = 0;
      while (!isOver) {
        rounds += await one.loop({ name: "name", forMs: 2_000, holdMs: 5, writes: true });
      }
      return rounds;
    };
    const [dying, sleeping, ...others] = workers as [Worker, Worker, ...Worker[]];
    const traffic = others.map(work);
    for (const one of traffic) one.catch(() => {});
    const grants = (): number => eventsOf(timeLine, "granted").length;
    const goesOn = async (): Promise<void> => {
      const before = grants();
      await until("they go on", () => grants() > before + 5, 40_000);
    };
    await goesOn();
    await dying.acquire("name");
    await dying.kill();
    await goesOn();
    const held = await sleeping.acquire("name");
    sleeping.pause();
    const [first, second] = servers as [RedisServer, RedisServer];
    const down = killed(first);
    await inject(timeLine, down);
    await goesOn();
    const hangs = paused(second);
    await inject(timeLine, hangs);
    await goesOn();
    sleeping.resume();
    expect(await sleeping.look(held.op)).toBe(false);
    expect(await sleeping.write(held.op)).toBe(false);
    expect(await sleeping.release(held.op)).toBe("lost");
    await heal(timeLine, hangs);
    await heal(timeLine, down);
    await goesOn();
    isOver = true;
    const rounds = await Promise.all(traffic);
    expect(Math.min(...rounds)).toBeGreaterThan(0);
    await closeAll([sleeping, ...others]);
    await until("all has expired", async () => (await withRecords(servers)).length === 0);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S4", "S7", "L1", "L2", "L3"]);
  }, 240_000);
});
