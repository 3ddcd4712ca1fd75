import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { skipUnless } from "../../support/needs.js";
import { freshFolder } from "../../support/sqlite.js";
import { startWorkers } from "../../support/worker.js";

const PROCESS = fileURLToPath(
  new URL("../../../dist/verify/traffic/worker-process.js", import.meta.url),
);

test("a worker's URL is not in its command line or environment, which others may read", async (context) => {
  skipUnless(context, process.platform === "linux", "needs /proc");
  const file = join(freshFolder(), "s3cret.db");
  const { workers } = await startWorkers(1, `sqlite:${file}`);
  const { pid } = workers[0]!;
  expect(readFileSync(`/proc/${pid}/cmdline`, "utf8")).toContain("worker-process.js");
  expect(readFileSync(`/proc/${pid}/cmdline`, "utf8")).not.toContain("s3cret");
  expect(readFileSync(`/proc/${pid}/environ`, "utf8")).not.toContain("s3cret");
  const { op } = await workers[0]!.acquire("name");
  expect(existsSync(file)).toBe(true);
  expect(await workers[0]!.release(op)).toBe("released");
  await workers[0]!.close();
});

test("a worker that never gets its task ends when its input does, and prints nothing", async () => {
  const child = spawn(process.execPath, [PROCESS], { stdio: ["pipe", "pipe", "pipe"] });
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (text) => (said += text));
  child.stdin.end();
  expect(await once(child, "close")).toEqual([0, null]);
  expect(said).toBe("");
});
