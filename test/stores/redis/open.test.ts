import { once } from "node:events";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, type Locks } from "../../../src/index.js";
import { redisStore } from "../../../src/stores/redis/index.js";
import { conformance, runCase } from "../../../src/testing.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../../src/verify/lab/redis-cluster.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { realSubject } from "../../conformance/subjects.js";
import { build, rejection, runNode } from "../../core/helpers.js";
import { makeAuthority, makeCertificate } from "../../support/certificates.js";
import { describeWith, skipUnless } from "../../support/needs.js";
import { callsSince, keysAndTtls, quiet, rawRedis } from "../../support/redis.js";
import { startSentinel } from "../../support/sentinel.js";
import { until } from "../../support/worker.js";

/** Contains every character that has a meaning in a URL. */
const PASSWORD = "p@ss:w/o?r#d%";

/** A free port may be taken by a server of another test; this one is never given out. */
const NOBODY_LISTENS = 1;

describeWith(["redis"], "connect() to Redis", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
    const rights = ["allkeys", "allchannels", "+@all"];
    await server.cli("acl", "setuser", "app", "on", `>${PASSWORD}`, ...rights);
  });
  afterAll(() => lab.close());

  async function open(url: string): Promise<Locks> {
    const locks = await connect(url, { ttl: "10s", wait: "10s" });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  /** One client hands a name over to another, so that a subscription is opened by this URL too. */
  async function handsOver(url: string): Promise<void> {
    const [one, two] = [await open(url), await open(url)];
    const name = `name ${Math.random()}`;
    const lease = await one.acquire(name);
    const waiting = two.acquire(name);
    await until("it waits", async () => (await one.inspect(name))!.waiters.length === 1);
    await lease.release();
    await (await waiting).release();
  }

  const at = ({ address, port }: { address: string; port: number }, login = ""): string =>
    `redis://${login}${address}:${port}`;

  test("needs no options, and waiters are pushed", async () => {
    await handsOver(server.url);
  });

  test("takes a user, a password and a database", async () => {
    const url = `${at(server, `app:${encodeURIComponent(PASSWORD)}@`)}/3`;
    await handsOver(url);
    await (await open(url)).acquire("name");
    expect(await server.cli("client", "list")).toMatch(/ db=3 .* user=app /);
    const keys = await keysAndTtls(await rawRedis(server.url, 3));
    expect([...keys.keys()].some((key) => key.endsWith("name"))).toBe(true);
  });

  test("fails for good with a wrong password, which is not shown", async () => {
    const error = await rejection(connect(at(server, "app:wrong-secret@")));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(error.message).toContain("WRONGPASS");
    expect(textOf(error)).not.toContain("wrong-secret");
  });

  test("fails for good when a password is missing", async () => {
    const own = await lab.redis();
    await own.cli("config", "set", "requirepass", PASSWORD);
    const error = await rejection(connect(own.url));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    const right = at(own, `:${encodeURIComponent(PASSWORD)}@`);
    await (await open(right)).acquire("name");
  });

  test("fails within seconds when nobody listens, or the server does not reply", async () => {
    const silent = await lab.redis();
    await silent.pause();
    const inTime = (url: string): Promise<Error> =>
      Promise.race([rejection(connect(url)), pause(9_000, new Error("it hangs"))]);
    const [nobody, noAnswer] = await Promise.all([
      inTime(`redis://app:secret@127.0.0.1:${await freePort()}`),
      inTime(silent.url),
    ]);
    for (const error of [nobody, noAnswer]) {
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
      expect(textOf(error)).not.toContain("secret");
    }
    expect(nobody.message).toContain("ECONNREFUSED");
    expect(nobody.message).toMatch(/127\.0\.0\.1:\d+/);
    await silent.kill();
  });

  test.each([
    ["redis://localhost/x", "number of a database"],
    ["redis://localhost/1/2", "number of a database"],
    ["redis://localhost/-1", "number of a database"],
    ["redis://a,b", "cluster"],
    ["redis://a,b?cluster&sentinel=main", "not both"],
    ["redis://a?cluster=no", "cluster"],
    ["redis://a/1?cluster", "one database"],
    ["redis://a?sentinel=", "sentinel"],
    ["redis://a?replicas=many", "replicas"],
    ["redis://a?replicas=-1", "replicas"],
    ["redis://a?ca=/tmp/ca.pem", "rediss:"],
    ["redis://a?servername=b", "rediss:"],
    ["rediss://a?ca=/nowhere/ca.pem", "can't be read"],
    ["redis://a?tls", '"tls"'],
    ["redis://user:secret@a?maxRetriesPerRequest=3", '"maxRetriesPerRequest"'],
  ])("refuses %s", async (url, why) => {
    const error = await rejection(connect(url));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT", retryable: false });
    expect(error.message).toContain(why);
    expect(error.message).not.toContain("secret");
  });

  test("reports at the first acquire that there are too few replicas", async () => {
    const locks = await open(`${server.url}?replicas=1`);
    const error = await rejection(locks.acquire("with replicas", { wait: 0 }));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
    expect(error.message).toContain("0 of 1 required replicas");
    await until("nothing is left", async () => (await locks.inspect("with replicas")) === null);
  });

  describeWith(["tls"], "with TLS", () => {
    let folder: string;
    let tls: string;
    beforeAll(async () => {
      folder = join(lab.folder, "tls");
      mkdirSync(folder);
      makeAuthority(folder, "ca");
      makeAuthority(folder, "stranger");
      makeCertificate(folder, "server", "IP:127.0.0.1,DNS:locks.test");
      makeCertificate(folder, "other", "DNS:locks.test");
      tls = await serve("server");
    });

    /** The TLS port, beside the plain port that the lab uses. */
    async function serve(name: string, clients = "no"): Promise<string> {
      const port = await freePort();
      await lab.redis({
        config: {
          "tls-port": String(port),
          "tls-cert-file": join(folder, `${name}.pem`),
          "tls-key-file": join(folder, `${name}.key`),
          "tls-ca-cert-file": join(folder, "ca.pem"),
          "tls-auth-clients": clients,
        },
      });
      return `127.0.0.1:${port}`;
    }

    const ca = (name: string): string => `ca=${encodeURIComponent(join(folder, `${name}.pem`))}`;

    test("works with the authority that signed the server, and waiters are pushed", async (context) => {
      skipUnless(context, findFile("openssl") !== null, "needs openssl");
      await handsOver(`rediss://${tls}?${ca("ca")}`);
    });

    test.each(["stranger", "none"])("fails with another authority, or none: %s", async (name) => {
      const option = name === "none" ? "" : `?${ca(name)}`;
      const error = await rejection(connect(`rediss://app:secret@${tls}${option}`));
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
      expect(error.message).toMatch(/certificate|self.signed/i);
      expect(textOf(error)).not.toContain("secret");
    });

    test("fails for another host name, unless the URL names it", async () => {
      const other = await serve("other");
      const error = await rejection(connect(`rediss://${other}?${ca("ca")}`));
      expect(error.message).toMatch(/127\.0\.0\.1|altnames/);
      await handsOver(`rediss://${other}?${ca("ca")}&servername=locks.test`);
    });

    test("works with servers that want a certificate of the client", async () => {
      makeCertificate(folder, "app", "DNS:app");
      const guarded = await serve("server", "yes");
      const option = (name: string, file: string): string =>
        `${name}=${encodeURIComponent(join(folder, file))}`;
      const [cert, key] = [option("cert", "app.pem"), option("key", "app.key")];
      await handsOver(`rediss://${guarded}?${ca("ca")}&${cert}&${key}`);
      const without = await rejection(connect(`rediss://${guarded}?${ca("ca")}`));
      expect(without).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(without.message).toContain("cert=FILE&key=FILE");
      writeFileSync(join(folder, "empty.pem"), "");
      const strange = `${option("cert", "app.pem")}&${option("key", "ca.key")}`;
      for (const [options, why] of [
        [ca("empty"), "ca has no usable certificate"],
        [`${ca("ca")}&${cert}`, "must be given together"],
        [`${ca("ca")}&${strange}`, "do not match"],
        [`${ca("ca")}&${option("cert", "empty.pem")}&${key}`, "cert has no usable certificate"],
        [`${ca("ca")}&${cert}&${option("key", "empty.pem")}`, "key has no usable private key"],
        [`${ca("ca")}&servername=`, "servername"],
      ] as const) {
        const error = await rejection(connect(`rediss://${guarded}?${options}`));
        expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
        expect(error.message).toContain(why);
      }
    });

    test("fails within seconds with TLS to a server without it, and the other way round", async () => {
      const fromMs = performance.now();
      const errors = await Promise.all([
        rejection(connect(`rediss://${server.address}:${server.port}?${ca("ca")}`)),
        rejection(connect(`redis://${tls}`)),
      ]);
      expect(performance.now() - fromMs).toBeLessThan(9_000);
      for (const error of errors) expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
    });
  });

  test("reaches a cluster by any of its nodes", async () => {
    const nodes = await startRedisCluster(lab);
    const hosts = nodes.map(({ address, port }) => `${address}:${port}`);
    await handsOver(`redis://${hosts.join(",")}?cluster`);
    await handsOver(`redis://${hosts[1]}?cluster`);
    const locks = await open(`redis://${hosts[0]}?cluster`);
    expect(locks.traits.store).toBe("Redis Cluster");
    const names = Array.from({ length: 30 }, (_, i) => `name ${i}`);
    await Promise.all(names.map((name) => locks.acquire(name)));
    expect((await locks.list()).map(({ name }) => name)).toEqual(names.toSorted());
    await expect(open(`redis://${hosts[0]}?cluster&replicas=1`)).rejects.toMatchObject({
      code: "INVALID_ARGUMENT",
    });
  });

  test("says that a cluster whose nodes answer does not work", async () => {
    const config = { "cluster-enabled": "yes", "cluster-port": String(await freePort()) };
    const { address, port } = await lab.redis({ config });
    const error = await rejection(connect(`redis://${address}:${port}?cluster`));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    expect(error.message).toContain("cluster_state:ok");
  });

  test("gets the primary from sentinels, also after a failover", async () => {
    const primary = await lab.redis();
    const replica = await lab.redis({ replicaOf: primary });
    await replica.synced();
    const { port, stop } = await startSentinel(lab, "main", primary, replica);
    onTestFinished(stop);

    const url = `redis://127.0.0.1:${port}?sentinel=main`;
    await handsOver(url);
    const locks = await open(url);
    const { token: before } = await locks.acquire("name");
    await primary.kill();
    const isPrimary = async (): Promise<boolean> =>
      (await replica.cli("role")).startsWith("master");
    await until("the replica is the primary", isPrimary, 20_000);
    const after = await locks.acquire("another name", { wait: "15s" });
    expect(after.token).toBeGreaterThan(before);
    expect(await replica.cli("keys", "*another name")).toContain("another name");

    const unknown = await rejection(connect(`redis://127.0.0.1:${port}?sentinel=other`));
    expect(unknown).toMatchObject({ code: "STORE_UNAVAILABLE" });
  });

  /** A primary and its replica, one address that leads to the present primary, and the failover. */
  async function failover(): Promise<{
    before: RedisServer;
    after: RedisServer;
    proxy: TcpProxy;
    demote(): Promise<void>;
    move(): void;
  }> {
    const before = await lab.redis();
    const after = await lab.redis({ replicaOf: before });
    await after.synced();
    const { address, port, url } = before;
    const target = { address, port, url };
    const proxy = await TcpProxy.open(target);
    onTestFinished(() => proxy.close());
    return {
      before,
      after,
      proxy,
      async demote() {
        await after.synced();
        await after.promote();
        // The demoted primary keeps its connections.
        await before.cli("replicaof", after.address, String(after.port));
      },
      move() {
        target.port = after.port;
      },
    };
  }

  test("leaves a primary that was demoted for the one that the address leads to now", async () => {
    const { before, after, proxy, demote, move } = await failover();
    const [locks, others] = [await open(proxy.url), await open(before.url)];
    const { token } = await others.acquire("name");
    const waiting = locks.acquire("name", { wait: "20s" });
    waiting.catch(() => {});
    await until("it waits", async () => (await others.inspect("name"))!.waiters.length === 1);
    await demote();
    const calls = await callsSince(before);
    // While the address leads to the same server, that is retried, but not in a storm.
    const fromMs = performance.now();
    while (performance.now() - fromMs < 1_500) {
      await expect(locks.acquire("another", { wait: 0 })).rejects.toMatchObject({
        code: "STORE_UNAVAILABLE",
      });
      await pause(20);
    }
    expect(await calls("subscribe")).toBeLessThan(6);
    move();
    const lease = await locks.acquire("another", { wait: "10s" });
    expect(await after.cli("keys", "*another")).toContain("another");
    await lease.release();
    await (await open(after.url)).forceRelease("name", { why: "its holder is at the other" });
    expect((await waiting).token).toBeGreaterThan(token);
  });

  describe("uses the client library that is installed", () => {
    let built: ReturnType<typeof build>;
    beforeAll(() => {
      built = build();
    });
    afterAll(() => built?.remove());

    const script = (body: string): string => `
      import { connect } from ${JSON.stringify(built.file("index.js"))};
      const failure = (promise) => promise.then(
        (locks) => locks.close().then(() => "connected"), (error) => [error.code, error.retryable, error.message]);
      const say = (value) => console.log(JSON.stringify(value));
      ${body}`;

    test("and says what to install when there is none", async () => {
      const ran = await runNode(script(`say(await failure(connect("${server.url}")))`));
      const [code, retryable, message] = JSON.parse(ran.out);
      expect([code, retryable]).toEqual(["UNSUPPORTED", false]);
      expect(message).toContain("npm install ioredis");
    });

    /** A process that acquires and releases while its server is demoted and its address is moved. */
    async function leavesDemoted(): Promise<string> {
      const { before, proxy, demote, move } = await failover();
      const running = runNode(
        script(`
        const locks = await connect("${proxy.url}", { ttl: "10s" });
        await locks.acquire("first");
        let attempts = 0;
        const attempt = () => locks.acquire("name " + attempts++, { wait: 0 }).then(
          (lease) => lease.release(), (error) => error.code);
        const until = async (outcomes) => {
          let outcome;
          do {
            await new Promise((go) => setTimeout(go, 20));
            outcome = await attempt();
          } while (!outcomes.includes(outcome));
          say(outcomes[0]);
        };
        // Whether acquire or release meets the demoted server first.
        await until(["STORE_UNAVAILABLE", "unknown"]);
        await until(["released"]);
        await locks.close();`),
        20_000,
      );
      await until("it is there", async () => (await before.cli("keys", "*first")) !== "");
      move();
      await demote();
      return (await running).out;
    }

    test("which may be redis only", async () => {
      mkdirSync(built.file("node_modules"));
      symlinkSync(
        fileURLToPath(new URL("../../../node_modules/redis", import.meta.url)),
        built.file("node_modules/redis"),
      );
      const silent = await lab.redis();
      await silent.pause();
      const left = leavesDemoted();
      const replica = await lab.redis({ replicaOf: server });
      await replica.synced();
      const http = createServer((_, response) => response.end("hello")).listen(0, "127.0.0.1");
      await once(http, "listening");
      onTestFinished(() => void http.close());
      const ran = await runNode(
        script(`
        const url = ${JSON.stringify(`${at(server, `app:${encodeURIComponent(PASSWORD)}@`)}/5`)};
        const [one, two] = await Promise.all([connect(url), connect(url)]);
        const lease = await one.acquire("name");
        const waiting = two.acquire("name");
        while ((await one.inspect("name")).waiters.length === 0) await new Promise((go) => setTimeout(go, 5));
        await lease.release();
        say((await waiting).state);
        await one.close();
        await two.close();
        say(await Promise.all([
          failure(connect("${at(server, "app:wrong-secret@")}")),
          failure(connect("redis://127.0.0.1:${NOBODY_LISTENS}")),
          failure(connect("${silent.url}")),
          failure(connect("redis://127.0.0.1?sentinel=main")),
          failure(connect("${server.url}/99")),
          failure(connect("${replica.url}")),
          failure(connect("redis://127.0.0.1:${(http.address() as AddressInfo).port}")),
          failure(connect("rediss://${server.address}:${server.port}")),
        ]));`),
        20_000,
      );
      await silent.kill();
      expect(ran).toMatchObject({ code: 0, killed: false });
      const [state, failures] = ran.out.split("\n").map((line) => JSON.parse(line));
      expect(state).toBe("held");
      expect(failures).toEqual([
        ["STORE_UNAVAILABLE", false, expect.stringContaining("WRONGPASS")],
        ["STORE_UNAVAILABLE", true, expect.stringContaining("ECONNREFUSED")],
        ["STORE_UNAVAILABLE", true, expect.any(String)],
        ["UNSUPPORTED", false, expect.stringContaining("npm install ioredis")],
        ["STORE_UNAVAILABLE", false, expect.stringContaining("database 99")],
        ["STORE_UNAVAILABLE", false, expect.stringContaining("is a replica")],
        ["STORE_UNAVAILABLE", false, expect.stringContaining("HTTP server")],
        ["STORE_UNAVAILABLE", false, expect.stringContaining("without TLS")],
      ]);
      expect(ran.out).not.toContain("wrong-secret");
      expect(await left).toBe('"STORE_UNAVAILABLE"\n"released"');
    });
  });

  describe("for a user with exactly the rights that are documented", () => {
    /** The rights that the documentation lists. */
    const COMMANDS = [
      "eval",
      "evalsha",
      "subscribe",
      "ping",
      "time",
      "get",
      "set",
      "del",
      "hget",
      "hset",
      "hdel",
      "pexpireat",
      "hmget",
      "getex",
      "pttl",
      "pexpire",
      "publish",
    ];
    const LISTS = ["scan"];
    const login = `locks:${encodeURIComponent(PASSWORD)}@`;

    beforeAll(() => allow([...COMMANDS, ...LISTS]));

    async function allow(commands: readonly string[]): Promise<void> {
      const scope = ["resetkeys", "~holdfast:*", "resetchannels", "&holdfast:*", "nocommands"];
      const rights = commands.map((command) => `+${command}`);
      await server.cli("acl", "setuser", "locks", "on", `>${PASSWORD}`, ...scope, ...rights);
    }

    async function asLocks(): Promise<Redis> {
      const client = quiet(
        new Redis(at(server, login), { enableReadyCheck: false, lazyConnect: true }),
      );
      await client.connect();
      return client;
    }

    const CASES = [
      "grants exclude each other",
      "shared, exclusive and permits follow one rule",
      "a repeated claim finds its grant with the same token, and extends it",
      "a record is read as it was written, whatever its key and value",
      "a meter gives its burst at once, and then says how long to wait",
    ];

    test("allows everything that Holdfast does", async () => {
      const cases = conformance.filter(
        ({ virtualOnly, needsFence }) => !virtualOnly && !needsFence,
      );
      expect(cases.map(({ name }) => name)).toEqual(expect.arrayContaining(CASES));
      const subject = () =>
        realSubject(async () => redisStore(await asLocks(), { closeClient: true }));
      const failed: string[] = [];
      // Sequentially: they share a database.
      for (const one of cases.filter(({ name }) => CASES.includes(name))) {
        if ((await runCase(one, subject())) !== "passed") failed.push(one.name);
        await server.cli("flushall");
      }
      expect(failed).toEqual([]);
      await handsOver(at(server, login));
      const locks = await open(at(server, login));
      const lease = await locks.acquire("name");
      expect((await locks.list()).map(({ name }) => name)).toContain("name");
      expect(await locks.forceRelease("name", { why: "a test" })).toHaveLength(1);
      await until("it is notified", () => lease.state === "lost");
      const semaphore = locks.semaphore("semaphore", { permits: 2 });
      await semaphore.acquire();
      await locks.acquireAll(["one", "two"]);
    });

    test("allows nothing else", async () => {
      const client = await asLocks();
      onTestFinished(() => client.disconnect());
      await server.cli("set", "other", "data");
      const tried: readonly (readonly string[])[] = [
        ["get", "other"],
        ["set", "other", "x"],
        ["del", "other"],
        ["eval", "return redis.call('get', KEYS[1])", "1", "other"],
        ["eval", "return redis.call('flushall')", "0"],
        ["publish", "other", "x"],
        ["subscribe", "other"],
        ["flushall"],
        ["flushdb"],
        ["config", "get", "*"],
        ["keys", "*"],
        ["acl", "list"],
        ["client", "list"],
        ["client", "kill", "type", "normal"],
        ["script", "flush"],
        ["info"],
        ["shutdown"],
        ["replicaof", "no", "one"],
        ["monitor"],
      ];
      const allowed: string[] = [];
      for (const [command, ...args] of tried) {
        const answer = await client.call(command!, ...args).catch((error: Error) => error);
        const refused =
          answer instanceof Error &&
          /NOPERM|can't run this command|can't access/.test(answer.message);
        if (!refused) allowed.push(`${command} ${args.join(" ")}: ${answer}`);
      }
      expect(allowed).toEqual([]);
      expect(await server.cli("get", "other")).toBe("data");
    });

    test("names a right that is missing, and does not retry", async () => {
      const locks = await open(at(server, login));
      await allow(COMMANDS.filter((command) => command !== "evalsha"));
      for (const error of [
        await rejection(locks.acquire("name")),
        await rejection(connect(at(server, login))),
      ]) {
        expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
        expect(error.message).toContain("evalsha");
      }
      // The missing command is one inside a script.
      await allow(COMMANDS.filter((command) => command !== "hset"));
      const first = await locks.acquire("another");
      const missing = await rejection(locks.acquire("another", { wait: "2s" }));
      expect(missing).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(textOf(missing)).not.toContain("args");
      // The failure takes nothing from the holder.
      expect((await locks.inspect("another"))?.holders).toHaveLength(1);
      expect(await first.release()).toBe("released");
      await allow([...COMMANDS, ...LISTS]);
    });
  });
});

/** All text of an error and its causes. */
const textOf = (error: unknown): string => {
  let text = "";
  for (let one = error; one instanceof Error; one = one.cause) {
    text += `${one.message} ${JSON.stringify(one)} `;
  }
  return text;
};
