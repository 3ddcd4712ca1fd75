import { Client, Pool } from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { createLocks, type Locks } from "../../../src/index.js";
import { type PostgresStore, postgresStore } from "../../../src/stores/postgres/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PgBouncer } from "../../../src/verify/lab/pgbouncer.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";

/** So long that a waiter which is granted the name within seconds has not found it by a renewal. */
const TTL_MS = 60_000;

describeWith(["postgres", "pgbouncer"], "PostgreSQL behind pgbouncer", () => {
  let lab: Lab;
  let server: PostgresServer;
  let inSessionMode: PgBouncer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    inSessionMode = await lab.pgbouncer(server, { config: { pool_mode: "session" } });
  });
  afterAll(() => lab.close());

  const listening = async (): Promise<number> =>
    Number(
      await server.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query ~ '^(LISTEN |SELECT 1$)'",
      ),
    );
  const locksOn = (store: PostgresStore): Locks => {
    const locks = createLocks(store, { ttl: TTL_MS, wait: 30_000 });
    onTestFinished(() => locks.close());
    return locks;
  };

  test.each(["a pool", "a single client"])(
    "in session mode the waiters of %s are notified",
    async (kind) => {
      let store: PostgresStore;
      if (kind === "a pool") store = await byPool(inSessionMode.url);
      else {
        const client = new Client(inSessionMode.url);
        await client.connect();
        store = postgresStore(client, { closeClient: true });
        await store.setUp();
      }
      expect(store.traits).toMatchObject({ store: "PostgreSQL", waiting: "pushed" });
      const locks = locksOn(store);
      const lease = await locks.acquire("name");
      const waiting = locks.acquire("name");
      await expect.poll(listening).toBe(1);
      await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
      const releasedAtMs = performance.now();
      await lease.release();
      await (await waiting).release();
      expect(performance.now() - releasedAtMs).toBeLessThan(TTL_MS / 6);
    },
  );

  test.each([
    ["and the last session is used again first", {}],
    ["and all sessions are used in turn", { server_round_robin: "1" }],
  ])(
    "in transaction mode waiters poll, however busy it is, and nobody listens (%s)",
    { timeout: 60_000 },
    async (_, config) => {
      const pooler = await lab.pgbouncer(server, { config });
      // As many sessions of the server as there are at once.
      let isOver = false;
      const pool = new Pool({ connectionString: pooler.url, max: 3 });
      const traffic = async (): Promise<void> => {
        while (!isOver) await pool.query("SELECT pg_sleep(0.002 * random())");
      };
      for (const users of [0, 1, 3]) {
        isOver = false;
        const running = Array.from({ length: users }, traffic);
        try {
          for (let i = 0; i < 10; i++) {
            const store = await byPool(pooler.url);
            expect(store.traits.waiting).toBe("polled");
            await store.close();
          }
        } finally {
          isOver = true;
          await Promise.all(running);
        }
      }
      await pool.end();
      const locks = locksOn(await byPool(pooler.url));
      const lease = await locks.acquire("name");
      const waiting = locks.acquire("name");
      await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
      await lease.release();
      await (await waiting).release();
      expect(await listening()).toBe(0);
    },
  );

  test.each([{ default_pool_size: "1" }, { max_client_conn: "1" }])(
    "in session mode, a pooler without room for a listener (%j) makes waiters poll, and no request fails",
    async (room) => {
      const config = { pool_mode: "session", ...room };
      const pooler = await lab.pgbouncer(server, { config });
      // The lab's own connection may not be closed yet.
      const store = await vi.waitFor(() => byPool(pooler.url, {}, { max: 1 }), 10_000);
      expect(store.traits.waiting).toBe("polled");
      const locks = locksOn(store);
      const lease = await locks.acquire("name");
      const waiting = locks.acquire("name");
      await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
      await lease.release();
      await (await waiting).release();
    },
  );
});
