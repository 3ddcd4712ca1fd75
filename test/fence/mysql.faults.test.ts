import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { createPool, type Pool } from "mysql2/promise";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import type { Fence } from "../../src/fence/fence.js";
import { freePort } from "../../src/verify/lab/ports.js";
import { findFile } from "../../src/verify/lab/requirements.js";
import { until } from "../../src/verify/lab/until.js";
import { importBlock } from "../support/docs.js";
import { describeWith } from "../support/needs.js";
import { suiteOf } from "./suite.js";

const LEASE = { token: 1n, floor: 1n };

// Not among the quick tests: making the database takes seconds.
describeWith(["mariadb"], "the fence for MySQL of docs/fences.md", () => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-mysql-"));
  let stop: () => Promise<unknown>;
  let pool: Pool;
  let mysqlFence: (pool: Pool) => Fence<unknown>;

  beforeAll(async () => {
    const options = ["--no-defaults", `--datadir=${folder}`, "--user=root"];
    await promisify(execFile)(findFile("mariadb-install-db")!, [
      ...options,
      "--auth-root-authentication-method=normal",
      "--skip-test-db",
    ]);
    const port = await freePort();
    const server = spawn(
      findFile("mariadbd")!,
      [
        ...options,
        `--port=${port}`,
        "--bind-address=127.0.0.1",
        `--socket=${join(folder, "s")}`,
        "--skip-name-resolve",
      ],
      { stdio: "ignore" },
    );
    stop = async () => {
      const gone = once(server, "exit");
      server.kill("SIGKILL");
      await gone;
    };
    const address = { host: "127.0.0.1", port, user: "root", connectionLimit: 8 };
    const first = createPool(address);
    await until("MariaDB answers", 60_000, () =>
      first.query("CREATE DATABASE IF NOT EXISTS shop").then(
        () => true,
        () => false,
      ),
    );
    await first.end();
    pool = createPool({ ...address, database: "shop" });
    await pool.query(
      "CREATE TABLE fences (resource VARBINARY(255) PRIMARY KEY, highest BIGINT) ENGINE = InnoDB",
    );
    await pool.query("CREATE TABLE cell (name VARBINARY(255) PRIMARY KEY, value INTEGER)");
    ({ mysqlFence } = await importBlock<{ mysqlFence: typeof mysqlFence }>(
      "docs/fences.md",
      "test/fence/mysql.faults.test.ts",
    ));
  }, 120_000);
  afterAll(async () => {
    await pool?.end();
    await stop?.();
    rmSync(folder, { recursive: true, force: true });
  });

  suiteOf(async () => {
    await pool.query("TRUNCATE fences");
    await pool.query("TRUNCATE cell");
    const fence = mysqlFence(pool);
    return {
      fence,
      async read(resource) {
        const [rows] = await pool.query("SELECT value FROM cell WHERE name = ?", [resource]);
        return (rows as { value: number }[])[0]?.value ?? 0;
      },
      async write(resource, lease, value, options) {
        const tx = await pool.getConnection();
        try {
          await tx.query("START TRANSACTION");
          await fence.guard(tx, resource, lease, options);
          await tx.query("REPLACE INTO cell VALUES (?, ?)", [resource, value]);
          await tx.query("COMMIT");
        } catch (error) {
          await tx.query("ROLLBACK");
          throw error;
        } finally {
          tx.release();
        }
      },
      forget: async (resource) =>
        void (await pool.query("DELETE FROM cell WHERE name = ?", [resource])),
      loseNumber: () => pool.query("DELETE FROM fences"),
    };
  });

  test("a database that can't be asked is StoreUnavailableError, with the first error as its cause", async () => {
    const nowhere = createPool({ host: "127.0.0.1", port: await freePort(), user: "root" });
    onTestFinished(() => nowhere.end());
    const unreachable = { code: "STORE_UNAVAILABLE", cause: { code: "ECONNREFUSED" } };
    for (const step of [
      mysqlFence(nowhere).enter(undefined, "cell", LEASE),
      mysqlFence(nowhere).highest(undefined, "cell"),
      mysqlFence(nowhere).reset(undefined, "cell", 1n),
    ])
      await expect(step).rejects.toMatchObject(unreachable);

    const fence = mysqlFence(pool);
    const other = await pool.getConnection();
    await other.query("START TRANSACTION");
    await fence.guard(other, "killed", LEASE);
    const entering = fence.enter(undefined, "killed", LEASE);
    const lost = expect(entering).rejects.toMatchObject({
      code: "STORE_UNAVAILABLE",
      cause: { code: "PROTOCOL_CONNECTION_LOST" },
    });
    const waiting =
      "SELECT trx_mysql_thread_id AS id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    const killWaiting = async (): Promise<boolean> => {
      const [rows] = await pool.query(waiting);
      const [found] = rows as { id: number }[];
      if (found !== undefined) await pool.query(`KILL ${found.id}`);
      return found !== undefined;
    };
    await until("the entry waits", 30_000, killWaiting);
    await lost;
    await other.query("ROLLBACK");
    other.release();
  });
});
