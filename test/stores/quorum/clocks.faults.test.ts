import { afterAll, beforeAll, expect, test } from "vitest";
import { together } from "../../../src/verify/fault.js";
import { killed } from "../../../src/verify/faults/server.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { machineMs } from "../../../src/verify/traffic/time-line.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith } from "../../support/needs.js";
import {
  closeAll,
  expectAllKept,
  expectOverlap,
  expectRefused,
  hasRecord,
  heal,
  inject,
  renewals,
  startNodes,
  startProxies,
  startQuorumWorkers,
  urlOf,
  withRecords,
} from "../../support/quorum.js";
import { until } from "../../support/worker.js";

const TTL_MS = 30_000;
const JUMP_MS = 31_000;

describeWith(["redis", "faketime"], "the clock of one node of a quorum is wrong", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab?.close());

  /** The clock of the third of five nodes can be set. All keep their data when they are killed. */
  async function startWithClock(): Promise<{ servers: RedisServer[]; clock: FalseClock }> {
    const clock = await FalseClock.open(lab, "the third node's clock");
    const usual = { persistence: "always" } as const;
    const options = [usual, usual, { ...usual, site: clock.site() }, usual, usual];
    return { servers: await startNodes(lab, options), clock };
  }

  /** Redlock as it is usually written: a majority of SET NX PX. */
  async function plainRedlock(servers: readonly RedisServer[], owner: string): Promise<boolean> {
    const replies = await Promise.all(
      servers.map((server) =>
        server.cli("set", "plain", owner, "nx", "px", String(TTL_MS)).catch(() => "down"),
      ),
    );
    return replies.filter((reply) => reply === "OK").length >= 3;
  }

  test("two nodes were down for the first holder, and one clock jumps by 31 s: two hold, with plain Redlock and with Holdfast, and the fence refuses the first", async () => {
    const { servers, clock } = await startWithClock();
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: TTL_MS });
    const [first, second] = workers as [Worker, Worker];
    const down = together(...servers.slice(3).map(killed));
    await inject(timeLine, down);
    // A renewal would give the lease to the other two nodes.
    const held = await first.acquire("name", { renew: false });
    expect(await plainRedlock(servers, "first")).toBe(true);
    await heal(timeLine, down);
    await until("the first reaches all nodes", async () => {
      const { op } = await first.acquire("other");
      const has = await Promise.all(servers.map((server) => hasRecord(server, "other")));
      await first.release(op);
      return has.every((yes) => yes);
    });
    const early = await second.acquire("name", { wait: 0 }).catch(({ code }) => code);
    expect(early).toBe("ACQUIRE_TIMEOUT");
    expect(await plainRedlock(servers, "early")).toBe(false);
    // The plain votes of the early one are taken back.
    for (const server of servers.slice(3)) await server.cli("del", "plain");
    const jump = clock.jump(JUMP_MS);
    await inject(timeLine, jump);
    expect(await plainRedlock(servers, "second")).toBe(true);
    const granted = await second.acquire("name");
    expect(await first.look(held.op)).toBe(true);
    await expectRefused(first, held, second, granted);
    expect(await first.release(held.op)).toBe("lost");
    expect(await second.look(granted.op)).toBe(true);
    await heal(timeLine, jump);
    // The clock that was ahead has given a token that is ahead, and the next is higher.
    expect(await second.release(granted.op)).toBe("released");
    const last = await first.acquire("name");
    expect(last.token).toBeGreaterThan(granted.token);
    expectOverlap(timeLine, ["S2", "S3", "S7"]);
  });

  test("the first holder is cut off from two nodes, and one clock jumps by 31 s: two hold, and the fence refuses the first", async () => {
    const { servers, clock } = await startWithClock();
    const proxies = await startProxies(servers);
    const { workers, timeLine } = await startQuorumWorkers([urlOf(proxies), urlOf(servers)], {
      ttl: TTL_MS,
    });
    const [first, second] = workers as [Worker, Worker];
    const isolated = together(...proxies.slice(3).map((proxy) => proxy.cut()));
    await inject(timeLine, isolated);
    const held = await first.acquire("name", { renew: false });
    const early = await second.acquire("name", { wait: 0 }).catch(({ code }) => code);
    expect(early).toBe("ACQUIRE_TIMEOUT");
    await inject(timeLine, clock.jump(JUMP_MS));
    const granted = await second.acquire("name");
    expect(await first.look(held.op)).toBe(true);
    await expectRefused(first, held, second, granted);
    await heal(timeLine, isolated);
    // Unknown, if its connections are not back yet.
    expect(await first.release(held.op)).not.toBe("released");
    expect(await second.look(granted.op)).toBe(true);
    expectOverlap(timeLine, ["S2", "S3", "S7"]);
  });

  test("all nodes have the lease, and one clock jumps by 31 s: nobody else gets the name, and the node gets the lease again", async () => {
    const { servers, clock } = await startWithClock();
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: 2_000 });
    const [first, second] = workers as [Worker, Worker];
    const held = await first.acquire("name");
    await until("all have it", async () =>
      (await Promise.all(servers.map((server) => hasRecord(server)))).every((has) => has),
    );
    const jump = clock.jump(JUMP_MS);
    await inject(timeLine, jump);
    await until("the record has expired there", async () => !(await hasRecord(servers[2]!)));
    await until("the node has it again", () => hasRecord(servers[2]!));
    expect(await second.acquire("name", { wait: 600 }).catch(({ code }) => code)).toBe(
      "ACQUIRE_TIMEOUT",
    );
    const refusedMs = machineMs();
    await until("it is renewed", () => renewals(timeLine, held.op, refusedMs) >= 2);
    expect(await first.write(held.op)).toBe(true);
    expect(await first.release(held.op)).toBe("released");
    await heal(timeLine, jump);
    await closeAll(workers);
    expectAllKept(timeLine, ["S7", "L3"]);
  });

  test("three clocks are an hour fast and are corrected: the name of a dead holder is free after its ttl", async () => {
    const clocks = await Promise.all([1, 2, 3].map((i) => FalseClock.open(lab, `clock ${i}`)));
    const sites = clocks.map((clock) => ({ site: clock.site() }));
    const servers = await startNodes(lab, [...sites, {}, {}]);
    const url = urlOf(servers);
    const { workers, timeLine } = await startQuorumWorkers([url, url], { ttl: 2_000 });
    const [first, second] = workers as [Worker, Worker];
    const fast = together(...clocks.map((clock) => clock.jump(3_600_000)));
    await fast.inject();
    const held = await first.acquire("name");
    await first.kill();
    await fast.heal();
    const granted = await second.acquire("name", { wait: 15_000 });
    expect(granted.token).toBeGreaterThan(held.token);
    expect(await second.release(granted.op)).toBe("released");
    await closeAll([second]);
    expect(await withRecords(servers)).toEqual([]);
    expectAllKept(timeLine, ["S1", "S2", "S7"]);
  });
});
