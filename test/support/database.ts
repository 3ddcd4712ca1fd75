import { Pool, type PoolConfig } from "pg";
import { afterAll, afterEach, beforeAll } from "vitest";
import { Lab } from "../../src/verify/lab/lab.js";
import type { PgBouncer } from "../../src/verify/lab/pgbouncer.js";
import type { PostgresServer } from "../../src/verify/lab/postgres.js";
import { until } from "../../src/verify/lab/until.js";

/** A server and a pooler in transaction mode in front of it, for the tests of one file. */
export class Database {
  server!: PostgresServer;
  pooler!: PgBouncer;
  readonly #pools: Pool[] = [];
  #lab: Lab | undefined;

  /** To be called inside `describe`. */
  static forTests(): Database {
    const database = new Database();
    beforeAll(() => database.#start(), 60_000);
    afterEach(() => database.#closePools());
    afterAll(() => database.#lab?.close());
    return database;
  }

  /** Closed after the test. Connections may be lost: that is what some tests do. */
  pool(config: PoolConfig = {}, url = this.server.url): Pool {
    const pool = new Pool({ connectionString: url, ...config });
    pool.on("error", () => {});
    this.#pools.push(pool);
    return pool;
  }

  /** Waits until so many transactions wait for a lock. */
  waiting(count: number): Promise<void> {
    const text = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted";
    return until(`${count} wait for a lock`, 10_000, async () => {
      return (await this.server.sql(text)) === String(count);
    });
  }

  async #start(): Promise<void> {
    this.#lab = await Lab.open();
    this.server = await this.#lab.postgres();
    this.pooler = await this.#lab.pgbouncer(this.server);
  }

  async #closePools(): Promise<void> {
    await Promise.all(this.#pools.splice(0).map((pool) => pool.end()));
  }
}
