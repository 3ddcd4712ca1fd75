import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { Connections } from "../../../src/verify/traffic/protocol.js";
import type { Worker } from "../../../src/verify/traffic/worker.js";
import { describeWith, skipUnless } from "../../support/needs.js";
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

test("a waiting worker reports every reply that its ticket is queued, with the time of its request", async () => {
  const url = `sqlite:${join(freshFolder(), "locks.db")}`;
  const { workers, timeLine } = await startWorkers(2, url, { ttl: 2_000 });
  const [holder, waiter] = workers as [Worker, Worker];
  const { op } = await holder.acquire("name");
  const waiting = waiter.acquire("name");
  const replies = () => timeLine.events.filter((event) => event.kind === "queued");
  await expect.poll(() => replies().length, { timeout: 20_000 }).toBeGreaterThan(2);
  await holder.release(op);
  await waiter.release((await waiting).op);
  let beforeMs = 0;
  for (const { atMs, sentAtMs } of replies()) {
    expect(sentAtMs).toBeGreaterThan(beforeMs);
    expect(sentAtMs).toBeLessThan(atMs);
    beforeMs = sentAtMs!;
  }
  await Promise.all(workers.map((worker) => worker.close()));
});

test("a worker that never gets its task ends when its input does, and prints nothing", async () => {
  const child = spawn(process.execPath, [PROCESS], { stdio: ["pipe", "pipe", "pipe"] });
  let said = "";
  for (const output of [child.stdout, child.stderr]) output.on("data", (text) => (said += text));
  child.stdin.end();
  expect(await once(child, "close")).toEqual([0, null]);
  expect(said).toBe("");
});

/** The module of the workers in an installation that lacks this package. */
function installedWithout(lacking: string): string {
  const folder = freshFolder();
  cpSync("dist", join(folder, "dist"), { recursive: true });
  cpSync("package.json", join(folder, "package.json"));
  mkdirSync(join(folder, "node_modules"));
  for (const one of readdirSync("node_modules").filter((name) => name !== lacking))
    symlinkSync(join(process.cwd(), "node_modules", one), join(folder, "node_modules", one));
  return join(folder, "dist/verify/traffic/worker-process.js");
}

describeWith(["redis"], "without one of the client libraries of Redis", () => {
  test.each(["ioredis", "redis"] as const)(
    "where %s is not installed, workers use the other one",
    async (library) => {
      await using lab = await Lab.open();
      const servers = await Promise.all([lab.redis(), lab.redis(), lab.redis()]);
      const nodes = servers.map(({ address, port }) => `${address}:${port}`);
      const module = installedWithout(library);
      const connections: Connections[] = [{ locks: 2, library }];
      for (const url of [servers[0].url, `redlock://${nodes.join(",")}`]) {
        const { workers } = await startWorkers(1, url, {}, { module, connections });
        const { op } = await workers[0]!.acquire("name");
        expect(await workers[0]!.release(op)).toBe("released");
        await workers[0]!.close();
      }
    },
  );
});
