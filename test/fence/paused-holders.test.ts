import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Redis } from "ioredis";
import { expect, onTestFinished, test } from "vitest";
import { guardNode, refuse } from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
// @ts-expect-error: a program for Node, without types
import { startObjects } from "./s3.mjs";

const PROGRAM = fileURLToPath(new URL("incrementer.mjs", import.meta.url));
/** Rounds of each of two processes; the long run has more. */
const FACTOR = Number(process.env["HOLDFAST_RUNS_FACTOR"] ?? 1);
const ROUNDS = 15 * FACTOR;

interface Scene {
  readonly where: string;
  value(): number | Promise<number>;
}

function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-paused-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const SCENES: Record<string, () => Promise<Scene>> = {
  async sqlite() {
    const where = join(newFolder(), "data.db");
    const db = await openSqlite(where);
    onTestFinished(() => void db.close());
    db.exec("PRAGMA journal_mode = WAL; CREATE TABLE counter (value INTEGER)");
    db.exec("INSERT INTO counter VALUES (0)");
    const read = db.prepare("SELECT value FROM counter");
    return { where, value: () => (read.get() as { value: number }).value };
  },
  async file() {
    const where = newFolder();
    writeFileSync(join(where, "number"), "0");
    return { where, value: () => Number(readFileSync(join(where, "number"), "utf8")) };
  },
  async redis() {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const { url: where } = await lab.redis();
    const client = new Redis(where);
    onTestFinished(() => client.disconnect());
    return { where, value: async () => Number(await client.get("value:{number}")) };
  },
  async http() {
    const fence = memoryFence();
    let value = 0;
    const server = createServer(async (request, response) => {
      const isGuarded = request.url === "/number";
      const guard = { fence, resource: () => "number" };
      const fenced = isGuarded ? await guardNode(guard, request, response) : null;
      if (fenced === false) return;
      let body = "";
      for await (const part of request) body += part;
      try {
        // A later holder may have entered since: the write needs a guard in its own transaction.
        await fence.transaction(async (tx) => {
          if (isGuarded) await fence.guard(tx, "number", fenced!);
          if (request.method === "PUT") value = Number(body);
        });
        response.end(String(value));
      } catch (error) {
        if (!refuse(response, error)) throw error;
      }
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => {
      server.closeAllConnections();
      server.close();
    });
    const { port } = server.address() as AddressInfo;
    return { where: `http://127.0.0.1:${port}`, value: () => value };
  },
  async objects() {
    const { url: where, objects, close } = await startObjects();
    onTestFinished(close);
    await fetch(`${where}/number`, { method: "PUT", body: "0" });
    return { where, value: () => Number(objects.get("/number").body) };
  },
};

/** Two processes increment; resolves to the number of accepted and refused writes, and the final value. */
async function increment(kind: string, guarding: "guarded" | "plain") {
  const { where, value } = await SCENES[kind]!();
  const args = [PROGRAM, kind, guarding, where, `sqlite:${join(newFolder(), "locks.db")}`];
  const outputs = await Promise.all(
    [1, 2].map(() => promisify(execFile)(process.execPath, [...args, String(ROUNDS)])),
  );
  const counts = outputs.map(({ stdout }) => JSON.parse(stdout));
  const sum = (key: string): number => counts.reduce((total, one) => total + one[key], 0);
  return { accepted: sum("accepted"), refused: sum("refused"), value: await value() };
}

describeWith(["redis"], "holders that are paused past their lease", () => {
  test("lose no update behind a fence, and lose some without it", {
    timeout: 120_000 * FACTOR,
  }, async () => {
    // All at once: the processes mostly stand still.
    await Promise.all(
      Object.keys(SCENES).map(async (kind) => {
        const [guarded, plain] = await Promise.all([
          increment(kind, "guarded"),
          increment(kind, "plain"),
        ]);
        expect(guarded.refused, `${kind}: no holder was late, so this shows nothing`).not.toBe(0);
        expect(guarded.value, kind).toBe(guarded.accepted);
        expect(plain.value, `${kind}: nothing was lost without the fence`).toBeLessThan(
          plain.accepted,
        );
      }),
    );
  });
});
