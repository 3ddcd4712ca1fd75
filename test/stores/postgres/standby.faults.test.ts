import { afterAll, beforeAll, expect, test } from "vitest";
import { connect, createLocks } from "../../../src/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";

describeWith(["postgres"], "a standby of PostgreSQL", () => {
  let lab: Lab;
  let primary: PostgresServer;
  let standby: PostgresServer;
  beforeAll(async () => {
    lab = await Lab.open();
    primary = await lab.postgres();
    await (await byPool(primary.url)).close();
    standby = await lab.postgres({ standbyOf: primary });
  });
  afterAll(() => lab.close());

  test("grants nothing, and says why", async () => {
    await expect(connect(standby.url).then((locks) => locks.acquire("name"))).rejects.toMatchObject(
      {
        code: "STORE_UNAVAILABLE",
        retryable: false,
        message: expect.stringContaining("standby"),
      },
    );
  });

  test("lacks the last grant when it is promoted, and gives the name again with a higher token", {
    timeout: 60_000,
  }, async () => {
    const old = createLocks(await byPool(primary.url), { ttl: 60_000 });
    // Later commits do not reach the standby.
    await standby.sql("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()");
    await expect.poll(() => primary.sql("SELECT count(*) FROM pg_stat_replication")).toBe("0");
    const before = await old.acquire("name");
    await primary.pause();
    await standby.promote();
    const promoted = createLocks(await byPool(standby.url), { ttl: 60_000 });
    const after = await promoted.acquire("name");
    expect(after.token).toBeGreaterThan(before.token);
    // Both servers go on: each of them knows a holder.
    await primary.resume();
    expect(await before.renew()).toBeUndefined();
    expect([before.state, after.state]).toEqual(["held", "held"]);
    await after.release();
    await before.release();
    await Promise.all([old.close(), promoted.close()]);
  });
});
