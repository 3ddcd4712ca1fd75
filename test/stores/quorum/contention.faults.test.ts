import { setTimeout as sleep } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { killed, paused } from "../../../src/verify/faults/server.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import {
  closeAll,
  expectAllKept,
  inject,
  startNodes,
  startQuorumWorkers,
  urlOf,
  withRecords,
} from "../../support/quorum.js";
import { atWork, eventsOf, until } from "../../support/worker.js";

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
    const traffic = workers.map(work);
    for (const one of traffic) one.catch(() => {});
    const grants = (): number => eventsOf(timeLine, "granted").length;
    const goesOn = async (): Promise<void> => {
      const before = grants();
      await until("they go on", () => grants() > before + 5, 40_000);
    };
    await goesOn();
    const [killedOne, pausedOne, ...others] = workers as [Worker, Worker, ...Worker[]];
    const [down, hanging] = servers as [RedisServer, RedisServer];
    // A holder dies at work, another one sleeps past its ttl.
    await atWork(killedOne);
    await killedOne.kill();
    await goesOn();
    await atWork(pausedOne);
    pausedOne.pause();
    await inject(timeLine, killed(down));
    await goesOn();
    const hangs = paused(hanging);
    await inject(timeLine, hangs);
    await goesOn();
    pausedOne.resume();
    await hangs.heal();
    timeLine.now({ kind: "healed", fault: hangs.name });
    await down.start();
    timeLine.now({ kind: "healed", fault: `${down.name} killed` });
    await goesOn();
    isOver = true;
    const rounds = await Promise.all(traffic.slice(1));
    expect(Math.min(...rounds)).toBeGreaterThan(0);
    await sleep(TTL_MS);
    await closeAll([pausedOne, ...others]);
    expect(await withRecords(servers)).toEqual([]);
    expectAllKept(timeLine, ["S1", "S2", "S3", "S4", "S7", "L1", "L2", "L3"]);
  }, 240_000);
});
