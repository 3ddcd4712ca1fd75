import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { connect } from "../../../src/index.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith, needs } from "../../support/needs.js";
import { keysAndTtls, rawRedis } from "../../support/redis.js";

const HOUR_MS = 3_600_000;

describeWith(["redis"], "tokens on Redis", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab.close());

  async function tokenOf(server: RedisServer): Promise<bigint> {
    const locks = await connect(server.url, { wait: "5s" });
    try {
      const lease = await locks.acquire("name");
      await lease.release();
      return lease.token;
    } finally {
      await locks.close();
    }
  }

  test("need counters that never expire; every other key expires or is gone", async () => {
    const server = await lab.redis();
    await tokenOf(server);
    const locks = await connect(server.url);
    onTestFinished(() => locks.close());
    await locks.acquire("held");
    for (const [key, ttlMs] of await keysAndTtls(await rawRedis(server.url))) {
      if (key.endsWith("last")) expect(ttlMs).toBe(-1);
      else expect(ttlMs).toBeGreaterThan(0);
    }
  });

  test("rise after the clock was an hour fast and is corrected, and nothing was granted for minutes", async (context) => {
    needs(context, "faketime");
    const clock = await FalseClock.open(lab);
    const server = await lab.redis({ site: clock.site() });
    const fast = clock.jump(HOUR_MS);
    await fast.inject();
    const first = await tokenOf(server);
    await fast.heal();
    expect(await tokenOf(server)).toBe(first + 1n);
    await clock.jump(10 * 60_000).inject();
    expect(await tokenOf(server)).toBe(first + 2n);
  });

  test("rise after a restart with its data, also if the clock was set back", async (context) => {
    needs(context, "faketime");
    const clock = await FalseClock.open(lab);
    const server = await lab.redis({ site: clock.site(), persistence: "always" });
    const fast = clock.jump(HOUR_MS);
    await fast.inject();
    const first = await tokenOf(server);
    await server.kill();
    await fast.heal();
    await server.start();
    expect(await tokenOf(server)).toBe(first + 1n);
  });

  test("without its data rise with the clock, and fall if that was set back", async (context) => {
    needs(context, "faketime");
    const clock = await FalseClock.open(lab);
    const server = await lab.redis({ site: clock.site() });
    const first = await tokenOf(server);
    await server.cli("flushall");
    const second = await tokenOf(server);
    expect(second).toBeGreaterThan(first);
    await clock.jump(-HOUR_MS).inject();
    await server.cli("flushall");
    // Two faults at once, of which the documentation warns.
    expect(await tokenOf(server)).toBeLessThan(first);
  });

  test("rise after an older backup was restored", async () => {
    const server = await lab.redis();
    const first = await tokenOf(server);
    await server.cli("save");
    const [, folder] = (await server.cli("config", "get", "dir")).split("\n");
    const [file, backup] = [join(folder!, "dump.rdb"), join(folder!, "backup.rdb")];
    copyFileSync(file, backup);
    const later = [await tokenOf(server), await tokenOf(server)];
    await server.kill();
    copyFileSync(backup, file);
    await server.start();
    const keys = await keysAndTtls(await rawRedis(server.url));
    expect([...keys.keys()].some((key) => key.endsWith("last"))).toBe(true);
    const after = await tokenOf(server);
    for (const token of [first, ...later]) expect(after).toBeGreaterThan(token);
  });
});
