import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { inspect } from "node:util";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { connect, createLocks } from "../../src/index.js";
import { etcdStore } from "../../src/stores/etcd/index.js";
import { redisStore } from "../../src/stores/redis/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { freePort } from "../../src/verify/lab/ports.js";
import type { RedisServer } from "../../src/verify/lab/redis.js";
import { startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import { until } from "../support/worker.js";

const SECRET = "S3cr3t";

/** Finds a text in everything that can be reached from a value, enumerable or not. */
function placesOf(text: string, value: unknown): readonly string[] {
  const places: string[] = [];
  const seen = new Set<unknown>();
  const walk = (one: unknown, at: string): void => {
    if (typeof one === "string" && one.includes(text)) places.push(at);
    if ((typeof one !== "object" && typeof one !== "function") || one === null) return;
    if (seen.has(one)) return;
    seen.add(one);
    if (one instanceof Map || one instanceof Set) walk([...one], `${at}()`);
    if (ArrayBuffer.isView(one)) walk(Buffer.from(one.buffer).toString("latin1"), `${at}.bytes`);
    for (const key of Reflect.ownKeys(one)) {
      walk((one as Record<PropertyKey, unknown>)[key], `${at}.${String(key)}`);
    }
  };
  walk(value, "error");
  if (inspect(value, { depth: 50, showHidden: true }).includes(text)) places.push("inspect");
  if (`${value}${JSON.stringify(value)}`.includes(text)) places.push("text");
  return places;
}

async function thrown(fail: () => unknown): Promise<Error> {
  const error = await rejection((async () => fail())());
  expect(placesOf(SECRET, error)).toEqual([]);
  return error;
}

test("the search of these tests finds a password wherever it hides", () => {
  const hidden = new Error("failed", { cause: Object.assign(new Error("x"), { args: [SECRET] }) });
  expect(placesOf(SECRET, hidden)).toContain("error.cause.args.0");
  const invisible = Object.defineProperty(new Error("x"), "a", { value: { b: SECRET } });
  expect(placesOf(SECRET, invisible)).toContain("error.a.b");
});

test.each([
  `redis://u:1234?${SECRET}@127.0.0.1`,
  `redis://u:1234?a=${SECRET}@127.0.0.1`,
  `redis://u:1234?${SECRET}=x@127.0.0.1`,
  `rediss://u:1234?ca=${SECRET}@127.0.0.1`,
  `redis://u:1234?replicas=${SECRET}@127.0.0.1`,
  `redis://u:a/${SECRET}@127.0.0.1`,
  `redis://u:a#${SECRET}@127.0.0.1`,
  `redis://u:a,${SECRET}@127.0.0.1/x`,
  `redis://u:%${SECRET}@127.0.0.1`,
  `redis://u:${SECRET}@@127.0.0.1`,
  `redis://u:${SECRET}@127.0.0.1/x`,
  `redis://u:${SECRET}@127.0.0.1?no-option`,
  `redis://u:${SECRET}@a,b`,
  `redis:u:${SECRET}@127.0.0.1`,
  `u:${SECRET}@127.0.0.1`,
  `unknown://u:${SECRET}@127.0.0.1`,
  `zookeeper://u:${SECRET}@127.0.0.1?no-option`,
  `redlock://u:${SECRET}@a,b`,
  `redlock://u:${SECRET}@a,b,a`,
  `redlock://u:1234?maxTtl=${SECRET}@a,b,c`,
  `redlock://u:1234?tls=1&ca=${SECRET}@a,b,c`,
  `redlock://u:a,${SECRET}@a,b,c/x`,
  `etcd://u:${SECRET}@127.0.0.1/x`,
  `etcd://:${SECRET}@127.0.0.1`,
  `etcd://u:1234?tls=1&ca=${SECRET}@127.0.0.1`,
  `etcd://u:1234?${SECRET}@127.0.0.1`,
  `memory:?${SECRET}@127.0.0.1`,
  `sqlite://u:${SECRET}@127.0.0.1`,
])("%s is refused, and the error does not show the password", async (url) => {
  await thrown(() => connect(url));
});

test("no error shows the password of a URL that stands where a store, a client or an endpoint belongs", async () => {
  const url = `redis://u:${SECRET}@127.0.0.1`;
  for (const fail of [
    () => createLocks(url as never),
    () => redisStore(url as never),
    () => redisStore({ url } as never),
    () => etcdStore(url as never),
    () => etcdStore({ endpoints: [url] } as never),
    () => connect({ url } as never),
    () => connect(url, { namespace: url }),
    () => connect("memory:", { holder: url, ttl: url as never }),
  ]) {
    const error = await thrown(fail);
    expect(error).toMatchObject({ code: expect.stringMatching(/INVALID|STORE/) });
  }
});

describeWith(["redis"], "no error of Redis shows the password", () => {
  let lab: Lab;
  let server: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.redis();
  });
  afterAll(() => lab.close());

  const as = (login: string, { address, port }: { address: string; port: number }): string =>
    `redis://${login}@${address}:${port}`;
  const user = (on: RedisServer, ...rights: string[]): Promise<string> =>
    on.cli("acl", "setuser", "u", "reset", "on", ...rights, "allkeys", "allchannels", "+@all");

  test("when it is wrong: for a server, for a cluster, where nobody listens", async () => {
    const nodes = await startRedisCluster(lab);
    const nobody = { address: "127.0.0.1", port: await freePort() };
    for (const node of [...nodes, server]) await user(node, ">other");
    for (const url of [
      as(`u:${SECRET}`, server),
      `${as(`u:${SECRET}`, server)}/2`,
      `${as(`u:${SECRET}`, nodes[0]!)}?cluster`,
      `${as(`u:${SECRET}`, nobody)}?cluster`,
      `${as(`u:${SECRET}`, nobody)}?sentinel=main`,
      as(`u:${SECRET}`, nobody),
    ]) {
      await thrown(() => connect(url));
    }
  });

  test("when the server repeats a command that it does not know", async () => {
    const include = join(lab.folder, "old.conf");
    writeFileSync(include, 'rename-command HELLO ""\nrename-command AUTH ""\n');
    const old = await lab.redis({ config: { include } });
    await thrown(() => connect(as(`u:${SECRET}`, old)));
  });

  test("when it is right, but the user may do nothing", async () => {
    await user(server, `>${SECRET}`, "-evalsha");
    await server.cli("acl", "setuser", "u", "-evalsha", "-select");
    await thrown(() => connect(as(`u:${SECRET}`, server)));
    await thrown(() => connect(`${as(`u:${SECRET}`, server)}/2`));
  });

  test("when it is changed while locks are in use", async () => {
    await user(server, `>${SECRET}`);
    const locks = await connect(as(`u:${SECRET}`, server), { wait: 0 });
    onTestFinished(() => locks.close().catch(() => {}));
    await locks.acquire("name");
    await user(server, ">other");
    await server.cli("client", "kill", "user", "u");
    await until("it is refused", async () => {
      await thrown(() => locks.acquire("another"));
      const error = await thrown(() => locks.acquire("another", { wait: 300 }));
      return error.message.includes("has been lost") || error.message.includes("WRONGPASS");
    });
  });
});

describeWith(["etcd"], "no error of etcd shows the password", () => {
  test("when it is wrong, and where nobody listens", async () => {
    const lab = await Lab.open();
    onTestFinished(() => lab.close());
    const [server] = (await lab.etcd({ flags: { "bcrypt-cost": "4" } })).servers;
    await server!.ctl("user", "add", "root:right");
    await server!.ctl("user", "grant-role", "root", "root");
    await server!.ctl("auth", "enable");
    const port = await freePort();
    await thrown(() => connect(`etcd://root:${SECRET}@${server!.address}:${server!.port}`));
    await thrown(() => connect(`etcd://root:${SECRET}@127.0.0.1:${port}`));
  });
});
