import { Pool } from "pg";
import { expect, onTestFinished, test } from "vitest";
import { postgresFence } from "../../src/fence/postgres.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";

const by = (token: bigint) => ({ token, floor: token });

describeWith(["postgres"], "a crash of PostgreSQL", () => {
  test("takes no entry back, also where synchronous_commit is off", {
    timeout: 60_000,
  }, async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const config = { synchronous_commit: "off", wal_writer_delay: "10s" };
    const server = await lab.postgres({ config });
    const open = (): Pool => {
      const pool = new Pool({ connectionString: server.url });
      pool.on("error", () => {});
      onTestFinished(() => pool.end());
      return pool;
    };
    const pool = open();
    const fence = postgresFence(pool);
    await fence.enter(undefined, "hat", by(5n));
    await pool.query("CHECKPOINT");
    await fence.enter(undefined, "hat", by(6n));
    await server.kill();
    await server.start();
    const later = postgresFence(open());
    expect(await later.highest(undefined, "hat")).toBe(6n);
    await expect(later.guard(undefined, "hat", by(5n))).rejects.toMatchObject({
      code: "STALE_TOKEN",
    });
  });
});
