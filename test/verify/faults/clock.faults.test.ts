import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { together } from "../../../src/verify/fault.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { lacking, needs } from "../../support/needs.js";

let lab: Lab;
let clock: FalseClock;
beforeAll(async () => {
  lab = await Lab.open();
  if (lacking(["faketime"]) === null) clock = await FalseClock.open(lab);
});
afterAll(() => lab?.close());

/** True if a time is ahead by this, within 2 s: the two clocks are not read at the same moment. */
const near = (aheadMs: number) => (nowMs: number) => Math.abs(nowMs - Date.now() - aheadMs) < 2_000;

test("a Redis clock that jumps ahead expires a key at once, and healing brings true time back", async (context) => {
  needs(context, "redis", "faketime");
  const redis = await lab.redis({ site: clock.site() });
  const nowMs = async (): Promise<number> => Number((await redis.cli("time")).split("\n")[0]) * 1e3;
  const jump = clock.jump(+31_000);
  expect(jump.name).toBe("clock jumps by +31000 ms");
  await redis.cli("set", "lock", "held", "NX", "PX", "30000");
  expect(await redis.cli("exists", "lock")).toBe("1");
  expect(await nowMs()).toSatisfy(near(0));

  await jump.inject();
  expect(await nowMs()).toSatisfy(near(31_000));
  expect(await redis.cli("set", "lock", "another", "NX", "PX", "30000")).toBe("OK");

  await jump.heal();
  expect(await nowMs()).toSatisfy(near(0));
  // The key was set under the false clock, and expires by it.
  expect(Number(await redis.cli("pttl", "lock"))).toBeGreaterThan(55_000);

  const both = together(clock.jump(-60_000), clock.jump(+10_000));
  await both.inject();
  expect(await nowMs()).toSatisfy(near(-50_000));
  await both.heal();
  await redis.restart();
  expect(await nowMs()).toSatisfy(near(0));
});

test("the clock of PostgreSQL jumps too, though the server runs as another user", async (context) => {
  needs(context, "postgres", "faketime");
  const postgres = await lab.postgres({ site: clock.site() });
  const sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
  const nowMs = async (): Promise<number> => Number(await postgres.sql(sql));
  const jump = clock.jump(-3_600_000);
  await jump.inject();
  expect(await nowMs()).toSatisfy(near(-3_600_000));
  await jump.heal();
  expect(await nowMs()).toSatisfy(near(0));
});

test("a ZooKeeper ensemble under false clocks finds a leader, and keeps it while one jumps", async (context) => {
  needs(context, "zookeeper", "faketime");
  const cluster = await lab.zookeeper({ nodes: 3, sites: Array(3).fill(clock.site()) });
  const leader = await cluster.leader();
  const jump = clock.jump(+3_600_000);
  await jump.inject();
  expect(await leader.leads()).not.toBe(null);
  await jump.heal();
});

test("in Node the wall clock jumps, the monotonic clock and its timers do not", async (context) => {
  needs(context, "faketime");
  const ask = reporter(clock);
  const before = await ask();
  const jump = clock.jump(+31_000);
  await jump.inject();
  const ahead = await ask();
  await jump.heal();
  const after = await ask();
  expect(ahead.wallMs - before.wallMs).toBeGreaterThan(30_900);
  expect(after.wallMs).toSatisfy(near(0));
  expect(ahead.monotonicMs - before.monotonicMs).toBeLessThan(20_000);
});

/** A process under the false clock that prints the time on request. */
function reporter(under: FalseClock): () => Promise<{ wallMs: number; monotonicMs: number }> {
  const code = `process.stdin.on("data", () => setTimeout(() => process.stdout.write(
    JSON.stringify({ wallMs: Date.now(), monotonicMs: performance.now() }) + "\\n"), 5))`;
  const child: ChildProcess = spawn(process.execPath, ["-e", code], {
    env: { ...process.env, ...under.env },
    stdio: ["pipe", "pipe", "inherit"],
  });
  onTestFinished(() => void child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]();
  return async () => {
    child.stdin!.write("?");
    return JSON.parse((await lines.next()).value!);
  };
}
