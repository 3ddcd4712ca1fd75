import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { connect, createLocks, type Duration, type Locks } from "../../../src/index.js";
import { quorumStore } from "../../../src/stores/quorum/index.js";
import { MARKER } from "../../../src/stores/quorum/keys.js";
import { FORMAT } from "../../../src/stores/quorum/scripts.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { rejection } from "../../core/helpers.js";
import { makeAuthority, makeCertificate } from "../../support/certificates.js";
import { describeWith } from "../../support/needs.js";
import { redlockUrl } from "../../support/quorum.js";
import { quiet } from "../../support/redis.js";
import { until } from "../../support/worker.js";

describe("a redlock: URL is refused with", () => {
  test.each([
    ["redlock://a", "there are 1"],
    ["redlock://a,b", "there are 2"],
    ["redlock://a,b,c,d", "there are 4"],
    ["redlock://a:1,b:1,a:1", "names a:1 twice"],
    ["redlock://a,b,a:6379", "names a:6379 twice"],
    ["redlock://a,b,A", "names a:6379 twice"],
    ["redlock://a,b,c/x", "number of a database, as in redlock:"],
    ["redlock://a,b,c?ca=/tmp/ca.pem", "need TLS"],
    ["redlock://a,b,c?tls=2", "tls=1"],
    ["redlock://a,b,c?maxTtl=10", "maxTtl"],
    ["redlock://a,b,c?maxTtl=10ms", "maxTtl"],
    ["redlock://a,b,c?maxTtl=2d", "maxTtl"],
    ["redlock://u:secret@a,b,c?replicas=1", '"replicas"'],
  ])("%s", async (url, why) => {
    for (const lazy of [false, true]) {
      const error = await rejection(connect(url, { lazy }));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT", retryable: false });
      expect(error.message).toContain(why);
      expect(error.message).not.toContain("secret");
    }
  });
});

test("quorumStore() refuses what makes no quorum", () => {
  const clients = [1, 2, 3, 4].map(() => new Redis({ lazyConnect: true }));
  const refused = (make: () => unknown, why: RegExp): void => expect(make).toThrow(why);
  for (const count of [0, 1, 2, 4]) {
    refused(() => quorumStore(clients.slice(0, count)), /odd number of at least three/);
  }
  refused(() => quorumStore([clients[0]!, clients[1]!, clients[0]!]), /same client twice/);
  refused(() => quorumStore(null as never), /takes a list of clients/);
  refused(() => quorumStore([{}, {}, {}] as never), /quorumStore\(\) can't use/);
  refused(() => quorumStore(clients.slice(1), { typo: 1 } as never), /no option "typo"/);
  refused(() => quorumStore(clients.slice(1), { maxTtl: "1ms" }), /maxTtl/);
  const keyPrefix = "app:holdfast-quorum:";
  const prefixed = clients.slice(1).map(() => new Redis({ lazyConnect: true, keyPrefix }));
  refused(() => quorumStore(prefixed), /must not contain "holdfast-quorum:"/);
});

describeWith(["redis"], "connect() to a quorum", () => {
  let lab: Lab;
  let servers: RedisServer[];
  beforeAll(async () => {
    lab = await Lab.open();
    servers = await start(3);
    majorityDown = failWithMajorityDown();
  });
  afterAll(() => lab.close());

  // Started early because it takes long: the other tests run meanwhile.
  let majorityDown: ReturnType<typeof failWithMajorityDown>;
  async function failWithMajorityDown(): Promise<{
    silent: RedisServer;
    nobody: number;
    error: Error;
  }> {
    const silent = await lab.redis();
    await silent.pause();
    const nobody = await freePort();
    const url = redlockUrl([servers[0]!, silent, { address: "127.0.0.1", port: nobody }]);
    return { silent, nobody, error: await rejection(connect(url)) };
  }

  const start = (count: number): Promise<RedisServer[]> =>
    Promise.all(Array.from({ length: count }, () => lab.redis()));

  async function open(url: string, ttl: Duration = "5s"): Promise<Locks> {
    const locks = await connect(url, { ttl, wait: "20s" });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  /** Servers that have been in use, so that they need not be seen all at once. */
  async function used(count = 3): Promise<RedisServer[]> {
    const own = await start(count);
    await takes(await open(redlockUrl(own)));
    return own;
  }

  async function takes(locks: Locks, name = "name"): Promise<void> {
    await (await locks.acquire(name)).release();
  }

  test("needs no options; one client hands over to another", async () => {
    const [one, two] = [await open(redlockUrl(servers)), await open(redlockUrl(servers))];
    const lease = await one.acquire("name");
    const waiting = two.acquire("name");
    await until("it waits", async () => (await servers[0]!.cli("keys", "*wait:*")) !== "");
    await lease.release();
    const next = await waiting;
    expect(next.token).toBeGreaterThan(lease.token);
    await next.release();
    expect(one.traits).toMatchObject({ store: "quorum of Redis", maxTtlMs: 60_000 });
  });

  test("takes a database, and a maxTtl, which limits the ttl", async () => {
    const locks = await connect(`${redlockUrl(servers)}/3?maxTtl=20s`);
    onTestFinished(() => locks.close());
    expect((await locks.acquire("name")).remainingMs).toBeLessThanOrEqual(20_000);
    for (const server of servers) {
      expect(await server.cli("-n", "3", "get", MARKER)).toMatch(
        new RegExp(`^${FORMAT} \\w+ 20000 later 0$`),
      );
    }
    await expect(locks.acquire("another", { ttl: "30s" })).rejects.toThrow(/more than 20000 ms/);
  });

  test("refuses servers on which somebody else has written the marker, and says so", async () => {
    const database = 5;
    for (const [i, text] of ["hello", "1 hello", "7 of a later version"].entries()) {
      await servers[i]!.cli("-n", String(database), "set", MARKER, text);
    }
    const error = await rejection(connect(`${redlockUrl(servers)}/${database}`));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(error.message).toContain("is not Holdfast's: delete it, or use another database");
    expect(error.message).toContain(
      "are in format 7, which this version of Holdfast does not know",
    );
  });

  test("finds one server behind two addresses by its run id", async () => {
    await using proxy = await TcpProxy.open(servers[0]!);
    const url = redlockUrl([servers[0]!, servers[1]!, proxy]);
    for (let i = 0; i < 5; i++) {
      const error = await rejection(connect(url));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT", retryable: false });
      expect(error.message).toContain("are the same Redis server");
    }
  });

  test("finds one server behind two addresses when the second leads there later", async () => {
    const [a, b, c] = await used();
    const target = { address: c!.address, port: c!.port, url: c!.url };
    await using proxy = await TcpProxy.open(target);
    await c!.kill();
    const locks = await open(redlockUrl([a!, b!, proxy]));
    await takes(locks);
    target.port = b!.port;
    await until("it is found", async () => {
      const error = await locks.acquire("another").then(
        async (lease) => void (await lease.release()),
        (thrown: unknown) => thrown,
      );
      return (error as { code?: string } | undefined)?.code === "INVALID_ARGUMENT";
    });
    await expect(locks.tryAcquire("name")).rejects.toThrow("are the same Redis server");
  });

  test("goes on without a minority that is down, which joins later", async () => {
    const own = await used();
    await own[2]!.kill();
    const startedMs = performance.now();
    const locks = await open(redlockUrl(own));
    expect(performance.now() - startedMs).toBeLessThan(2_000);
    const lease = await locks.acquire("name");
    await own[2]!.start();
    // It has lost its data, and does not vote, but gets the record with a renewal.
    await until("it has the record", async () => (await own[2]!.cli("keys", "*lock:*")) !== "");
    expect(await lease.release()).toBe("released");
    await until("it is free", async () => (await own[2]!.cli("keys", "*lock:*")) === "");
  });

  test("goes on without a minority that is silent, which joins later", async () => {
    const own = await used();
    await own[1]!.pause();
    const startedMs = performance.now();
    const locks = await open(redlockUrl(own));
    await takes(locks);
    expect(performance.now() - startedMs).toBeLessThan(2_000);
    await own[1]!.resume();
    await own[0]!.kill();
    await until("it votes", () =>
      takes(locks).then(
        () => true,
        () => false,
      ),
    );
  });

  test("says of a new quorum with a node down when it can be used", async () => {
    const own = await start(3);
    await own[2]!.kill();
    const url = `${redlockUrl(own)}?maxTtl=2s`;
    const locks = await open(url, "1s");
    const error = await rejection(locks.acquire("name", { wait: 0 }));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    expect(error.message).toMatch(/is new or has lost data, and votes in [12] s/);
    await takes(locks);
  });

  test("a node that joins late is not put into service by a client that has seen the others as new", async () => {
    const own = await start(3);
    await own[2]!.kill();
    const url = `${redlockUrl(own)}?maxTtl=2s`;
    const early = await open(url, "1s");
    await takes(await open(url, "1s"));
    await own[2]!.start();
    // Now `early` joins the third node, as the first client that does.
    await until("it has joined", async () => {
      await takes(early, "another");
      return (await own[2]!.cli("get", MARKER)) !== "";
    });
    expect(await own[2]!.cli("get", MARKER)).not.toMatch(/ 0$/);
  });

  test("fails with the reason of each node if a majority is down", async () => {
    const { silent, nobody, error } = await majorityDown;
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    expect(error.message).toMatch(/^2 of the 3 nodes of the quorum can't vote, 2 are needed: /);
    expect(error.message).toContain(`${silent.address}:${silent.port}: it accepts connections`);
    expect(error.message).toContain(`127.0.0.1:${nobody}: nothing listens there (ECONNREFUSED)`);
    await silent.kill();
  });

  test("goes on without a node that refuses the password; fails for good if all do", async () => {
    const own = await start(3);
    const url = redlockUrl(own, "app:right-secret@");
    const allow = (server: RedisServer, password: string): Promise<string> =>
      server.cli("acl", "setuser", "app", "reset", "on", `>${password}`, "~*", "&*", "+@all");
    for (const server of own) await allow(server, "right-secret");
    await takes(await open(url));
    await allow(own[1]!, "other");
    await takes(await open(url));
    for (const server of own) await allow(server, "other");
    const error = await rejection(connect(url));
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    for (const { port } of own) expect(error.message).toContain(`:${port} refuses the user name`);
    expect(`${error.message}${JSON.stringify(error)}`).not.toContain("secret");
  });

  test("works with the caller's own clients, which stay open", async () => {
    const clients = servers.map(({ url }) => quiet(new Redis(url)));
    const locks = createLocks(quorumStore(clients));
    await takes(locks, "by own clients");
    await locks.close();
    for (const client of clients) {
      expect(await client.ping()).toBe("PONG");
      client.disconnect();
    }
  });

  describeWith(["tls"], "with TLS", () => {
    let folder: string;
    let addresses: { address: string; port: number }[];
    beforeAll(async () => {
      folder = join(lab.folder, "quorum-tls");
      mkdirSync(folder);
      makeAuthority(folder, "ca");
      makeCertificate(folder, "server", "IP:127.0.0.1");
      addresses = await Promise.all([1, 2, 3].map(serve));
    });

    async function serve(): Promise<{ address: string; port: number }> {
      const port = await freePort();
      await lab.redis({
        config: {
          "tls-port": String(port),
          "tls-cert-file": join(folder, "server.pem"),
          "tls-key-file": join(folder, "server.key"),
          "tls-ca-cert-file": join(folder, "ca.pem"),
          "tls-auth-clients": "no",
        },
      });
      return { address: "127.0.0.1", port };
    }

    test("works with the authority that signed the servers", async () => {
      const ca = encodeURIComponent(join(folder, "ca.pem"));
      await takes(await open(`${redlockUrl(addresses)}?tls&ca=${ca}`));
    });

    test("fails with the option that is missing", async () => {
      const [untrusted, plain, encrypted] = await Promise.all(
        [`${redlockUrl(addresses)}?tls=1`, redlockUrl(addresses), `${redlockUrl(servers)}?tls`].map(
          (url) => rejection(connect(url)),
        ),
      );
      expect(untrusted).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(untrusted!.message).toContain("add ca=FILE to the URL");
      expect(plain!.message).toContain("it expects TLS: add tls=1 to the URL");
      expect(encrypted!.message).toContain("it answers without TLS: leave tls out of the URL");
    });
  });
});
