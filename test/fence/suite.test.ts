import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, beforeAll, describe, expect } from "vitest";
import type { FenceSubject } from "../../src/conformance/fence-suite.js";
import { placeFence } from "../../src/fence/compare-and-set.js";
import type { Fence } from "../../src/fence/fence.js";
import { openFileFence } from "../../src/fence/file.js";
import { fencedFetch, guardNode, refuse } from "../../src/fence/http.js";
import { memoryFence } from "../../src/fence/memory.js";
import { type RedisFence, redisFence } from "../../src/fence/redis.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { describeWith } from "../support/needs.js";
import { quiet } from "../support/redis.js";
import { type LosableSubject, suiteOf } from "./suite.js";

const inFolder = async (): Promise<{ folder: string; remove: () => Promise<void> }> => {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-fence-"));
  return { folder, remove: () => rm(folder, { recursive: true, force: true }) };
};

async function inMemory(): Promise<FenceSubject> {
  const fence = memoryFence();
  const cells = new Map<string, number>();
  return {
    fence: fence as Fence<undefined>,
    read: async (resource) => cells.get(resource) ?? 0,
    write: (resource, lease, value, options) =>
      fence.transaction(async (tx) => {
        await fence.guard(tx, resource, lease, options);
        cells.set(resource, value);
      }),
    forget: async (resource) => void cells.delete(resource),
  };
}

async function inSqlite(): Promise<LosableSubject> {
  const { folder, remove } = await inFolder();
  const db = await openSqlite(join(folder, "data.db"));
  db.exec("CREATE TABLE cell (resource TEXT PRIMARY KEY, value INTEGER)");
  const fence = sqliteFence(db);
  return {
    fence: fence as Fence<undefined>,
    async read(resource) {
      const row = db.prepare("SELECT value FROM cell WHERE resource = ?").get(resource);
      return (row as { value: number } | undefined)?.value ?? 0;
    },
    async write(resource, lease, value, options) {
      db.exec("BEGIN IMMEDIATE");
      try {
        fence.guardSync(db, resource, lease, options);
        db.prepare("INSERT OR REPLACE INTO cell VALUES (?, ?)").run(resource, value);
        db.exec("COMMIT");
      } catch (error) {
        db.exec("ROLLBACK");
        throw error;
      }
    },
    forget: async (resource) =>
      void db.prepare("DELETE FROM cell WHERE resource = ?").run(resource),
    loseNumber: async () => db.exec("DELETE FROM holdfast_fence"),
    async dispose() {
      db.close();
      await remove();
    },
  };
}

async function inFiles(): Promise<LosableSubject> {
  const { folder, remove } = await inFolder();
  let fence = await openFileFence(folder);
  return {
    // The fence that is open now: it is closed and opened again when its number is lost.
    fence: {
      enter: (...args) => fence.enter(...args),
      guard: (...args) => fence.guard(...args),
      highest: (...args) => fence.highest(...args),
      reset: (...args) => fence.reset(...args),
    },
    read: (resource) => readFile(join(folder, resource), "utf8").then(Number, () => 0),
    async write(resource, lease, value, { strict = false } = {}) {
      if (strict) await fence.guard(undefined, resource, lease, { strict });
      await fence.replace(resource, lease, String(value));
    },
    forget: (resource) => rm(join(folder, resource)),
    async loseNumber() {
      fence.close();
      await rm(join(folder, ".holdfast-fence.db"));
      fence = await openFileFence(folder);
    },
    async dispose() {
      fence.close();
      await remove();
    },
  };
}

async function inPlaces(): Promise<LosableSubject> {
  const objects = new Map<string, { value: number | null; highest: bigint | null; tag: number }>();
  const fence = placeFence<number, number>(
    {
      async read(resource) {
        const found = objects.get(resource) ?? { value: null, highest: null, tag: 0 };
        return { ...found, version: found.tag };
      },
      async write(resource, next, version) {
        await new Promise(setImmediate);
        if ((objects.get(resource)?.tag ?? 0) !== version) return false;
        objects.set(resource, { ...next, tag: version + 1 });
        return true;
      },
    },
    { retries: 200 },
  );
  return {
    fence,
    read: async (resource) => objects.get(resource)?.value ?? 0,
    async write(resource, lease, value, { strict = false } = {}) {
      if (strict) await fence.guard(undefined, resource, lease, { strict });
      await fence.update(resource, lease, () => value);
    },
    async loseNumber() {
      const { value, tag } = objects.get("cell")!;
      objects.set("cell", { value, highest: null, tag: tag + 1 });
    },
  };
}

/** Rows of SQLite with a version column. */
async function inRows(): Promise<LosableSubject> {
  const db = await openSqlite(":memory:");
  db.exec(
    "CREATE TABLE cell (name TEXT PRIMARY KEY, value INTEGER, highest TEXT, version INTEGER NOT NULL)",
  );
  const make = db.prepare("INSERT OR IGNORE INTO cell VALUES (?, NULL, NULL, 1)");
  const find = db.prepare("SELECT value, highest, version FROM cell WHERE name = ?");
  const change = db.prepare(
    "UPDATE cell SET value = ?, highest = ?, version = version + 1 WHERE name = ? AND version = ? RETURNING 1",
  );
  const rowOf = (resource: string) => {
    make.run(resource);
    return find.get(resource) as { value: number | null; highest: string | null; version: number };
  };
  const fence = placeFence<number, number>(
    {
      async read(resource) {
        const row = rowOf(resource);
        return { ...row, highest: row.highest === null ? null : BigInt(row.highest) };
      },
      async write(resource, { value, highest }, version) {
        // Others read in between.
        await new Promise(setImmediate);
        const number = highest === null ? null : String(highest);
        return change.all(value, number, resource, version).length === 1;
      },
    },
    { retries: 200 },
  );
  return {
    fence,
    read: async (resource) => rowOf(resource).value ?? 0,
    async write(resource, lease, value, { strict = false } = {}) {
      if (strict) await fence.guard(undefined, resource, lease, { strict });
      await fence.update(resource, lease, () => value);
    },
    loseNumber: async () => db.exec("UPDATE cell SET highest = NULL, version = version + 1"),
    dispose: () => void db.close(),
  };
}

/** A service that keeps numbers, and its fence in its own memory. */
async function overHttp(): Promise<FenceSubject> {
  const behind = await inMemory();
  const fence = behind.fence;
  const resourceOf = (url: string): string => decodeURIComponent(url.slice(1));
  const server = createServer(async (request, response) => {
    try {
      const guard = { fence, resource: () => resourceOf(request.url!) };
      const fenced = await guardNode(guard, request, response);
      if (fenced === false) return;
      let body = "";
      for await (const part of request) body += part;
      await behind.write(resourceOf(request.url!), fenced!, Number(body));
      response.end();
    } catch (error) {
      if (!refuse(response, error)) response.writeHead(500).end(String(error));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    fence,
    read: behind.read,
    async write(resource, lease, value, { strict = false } = {}) {
      if (strict) await fence.guard(undefined, resource, lease, { strict });
      const url = `${at}/${encodeURIComponent(resource)}`;
      const reply = await fencedFetch(lease)(url, { method: "PUT", body: String(value) });
      expect(reply.status).toBe(200);
    },
    ...(behind.forget === undefined ? {} : { forget: behind.forget }),
    async dispose() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const IN_MEMORY = { loseNumber: "its numbers are lost only with the process and the values" };
const IN_PLACE = { forget: "the number is kept in the place, and goes with it" };

describe("a fence in memory", () => suiteOf(inMemory, IN_MEMORY));
describe("a fence in SQLite", () => suiteOf(inSqlite));
describe("a fence of files", () => suiteOf(inFiles));
describe("a fence of places with compare-and-set", () => suiteOf(inPlaces, IN_PLACE));
describe("a fence of rows with a version", () => suiteOf(inRows, IN_PLACE));
describe("a fence behind HTTP", () => suiteOf(overHttp, IN_MEMORY));

describeWith(["redis"], "a fence in Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  let database = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab?.close());

  const subjectOf = (
    fence: RedisFence,
    get: (key: string) => Promise<string | null>,
    del: (key: string) => Promise<unknown>,
    close: () => unknown,
  ): LosableSubject => ({
    fence: fence as Fence<undefined>,
    read: async (resource) => Number((await get(`cell:${resource}`)) ?? 0),
    async write(resource, lease, value, options) {
      const tx = { commands: [["SET", `cell:${resource}`, value]] };
      await fence.guard(tx, resource, lease, options);
      expect(await fence.commit(tx)).toEqual(["OK"]);
    },
    forget: async (resource) => void (await del(`cell:${resource}`)),
    loseNumber: () => del(fence.keyOf("cell")),
    async dispose() {
      await close();
    },
  });

  describe("by ioredis", () =>
    suiteOf(async () => {
      const client = quiet(new Redis(server.url, { db: database++ % 16 }));
      await client.flushdb();
      return subjectOf(
        redisFence(client),
        (key) => client.get(key),
        (key) => client.del(key),
        () => client.disconnect(),
      );
    }));

  describe("by node-redis", () =>
    suiteOf(async () => {
      const client = quiet(createClient({ url: server.url, database: database++ % 16 }));
      await client.connect();
      await client.flushDb();
      return subjectOf(
        redisFence(client as never),
        (key) => client.get(key) as Promise<string | null>,
        (key) => client.del(key),
        () => client.destroy(),
      );
    }));
});
