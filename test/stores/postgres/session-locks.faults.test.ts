import { Client, Pool } from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { grantOf } from "../../../src/conformance/subject.js";
import { UnsupportedError } from "../../../src/core/errors.js";
import { LOCK_LIMIT, type Store } from "../../../src/core/store.js";
import { connect, createLocks, type Locks, type LocksOptions } from "../../../src/index.js";
import {
  PostgresSessionStore,
  postgresSessionStore,
} from "../../../src/stores/postgres/session/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PgBouncer } from "../../../src/verify/lab/pgbouncer.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";
import { bySession } from "../../support/postgres.js";
import { until } from "../../support/worker.js";

let ids = 0;
const claimOf = (name: string, more: object = {}) => ({
  names: [name],
  grantId: `grant-${++ids}`,
  seq: 1,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: 10_000,
  atLeastMs: 0,
  holder: `holder-${ids}`,
  queue: false,
  ...more,
});
const ignore = (): void => {};

describeWith(["postgres"], "locks of PostgreSQL sessions", () => {
  let lab: Lab;
  let server: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
  });
  afterAll(() => lab.close());

  const open = async (): Promise<PostgresSessionStore> => {
    const store = await bySession(server.url);
    onTestFinished(() => store.close());
    return store;
  };
  const locksOn = (store: Store, options: LocksOptions = {}): Locks => {
    const locks = createLocks(store, { ttl: "10s", wait: "10s", ...options });
    onTestFinished(() => locks.close());
    return locks;
  };
  const heldOnServer = async (): Promise<number> =>
    Number(
      await server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"),
    );
  const rows = async (name: string): Promise<number> =>
    Number(
      await server.sql(`SELECT count(*) FROM holdfast.session_locks WHERE name LIKE '%${name}'`),
    );

  test("two claims of one session exclude each other, although the server would grant both", async () => {
    const store = await open();
    const first = claimOf("re-entered");
    const { token } = grantOf(await store.claim(first, ignore));
    expect(await store.claim(claimOf("re-entered"), ignore)).toMatchObject({
      kind: "busy",
      position: { holder: first.holder },
    });
    expect(await store.claim({ ...first, seq: 2 }, ignore)).toMatchObject({
      kind: "granted",
      grants: [{ token, seq: 2 }],
    });
    // Once: a lock that was counted twice would stay.
    expect(await store.release([{ name: "re-entered", grantId: first.grantId }])).toEqual([
      "released",
    ]);
    expect((await (await open()).claim(claimOf("re-entered"), ignore)).kind).toBe("granted");
  });

  test("waiters of one process for a name that another has share a request", async () => {
    const [store, other] = [await open(), await open()];
    grantOf(await other.claim(claimOf("contended"), ignore));
    const before = await server.commands();
    const answers = await Promise.all(
      Array.from({ length: 200 }, () => store.claim(claimOf("contended"), ignore)),
    );
    expect(new Set(answers.map(({ kind }) => kind))).toEqual(new Set(["busy"]));
    // One that sets the ttl of the session, and one claim; a renewal may fall in between.
    expect((await server.commands()) - before).toBeLessThan(5);
  });

  test("claims of one moment in one process: one is granted, the others are told who has it", async () => {
    const store = await open();
    const claims = [1, 2, 3].map(() => claimOf("moment"));
    const answers = await Promise.all(claims.map((claim) => store.claim(claim, ignore)));
    expect(answers.map(({ kind }) => kind)).toEqual(["granted", "busy", "busy"]);
    expect(answers[1]).toMatchObject({ position: { holder: claims[0]!.holder } });
  });

  test("two Locks of one store, and two stores of one process, exclude each other", async () => {
    const pool = new Pool({ connectionString: server.url });
    onTestFinished(() => pool.end());
    const shared = postgresSessionStore(pool);
    const [one, two, three] = [locksOn(shared), locksOn(shared), locksOn(await open())];
    const lease = await one.acquire("name");
    expect(await two.tryAcquire("name")).toBeNull();
    expect(await three.tryAcquire("name")).toBeNull();
    // A Locks that is closed leaves the session to the others.
    await two.close();
    lease.assertHeld();
    await lease.release();
    expect((await three.acquire("name")).token).toBeGreaterThan(lease.token);
  });

  test("readers of one session share one lock of the server, which the last of them frees", async () => {
    const [store, other] = [await open(), await open()];
    const before = await heldOnServer();
    const readers = [1, 2, 3].map(() => claimOf("read", { permits: 1 }));
    const granted = await Promise.all(readers.map((claim) => store.claim(claim, ignore)));
    expect(granted.map(({ kind }) => kind)).toEqual(["granted", "granted", "granted"]);
    expect(await heldOnServer()).toBe(before + 1);
    const releases = readers.map(({ grantId }) => ({ name: "read", grantId }));
    await store.release(releases.slice(0, 2));
    expect((await other.claim(claimOf("read"), ignore)).kind).toBe("busy");
    await store.release(releases.slice(2));
    expect((await other.claim(claimOf("read"), ignore)).kind).toBe("granted");
  });

  test("readers of several sessions at once know the lowest token among them", async () => {
    const stores = await Promise.all([1, 2, 3, 4].map(open));
    for (let round = 0; round < 10; round++) {
      const name = `floor ${round}`;
      const answers = await Promise.all(
        stores.map((store) => store.claim(claimOf(name, { permits: 1 }), ignore)),
      );
      const grants = answers.flatMap((answer) => (answer.kind === "granted" ? answer.grants : []));
      const lowest = grants.map(({ token }) => token).sort((a, b) => (a < b ? -1 : 1))[0];
      expect(grants.map(({ floor }) => floor)).toEqual([lowest, lowest, lowest, lowest]);
    }
  });

  test("tokens rise with every grant of a name, whichever session draws them", async () => {
    const all = (await Promise.all([1, 2, 3, 4].map(open))).map((store) =>
      locksOn(store, { poll: { min: 1, max: 5 } }),
    );
    const tokens: bigint[] = [];
    const work = all.flatMap((locks) =>
      [1, 2].map(async () => {
        for (let i = 0; i < 12; i++) {
          const lease = await locks.acquire("counted", { wait: "60s" });
          tokens.push(lease.token);
          await lease.release();
        }
      }),
    );
    await Promise.all(work);
    expect(tokens).toHaveLength(96);
    expect(tokens.every((token, i) => i === 0 || token > tokens[i - 1]!)).toBe(true);
  });

  test("tokens go on rising when the sequence is ahead of the clock, and follow the clock when it is behind", async () => {
    const store = await open();
    const draw = async (): Promise<bigint> => {
      const claim = claimOf("drawn");
      const { token } = grantOf(await store.claim(claim, ignore));
      await store.release([{ name: "drawn", grantId: claim.grantId }]);
      return token;
    };
    const first = await draw();
    const ahead = BigInt(Date.now() + 60_000) * 1_000n;
    await server.sql(`SELECT setval('holdfast.session_tokens', ${ahead})`);
    expect(await draw()).toBe(ahead + 1n);
    expect(await draw()).toBe(ahead + 2n);
    await server.sql("SELECT setval('holdfast.session_tokens', 1)");
    const followed = await draw();
    expect(followed).toBeGreaterThan(first);
    expect(Math.abs(Number(followed / 1_000n) - Date.now())).toBeLessThan(60_000);
  });

  test("names with one key are refused, in one process and in two", async () => {
    const make = async (): Promise<PostgresSessionStore> => {
      const pool = new Pool({ connectionString: server.url });
      const store = new PostgresSessionStore(pool, { closeClient: true }, () => 42n);
      onTestFinished(() => store.close());
      return store;
    };
    const [one, two] = [await make(), await make()];
    await one.claim(claimOf("a"), ignore);
    for (const store of [one, two]) {
      const refused = store.claim(claimOf("b"), ignore);
      await expect(refused).rejects.toThrow(UnsupportedError);
      await expect(refused).rejects.toThrow(/"b" has the same 64-bit key as "a", which is held/);
      expect((await store.claim(claimOf("a"), ignore)).kind).toBe("busy");
    }
  });

  test("a claim that fails after the lock was taken leaves no lock, and the session's others stay", async () => {
    const store = await open();
    const locks = locksOn(store);
    const kept = await locks.acquire("kept");
    const before = await heldOnServer();
    await server.sql(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
      BEGIN IF NEW.name LIKE '%broken' THEN RAISE 'broken by the test'; END IF; RETURN NEW; END $$;
      CREATE TRIGGER fail BEFORE INSERT ON holdfast.session_locks FOR EACH ROW EXECUTE FUNCTION fail()`);
    try {
      const claims = ["broken", "with it"].map((name) => locks.acquire(name, { wait: 0 }));
      for (const claim of claims) await expect(claim).rejects.toThrow(/broken by the test/);
      expect(await heldOnServer()).toBe(before);
    } finally {
      await server.sql("DROP TRIGGER fail ON holdfast.session_locks; DROP FUNCTION fail");
    }
    kept.assertHeld();
    await kept.renew();
    await (await locksOn(await open()).acquire("broken", { wait: 0 })).release();
  });

  /** Runs these statements at the end of each transaction that has deleted a row of the name. */
  const atCommitOfRelease = async (name: string, statements: string): Promise<void> => {
    const drop = "DROP TRIGGER IF EXISTS late ON holdfast.session_locks";
    onTestFinished(() => server.sql(drop).then(ignore));
    await server.sql(`SET client_min_messages = warning; ${drop};
      CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ${statements}; RETURN NULL; END $$;
      CREATE CONSTRAINT TRIGGER late AFTER DELETE ON holdfast.session_locks DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (OLD.name = '${name}') EXECUTE FUNCTION late()`);
  };

  test("a reader whose release has yet to commit lowers no floor of those after the next writer", async () => {
    const [store, writer, other] = [await open(), await open(), await open()];
    const first = claimOf("slow", { permits: 1 });
    await store.claim(first, ignore);
    await atCommitOfRelease("slow", "PERFORM pg_sleep(1)");
    const released = store.release([{ name: "slow", grantId: first.grantId }]);
    const between = claimOf("slow");
    await until("it has unlocked", async () => {
      return (await writer.claim(between, ignore)).kind === "granted";
    });
    await writer.close();
    let reader = await other.claim(claimOf("slow", { permits: 1 }), ignore);
    while (reader.kind === "busy") {
      reader = await other.claim(claimOf("slow", { permits: 1 }), ignore);
    }
    const { token, floor } = grantOf(reader);
    expect(floor).toBe(token);
    await released;
  });

  test("after a release that failed, nobody shares a lock that the session may have lost", async () => {
    const [store, other] = [await open(), await open()];
    const first = claimOf("undone", { permits: 1 });
    const releases = [{ name: "undone", grantId: first.grantId }];
    await store.claim(first, ignore);
    await atCommitOfRelease("undone", "RAISE 'undone by the test'");
    await expect(store.release(releases)).rejects.toThrow(/undone by the test/);
    expect((await store.claim(claimOf("undone", { permits: 1 }), ignore)).kind).toBe("busy");
    await server.sql("DROP TRIGGER late ON holdfast.session_locks");
    expect(await store.release(releases)).toEqual(["released"]);
    expect((await store.claim(claimOf("undone", { permits: 1 }), ignore)).kind).toBe("granted");
    expect((await other.claim(claimOf("undone"), ignore)).kind).toBe("busy");
  });

  test("a claim that fails because somebody has locked the table costs no lease", async () => {
    const locks = locksOn(await open());
    const kept = await locks.acquire("kept");
    const client = new Client(server.url);
    await client.connect();
    onTestFinished(() => client.end());
    await client.query("BEGIN; LOCK TABLE holdfast.session_locks");
    const refused = locks.acquire("new", { wait: "6s" });
    await expect(refused).rejects.toMatchObject({ code: "STORE_UNAVAILABLE" });
    await client.query("ROLLBACK");
    kept.assertHeld();
    await kept.renew();
    await (await locks.acquire("new")).release();
  });

  test("a session that dies leaves rows which nobody takes for holders, and the next session deletes", async () => {
    const pool = new Pool({ connectionString: server.url });
    const dead = new PostgresSessionStore(pool, { closeClient: true });
    await dead.claim(claimOf("left"), ignore);
    await dead.claim(claimOf("left read", { permits: 1 }), ignore);
    const living = await open();
    expect((await living.inspect("left"))?.holders).toHaveLength(1);
    await dead.close();
    await until("the server has freed them", async () => (await living.inspect("left")) === null);
    expect(await rows("left")).toBe(1);
    // Its row is no reader of today.
    const reader = grantOf(await living.claim(claimOf("left read", { permits: 1 }), ignore));
    expect(reader.floor).toBe(reader.token);
    await open();
    expect(await rows("left")).toBe(0);
  });

  test("a backend that is ended: its leases are lost at once, and the next token is higher", async () => {
    const [holder, other] = [locksOn(await open(), { ttl: "1m" }), locksOn(await open())];
    const leases = await Promise.all(
      ["a", "b", "c"].map((name) => holder.acquire(`ended ${name}`)),
    );
    const unrenewed = await holder.acquire("ended d", { renew: false });
    const waiting = other.acquire("ended a", { wait: "20s" });
    const pids = await server.sql(
      "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' GROUP BY pid HAVING count(*) > 4",
    );
    expect(pids).toBe("t");
    await until(
      "all are lost",
      () => [...leases, unrenewed].every(({ state }) => state === "lost"),
      2_000,
    );
    expect(leases[0]!.signal.aborted).toBe(true);
    expect((await waiting).token).toBeGreaterThan(leases[0]!.token);
    expect(await leases[1]!.release()).toBe("lost");
    const again = await holder.acquire("ended b", { wait: "20s" });
    expect(again.token).toBeGreaterThan(leases[1]!.token);
  });

  test("a URL with mode=session; other modes are refused", async () => {
    const locks = await connect(`${server.url}?mode=session`, { ttl: "5s" });
    expect(locks.traits.store).toBe("PostgreSQL sessions");
    await locks.withLock("by URL", async (lease) => expect(lease.token).toBeGreaterThan(0n));
    await expect(locks.forceRelease("by URL", { why: "a test" })).rejects.toThrow(
      /pg_terminate_backend/,
    );
    await locks.close();
    await expect(connect(`${server.url}?mode=table`)).rejects.toThrow(/mode.*can only be session/);
  });

  test("a user with the least rights, whose settings would break locks, has them all the same", async () => {
    await server.sql(`CREATE ROLE app LOGIN PASSWORD '${server.password}';
      ALTER ROLE app SET default_transaction_isolation = 'serializable';
      ALTER ROLE app SET idle_session_timeout = '1s';
      ALTER ROLE app SET search_path = 'nowhere';
      GRANT USAGE ON SCHEMA holdfast TO app;
      GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.session_locks TO app;
      GRANT USAGE, UPDATE ON SEQUENCE holdfast.session_tokens TO app`);
    const url = server.url.replace("//postgres:", "//app:");
    const locks = locksOn(await bySession(url), { ttl: "12s" });
    const lease = await locks.acquire("by app", { mode: "shared" });
    const other = await locksOn(await open()).acquire("by app", { mode: "shared" });
    expect(other.floor).toBe(lease.token);
    // Longer than its idle_session_timeout, and less than the first renewal takes.
    await new Promise((resolve) => setTimeout(resolve, 2_500));
    expect(await lease.release()).toBe("released");
    expect((await locks.inspect("by app"))?.holders).toHaveLength(1);
  });

  describeWith(["pgbouncer"], "behind a pooler", () => {
    let pooler: PgBouncer;
    beforeAll(async () => {
      pooler = await lab.pgbouncer(server);
    });

    test("plain session locks are granted twice", async () => {
      const clients = [1, 2].map(() => new Client({ connectionString: pooler.url }));
      for (const client of clients) await client.connect();
      try {
        const granted = [];
        for (const client of clients) {
          const { rows } = await client.query("SELECT pg_try_advisory_lock(7) AS granted");
          granted.push(rows[0].granted);
        }
        expect(granted).toEqual([true, true]);
      } finally {
        await clients[0]!.query("SELECT pg_advisory_unlock_all()");
        for (const client of clients) await client.end();
      }
    });

    test("the store refuses to work, and says what to use", async () => {
      const refused = connect(`${pooler.url}?mode=session`);
      await expect(refused).rejects.toThrow(UnsupportedError);
      await expect(refused).rejects.toThrow(/a pooler stands before.*lease table/);
    });
  });

  describe("many locks", () => {
    test("2,000 locks of one session are taken and given back in batches", async () => {
      const store = await open();
      const claims = Array.from({ length: 2_000 }, (_, i) => claimOf(`many ${i}`));
      const answers = await Promise.all(claims.map((claim) => store.claim(claim, ignore)));
      expect(new Set(answers.map(({ kind }) => kind))).toEqual(new Set(["granted"]));
      const releases = claims.map(({ names: [name], grantId }) => ({ name: name!, grantId }));
      expect(new Set(await store.release(releases))).toEqual(new Set(["released"]));
      expect(await rows("many 1999")).toBe(0);
    });
  });
});
