import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { examineStore } from "../../../src/examine.js";
import { connect } from "../../../src/index.js";
import { type RedisStore, redisStore } from "../../../src/stores/redis/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { keysAndTtls, locksOn, quiet, rawRedis } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describeWith(["redis"], "the database of a Redis server", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    await user("confined", "-select");
  });
  afterAll(() => lab.close());

  const user = (name: string, ...rights: string[]): Promise<string> =>
    server.cli("acl", "setuser", name, "on", ">any", "allkeys", "allchannels", "+@all", ...rights);

  const as = (name: string, db: number): string =>
    `redis://${name}:any@${server.address}:${server.port}/${db}`;

  const keysIn = async (db: number): Promise<string[]> => [
    ...(await keysAndTtls(await rawRedis(server.url, db))).keys(),
  ];

  test.each([
    ["that the server does not have", "default", 99, /database 99 .* has fewer/],
    ["that the user may not select", "confined", 2, /database 2 .*\+select/],
  ])("a database %s is refused by connect and by the doctor", async (_, name, db, why) => {
    const url = name === "default" ? `${server.url}/${db}` : as(name, db);
    const refused = { code: "STORE_UNAVAILABLE", retryable: false };
    const error = await rejection(connect(url));
    expect(error).toMatchObject(refused);
    expect(error.message).toMatch(why);
    expect(error.message).toContain(`${server.address}:${server.port}`);
    const diagnosed = await rejection(examineStore(url));
    expect(diagnosed).toMatchObject(refused);
    expect(diagnosed.message).toMatch(why);
    expect(await keysIn(0)).toEqual([]);
  });

  type Opens = (url: string) => Promise<{ store: RedisStore; isReady(): boolean }>;
  const CLIENTS: Record<string, Opens> = {
    ioredis: async (url) => {
      const client = quiet(new Redis(url));
      return {
        store: redisStore(client, { closeClient: true }),
        isReady: () => client.status === "ready",
      };
    },
    "ioredis without a queue": async (url) => {
      const client = quiet(new Redis(url, { enableOfflineQueue: false, lazyConnect: true }));
      await client.connect();
      return {
        store: redisStore(client, { closeClient: true }),
        isReady: () => client.status === "ready",
      };
    },
    "node-redis": async (url) => {
      const client = quiet(createClient({ url }));
      client.connect().catch(() => {});
      return { store: redisStore(client, { closeClient: true }), isReady: () => client.isReady };
    },
  };

  test.each(Object.entries(CLIENTS))(
    "%s: nothing is locked in another database, at first or after a reconnection",
    async (library, open) => {
      const name = `user of ${library}`.replaceAll(" ", "-");
      await user(name);
      const { store, isReady } = await open(as(name, 2));
      const locks = locksOn(store, { ttl: "5s", wait: 0, commandTimeout: 1_000 });
      await until("it is connected", isReady);
      const lease = await locks.acquire(`${library} first`);
      const raw = await rawRedis(server.url, 2);
      expect([...(await keysAndTtls(raw)).keys()].join()).toContain(`${library} first`);

      await user(name, "-select");
      // This includes commands sent, or sent again, before the client knows that its SELECT was refused.
      const acquiring = Array.from({ length: 20 }, async (_, i) => {
        const [outcome] = await Promise.allSettled([locks.acquire(`${library} ${i}`)]);
        return outcome;
      });
      await server.cli("client", "kill", "user", name);
      const outcomes = [
        ...(await Promise.all(acquiring)),
        ...(await Promise.allSettled([locks.acquire(`${library} later`)])),
      ];
      expect(outcomes.at(-1)!.status).toBe("rejected");
      expect(await keysIn(0)).toEqual([]);
      expect((await Promise.allSettled([locks.list()]))[0]!.status).toBe("rejected");

      await user(name);
      await server.cli("client", "kill", "user", name);
      await until("it locks again", () =>
        locks.acquire(`${library} again`).then(
          () => true,
          () => false,
        ),
      );
      expect((await locks.list()).map((one) => one.name)).toContain(`${library} again`);
      await lease.release();
      expect(await keysIn(0)).toEqual([]);
    },
  );

  test("ioredis: a client that selects another database takes no locks with it", async () => {
    const client = quiet(new Redis(server.url, { lazyConnect: true }));
    await client.connect();
    onTestFinished(() => client.disconnect());
    const locks = locksOn(redisStore(client), { wait: 0 });
    const lease = await locks.acquire("moved");
    await client.select(5);
    await expect(locks.acquire("moved")).rejects.toMatchObject({ code: "ACQUIRE_TIMEOUT" });
    expect((await locks.list()).map(({ name }) => name)).toEqual(["moved"]);
    expect(await lease.release()).toBe("released");
    expect(await keysIn(5)).toEqual([]);
    // The database is unknown for a client that was moved before the store was made.
    expect(() => redisStore(client)).toThrow(/option db/);
    await server.cli("flushall");
  });
});
