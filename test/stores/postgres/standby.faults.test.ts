import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { connect } from "../../../src/index.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { TimeLine } from "../../../src/verify/traffic/time-line.js";
import { describeWith } from "../../support/needs.js";
import { byPool } from "../../support/postgres.js";
import { freshFolder } from "../../support/sqlite.js";
import { expectHeldTwice, startWorkers } from "../../support/worker.js";

describeWith(["postgres"], "a standby of PostgreSQL", () => {
  describe.each(["", "?mode=session"])("by a URL that ends with %j", (mode) => {
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
      await expect(
        connect(`${standby.url}${mode}`).then((locks) => locks.acquire("name")),
      ).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
        retryable: false,
        message: expect.stringContaining("standby"),
      });
    });

    test("lacks the last grant when it is promoted, and gives the name again with a higher token", {
      timeout: 60_000,
    }, async () => {
      const more = { timeLine: new TimeLine(), resourceFile: join(freshFolder(), "data.db") };
      const { timeLine } = more;
      const start = async (client: string, { url }: PostgresServer) =>
        (await startWorkers(1, `${url}${mode}`, { ttl: "2m" }, { ...more, client })).workers[0]!;
      const old = await start("old", primary);
      // Later commits do not reach the standby.
      await standby.sql("ALTER SYSTEM SET primary_conninfo = ''; SELECT pg_reload_conf()");
      await expect.poll(() => primary.sql("SELECT count(*) FROM pg_stat_replication")).toBe("0");
      const before = await old.acquire("name");
      timeLine.now({ kind: "injected", fault: "a failover" });
      await primary.pause();
      await standby.promote();
      const promoted = await start("promoted", standby);
      const after = await promoted.acquire("name");
      expect(after.token).toBeGreaterThan(before.token);
      expect(await promoted.write(after.op)).toBe(true);
      // Both servers go on: each of them knows a holder.
      await primary.resume();
      for (const [worker, { op }] of [
        [old, before],
        [promoted, after],
      ] as const) {
        await worker.renew(op, 120_000);
        expect(await worker.look(op)).toBe(true);
      }
      expect(await old.write(before.op)).toBe(false);
      for (const [worker, { op }] of [
        [promoted, after],
        [old, before],
      ] as const) {
        expect(await worker.release(op)).toBe("released");
        await worker.close();
      }
      expectHeldTwice(timeLine);
    });
  });
});
