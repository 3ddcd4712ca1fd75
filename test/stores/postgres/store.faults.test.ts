import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, Pool, type PoolConfig } from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { postgresFence } from "../../../src/fence/postgres.js";
import { connect, createLocks, type Locks } from "../../../src/index.js";
import { rateLimiter } from "../../../src/lockfree/index.js";
import { withTransactionLock } from "../../../src/postgres/index.js";
import { type PostgresStore, postgresStore } from "../../../src/stores/postgres/index.js";
import { type Fault, fault } from "../../../src/verify/fault.js";
import { postgresConnectionKind } from "../../../src/verify/faults/postgres-kind.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { FalseClock } from "../../../src/verify/lab/clock.js";
import { Disk } from "../../../src/verify/lab/disk.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { TimeLine } from "../../../src/verify/traffic/time-line.js";
import { describeWith, needs } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";
import { claimOf } from "../../support/redis.js";
import { freshFolder } from "../../support/sqlite.js";
import {
  eventsOf,
  expectHeldTwice,
  expectKept,
  startWorkers,
  until,
} from "../../support/worker.js";

const TTL_MS = 1_500;
/** For a busy machine: order and safety are checked here, not speed. */
const LIMITS = { lossMs: 1_000, wakeMs: 3_000, freeMs: 3_000, endMs: 3_000, healMs: 10_000 };

/** Workers of one time line that write to one fenced resource. */
const start = (count: number, url: string) =>
  startWorkers(
    count,
    url,
    { ttl: TTL_MS, wait: "20s" },
    { timeLine: new TimeLine(), resourceFile: join(freshFolder(), "data.db") },
  );

async function under(timeLine: TimeLine, one: Fault, act: () => Promise<void>): Promise<void> {
  timeLine.now({ kind: "injected", fault: one.name });
  await one.inject();
  try {
    await act();
  } finally {
    await one.heal();
    timeLine.now({ kind: "healed", fault: one.name });
  }
}

describeWith(["postgres", "loop mounts"], "PostgreSQL on a full disk", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab.close());

  /** The disk is full until it is healed; a server that has ended is started again. */
  async function startOnDisk(): Promise<{ server: PostgresServer; full: Fault }> {
    const disk = await Disk.open(lab, { sizeMb: 128 });
    onTestFinished(() => disk.close());
    // A commit that does not wait for the log would be told long before it is written.
    const config = { max_wal_size: "32MB", min_wal_size: "32MB", wal_writer_delay: "5000ms" };
    const server = await lab.postgres({ site: disk.site(), config });
    onTestFinished(() => server.kill());
    const filled = disk.full();
    const heal = async (): Promise<void> => {
      await filled.heal();
      if (server.state === "down") await server.start();
    };
    return { server, full: fault("the disk is full", () => filled.inject(), heal) };
  }

  test("leases are renewed while there is room in the log, new names are refused with the reason, and both go on afterwards", {
    timeout: 120_000,
  }, async () => {
    const { server, full } = await startOnDisk();
    const { workers, timeLine } = await start(2, server.url);
    const [holder, other] = workers;
    const held = await holder!.acquire("held");
    await under(timeLine, full, async () => {
      let failure = "";
      // Until the table has to grow.
      for (let i = 0; i < 2_000 && failure === ""; i++) {
        await other!.acquire(`new ${i}`, { wait: 0 }).then(
          ({ op }) => other!.release(op),
          (error: Error) => {
            failure = error.message;
          },
        );
      }
      expect(failure).toMatch(/the disk of PostgreSQL at \S+ is full/);
      await sleep(2 * TTL_MS);
      expect(await holder!.look(held.op)).toBe(true);
    });
    expect(await holder!.release(held.op)).toBe("released");
    const next = await other!.acquire("held");
    expect(next.token).toBeGreaterThan(held.token);
    await other!.release(next.op);
    await Promise.all(workers.map((one) => one.close()));
    expect(eventsOf(timeLine, "lost")).toEqual([]);
    expectKept(timeLine, ["S1", "S2", "S5", "S7", "L3"], LIMITS);
  });

  test("a server that ends because its log is full has forgotten no grant that it told", {
    timeout: 120_000,
  }, async () => {
    const { server, full } = await startOnDisk();
    const { workers, timeLine } = await start(4, server.url);
    const [keeper, ...others] = workers;
    const loops = others.map((one) =>
      one.loop({ name: "name", forMs: 12_000, holdMs: 5, writes: true }),
    );
    await sleep(1_000);
    const kept: string[] = [];
    await under(timeLine, full, async () => {
      let isRefused = false;
      const keeping = async (): Promise<void> => {
        while (!isRefused) {
          const name = `kept ${kept.length}`;
          await keeper!.acquire(name, { ttl: "1m", wait: 0 }).then(
            () => kept.push(name),
            () => {
              // On a busy machine, even the first one may be without a reply in time.
              isRefused = kept.length > 0 || server.state === "down";
            },
          );
        }
      };
      const keepingAll = keeping();
      await until("a grant is told", () => kept.length > 0);
      // The next record needs a new file of the log.
      const ended = async (): Promise<boolean> => {
        await server.sql("SELECT pg_switch_wal()").catch(() => {});
        return server.state === "down";
      };
      await until("the server has ended", ended, 30_000);
      await keepingAll;
    });
    for (const name of kept) {
      await expect(others[0]!.acquire(name, { wait: 0 }), name).rejects.toMatchObject({
        code: "ACQUIRE_TIMEOUT",
      });
    }
    const granted = await Promise.all(loops);
    expect(Math.min(...granted)).toBeGreaterThan(5);
    await Promise.all(workers.map((one) => one.close()));
    expectKept(timeLine, ["S1", "S2", "S3", "S7", "L2", "L3"], LIMITS);
  });
});

describeWith(["postgres"], "idle_in_transaction_session_timeout", () => {
  const USER = "app";
  let lab: Lab;
  let server: PostgresServer;
  let url: string;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    await server.sql(
      `CREATE ROLE ${USER} LOGIN PASSWORD '${USER}'; GRANT CREATE ON DATABASE postgres TO ${USER}; GRANT CREATE ON SCHEMA public TO ${USER}`,
    );
    url = server.url.replace(/\/\/.*@/, `//${USER}:${USER}@`);
    await (await connect(url)).close();
  });
  afterAll(() => lab.close());

  const endIdleAfter = (ms: number): Promise<string> =>
    server.sql(`ALTER ROLE ${USER} SET idle_in_transaction_session_timeout = ${ms}`);

  test("of a millisecond costs no lease and no request: no transaction of a lock waits for its client", {
    timeout: 60_000,
  }, async () => {
    await endIdleAfter(1);
    const { workers, timeLine } = await start(3, url);
    const granted = await Promise.all([
      ...workers.map((one) => one.loop({ name: "name", forMs: 4_000, holdMs: 2, writes: true })),
      ...workers.map((one) => one.loop({ name: ["a", "b"], forMs: 4_000, holdMs: 700 })),
    ]);
    expect(Math.min(...granted)).toBeGreaterThan(0);
    await Promise.all(workers.map((one) => one.close()));
    expectKept(timeLine, ["S1", "S2", "S3", "S7", "L3", "L4", "L6"], { ...LIMITS, complete: true });
  });

  test("ends a transaction of the user that keeps a name's row locked, and the name is granted", {
    timeout: 60_000,
  }, async () => {
    await endIdleAfter(2_000);
    const { workers, timeLine } = await start(2, url);
    const [first, second] = workers;
    await first!.release((await first!.acquire("locked")).op);
    const user = new Client(url);
    const ended = new Promise((resolve) => user.on("error", resolve));
    await user.connect();
    const lockRow = fault("a row is locked", async () => {
      await user.query(
        "BEGIN; SELECT FROM holdfast.names WHERE name = 'default:locked' FOR UPDATE",
      );
    });
    const holding = await second!.acquire("other");
    await under(timeLine, lockRow, async () => {
      const { op } = await first!.acquire("locked");
      await first!.release(op);
    });
    expect(String(await ended)).toMatch(/idle-in-transaction timeout/);
    expect(await second!.look(holding.op)).toBe(true);
    await second!.release(holding.op);
    await Promise.all(workers.map((one) => one.close()));
    expect(eventsOf(timeLine, "lost")).toEqual([]);
    expectKept(timeLine, ["S2", "S7", "L3"], LIMITS);
  });

  describe("ends a transaction whose client is paused, with all that it has written", () => {
    const openPool = (): Pool => {
      const pool = new Pool({ connectionString: url });
      pool.on("error", () => {});
      onTestFinished(() => pool.end());
      return pool;
    };

    test("behind a fence: the next holder enters, and the former one can't commit", async () => {
      await endIdleAfter(500);
      const pool = openPool();
      await pool.query("CREATE TABLE stock (amount integer); INSERT INTO stock VALUES (1)");
      const fence = postgresFence(pool, { wait: "20s" });
      const locks = await connect(url, { ttl: TTL_MS });
      onTestFinished(() => locks.close());
      const former = await locks.acquire("stock", { renew: false });
      await fence.enter(undefined, "stock", former);
      const tx = await pool.connect();
      tx.on("error", () => {});
      await tx.query("BEGIN");
      await fence.guard(tx, "stock", former);
      await tx.query("UPDATE stock SET amount = amount - 1");
      // It is paused here.
      const next = await locks.acquire("stock", { wait: "20s" });
      await fence.enter(undefined, "stock", next);
      expect((await pool.query("SELECT amount FROM stock")).rows).toEqual([{ amount: 1 }]);
      await expect(tx.query("COMMIT")).rejects.toThrow();
      tx.release(true);
      await expect(fence.guard(undefined, "stock", former)).rejects.toMatchObject({
        code: "STALE_TOKEN",
      });
    });

    test("under a transaction lock: the work rejects, and the next one has the lock", async () => {
      await endIdleAfter(500);
      const pool = openPool();
      await pool.query("CREATE TABLE counter (value integer); INSERT INTO counter VALUES (0)");
      let isIdle = (): void => {};
      const idle = new Promise<void>((resolve) => {
        isIdle = resolve;
      });
      let resume = (): void => {};
      const resumed = new Promise<void>((resolve) => {
        resume = resolve;
      });
      const former = withTransactionLock(pool, "counter", async (tx) => {
        await tx.query("UPDATE counter SET value = value + 1");
        isIdle();
        await resumed;
      });
      const outcome = former.then(
        () => "committed",
        (error: { code: string }) => error.code,
      );
      await idle;
      await withTransactionLock(pool, "counter", { wait: "20s" }, async (tx) => {
        const { rows } = await tx.query("SELECT value FROM counter");
        expect(rows).toEqual([{ value: 0 }]);
        await tx.query("UPDATE counter SET value = 10");
      });
      resume();
      expect(await outcome).toBe("STORE_UNAVAILABLE");
      expect((await pool.query("SELECT value FROM counter")).rows).toEqual([{ value: 10 }]);
    });
  });
});

describeWith(["postgres"], "backends and statements that the server ends", () => {
  let lab: Lab;
  let server: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
    await (await connect(server.url)).close();
  });
  afterAll(() => lab.close());

  /** The URL of a user of its own, to tell its backends from those of others. */
  const urlOf = async (user: string): Promise<string> => {
    await server.sql(`CREATE ROLE ${user} LOGIN SUPERUSER PASSWORD '${user}'`);
    return server.url.replace(/\/\/.*@/, `//${user}:${user}@`);
  };

  test("ended backends of a holder, of a waiter and of a listener cost no lease, no place in the queue and no promise", {
    timeout: 120_000,
  }, async () => {
    const shared = { timeLine: new TimeLine(), resourceFile: join(freshFolder(), "data.db") };
    const { timeLine } = shared;
    const open = async (user: string) => {
      const options = { ttl: TTL_MS, wait: "30s" } as const;
      const more = { ...shared, client: user };
      return (await startWorkers(1, await urlOf(user), options, more)).workers[0]!;
    };
    const [holder, waiter, another] = [
      await open("holder"),
      await open("waiter"),
      await open("another"),
    ];
    const listening = "query ~ '^(LISTEN |SELECT 1$)'";
    const count = async (backends: string): Promise<number> =>
      Number(await server.sql(`SELECT count(*) FROM pg_stat_activity WHERE ${backends}`));
    /** Ends them once there are some. */
    const end = (backends: string): Fault =>
      fault(`backends are ended: ${backends}`, () =>
        until(`there are backends: ${backends}`, async () => {
          const sql = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE ${backends}`;
          return Number(await server.sql(sql)) > 0;
        }),
      );

    const held = await holder.acquire("name");
    const waiting = waiter.acquire("name");
    await until(
      "the waiter listens",
      async () => (await count(`usename = 'waiter' AND ${listening}`)) === 1,
    );
    for (const backends of [
      "usename = 'holder'",
      `usename = 'waiter' AND NOT ${listening}`,
      `usename = 'waiter' AND ${listening}`,
    ]) {
      await under(timeLine, end(backends), () => sleep(TTL_MS));
      expect(await holder.look(held.op)).toBe(true);
    }
    await until(
      "the waiter listens again",
      async () => (await count(`usename = 'waiter' AND ${listening}`)) === 1,
    );
    expect(await holder.release(held.op)).toBe("released");
    const next = await waiting;
    expect(next.token).toBeGreaterThan(held.token);
    await waiter.release(next.op);
    expect(eventsOf(timeLine, "lost")).toEqual([]);

    const workers = [holder, waiter, another];
    const loops = workers.map((one) =>
      one.loop({ name: "name", forMs: 6_000, holdMs: 5, writes: true }),
    );
    for (let i = 0; i < 10; i++) {
      const user = `usename = '${workers[i % workers.length]!.client}'`;
      await under(timeLine, end(i % 2 === 0 ? user : `${user} AND NOT ${listening}`), () =>
        sleep(300),
      );
    }
    expect(Math.min(...(await Promise.all(loops)))).toBeGreaterThan(0);
    await Promise.all(workers.map((one) => one.close()));
    expectKept(timeLine, ["S1", "S2", "S3", "S7", "L3"], LIMITS);
  });

  test("a statement that is cancelled after it has taken the lock has taken nothing", {
    timeout: 60_000,
  }, async () => {
    const url = await urlOf("hurried");
    // Beyond statement_timeout, once the row is written.
    await server.sql(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN IF NEW.name LIKE ''%slow'' THEN PERFORM pg_sleep(60); END IF; RETURN NULL; END';
      CREATE TRIGGER dawdle AFTER UPDATE ON holdfast.names FOR EACH ROW EXECUTE FUNCTION dawdle();
      ALTER ROLE hurried SET statement_timeout = 1000`);
    const { workers, timeLine } = await start(2, url);
    const [first, second] = workers;
    const held = await first!.acquire("quick", { ttl: "30s" });
    await expect(first!.acquire("slow", { ttl: "30s", wait: 0 })).rejects.toThrow(
      /cancelled the statement: raise statement_timeout/,
    );
    expect(
      await server.sql(
        "SELECT count(*) FROM holdfast.names WHERE name LIKE '%slow' AND (held).token IS NOT NULL",
      ),
    ).toBe("0");
    const waiting = second!.acquire("slow");
    await server.sql("DROP TRIGGER dawdle ON holdfast.names");
    const slow = await waiting;
    await second!.release(slow.op);
    const again = await first!.acquire("slow");
    expect(again.token).toBeGreaterThan(slow.token);
    await first!.release(again.op);
    expect(await first!.look(held.op)).toBe(true);
    await first!.release(held.op);
    await Promise.all(workers.map((one) => one.close()));
    expect(eventsOf(timeLine, "lost")).toEqual([]);
    expectKept(timeLine, ["S2", "S7", "L3"], LIMITS);
  });

  test("the server's clock jumps ahead: two hold at the same time, the fence refuses the first; set back, tokens still rise", {
    timeout: 60_000,
  }, async (context) => {
    needs(context, "faketime");
    const clock = await FalseClock.open(lab);
    const clocked = await lab.postgres({ site: clock.site() });
    const { workers, timeLine } = await start(2, clocked.url);
    const [before, after] = workers;
    const first = await before!.acquire("name", { ttl: "2m" });
    const jump = clock.jump(+180_000);
    await jump.inject();
    timeLine.now({ kind: "clock-set", byMs: +180_000 });
    const second = await after!.acquire("name", { ttl: "2m" });
    expect(second.token).toBeGreaterThan(first.token);
    await after!.write(second.op);
    expect(await before!.look(first.op)).toBe(true);
    expect(await before!.write(first.op)).toBe(false);
    await jump.heal();
    timeLine.now({ kind: "clock-set", byMs: -180_000 });
    await after!.release(second.op);
    // The clock alone would give a lower token.
    const third = await before!.acquire("name");
    expect(third.token).toBeGreaterThan(second.token);
    await before!.release(third.op);
    await Promise.all(workers.map((one) => one.close()));
    expectHeldTwice(timeLine);
  });
});

describeWith(["postgres"], "connections and rows that others use", () => {
  let lab: Lab;
  let server: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
  });
  afterAll(() => lab.close());

  const open = async (pool: PoolConfig = {}): Promise<{ locks: Locks; store: PostgresStore }> => {
    const store = await byPool(server.url, {}, pool);
    const locks = createLocks(store, { ttl: 2_000 });
    onTestFinished(() => locks.close());
    return { locks, store };
  };

  test.each([1, 2])(
    "a pool of %i is enough for leases, waiters and renewals",
    {
      timeout: 60_000,
    },
    async (max) => {
      const { locks } = await open({ max });
      const held = await Promise.all(
        Array.from({ length: 20 }, (_, i) => locks.acquire(`held ${i}`, { ttl: 1_500 })),
      );
      const blocker = await locks.acquire("busy");
      const waiting = Array.from({ length: 20 }, () =>
        locks.withLock("busy", { wait: 30_000, ttl: 1_500 }, async () => {}),
      );
      await sleep(4_000);
      expect(held.map(({ state }) => state)).toEqual(held.map(() => "held"));
      await blocker.release();
      await Promise.all(waiting);
      await Promise.all(held.map((lease) => lease.release()));
    },
  );

  test("a program uses up its pool: requests fail in time, a lease is lost on time, and all goes on afterwards", {
    timeout: 60_000,
  }, async () => {
    const pool = new Pool({ connectionString: server.url, max: 2 });
    const locks = createLocks(postgresStore(pool), { ttl: 1_500 });
    onTestFinished(async () => {
      await locks.close();
      await pool.end();
    });
    const lease = await locks.acquire("held");
    const lost = new Promise((resolve) => lease.signal.addEventListener("abort", resolve));
    const used = await Promise.all([pool.connect(), pool.connect()]);
    await expect(locks.tryAcquire("other")).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    await lost;
    expect(() => lease.assertHeld()).toThrow();
    for (const client of used) client.release();
    const next = await locks.acquire("held", { wait: 20_000 });
    expect(next.token).toBeGreaterThan(lease.token);
    await next.release();
  });

  /** Rows of these names are locked until the client rolls back. */
  const lockRows = async (names: readonly string[]): Promise<Client> => {
    const other = new Client(server.url);
    await other.connect();
    onTestFinished(() => other.end());
    await other.query("BEGIN");
    const text = "SELECT FROM holdfast.names WHERE name = ANY ($1) FOR UPDATE";
    const { rowCount } = await other.query(text, [names.map((name) => `default:${name}`)]);
    expect(rowCount).toBe(names.length);
    return other;
  };

  test.each([1, 2])(
    "rows that somebody else has locked leave a pool of %i to the other names",
    {
      timeout: 60_000,
    },
    async (max) => {
      const { locks } = await open({ max });
      const names = Array.from({ length: 10 }, (_, i) => `stuck ${max} ${i}`);
      for (const name of names) await (await locks.acquire(name)).release();
      const blocked = await locks.acquire(`blocked ${max}`, { ttl: "30s" });
      const kept = await locks.acquire(`kept ${max}`, { ttl: 3_000 });
      const other = await lockRows([...names, `blocked ${max}`]);
      const settled = vi.fn();
      const waiting = names.map(async (name, i) => {
        // Half of them are sent alone, and half in one statement.
        if (i < 5) await sleep(10 * i);
        const lease = await locks.acquire(name, { ttl: "30s", wait: "30s" }).finally(settled);
        await lease.release();
      });
      const requests = [blocked.renew(), locks.forceRelease(names[0]!, { why: "test" })];
      for (const { reason } of (await Promise.allSettled(requests)) as PromiseRejectedResult[]) {
        expect(reason).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
        expect(reason.message).toContain("keeps the row of the name locked");
      }
      // Claims and renewals are given up and sent again, too.
      await sleep(6_000);
      expect(kept.state).toBe("held");
      expect(settled).not.toHaveBeenCalled();
      await (await locks.acquire("free", { wait: 5_000 })).release();
      await other.query("ROLLBACK");
      await Promise.all(waiting);
      await Promise.all([blocked.release(), kept.release()]);
    },
  );

  test("a row of a limiter that somebody else has locked leaves a pool of one to the leases", {
    timeout: 60_000,
  }, async () => {
    const { locks } = await open({ max: 1 });
    const mails = rateLimiter(locks, "mail", { limit: 1_000, per: "1m" });
    await mails.take(1);
    const kept = await locks.acquire("kept beside a limiter", { ttl: 3_000 });
    const other = new Client(server.url);
    await other.connect();
    onTestFinished(() => other.end());
    await other.query("BEGIN; SELECT FROM holdfast.meters FOR UPDATE");
    const takes = await Promise.allSettled(Array.from({ length: 20 }, () => mails.take(1)));
    for (const { reason } of takes as PromiseRejectedResult[]) {
      expect(reason).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    }
    expect(kept.state).toBe("held");
    await other.query("ROLLBACK");
    await mails.take(1);
    await kept.release();
  });

  test("100 locked names: each request learns why", { timeout: 90_000 }, async () => {
    const { locks } = await open({ max: 4 });
    const names = Array.from({ length: 100 }, (_, i) => `many ${i}`);
    await Promise.all(names.map(async (name) => (await locks.acquire(name)).release()));
    const other = await lockRows(names);
    const failures = names.map((name) =>
      expect(locks.acquire(name, { ttl: "30s", wait: "8s" })).rejects.toThrow(
        "keeps the row of the name locked",
      ),
    );
    await Promise.all(failures);
    await other.query("ROLLBACK");
  });

  test("once closed, the store leaves the pool alone, although rows are locked", {
    timeout: 30_000,
  }, async () => {
    const pool = new Pool({ connectionString: server.url, max: 4 });
    const ignore = (): void => {};
    onTestFinished(() => pool.end());
    const locks = createLocks(postgresStore(pool), { ttl: "30s" });
    await (await locks.acquire("closing")).release();
    const other = await lockRows(["closing"]);
    const pending = [
      locks.acquire("closing", { wait: "20s" }),
      locks.forceRelease("closing", { why: "test" }),
    ].map((one) => one.catch(ignore));
    await sleep(300);
    await locks.close();
    const connects = vi.spyOn(pool, "connect");
    await sleep(1_500);
    expect(pool.listenerCount("error")).toBe(0);
    // At most the release of the claim, whose fate was not known before.
    expect(connects.mock.calls.length).toBeLessThan(3);
    await Promise.all(pending);
    await other.query("ROLLBACK");
  });

  test("a row that somebody else has locked holds up its own name only", {
    timeout: 60_000,
  }, async () => {
    const { locks } = await open();
    for (const name of ["stuck", "free"]) await (await locks.acquire(name)).release();
    const kept = await locks.acquire("kept", { ttl: 1_500 });
    const other = await lockRows(["stuck"]);
    // Both go in one statement.
    const [stuck, free] = [locks.acquire("stuck", { wait: 15_000 }), locks.acquire("free")];
    const granted = vi.fn();
    stuck.then(granted, granted);
    const lease = await free;
    await sleep(2_000);
    expect(kept.state).toBe("held");
    expect(granted).not.toHaveBeenCalled();
    await other.query("ROLLBACK");
    await (await stuck).release();
    await lease.release();
  });

  test("a row that somebody else is just making holds up its own name only", {
    timeout: 60_000,
  }, async () => {
    const { store } = await open();
    const other = new Client(server.url);
    await other.connect();
    await other.query(`BEGIN; INSERT INTO holdfast.names (name) VALUES ('stuck')`);
    // All go in one statement.
    const claims = ["a", "stuck", "x"].map((name) =>
      store.claim(claimOf(name, { ttlMs: 3_000 }), () => {}),
    );
    const replies = await Promise.allSettled(claims);
    expect(replies).toMatchObject([
      { value: { kind: "granted" } },
      { reason: { code: "STORE_UNAVAILABLE", retryable: true } },
      { value: { kind: "granted" } },
    ]);
    await other.query("ROLLBACK");
    await other.end();
  });

  test("a waiter is notified again after nothing arrived on its new connection for a while", {
    timeout: 60_000,
  }, async () => {
    const proxy = await TcpProxy.open(server, { kindOf: postgresConnectionKind });
    onTestFinished(() => proxy.close());
    const options = { ttl: 30_000, poll: { min: "20s", max: "20s" } } as const;
    const holder = createLocks(await byPool(server.url), options);
    onTestFinished(() => holder.close());
    const waiter = createLocks(await byPool(proxy.url), options);
    onTestFinished(() => waiter.close());
    const isTest = (bytes: Buffer): boolean => bytes.includes("self-test");
    const broken = proxy.truncate("to-client", { when: isTest, only: "subscription" });
    await broken.inject();
    const held = await holder.acquire("name");
    const waiting = waiter.acquire("name", { wait: 30_000 });
    await until("the test is broken off", () => broken.struck === 1);
    await sleep(3_000);
    await broken.heal();
    await until("it listens again", async () => {
      const listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'";
      return Number(await server.sql(listening)) > 0;
    });
    const fromMs = performance.now();
    await held.release();
    await (await waiting).release();
    expect(performance.now() - fromMs).toBeLessThan(5_000);
  });

  test("a process listens only while somebody waits", { timeout: 30_000 }, async () => {
    const { locks } = await open();
    const listening = async (): Promise<number> =>
      Number(
        await server.sql(
          "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN %' OR query = 'SELECT 1'",
        ),
      );
    const lease = await locks.acquire("name");
    expect(await listening()).toBe(0);
    const waiting = locks.acquire("name", { wait: 10_000 });
    await expect.poll(listening, { timeout: 5_000 }).toBe(1);
    await lease.release();
    await (await waiting).release();
    await expect.poll(listening, { timeout: 15_000 }).toBe(0);
  });
});
