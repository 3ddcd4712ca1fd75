import { Redis } from "ioredis";
import { Pool } from "pg";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { Store } from "../../src/core/store.js";
import { createLocks, type Locks } from "../../src/index.js";
import { etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { postgresSessionStore, postgresStore } from "../../src/stores/postgres/index.js";
import { redisStore } from "../../src/stores/redis/index.js";
import { zookeeperStore } from "../../src/stores/zookeeper/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { quiet } from "../support/redis.js";

const OPTIONS = { ttl: 2_000, wait: 20_000 };

/** A store on a client that the test closes after it. */
interface Opened {
  readonly store: Store;
  readonly close: () => Promise<unknown>;
  /** Where an error of the client that nobody listens to ends the process. */
  readonly errorListeners?: () => number;
}

const onPool = (pool: Pool, store: Store): Opened => ({
  store,
  close: () => pool.end(),
  errorListeners: () => pool.listenerCount("error"),
});

const OPEN = {
  redis: async (lab: Lab): Promise<Opened> => {
    const client = quiet(new Redis((await lab.redis()).url));
    return { store: redisStore(client), close: () => client.quit() };
  },
  postgres: async (lab: Lab): Promise<Opened> => {
    const pool = new Pool({ connectionString: (await lab.postgres()).url });
    return onPool(pool, postgresStore(pool));
  },
  "postgres, sessions": async (lab: Lab): Promise<Opened> => {
    const pool = new Pool({ connectionString: (await lab.postgres()).url });
    return onPool(pool, postgresSessionStore(pool));
  },
  etcd: async (lab: Lab): Promise<Opened> => {
    const { address, port } = (await lab.etcd({ timing: "fast" })).servers[0]!;
    const client = await openEtcdClient({ endpoints: [`${address}:${port}`] });
    return { store: etcdStore(client), close: () => client.close() };
  },
  zookeeper: async (lab: Lab): Promise<Opened> => {
    const { address, port } = (await lab.zookeeper()).servers[0]!;
    return { store: zookeeperStore({ servers: [`${address}:${port}`] }), close: async () => {} };
  },
};

const NEEDS = {
  redis: "redis",
  postgres: "postgres",
  "postgres, sessions": "postgres",
  etcd: "etcd",
  zookeeper: "zookeeper",
} as const;

for (const [name, open] of Object.entries(OPEN)) {
  describeWith([NEEDS[name as keyof typeof NEEDS]], `a store of the user's client: ${name}`, () => {
    let lab: Lab;
    let opened: Opened | undefined;
    const closing: Locks[] = [];
    beforeAll(async () => {
      lab = await Lab.open();
    });
    afterAll(() => lab.close());
    afterEach(async () => {
      for (const locks of closing) await locks.close();
      await opened?.close();
    });

    test("Locks that are made while the last ones on it close can use it", async () => {
      opened = await open(lab);
      const { store } = opened;
      const make = (): Locks => {
        const locks = createLocks(store, OPTIONS);
        closing.push(locks);
        return locks;
      };
      const handOver = async (locks: Locks): Promise<void> => {
        const lease = await locks.acquire("name");
        const waiting = locks.acquire("name");
        await lease.release();
        expect(await (await waiting).release()).toBe("released");
      };
      const first = make();
      await handOver(first);
      const close = store.close.bind(store);
      let next: Promise<void> | undefined;
      store.close = () => {
        const closed = close();
        next ??= handOver(make());
        return closed;
      };
      await first.close();
      const listeners = opened.errorListeners?.() ?? 1;
      await next;
      expect(listeners).toBe(1);
    });

    test("Locks that are made after the last ones on it were closed listen to errors of its client at once", async () => {
      opened = await open(lab);
      const { store, errorListeners = () => 1 } = opened;
      for (let i = 0; i < 2; i++) {
        const locks = createLocks(store, OPTIONS);
        expect(errorListeners()).toBe(1);
        await locks.withLock("name", async () => {});
        await locks.close();
        expect(opened.errorListeners?.() ?? 0).toBe(0);
      }
      const unused = createLocks(store, OPTIONS);
      expect(errorListeners()).toBe(1);
      await unused.close();
      expect(opened.errorListeners?.() ?? 0).toBe(0);
    });
  });
}
