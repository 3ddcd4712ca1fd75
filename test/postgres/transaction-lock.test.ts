import { setTimeout as sleep } from "node:timers/promises";
import { Client, type PoolClient } from "pg";
import { beforeEach, describe, expect, it, vi } from "vitest";
import {
  AcquireTimeoutError,
  InvalidArgumentError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../src/core/errors.js";
import { withTransactionLock } from "../../src/postgres/index.js";
import { Deferred, rejection } from "../core/helpers.js";
import { Database } from "../support/database.js";
import { describeWith } from "../support/needs.js";

describeWith(["postgres", "pgbouncer"], "withTransactionLock", () => {
  const database = Database.forTests();
  const count = async (): Promise<number> =>
    Number(await database.server.sql("SELECT value FROM counter"));

  beforeEach(async () => {
    await database.server.sql(
      `SET client_min_messages = warning; DROP TABLE IF EXISTS counter;
       CREATE TABLE counter (value integer UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO counter VALUES (0)`,
    );
  });

  /** Holds the name in a transaction until `end` is called. */
  async function hold(
    name: string,
    mode: "exclusive" | "shared" = "exclusive",
  ): Promise<() => Promise<void>> {
    const [locked, done] = [new Deferred<void>(), new Deferred<void>()];
    const held = withTransactionLock(database.pool(), name, { mode }, async () => {
      locked.resolve();
      await done.promise;
    });
    await Promise.race([locked.promise, held]);
    return () => {
      done.resolve();
      return held;
    };
  }

  describe.each(["the server", "pgbouncer"] as const)("by way of %s", (way) => {
    const url = (): string => (way === "pgbouncer" ? database.pooler : database.server).url;
    const pool = (config = {}): ReturnType<Database["pool"]> => database.pool(config, url());

    it("no update is lost, however many read and write", async () => {
      const pools = [pool({ max: 5 }), pool({ max: 5 })];
      const add = (i: number): Promise<void> =>
        withTransactionLock(pools[i % 2]!, "counter", { wait: "30s" }, async (tx) => {
          const { rows } = await tx.query<{ value: number }>("SELECT value FROM counter");
          await tx.query("UPDATE counter SET value = $1", [rows[0]!.value + 1]);
        });
      await Promise.all(Array.from({ length: 60 }, (_, i) => add(i)));
      expect(await count()).toBe(60);
    });

    it("excludes others also where the program's parser leaves booleans as text", async () => {
      const getTypeParser = () => (text: string) => text;
      const mine = pool({ types: { getTypeParser } });
      const release = await hold("name");
      const attempt = withTransactionLock(mine, "name", { wait: 0 }, () => "ran");
      expect(await rejection(attempt)).toBeInstanceOf(AcquireTimeoutError);
      await release();
      expect(await withTransactionLock(mine, "name", { wait: 0 }, () => "ran")).toBe("ran");
    });

    it("commits and returns the value, rolls back and throws the error of the function", async () => {
      const mine = pool();
      const value = await withTransactionLock(mine, "a", async (tx: PoolClient) => {
        await tx.query("UPDATE counter SET value = 1");
        return "done";
      });
      expect([value, await count()]).toEqual(["done", 1]);
      const own = new Error("my own");
      const failed = withTransactionLock(mine, "a", async (tx) => {
        await tx.query("UPDATE counter SET value = 2");
        throw own;
      });
      expect(await rejection(failed)).toBe(own);
      expect(await count()).toBe(1);
      expect(mine.idleCount).toBe(mine.totalCount);
    });

    it("tries once with wait: 0, and gives up after the wait", async () => {
      const end = await hold("a");
      const mine = pool();
      const run = (wait: number): Promise<unknown> =>
        rejection(withTransactionLock(mine, "a", { wait }, () => expect.fail("it ran")));
      expect(await run(0)).toMatchObject({ code: "ACQUIRE_TIMEOUT", waitMs: 0, lockName: "a" });
      const startedMs = performance.now();
      expect(await run(300)).toBeInstanceOf(AcquireTimeoutError);
      expect(performance.now() - startedMs).toBeGreaterThan(290);
      await withTransactionLock(mine, "b", { wait: 0 }, () => {});
      await end();
      expect(await withTransactionLock(mine, "a", { wait: 0 }, () => "free")).toBe("free");
    });

    it("an abort ends the wait with its reason, and leaves nobody waiting on the server", async () => {
      const end = await hold("a");
      const controller = new AbortController();
      const { signal } = controller;
      const mine = pool({ max: 1 });
      const waiting = rejection(
        withTransactionLock(mine, "a", { wait: Number.POSITIVE_INFINITY, signal }, () =>
          expect.fail("it ran"),
        ),
      );
      await database.waiting(1);
      controller.abort("changed my mind");
      expect(await waiting).toBe("changed my mind");
      await database.waiting(0);
      expect(await rejection(withTransactionLock(mine, "a", { signal }, () => {}))).toBe(
        "changed my mind",
      );
      await end();
      expect(await withTransactionLock(mine, "a", () => "mine")).toBe("mine");
    });

    it("shared locks exclude exclusive ones only", async () => {
      const mine = pool();
      const end = await hold("a", "shared");
      await withTransactionLock(mine, "a", { mode: "shared", wait: 0 }, () => {});
      expect(await rejection(withTransactionLock(mine, "a", { wait: 0 }, () => {}))).toBeInstanceOf(
        AcquireTimeoutError,
      );
      await end();
      await withTransactionLock(mine, "a", { wait: 0 }, () => {});
    });
  });

  it("waits within its limit, and leaves the caller's own lock_timeout to the function", async () => {
    const end = await hold("a");
    const mine = database.pool({ options: "-c lock_timeout=1234" });
    const own = withTransactionLock(mine, "a", { wait: "30s" }, async (tx) => {
      return (await tx.query("SHOW lock_timeout")).rows[0].lock_timeout;
    });
    await database.waiting(1);
    await sleep(1_500);
    await end();
    expect(await own).toBe("1234ms");
  });

  it("wait: Infinity waits beyond the lock_timeout of the role, which the function gets back", async () => {
    await database.server.sql(
      "CREATE ROLE impatient LOGIN PASSWORD 'sesame'; ALTER ROLE impatient SET lock_timeout = 300",
    );
    const end = await hold("a");
    const mine = database.pool({}, database.server.url.replace(/\/\/.*@/, "//impatient:sesame@"));
    const own = withTransactionLock(mine, "a", { wait: Number.POSITIVE_INFINITY }, async (tx) => {
      return (await tx.query("SHOW lock_timeout")).rows[0].lock_timeout;
    });
    await database.waiting(1);
    await sleep(1_000);
    await end();
    expect(await own).toBe("300ms");
  });

  it("sees what the holder before it has written, although the default isolation level is a strict one", async () => {
    const mine = database.pool({
      max: 10,
      options: "-c default_transaction_isolation=serializable",
    });
    const add = (): Promise<void> =>
      withTransactionLock(mine, "a", { wait: "30s" }, async (tx) => {
        const { rows } = await tx.query("SELECT value FROM counter");
        await tx.query("UPDATE counter SET value = $1", [rows[0].value + 1]);
      });
    await Promise.all(Array.from({ length: 20 }, add));
    expect(await count()).toBe(20);
  });

  it("a connection that is lost during the function ends the lock: nothing is committed", async () => {
    const mine = database.pool();
    const kill = (tx: {
      query(text: string): Promise<{ rows: { pid: number }[] }>;
    }): Promise<unknown> =>
      tx
        .query("SELECT pg_backend_pid() AS pid")
        .then(({ rows }) => database.server.sql(`SELECT pg_terminate_backend(${rows[0]!.pid})`));
    const duringStatement = withTransactionLock(mine, "a", async (tx) => {
      await tx.query("UPDATE counter SET value = 7");
      await kill(tx);
      await tx.query("SELECT pg_sleep(10)");
    });
    const error = await rejection(duringStatement);
    expect(error).toBeInstanceOf(StoreUnavailableError);
    expect(error).toMatchObject({
      retryable: true,
      message: expect.stringContaining("nothing was committed"),
    });
    const betweenStatements = withTransactionLock(mine, "a", async (tx) => {
      await tx.query("UPDATE counter SET value = 8");
      await kill(tx);
      await sleep(300);
    });
    expect(await rejection(betweenStatements)).toMatchObject({
      code: "STORE_UNAVAILABLE",
      retryable: true,
    });
    const beforeStatement = withTransactionLock(mine, "a", async (tx) => {
      await kill(tx);
      await sleep(300);
      await tx.query("UPDATE counter SET value = 9");
    });
    expect(await rejection(beforeStatement)).toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("nothing was committed"),
    });
    const own = new Error("my own");
    const withOwnError = withTransactionLock(mine, "a", async (tx) => {
      await kill(tx);
      throw own;
    });
    expect(await rejection(withOwnError)).toBe(own);
    expect(await count()).toBe(0);
    expect(await withTransactionLock(mine, "a", { wait: 0 }, () => "free")).toBe("free");
    expect(mine.totalCount).toBe(1);
  });

  it("a commit without a reply is told as not known", async () => {
    const mine = database.pool();
    const lost = withTransactionLock(mine, "a", async (tx: PoolClient) => {
      const query = tx.query.bind(tx) as (text: string) => Promise<unknown>;
      // The server commits, and its reply is lost.
      tx.query = (async (text: string) => {
        await query(text);
        if (text === "COMMIT") throw new Error("Connection terminated unexpectedly");
      }) as never;
      await tx.query("UPDATE counter SET value = 9");
    });
    const error = await rejection(lost);
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect((error as Error).message).toContain("is not known");
    expect(await count()).toBe(9);
  });

  it("a commit at a server that hangs is told as not known, and its connection is closed", async () => {
    const mine = database.pool({ max: 1 });
    const commit = new Deferred<void>();
    const hanging = rejection(
      withTransactionLock(mine, "a", async (tx: PoolClient) => {
        await tx.query("UPDATE counter SET value = 9");
        await database.server.pause();
        vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
        commit.resolve();
      }),
    );
    try {
      await commit.promise;
      await vi.waitUntil(() => vi.getTimerCount() > 0);
      await vi.advanceTimersByTimeAsync(30_000);
      const error = await hanging;
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect((error as Error).message).toMatch(/within 30000 ms.* is not known/);
      expect(mine.totalCount).toBe(0);
    } finally {
      vi.useRealTimers();
      await database.server.resume();
    }
  });

  it("a commit whose reply arrived while the process stood still is a success", async () => {
    const mine = database.pool({ max: 1 });
    let stoodStillMs = 0;
    try {
      const result = await withTransactionLock(mine, "a", async (tx: PoolClient) => {
        await tx.query("UPDATE counter SET value = 9");
        const query = tx.query.bind(tx) as (text: string) => Promise<unknown>;
        const now = performance.now.bind(performance);
        vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
        vi.spyOn(performance, "now").mockImplementation(() => now() + stoodStillMs);
        tx.query = ((text: string) => {
          // When the process goes on, the timer runs before the reply is read.
          queueMicrotask(() => {
            stoodStillMs = 31_000;
            vi.advanceTimersByTime(30_000);
          });
          return query(text);
        }) as never;
        return "done";
      });
      expect(result).toBe("done");
    } finally {
      vi.restoreAllMocks();
      vi.useRealTimers();
    }
    expect(await count()).toBe(9);
  });

  it("what PostgreSQL did not commit is no success", async () => {
    const mine = database.pool();
    const ignored = withTransactionLock(mine, "a", async (tx) => {
      await tx.query("UPDATE counter SET value = 5");
      await tx.query("SELECT 1/0").catch(() => {});
    });
    expect(await rejection(ignored)).toBeInstanceOf(UnsupportedError);
    const deferred = withTransactionLock(mine, "a", async (tx) => {
      await tx.query("INSERT INTO counter VALUES (0)");
    });
    expect(await rejection(deferred)).toMatchObject({ code: "23505" });
    const endedItself = withTransactionLock(mine, "a", async (tx) => {
      await tx.query("COMMIT");
    });
    expect(await rejection(endedItself)).toMatchObject({
      message: expect.stringContaining("ended its transaction itself"),
    });
    expect(await count()).toBe(0);
    expect(mine.idleCount).toBe(mine.totalCount);
  });

  it("an outage is never told as a lock that is held", async () => {
    const nobody = database.pool({}, "postgres://nobody@127.0.0.1:1/none");
    expect(await rejection(withTransactionLock(nobody, "a", { wait: 0 }, () => {}))).toMatchObject({
      code: "STORE_UNAVAILABLE",
      message: expect.stringContaining("ECONNREFUSED"),
    });
    const end = await hold("a");
    const mine = database.pool();
    const waiting = rejection(withTransactionLock(mine, "a", { wait: "30s" }, () => {}));
    await database.waiting(1);
    await database.server.sql(
      "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted",
    );
    expect(await waiting).toMatchObject({ code: "STORE_UNAVAILABLE" });
    await end();
  });

  it("an abort ends the wait for a server that hangs", async () => {
    const mine = database.pool({ max: 1 });
    (await mine.connect()).release();
    await database.server.pause();
    const controller = new AbortController();
    const { signal } = controller;
    const hanging = rejection(withTransactionLock(mine, "a", { wait: 0, signal }, () => {}));
    setTimeout(() => controller.abort("enough"), 200);
    try {
      expect(await hanging).toBe("enough");
    } finally {
      await database.server.resume();
    }
    expect(await withTransactionLock(mine, "a", () => "mine")).toBe("mine");
  });

  it("a pool without a free connection: the wait ends by an abort, and the connection is given back", async () => {
    const mine = database.pool({ max: 1 });
    const only = await mine.connect();
    const controller = new AbortController();
    const waiting = rejection(
      withTransactionLock(mine, "a", { signal: controller.signal }, () => {}),
    );
    controller.abort("enough");
    expect(await waiting).toBe("enough");
    only.release();
    expect(await withTransactionLock(mine, "a", () => "mine")).toBe("mine");
  });

  it("refuses what is wrong before it connects", async () => {
    const mine = database.pool();
    const wrong: [unknown, unknown, unknown, unknown][] = [
      [null, "a", {}, () => {}],
      [new Client(database.server.url), "a", {}, () => {}],
      [mine, "", {}, () => {}],
      [mine, "a", { wiat: 1 }, () => {}],
      [mine, "a", { wait: "soon" }, () => {}],
      [mine, "a", { mode: "both" }, () => {}],
      [mine, "a", { signal: {} }, () => {}],
      [mine, "a", {}, undefined],
    ];
    for (const args of wrong) {
      // biome-ignore lint/suspicious/noExplicitAny: what JavaScript can pass
      expect(await rejection((withTransactionLock as any)(...args))).toBeInstanceOf(
        InvalidArgumentError,
      );
    }
    expect(mine.totalCount).toBe(0);
  });
});
