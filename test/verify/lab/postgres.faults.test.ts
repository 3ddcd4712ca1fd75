import { execFileSync, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { PgBouncer } from "../../../src/verify/lab/pgbouncer.js";
import type { PostgresServer } from "../../../src/verify/lab/postgres.js";
import { isStopped, processesIn } from "../../../src/verify/lab/processes.js";
import { findProgram } from "../../../src/verify/lab/requirements.js";
import { describeWith } from "../../support/needs.js";
import { isAlive, verbs } from "./verbs.js";

describeWith(["postgres", "pgbouncer"], "PostgreSQL in the lab", () => {
  let lab: Lab;
  let postgres: PostgresServer;
  let pgbouncer: PgBouncer;
  beforeAll(async () => {
    lab = await Lab.open();
    postgres = await lab.postgres({ config: { max_connections: "20" } });
    pgbouncer = await lab.pgbouncer(postgres);
  });
  afterAll(() => lab.close());

  verbs({
    server: () => postgres,
    write: (value) =>
      postgres.sql(
        `CREATE TABLE IF NOT EXISTS t (v text); TRUNCATE t; INSERT INTO t VALUES ('${value}')`,
      ),
    read: async () =>
      (await postgres.sql("SELECT to_regclass('t')")) === ""
        ? null
        : postgres.sql("SELECT v FROM t"),
  });

  test.each(["PostgreSQL", "pgbouncer"])("lets nobody in without the password: %s", (which) => {
    const { url } = which === "pgbouncer" ? pgbouncer : postgres;
    const ask = (to: string): string =>
      execFileSync(findProgram("psql"), ["-X", "-w", "-A", "-t", "-d", to, "-c", "SELECT 1"], {
        encoding: "utf8",
        env: { PATH: process.env["PATH"] },
        stdio: ["ignore", "pipe", "pipe"],
      });
    expect(ask(url)).toBe("1\n");
    expect(() => ask(url.replace(/:[^:@]+@/, "@"))).toThrow("no password supplied");
    expect(() => ask(url.replace(/:[^:@]+@/, ":wrong@"))).toThrow(/authentication failed/);
  });

  test("takes settings", async () => {
    expect(await postgres.sql("SHOW max_connections")).toBe("20");
  });

  test("reports an SQL error in the server's words", async () => {
    await expect(postgres.sql("SELECT nothing")).rejects.toThrow('column "nothing" does not exist');
  });

  test("pauses the processes of open sessions too, and a kill ends them", async () => {
    const session = new Session(postgres);
    const backend = Number(await session.query("SELECT pg_backend_pid()"));
    const all = processesIn([`${lab.folder}/${postgres.name}`]);
    expect(all).toContain(backend);
    await postgres.pause();
    expect(all.filter((pid) => !isStopped(pid))).toEqual([]);
    await postgres.resume();
    expect(await session.query("SELECT 'again'")).toBe("again");
    await postgres.kill();
    expect(all.filter(isAlive)).toEqual([]);
    await postgres.start();
    expect(await postgres.sql("SELECT 1")).toBe("1");
  });

  test("leaves no shared memory after a kill", async () => {
    const folder = await postgres.sql("SHOW data_directory");
    const segment = readFileSync(`${folder}/postmaster.pid`, "utf8")
      .split("\n")[6]!
      .split(/ +/)
      .at(-1)!;
    const segments = (): string => execFileSync("ipcs", ["-m"], { encoding: "utf8" });
    expect(segments()).toContain(` ${segment} `);
    expect(readFileSync(`/proc/${postgres.pid}/maps`, "utf8")).not.toContain("/dev/shm/");
    await postgres.kill();
    expect(segments()).not.toContain(` ${segment} `);
    await postgres.start();
  });

  test("behind pgbouncer runs one client's transactions in different sessions of the server", async () => {
    const [one, two] = [new Session(pgbouncer), new Session(pgbouncer)];
    const before = await one.query("SELECT pg_backend_pid()");
    // While the other client is in a transaction, it has the only session.
    expect(await two.query("BEGIN; SELECT pg_backend_pid()")).toBe(before);
    expect(await one.query("SELECT pg_backend_pid()")).not.toBe(before);
    expect(await two.query("COMMIT; SELECT 'done'")).toBe("done");
    one.end();
    two.end();
  });

  test("has a pgbouncer that counts queries, and can be paused, killed and started again", async () => {
    const before = await pgbouncer.commands();
    await pgbouncer.sql("SELECT 1");
    expect(await pgbouncer.commands()).toBe(before + 1);
    await pgbouncer.pause();
    const asked = pgbouncer.sql("SELECT 2");
    await pgbouncer.resume();
    expect(await asked).toBe("2");
    const { pid } = pgbouncer;
    await pgbouncer.restart();
    expect(pgbouncer.pid).not.toBe(pid);
    await pgbouncer.stop();
    await pgbouncer.wipe();
    expect(await pgbouncer.sql("SELECT 3")).toBe("3");
  });
});

/** A session that stays open. */
class Session {
  readonly #child;
  readonly #lines;

  constructor({ url }: { readonly url: string }) {
    const args = ["-X", "-q", "-A", "-t", "-d", url];
    this.#child = spawn(findProgram("psql"), args, { stdio: ["pipe", "pipe", "ignore"] });
    this.#child.stdin.on("error", () => {});
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  async query(sql: string): Promise<string> {
    this.#child.stdin.write(`${sql};\n`);
    return (await this.#lines.next()).value as string;
  }

  end(): void {
    this.#child.stdin.end();
  }
}
