import { mkdirSync, readlinkSync, rmSync, symlinkSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { build, runNode } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

describeWith(["redis"], "the end of a process with locks on Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  let built: ReturnType<typeof build>;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    built = build();
    mkdirSync(built.file("node_modules"));
    for (const library of ["redis", "ioredis"]) {
      const folder = fileURLToPath(new URL(`../../../node_modules/${library}`, import.meta.url));
      symlinkSync(folder, built.file(`node_modules/${library}`));
    }
  });
  afterAll(async () => {
    built?.remove();
    await lab.close();
  });

  const CLIENTS: Record<string, { open: string; close: string }> = {
    "node-redis": {
      open: `const { createRequire } = await import("node:module");
        const { createClient } = createRequire(ROOT)("redis");
        const client = createClient({ url: URL });
        client.on("error", () => {});
        await client.connect();`,
      close: "client.destroy();",
    },
    ioredis: {
      open: `const { createRequire } = await import("node:module");
        const { Redis } = createRequire(ROOT)("ioredis");
        const client = new Redis(URL, { lazyConnect: true });
        client.on("error", () => {});
        await client.connect();`,
      close: "client.disconnect();",
    },
  };

  test.each(Object.entries(CLIENTS))(
    "%s: a subscription that is aborted at any moment leaves no connection",
    async (_, { open, close }) => {
      const ran = await runNode(
        `
        const [ROOT, URL] = ${JSON.stringify([built.file("index.js"), server.url])};
        const { connectionOf } = await import(${JSON.stringify(built.file("stores/redis/client.js"))});
        ${open}
        const connection = connectionOf(client);
        const listener = { message() {}, back() {} };
        for (let turns = 0; turns < 40; turns++) {
          const given = new AbortController();
          const subscribed = connection.subscribe("channel", listener, given.signal).then(
            (subscription) => subscription.close(),
            () => {},
          );
          for (let i = 0; i < turns % 20; i++) await new Promise((next) => setImmediate(next));
          given.abort(new Error("given up"));
          await subscribed;
        }
        ${close}
        console.log("closed");`,
        20_000,
      );
      expect(ran).toMatchObject({ out: "closed", killed: false, code: 0 });
      const others = async (): Promise<number> =>
        (await server.cli("client", "list")).split("\n").length - 1;
      await until("no connection is left", async () => (await others()) === 0);
    },
  );

  test("node-redis: locks can be closed while their client reconnects", async () => {
    const ran = await runNode(
      `
      const [ROOT, URL] = ${JSON.stringify([built.file("index.js"), server.url])};
      const { redisStore } = await import(${JSON.stringify(built.file("stores/redis/index.js"))});
      const { createLocks } = await import(ROOT);
      const { createRequire } = await import("node:module");
      const { createClient } = createRequire(ROOT)("redis");
      for (let turns = 0; turns < 20; turns++) {
        const client = createClient({ url: URL });
        client.on("error", () => {});
        await client.connect();
        const id = await client.sendCommand(["CLIENT", "ID"]);
        const locks = createLocks(redisStore(client, { closeClient: true }));
        const lost = new Promise((resolve) => client.once("reconnecting", resolve));
        client.sendCommand(["CLIENT", "KILL", "ID", String(id), "SKIPME", "no"]).catch(() => {});
        await lost;
        for (let i = 0; i < turns % 10; i++) await new Promise((next) => setImmediate(next));
        await locks.close();
      }
      console.log("closed");`,
      20_000,
    );
    expect(ran).toMatchObject({ out: "closed", killed: false, code: 0 });
  });

  test.each([
    ["ioredis", "its server lives"],
    ["ioredis", "its server is gone"],
    ["redis", "its server lives"],
  ])(
    "connect() by %s: a process that forgets close() ends by itself while %s",
    async (library, how) => {
      const own = await lab.redis();
      const other = built.file(`node_modules/${library === "redis" ? "ioredis" : "redis"}`);
      const target = readlinkSync(other);
      rmSync(other);
      try {
        const ran = await runNode(
          `
        import { connect } from ${JSON.stringify(built.file("index.js"))};
        const locks = await connect(${JSON.stringify(own.url)});
        const lease = await locks.acquire("name");
        const waiting = locks.acquire("name");
        while ((await locks.inspect("name")).waiting === 0);
        await lease.release();
        await (await waiting).release();
        if (${how === "its server is gone"}) {
          process.kill(${own.pid}, "SIGKILL");
          await locks.inspect("name").catch(() => {});
        }
        console.log("done");`,
          20_000,
        );
        expect(ran).toEqual({ code: 0, out: "done", err: "", killed: false });
      } finally {
        symlinkSync(target, other);
      }
    },
  );
});
