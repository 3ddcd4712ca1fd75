import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { until } from "../../src/verify/lab/until.js";
import { Database } from "../support/database.js";
import { describeWith } from "../support/needs.js";

const PROGRAM = fileURLToPath(new URL("../../examples/worker-queue.mjs", import.meta.url));

/** The tables that the first lines of the program show, and 200 jobs. */
const TABLES = readFileSync(PROGRAM, "utf8")
  .split("\n")
  .filter((line) => line.startsWith("//   "))
  .map((line) => line.slice(2))
  .join("\n");

const start = (url: string): ChildProcessByStdio<null, null, Readable> =>
  spawn(process.execPath, [PROGRAM], {
    env: { ...process.env, POSTGRES_URL: url },
    stdio: ["ignore", "ignore", "pipe"],
  });

describeWith(["postgres", "pgbouncer"], "examples/worker-queue.mjs", () => {
  const database = Database.forTests();

  it("does every job once, also one whose worker is killed in the middle", {
    timeout: 60_000,
  }, async () => {
    await database.server.sql(
      `${TABLES}
       -- The first job takes a while, so that its worker can be killed.
       CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN IF NEW.job = 1 THEN PERFORM pg_sleep(0.5); END IF; RETURN NEW; END';
       CREATE TRIGGER slow BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION slow()`,
    );
    const run = async (url: string): Promise<unknown> => {
      const worker = start(url);
      const [err, [code]] = await Promise.all([text(worker.stderr), once(worker, "exit")]);
      return { code, err };
    };
    const busy = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    const isBusy = async (): Promise<boolean> => (await database.server.sql(busy)) === "1";
    const killed = start(database.server.url);
    await until("the first job is being done", 20_000, isBusy);
    killed.kill("SIGKILL");
    const urls = [database.server, database.server, database.pooler].map(({ url }) => url);
    const done = { code: 0, err: "" };
    expect(await Promise.all(urls.map(run))).toEqual([done, done, done]);
    // The server notices the death only when it replies: until then the first job is passed over.
    await until("the killed worker's transaction has ended", 20_000, async () => !(await isBusy()));
    expect(await run(database.server.url)).toEqual(done);
    expect(await database.server.sql("SELECT count(*), count(DISTINCT job) FROM invoices")).toBe(
      "200|200",
    );
    expect(await database.server.sql("SELECT DISTINCT state FROM jobs")).toBe("done");
  });
});
