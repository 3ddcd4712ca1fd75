import { execFileSync } from "node:child_process";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { examineStore } from "../../../src/examine.js";
import { connect, type Locks } from "../../../src/index.js";
import { flawsOf } from "../../../src/stores/etcd/versions.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { build, rejection, runNode } from "../../core/helpers.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

/** Contains every character that has a meaning in a URL. */
const PASSWORD = "p@ss:w/o?r#d%";
/** The longest time that `connect` may take to give up. */
const GIVES_UP_MS = 6_000;

describeWith(["etcd"], "connect() to etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.etcd()).servers[0]!;
  });
  afterAll(() => lab.close());

  async function open(url: string): Promise<Locks> {
    const locks = await connect(url, { ttl: "10s", wait: "10s" });
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  /** One client hands a name over to another, so that a watch is opened by this URL too. */
  async function handsOver(url: string, other = url): Promise<void> {
    const [one, two] = [await open(url), await open(other)];
    const name = `name ${Math.random()}`;
    const lease = await one.acquire(name);
    const waiting = two.acquire(name);
    await until("it waits", async () => (await one.inspect(name))!.waiters.length === 1);
    await lease.release();
    await (await waiting).release();
  }

  const hostOf = ({ address, port }: { address: string; port: number }): string =>
    `${address}:${port}`;
  const at = (to: EtcdServer, login = ""): string => `etcd://${login}${hostOf(to)}`;

  /** The error of `connect`, which comes in time. */
  async function failure(url: string): Promise<Error & { retryable?: boolean }> {
    const from = performance.now();
    const error = await rejection(connect(url));
    expect(performance.now() - from).toBeLessThan(GIVES_UP_MS);
    expect(error).toMatchObject({ code: "STORE_UNAVAILABLE" });
    expect(textOf(error)).not.toContain("secret");
    return error;
  }

  /** The faults of the servers' version are in the traits, and correctness then needs a fence. */
  async function tellsFlaws(url: string, members: number): Promise<void> {
    const locks = await open(url);
    const version = /etcd Version: (\S+)/.exec(
      execFileSync("etcd", ["--version"], { encoding: "utf8" }),
    )![1]!;
    const { flaws } = flawsOf(version, members);
    expect(locks.traits.grantsTwiceAfter).toEqual(flaws);
    const unfenced = connect(url, { purpose: "correctness" });
    await expect(unfenced).rejects.toMatchObject({ code: "UNSUPPORTED" });
    await (await connect(url, { purpose: "correctness", fenced: true })).close();
  }

  test.each([
    ["3.4.20", 1, 1],
    ["3.4.21", 1, 0],
    ["3.4.30", 3, 2],
    ["3.4.31", 3, 1],
    ["3.4.45", 1, 0],
    ["3.5.2", 3, 2],
    ["3.5.12", 3, 1],
    ["3.5.13", 3, 0],
    ["3.6.0", 3, 0],
  ])(
    "knows that version %s with %i members has this many flaws that grant twice: %i",
    (version, members, count) => {
      expect(flawsOf(version, members).flaws).toHaveLength(count);
    },
  );

  test("needs no options, with or without a slash, and waiters are pushed", async () => {
    await tellsFlaws(at(server), 1);
    await handsOver(server.url, `${server.url}/`);
  });

  test("works with several endpoints of which one is dead", async () => {
    const dead = `127.0.0.1:${await freePort()}`;
    await handsOver(`etcd://${dead},${hostOf(server)}`, `etcd://${hostOf(server)},${dead}`);
    const three = await lab.etcd({ nodes: 3 });
    await handsOver(three.url);
    await tellsFlaws(three.url, 3);
    await three.servers[1]!.kill();
    // Whichever endpoint is tried first.
    for (let i = 0; i < 3; i++) await handsOver(three.url);
  });

  test("fails at once when nobody listens, and says where", async () => {
    const [one, two] = [`127.0.0.1:${await freePort()}`, `127.0.0.1:${await freePort()}`];
    const from = performance.now();
    const error = await failure(`etcd://app:secret@${one},${two}`);
    expect(performance.now() - from).toBeLessThan(2_000);
    expect(error.retryable).toBe(true);
    expect(error.message).toContain(`${one}: nothing listens there (ECONNREFUSED)`);
    expect(error.message).toContain(`${two}: nothing listens there (ECONNREFUSED)`);
    const unknown = await failure("etcd://nowhere.invalid");
    expect(unknown.message).toContain("nowhere.invalid:2379: the host name is not known");
  });

  describe.concurrent("on servers of their own", () => {
    test("refuses a member without a leader", async () => {
      const { servers } = await lab.etcd({ nodes: 3 });
      await Promise.all([servers[0]!.kill(), servers[1]!.kill()]);
      const alone = await failure(at(servers[2]!));
      expect(alone.message).toContain("no leader");
      expect(alone.retryable).toBe(true);
      const all = await failure(`etcd://${servers.map(hostOf).join(",")}`);
      expect(all.message).toContain(`${hostOf(servers[0]!)}: nothing listens there`);
      expect(all.message).toContain(`${hostOf(servers[2]!)}: it has no leader`);
      await servers[2]!.kill();
    });

    test("refuses members of different clusters: each would grant what the other has granted", async () => {
      const { servers } = await lab.etcd();
      const error = await rejection(connect(`${server.url},${hostOf(servers[0]!)}`));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toContain("different clusters");
      await servers[0]!.kill();
    });

    test("fails in time when the server does not reply", async () => {
      const { servers } = await lab.etcd();
      await servers[0]!.pause();
      const error = await failure(at(servers[0]!, "app:secret@"));
      expect(error.retryable).toBe(true);
      expect(error.message).toMatch(/could be made in time|timed out/);
      await servers[0]!.kill();
    });
  });

  test.each([
    ["etcd://a/locks", "namespace"],
    ["etcd://:secret@a", "needs a user"],
    ["etcd://a?ca=/tmp/ca.pem", "add tls=1"],
    ["etcd://a?servername=b&cert=c", "cert and servername need TLS"],
    ["etcd://a?tls=yes", "tls=1"],
    ["etcd://a?tls=1&servername=", "servername"],
    ["etcd://a?tls=1&cert=/tmp/cert.pem", "must be given together"],
    ["etcd://a?tls=1&key=/tmp/key.pem", "must be given together"],
    ["etcd://a?tls=1&ca=/nowhere/ca.pem", "ca can't be read (ENOENT)"],
    ["etcd://a?tls=1&cert=/nowhere/c&key=/nowhere/k", "cert can't be read (ENOENT)"],
    ["etcd://a?tls=1&ca=/dev/null", "ca has no usable certificate in PEM"],
    ["etcd://user:secret@a?callTimeoutMs=3", '"callTimeoutMs"'],
    ["etcd://user:secret@a?grpc.enable_retries=1", '"grpc.enable_retries"'],
  ])("%s is refused", async (url, why) => {
    const error = await rejection(connect(url));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT", retryable: false });
    expect(error.message).toContain(why);
    expect(textOf(error)).not.toContain("secret");
  });

  describe("with a user and password", () => {
    let guarded: EtcdServer;
    const login = (user: string): string => `${user}:${encodeURIComponent(PASSWORD)}@`;
    beforeAll(async () => {
      guarded = (await lab.etcd({ flags: { "bcrypt-cost": "4" } })).servers[0]!;
      for (const user of ["root", "app", "poor"]) {
        await guarded.ctl("user", "add", `${user}:${PASSWORD}`);
      }
      await guarded.ctl("role", "add", "locks");
      await guarded.ctl(
        ...["role", "grant-permission", "locks", "--prefix=true", "readwrite", "holdfast/"],
      );
      await guarded.ctl("user", "grant-role", "app", "locks");
      await guarded.ctl("user", "grant-role", "root", "root");
      await guarded.ctl("auth", "enable");
    });

    test("works for a user with exactly the rights that are needed", async () => {
      await handsOver(at(guarded, login("app")));
    });

    test("works with a user where the server has none", async () => {
      await handsOver(at(server, login("app")));
    });

    test.each([
      ["a wrong password", "app:wrong-secret@", 'wrong password, or no user "app"'],
      ["no password", "app@", 'wrong password, or no user "app"'],
      ["nobody's name", "nobody:secret@", 'wrong password, or no user "nobody"'],
      ["no user", "", "it requires a user and a password"],
      ["no rights", login("poor"), "readwrite on the prefix holdfast/"],
    ])("fails for good with %s", async (_, user, what) => {
      const error = await failure(at(guarded, user));
      expect(error.retryable).toBe(false);
      expect(error.message).toContain(what);
      expect(textOf(error)).not.toContain(PASSWORD);
    });
  });

  test("leaves no connection open after a failure, nor after close", async () => {
    const mine = (await lab.etcd({ flags: { "bcrypt-cost": "4" } })).servers[0]!;
    await mine.ctl("user", "add", "root:root");
    await mine.ctl("user", "grant-role", "root", "root");
    await mine.ctl("auth", "enable");
    await using proxy = await TcpProxy.open(mine);
    const to = (login: string): string => `etcd://${login}@${proxy.address}:${proxy.port}`;
    await failure(to("root:wrong-secret"));
    expect(proxy.connections).toBeGreaterThan(0);
    await until("it has hung up", async () => proxy.openConnections === 0);
    const locks = await connect(to("root:root"));
    await locks.acquire("name");
    expect(proxy.openConnections).toBeGreaterThan(0);
    await locks.close();
    await until("it has hung up", async () => proxy.openConnections === 0);
  });

  describeWith(["tls"], "by TLS", () => {
    let folder: string;
    let plain: string;
    let tls: string;
    let guarded: string;
    beforeAll(async () => {
      folder = join(lab.folder, "tls");
      mkdirSync(folder);
      for (const name of ["ca", "stranger"]) authority(name);
      certificate("server", "IP:127.0.0.1,DNS:localhost");
      certificate("other", "DNS:locks.test");
      certificate("app", "DNS:app.test");
      [plain, tls] = await serve("server");
      [, guarded] = await serve("other", "ca");
    });

    const openssl = (...args: readonly string[]): void => {
      execFileSync("openssl", args, { cwd: folder, stdio: "ignore" });
    };
    const newKey = (name: string): string[] => [
      ...["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
      ...["-subj", `/CN=${name}`, "-keyout", `${name}.key`],
    ];

    function authority(name: string): void {
      openssl("req", "-x509", ...newKey(name), "-days", "2", "-out", `${name}.pem`);
    }

    function certificate(name: string, of: string): void {
      openssl("req", ...newKey(name), "-out", `${name}.csr`);
      writeFileSync(join(folder, `${name}.ext`), `subjectAltName=${of}`);
      const signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
      const files = ["-in", `${name}.csr`, "-extfile", `${name}.ext`, "-out", `${name}.pem`];
      openssl("x509", "-req", ...signed, ...files);
    }

    const path = (file: string): string => join(folder, file);

    /** The plain port, and the port with TLS. */
    async function serve(name: string, clientCa?: string): Promise<[string, string]> {
      const port = await freePort();
      const files = { cert: path(`${name}.pem`), key: path(`${name}.key`) };
      const of = clientCa === undefined ? {} : { clientCa: path(`${clientCa}.pem`) };
      const { servers } = await lab.etcd({ tls: { port, ...files, ...of } });
      return [hostOf(servers[0]!), `127.0.0.1:${port}`];
    }

    const file = (option: string, name: string): string =>
      `${option}=${encodeURIComponent(path(name))}`;
    const OWN = (): string => `${file("cert", "app.pem")}&${file("key", "app.key")}`;

    test("works with the authority that signed the server, and waiters are pushed", async () => {
      await handsOver(
        `etcd://${tls}?tls=1&${file("ca", "ca.pem")}`,
        `etcd://${tls.replace("127.0.0.1", "localhost")}?tls&${file("ca", "ca.pem")}`,
      );
    });

    test.each(["stranger", "none"])("fails with another authority, or none: %s", async (name) => {
      const option = name === "none" ? "" : `&${file("ca", `${name}.pem`)}`;
      const error = await failure(`etcd://app:secret@${tls}?tls=1${option}`);
      expect(error.message).toContain("its certificate is not trusted");
      expect(error.message).toContain("ca=FILE");
    });

    test("works with a certificate of the client's own, and with another server name", async () => {
      const ca = file("ca", "ca.pem");
      const right = `etcd://${guarded}?tls=1&${ca}&servername=locks.test&${OWN()}`;
      await handsOver(right);
      const unnamed = await failure(`etcd://${guarded}?tls=1&${ca}&${OWN()}`);
      expect(unnamed.message).toContain("its certificate is for another name");
      const unknown = await failure(`etcd://${guarded}?tls=1&${ca}&servername=locks.test`);
      expect(unknown.message).toContain("it requires a client certificate");
      expect(unknown.message).not.toContain("\n");
      const strange = `${file("cert", "stranger.pem")}&${file("key", "stranger.key")}`;
      const refused = await failure(
        `etcd://${guarded}?tls=1&${ca}&servername=locks.test&${strange}`,
      );
      expect(refused.message).toContain("does not accept the certificate");
    });

    test("lets the doctor in likewise, which sees that others are kept out", async () => {
      const named = "tls=1&servername=locks.test";
      const url = `etcd://${guarded}?${named}&${file("ca", "ca.pem")}&${OWN()}`;
      const findings = await examineStore(url);
      expect(findings.filter(({ level }) => level === "danger")).toEqual([]);
      expect(findings.find(({ about }) => about === "access")).toMatchObject({
        level: "ok",
        what: expect.stringContaining("lets nobody in without"),
      });
      const open = await examineStore(`etcd://${tls}?tls&${file("ca", "ca.pem")}`);
      expect(open.find(({ about }) => about === "access")!.what).toContain("authentication is off");
    });

    test("fails with TLS to a server without it, and the other way round", async () => {
      const without = await failure(`etcd://${plain}?tls=1&${file("ca", "ca.pem")}`);
      expect(without.message).toContain("does it speak TLS on that port?");
      const expected = await failure(`etcd://${tls}`);
      expect(expected.message).toContain("does it expect TLS? then add tls=1");
    });

    test.each([
      ["key of another", "app.pem", "other.key", "cert and key do not match"],
      ["key for certificate", "app.key", "app.key", "cert has no usable certificate in PEM"],
      ["certificate for key", "app.pem", "app.pem", "key has no usable private key"],
    ])("refuses unsuitable files: %s", async (_, cert, key, why) => {
      const files = `${file("cert", cert)}&${file("key", key)}`;
      const error = await rejection(connect(`etcd://${tls}?tls=1&${files}`));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toContain(why);
    });
  });

  describe("in a process", () => {
    let built: ReturnType<typeof build>;
    beforeAll(() => {
      built = build();
    });
    afterAll(() => built?.remove());

    const script = (...urls: readonly string[]): string => `
      import { connect } from ${JSON.stringify(built.file("index.js"))};
      const failure = (promise) => promise.then(
        (locks) => locks.close().then(() => "connected"), (error) => [error.code, error.message]);
      for (const url of ${JSON.stringify(urls)}) console.log(JSON.stringify(await failure(connect(url))));`;

    test("says what to install when the client library is missing", async () => {
      const { out } = await runNode(script(server.url));
      expect(JSON.parse(out)).toEqual([
        "UNSUPPORTED",
        expect.stringContaining("npm install @grpc/grpc-js"),
      ]);
    });

    test("lets the process end after a failure, and prints nothing", async () => {
      const modules = fileURLToPath(new URL("../../../node_modules", import.meta.url));
      symlinkSync(modules, built.file("node_modules"));
      const nobody = `etcd://127.0.0.1:${await freePort()}`;
      // By host name: for TLS to an IP address, Node prints a warning of its own.
      const byTls = `etcd://localhost:${server.port}?tls=1`;
      const ran = await runNode(script(nobody, byTls, server.url), 20_000);
      expect(ran).toMatchObject({ code: 0, killed: false, err: "" });
      expect(ran.out.split("\n").map((line) => JSON.parse(line))).toEqual([
        ["STORE_UNAVAILABLE", expect.any(String)],
        ["STORE_UNAVAILABLE", expect.any(String)],
        "connected",
      ]);
    });
  });
});

/** All text of an error and its causes. */
const textOf = (error: unknown): string => {
  let text = "";
  for (let one = error; one instanceof Error; one = one.cause) {
    text += `${one.message} ${one.stack} ${JSON.stringify(one)} `;
  }
  return text;
};
