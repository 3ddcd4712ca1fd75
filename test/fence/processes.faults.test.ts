import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Pool } from "pg";
import { describe, expect, onTestFinished, test } from "vitest";
import { openFileFence } from "../../src/fence/file.js";
import { postgresFence } from "../../src/fence/postgres.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { seededRandom } from "../../src/testing.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { newFolder, runTogether } from "./paused.js";
import { expectListed } from "./suite.js";

const REPLACER = fileURLToPath(new URL("replacer.mjs", import.meta.url));

const by = (token: bigint) => ({ token, floor: token });

describe("64 tokens in no order, written by 8 processes: no lower one is accepted after a higher one", () => {
  const TOKENS = Array.from({ length: 64 }, (_, i) => i + 1);

  /** Resolves to the tokens that were accepted. */
  async function writeAll(kind: string, where: string): Promise<number[]> {
    const random = seededRandom(1);
    const shuffled = TOKENS.map((token) => ({ token, place: random.unit() }))
      .sort((a, b) => a.place - b.place)
      .map(({ token }) => token);
    // A process fails if it reads a lower token after a higher one.
    const outputs = await runTogether(
      Array.from({ length: 8 }, (_, i) => {
        const own = shuffled.slice(8 * i, 8 * i + 8).join(",");
        return [kind, "guarded", where, "memory:", own, "1"];
      }),
    );
    return outputs.flatMap((output) => JSON.parse(output).accepted as number[]);
  }

  test("SQLite", { timeout: 120_000 }, async () => {
    const where = join(newFolder(), "data.db");
    const db = await openSqlite(where);
    onTestFinished(() => void db.close());
    db.exec("PRAGMA journal_mode = WAL; CREATE TABLE counter (value INTEGER)");
    db.exec("INSERT INTO counter VALUES (0)");
    const fence = sqliteFence(db);
    expect(await writeAll("sqlite", where)).toContain(64);
    expect(db.prepare("SELECT value FROM counter").get()).toEqual({ value: 64 });
    expect(await fence.highest(undefined, "number")).toBe(64n);
  });

  test("files", { timeout: 120_000 }, async () => {
    const where = newFolder();
    const fence = await openFileFence(where);
    onTestFinished(() => fence.close());
    writeFileSync(join(where, "number"), "0");
    expect(await writeAll("file", where)).toContain(64);
    expect(readFileSync(join(where, "number"), "utf8")).toBe("64");
    expect(await fence.highest(undefined, "number")).toBe(64n);
  });
});

test("a file that is replaced is read whole, also after its writer was killed; a killed writer can leave a new file", {
  timeout: 120_000,
}, async () => {
  const folder = newFolder();
  const fence = await openFileFence(folder);
  onTestFinished(() => fence.close());
  const bytes = 4_000_000;
  await fence.replace("report", by(1n), "-".repeat(bytes));
  const expectWhole = (): string => {
    const text = readFileSync(join(folder, "report"), "utf8");
    expect(text.length).toBe(bytes);
    expect(text === text[0]!.repeat(bytes), "a mixture").toBe(true);
    return text[0]!;
  };
  const leftOver = (): string[] =>
    readdirSync(folder).filter((name) => name.startsWith(".holdfast-new-"));
  const seen = new Set<string>();
  // A kill can also hit it between two files.
  for (let token = 2; leftOver().length === 0 && token < 30; token++) {
    const args = [REPLACER, folder, String(token), String(bytes)];
    const child = spawn(process.execPath, args, { stdio: ["pipe", "pipe", "inherit"] });
    onTestFinished(() => void child.kill("SIGKILL"));
    const exited = once(child, "exit");
    while (seen.size < 3 || leftOver().length === 0) {
      seen.add(expectWhole());
      await new Promise(setImmediate);
      if (child.exitCode !== null) throw new Error(`the writer ended with ${child.exitCode}`);
    }
    child.kill("SIGKILL");
    await exited;
    expectWhole();
    const next = BigInt(token) + 1n;
    await fence.replace("report", by(next), "-".repeat(bytes));
    expect(expectWhole()).toBe("-");
    await expect(fence.replace("report", by(BigInt(token)), "")).rejects.toMatchObject({
      code: "STALE_TOKEN",
    });
  }
  expect(leftOver()).toHaveLength(1);
});

describeWith(["postgres"], "the list of a fence in PostgreSQL", () => {
  test("has the time of the last entry with track_commit_timestamp", {
    timeout: 60_000,
  }, async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const { url } = await lab.postgres({ config: { track_commit_timestamp: "on" } });
    const pool = new Pool({ connectionString: url });
    onTestFinished(() => pool.end());
    await expectListed(postgresFence(pool) as never, { tellsTime: true });
  });
});
