import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { createLocks, type Locks } from "../../../src/index.js";
import { quorumStore } from "../../../src/stores/quorum/index.js";
import { recordOf } from "../../../src/stores/quorum/keys.js";
import { RedisNode } from "../../../src/stores/quorum/redis-node.js";
import type { RedisClient } from "../../../src/stores/redis/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith } from "../../support/needs.js";
import { hasRecord, nothingIsLeft } from "../../support/quorum.js";
import { quiet } from "../../support/redis.js";
import { until } from "../../support/worker.js";

/** `failure`: of a request whose connection is lost. ioredis sends it again by the next one. */
const LIBRARIES: readonly (readonly [
  name: string,
  failure: RegExp,
  connectTo: (url: string) => Promise<RedisClient>,
])[] = [
  ["ioredis", /was lost before/, async (url) => quiet(new Redis(url))],
  [
    "node-redis",
    /has been lost for/,
    async (url) => {
      const client = quiet(createClient({ url }));
      await client.connect();
      return client;
    },
  ],
];
const PAIRS = 100;

describeWith(["redis"], "a quorum of Redis servers", () => {
  let lab: Lab;
  let servers: RedisServer[];
  beforeAll(async () => {
    lab = await Lab.open();
    servers = await Promise.all([1, 2, 3].map(() => lab.redis()));
  });
  afterAll(() => lab.close());

  describe.each(LIBRARIES)("by %s", (library, failure, connectTo) => {
    async function open(): Promise<Locks> {
      const clients = await Promise.all(servers.map(({ url }) => connectTo(url)));
      const store = quorumStore(clients, { closeClients: true });
      // Nobody polls: a waiter that gets the name was woken.
      const locks = createLocks(store, { ttl: "30s", poll: { min: "20s", max: "20s" } });
      onTestFinished(() => locks.close());
      return locks;
    }

    test("needs one request for an acquire and one for a release, on each server", async () => {
      const locks = await open();
      await until("all have joined", async () => {
        const lease = await locks.acquire("name");
        const haveIt = await Promise.all(servers.map((server) => hasRecord(server)));
        await lease.release();
        return haveIt.every((has) => has);
      });
      await nothingIsLeft(servers);
      const scripts = (): Promise<number[]> =>
        Promise.all(servers.map(async (one) => (await one.calls()).get("evalsha") ?? 0));
      const before = await scripts();
      for (let i = 0; i < PAIRS; i++) await (await locks.acquire(`name ${i}`)).release();
      let more: number[] = [];
      await until("all have answered", async () => {
        more = (await scripts()).map((count, i) => count - before[i]!);
        return more.every((count) => count >= 2 * PAIRS);
      });
      expect(more).toEqual(servers.map(() => 2 * PAIRS));
    });

    test("wakes a waiter by the release", async () => {
      const [one, two] = [await open(), await open()];
      const lease = await one.acquire("name");
      const waiting = two.acquire("name");
      await until("it waits", async () => (await servers[0]!.cli("keys", "*wait:*")) !== "");
      await lease.release();
      const next = await waiting;
      expect(next.token).toBeGreaterThan(lease.token);
      await next.release();
    });

    test("gives no vote to a claim whose connection is lost, though the server has recorded it", async () => {
      await using proxy = await TcpProxy.open(servers[0]!);
      const client = await connectTo(proxy.url);
      const node = new RedisNode(client, { maxTtlMs: 60_000, closeClient: true });
      onTestFinished(() => node.close());
      const { micros, marker } = await node.join();
      await node.settle(marker);
      const claim = { number: micros, ttlMs: 1_000, seq: 1, atLeastMs: 0, holder: "holder" };
      const claiming = { ...claim, id: "id-1", register: "never" } as const;
      expect((await node.claim({ ...claiming, name: "first" })).kind).toBe("recorded");
      const name = `lost by ${library}`;
      const fault = proxy.loseReply({ when: (request) => request.includes(name) });
      await fault.inject();
      await expect(node.claim({ ...claiming, name })).rejects.toThrow(failure);
      expect(await servers[0]!.cli("exists", recordOf(name))).toBe("1");
    });
  });
});
