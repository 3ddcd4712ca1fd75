import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Redis } from "ioredis";
import { onTestFinished, test } from "vitest";
import { guardNode, refuse } from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { serve } from "../support/http-server.js";
import { describeWith } from "../support/needs.js";
import {
  expectFenceSaves,
  inEtcd,
  inPostgres,
  newFolder,
  openLab,
  PAUSED_TIMEOUT_MS,
  type Scene,
} from "./paused.js";
// @ts-expect-error: a program for Node, without types
import { startObjects } from "./s3.mjs";

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
    const { url: where } = await (await openLab()).redis();
    const client = new Redis(where);
    onTestFinished(() => client.disconnect());
    return { where, value: async () => Number(await client.get("value:{number}")) };
  },
  async http() {
    const fence = memoryFence();
    let value = 0;
    const where = await serve(async (request, response) => {
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
    return { where, value: () => value };
  },
  async objects() {
    const { url: where, objects, close } = await startObjects();
    onTestFinished(close);
    await fetch(`${where}/number`, { method: "PUT", body: `{"value":"0"}` });
    return { where, value: () => Number(JSON.parse(objects.get("/number").body).value) };
  },
};

describeWith(["redis"], "holders that are paused past their lease", () => {
  test("lose no update behind a fence, and lose some without it", {
    timeout: PAUSED_TIMEOUT_MS,
  }, async () => {
    // All at once: the processes mostly stand still.
    await Promise.all(Object.entries(SCENES).map(([kind, open]) => expectFenceSaves(kind, open)));
  });
});

describeWith(["postgres", "etcd"], "holders that are paused past their lease, on servers", () => {
  test("lose no update behind a fence in PostgreSQL and etcd, and lose some without it", {
    timeout: PAUSED_TIMEOUT_MS,
  }, async () => {
    await Promise.all([expectFenceSaves("postgres", inPostgres), expectFenceSaves("etcd", inEtcd)]);
  });
});
