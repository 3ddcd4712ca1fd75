import { setTimeout as pause } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createLocks, type Lease, type LeaseLostError, type Locks } from "../../../src/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";

describeWith(["postgres"], "after a crash of PostgreSQL", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab.close());

  /** The state of the name after a crash that followed a handover, and what the new holder's renewal gets. */
  const crash = async (
    durableRelease: boolean,
  ): Promise<{ holder: string | undefined; waiters: number; renewal: string }> => {
    // Nothing is written before the crash that did not have to be.
    const fragile = await lab.postgres({ config: { wal_writer_delay: "10000ms" } });
    const store = await byPool(fragile.url, { durableRelease });
    const locks = createLocks(store, { ttl: 30_000, holder: "first" });
    const second = createLocks(await byPool(fragile.url), {
      ttl: 30_000,
      holder: "second",
    });
    // The server's process that writes the log has just done so, and now pauses.
    await (await locks.acquire("warm-up")).release();
    await pause(200);
    const lease = await locks.acquire("name");
    const waiting = second.acquire("name", { wait: 20_000 });
    await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
    // The waiter renews its ticket once it listens; whatever comes after its grant would bring that to disk.
    await pause(1_000);
    await lease.release();
    const granted = await waiting;
    await fragile.kill();
    await fragile.start();
    const after = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    expect(await after.tryAcquire("name")).toBeNull();
    const info = await after.inspect("name");
    const renewal = await granted.renew().then(
      () => "renewed",
      (error: LeaseLostError) => error.reason,
    );
    for (const one of [after, second, locks]) await one.close();
    await fragile.kill();
    return { holder: info?.holders[0]?.holder, waiters: info?.waiting ?? 0, renewal };
  };

  test("a released lease may be back, with the queue behind it: nobody passes, and the one it was handed to has lost it", {
    timeout: 60_000,
  }, async () => {
    expect(await crash(false)).toEqual({ holder: "first", waiters: 1, renewal: "superseded" });
  });

  test("a token that was told is not drawn again, though the clock is behind it", {
    timeout: 60_000,
  }, async () => {
    const fragile = await lab.postgres({ config: { wal_writer_delay: "10000ms" } });
    const locks = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    await (await locks.acquire("name")).release();
    // As if the clock had been an hour ahead.
    await fragile.sql(`UPDATE holdfast.names SET last_token = last_token + 3600000000`);
    await pause(200);
    const lease = await locks.acquire("name");
    const waiting = locks.acquire("name");
    await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
    await pause(1_000);
    await lease.release();
    const { token } = await waiting;
    await fragile.kill();
    await fragile.start();
    const after = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    await locks.close();
    await after.forceRelease("name", { why: "its holder has released it" });
    expect((await after.acquire("name")).token).toBeGreaterThan(token);
    await after.close();
    await fragile.kill();
  });

  test("a shared grant has a floor above every exclusive token that was told", {
    timeout: 60_000,
  }, async () => {
    const fragile = await lab.postgres({ config: { wal_writer_delay: "10000ms" } });
    const locks = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    const second = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    await (await locks.acquire("warm-up")).release();
    await pause(200);
    const reader = await locks.acquire("name", { mode: "shared" });
    const waiting = second.acquire("name");
    await expect.poll(async () => (await locks.inspect("name"))?.waiting).toBe(1);
    await pause(1_000);
    await reader.release();
    const { token } = await waiting;
    await fragile.kill();
    await fragile.start();
    // The writer gives up what may be a ticket again.
    await second.close();
    const after = createLocks(await byPool(fragile.url), { ttl: 30_000 });
    const next = await after.acquire("name", { mode: "shared" });
    expect(next.floor).toBeGreaterThan(token);
    for (const one of [after, locks]) await one.close();
    await fragile.kill();
  });

  test("grants and renewals that were answered are there, though the server's synchronous_commit is off", {
    timeout: 60_000,
  }, async () => {
    const fragile = await lab.postgres({
      config: { wal_writer_delay: "10000ms", synchronous_commit: "off" },
    });
    /** How long the lease on "name 0" goes on after a crash that follows these steps. */
    const left = async (
      acquired: number,
      last: (leases: Lease[], locks: Locks) => Promise<unknown>,
    ): Promise<number> => {
      const locks = createLocks(await byPool(fragile.url), { ttl: 30_000 });
      const leases: Lease[] = [];
      for (let i = 0; i < acquired; i++) leases.push(await locks.acquire(`name ${i}`));
      await pause(200);
      await last(leases, locks);
      await fragile.kill();
      await fragile.start();
      const after = createLocks(await byPool(fragile.url));
      const info = await after.inspect("name 0");
      await Promise.all([locks.close(), after.close()]);
      return info?.holders[0]?.expiresInMs ?? 0;
    };
    const renewed = (leases: Lease[]) => Promise.all(leases.map((lease) => lease.renew("10m")));
    expect(await left(0, (_, locks) => locks.acquire("name 0"))).toBeGreaterThan(0);
    for (const many of [1, 2]) expect(await left(many, renewed)).toBeGreaterThan(60_000);
  });

  test("a durable release is not undone", { timeout: 60_000 }, async () => {
    expect(await crash(true)).toEqual({
      holder: "second",
      waiters: 0,
      renewal: "renewed",
    });
  });
});
