import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { Redis } from "ioredis";
import { createClient } from "redis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { HoldfastError } from "../../../src/core/errors.js";
import { connect } from "../../../src/index.js";
import { toStoreError } from "../../../src/stores/redis/errors.js";
import { redisStore } from "../../../src/stores/redis/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../../src/verify/lab/redis-cluster.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { rejection } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { locksOn, quiet } from "../../support/redis.js";
import { until } from "../../support/worker.js";

/** Words of the client libraries, which must never be in a message of ours. */
const JARGON =
  /Stream isn't|enableOfflineQueue|max retries|is closed\.|Socket closed|EVALSHA .*args|HELLO|RESP/;

describeWith(["redis"], "the error says what is wrong with a Redis server", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  async function refused(url: string, ...words: (string | RegExp)[]): Promise<HoldfastError> {
    const error = (await rejection(connect(url))) as HoldfastError;
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    for (const word of words) expect(error.message).toMatch(word);
    expect(error.message).not.toMatch(JARGON);
    expect(error.message).toContain(/\/\/(?:[^@]*@)?([^/?]+)/.exec(url)![1]!);
    return error;
  }

  test("that it is a replica", async () => {
    const replica = await lab.redis({ replicaOf: server });
    await replica.synced();
    await refused(replica.url, "is a replica", "name the primary");
  });

  test("that it is a node of a cluster, or no cluster though the URL says so", async () => {
    const [node] = await startRedisCluster(lab);
    await refused(node!.url, "node of a Redis cluster", /\?cluster/);
    await refused(`${server.url}?cluster`, "is not a cluster");
    await refused(`${server.url}?sentinel=mymaster`, "is not a sentinel");
  });

  test("that its commands were renamed", async () => {
    const include = join(lab.folder, "renamed.conf");
    writeFileSync(include, 'rename-command EVALSHA ""\n');
    const renamed = await lab.redis({ config: { include } });
    await refused(renamed.url, /does not know the command evalsha/i);
  });

  test("that a password is missing, wrong, or unknown to the server", async () => {
    const guarded = await lab.redis();
    await guarded.cli("config", "set", "requirepass", "right");
    await refused(guarded.url, "requires a password", "user:password@");
    const wrong = guarded.url.replace("://", "://:wrong@");
    await refused(wrong, "refuses the user name or the password");
    expect(JSON.stringify(await rejection(connect(wrong)))).not.toContain("wrong");
  });

  test("that it is an HTTP server", async () => {
    const http = createServer((_, response) => response.end("hello")).listen(0, "127.0.0.1");
    await once(http, "listening");
    onTestFinished(() => void http.close());
    await refused(`redis://127.0.0.1:${(http.address() as AddressInfo).port}`, "HTTP server");
  });

  test("that it is a sentinel", async () => {
    const port = await freePort();
    const folder = join(lab.folder, "watching");
    mkdirSync(folder);
    const lines = [
      `port ${port}`,
      "bind 127.0.0.1",
      `dir ${folder}`,
      `sentinel monitor main ${server.address} ${server.port} 1`,
    ];
    writeFileSync(join(folder, "sentinel.conf"), `${lines.join("\n")}\n`);
    const args = [join(folder, "sentinel.conf"), "--sentinel"];
    const sentinel: ChildProcess = spawn(findFile("redis-server")!, args, {
      cwd: folder,
      stdio: "ignore",
    });
    onTestFinished(async () => {
      sentinel.kill("SIGKILL");
      await once(sentinel, "exit");
    });
    const answers = (): boolean => {
      try {
        return execFileSync(findFile("redis-cli")!, ["-p", String(port), "ping"]).length > 0;
      } catch {
        return false;
      }
    };
    await until("it answers", answers, 15_000);
    await refused(`redis://127.0.0.1:${port}`, "is a sentinel", /\?sentinel=NAME/, "main");
    await refused(`redis://127.0.0.1:${port}/2`, "is a sentinel");
  });

  describeWith(["tls"], "with TLS", () => {
    test("that TLS is expected, or not spoken", async () => {
      const port = await freePort();
      const folder = join(lab.folder, "words-tls");
      mkdirSync(folder);
      const file = (name: string): string => join(folder, name);
      execFileSync(
        "openssl",
        `req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -days 2 -keyout ${file("key")} -out ${file("cert")}`.split(
          " ",
        ),
        { stdio: "ignore" },
      );
      for (const clients of ["no", "yes"]) {
        const tlsPort = clients === "no" ? port : await freePort();
        await lab.redis({
          config: {
            "tls-port": String(tlsPort),
            "tls-cert-file": file("cert"),
            "tls-key-file": file("key"),
            "tls-ca-cert-file": file("cert"),
            "tls-auth-clients": clients,
          },
        });
        await refused(`redis://127.0.0.1:${tlsPort}`, "expects TLS", "write rediss:");
      }
      const plain = `rediss://${server.address}:${server.port}?ca=${file("cert")}`;
      await refused(plain, "without TLS", "write redis:");
    });
  });

  describe("in an outage", () => {
    const OPENERS = {
      connect: (url: string) => connect(url, { wait: 0, commandTimeout: 2_000 }),
      "a client of ioredis without a queue": async (url: string) => {
        const options = { enableOfflineQueue: false, lazyConnect: true, maxRetriesPerRequest: 0 };
        const client = quiet(new Redis(url, options));
        await client.connect();
        return locksOn(redisStore(client, { closeClient: true }), { wait: 0 });
      },
      "a client of node-redis without a queue": async (url: string) => {
        const client = quiet(createClient({ url, disableOfflineQueue: true }));
        await client.connect();
        return locksOn(redisStore(client, { closeClient: true }), { wait: 0 });
      },
    };

    test.each(Object.entries(OPENERS))(
      "with %s: which server, why, since when",
      async (_, open) => {
        const proxy = await TcpProxy.open(server);
        onTestFinished(() => proxy.close());
        const locks = await open(proxy.url);
        onTestFinished(() => locks.close().catch(() => {}));
        await (await locks.acquire("name")).release();
        const cut = proxy.cut();
        await cut.inject();
        const lost = `the connection to ${proxy.url} has been lost for `;
        await until("the outage is reported", async () => {
          const error = (await rejection(locks.acquire("name"))) as HoldfastError;
          expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
          expect(error.message).not.toMatch(JARGON);
          return error.message.includes(lost) && error.message.includes("connect again");
        });
        const waited = await rejection(locks.acquire("name", { wait: 300 }));
        expect(waited.message).toMatch(/^waited 300 ms for "name"/);
        expect(waited.message).toContain(lost);
        await cut.heal();
        await (await locks.acquire("name", { wait: "10s" })).release();
      },
    );
  });
});

test("while the nodes of a cluster disagree about a slot, the store is unavailable, and a retry helps", () => {
  const moved = new Error("Too many Cluster redirections. Last error: MOVED 1365 127.0.0.1:7001");
  const server = { where: "the Redis cluster", db: 0, outage: null };
  expect(toStoreError(moved, { ...server, cluster: true })).toMatchObject({
    code: "STORE_UNAVAILABLE",
    retryable: true,
    message: expect.stringContaining("do not agree yet"),
  });
  expect(toStoreError(moved, { ...server, cluster: false })).toMatchObject({
    retryable: false,
    message: expect.stringContaining("add ?cluster"),
  });
});
