import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { systemClock } from "../../../src/core/clock.js";
import { Connection } from "../../../src/stores/zookeeper/client/connection.js";
import {
  create,
  getChildren,
  type Operation,
  sync,
} from "../../../src/stores/zookeeper/client/operations.js";
import { Chroot } from "../../../src/stores/zookeeper/client/paths.js";
import { encodeAcl, OPEN_ACL } from "../../../src/stores/zookeeper/client/records.js";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { LOOPBACK } from "../../../src/verify/lab/server.js";
import type { ZooKeeperServer } from "../../../src/verify/lab/zookeeper.js";
import {
  type WatchEvent,
  ZooKeeperClient,
  type ZooKeeperClientOptions,
} from "../../../src/zookeeper/index.js";
import { rejection } from "../../core/helpers.js";
import { makeAuthority, makeCertificate } from "../../support/certificates.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { EventLog, expectCode, openClient, openSession, present } from "../../support/zookeeper.js";

const T = 4_000;
/** For a busy machine. */
const SLACK_MS = 1_000;

const nameOf = ({ address, port }: ZooKeeperServer): string => `${address}:${port}`;

describeWith(["zookeeper"], "the ZooKeeper client on an ensemble", () => {
  let lab: Lab;
  let cluster: ServerCluster<ZooKeeperServer>;
  let folders = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    cluster = await lab.zookeeper({ nodes: 3 });
  });
  afterAll(() => lab?.close());

  async function open(options: Partial<ZooKeeperClientOptions> = {}) {
    const log = new EventLog();
    const servers = cluster.servers.map(nameOf);
    const client = await openClient({ servers, sessionTimeoutMs: T, on: log.on, ...options });
    const folder = `/test-${++folders}`;
    await client.create(folder);
    return { client, log, folder };
  }

  const serverOf = ({ connection }: ZooKeeperClient): ZooKeeperServer =>
    cluster.servers.find((one) => nameOf(one) === connection!.server)!;

  const whole = async (): Promise<void> => {
    for (const one of cluster.servers) {
      if (one.state === "paused") await one.resume();
      await one.start();
    }
    const serves = (one: ZooKeeperServer): Promise<boolean> =>
      one.ask("srvr").then(
        (answer) => answer.includes("Mode: "),
        () => false,
      );
    for (const one of cluster.servers) await until(`${one.name} serves`, () => serves(one), 20_000);
  };

  test("a killed server: the session, its nodes and its watches go on at another", async () => {
    const { client, log, folder } = await open();
    const { path } = await client.create(`${folder}/own`, { mode: "ephemeral" });
    const events: WatchEvent[] = [];
    await client.getData(folder, { watch: (event) => events.push(event) });
    const { sessionId } = client;
    const first = serverOf(client);
    await first.kill();
    await log.has("reconnected");
    expect(client.sessionId).toBe(sessionId);
    expect(serverOf(client)).not.toBe(first);
    await until("writes", async () =>
      client.setData(folder, "1").then(
        () => true,
        () => false,
      ),
    );
    await client.sync("/");
    expect(events).toMatchObject([{ type: "data-changed", path: folder }]);
    expect((await client.getEphemerals()).paths).toEqual([path]);
    expect(log.names).not.toContain("lost");
    await whole();
  });

  test("a stopped server: suspended by two thirds of the timeout, resumed at another before the whole", async () => {
    // Not the leader: without it, no server could take the session before an election.
    const leader = await cluster.leader();
    const followersFirst = [...cluster.servers.filter((one) => one !== leader), leader];
    const { client, log, folder } = await open({
      servers: followersFirst.map(nameOf),
      random: () => 0.999,
    });
    await client.create(`${folder}/own`, { mode: "ephemeral" });
    const stopped = serverOf(client);
    expect(stopped).toBe(followersFirst[0]);
    await stopped.pause();
    const fromMs = performance.now();
    const pending = expectCode(client.setData(folder, "1"), "CONNECTION_LOSS");
    await log.has("suspended");
    expect(performance.now() - fromMs).toBeLessThan((2 * T) / 3 + SLACK_MS);
    expect(await pending).toMatchObject({ executed: "unknown" });
    await log.has("reconnected");
    expect(performance.now() - fromMs).toBeLessThan(T);
    expect(serverOf(client)).not.toBe(stopped);
    expect((await client.getEphemerals()).paths).toHaveLength(1);
    await whole();
  });

  test("all servers stopped: lost by the client's own clock, and never later", async () => {
    const clock = systemClock();
    const { client, log } = await open({ sessionTimeoutMs: 1_500, clock });
    const lostAtMs = new Promise<number>((resolve) => {
      client.on("lost", () => resolve(clock.elapsedMs()));
    });
    await Promise.all(cluster.servers.map((one) => one.pause()));
    const untilMs = client.aliveUntilMs;
    expect((await lostAtMs) - untilMs).toBeGreaterThanOrEqual(0);
    expect((await lostAtMs) - untilMs).toBeLessThan(SLACK_MS);
    expect(client.aliveUntilMs).toBe(untilMs);
    expect(log.reasons.at(-1)).toContain("no server has answered for the session's timeout");
    await expectCode(client.sync("/"), "SESSION_EXPIRED");
    await whole();
  });

  test("a session that moved to another server: reads are still answered here, a write ends it, and it is taken back", async () => {
    const [here, there] = cluster.servers;
    const { session, log } = await openSession({ servers: [nameOf(here!)], sessionTimeoutMs: T });
    const send = (operation: Operation<object>): Promise<unknown> =>
      new Promise((succeeded, failed) => session.send(operation, { succeeded, failed }));
    const make = create(new Chroot(), "/moved", { mode: "ephemeral" }, encodeAcl(OPEN_ACL));
    await send(sync(new Chroot(), "/"));
    // A server that is behind refuses it.
    await until("the other has caught up", async () => {
      return (await present(there!, session.ticket)) instanceof Connection;
    });
    await send(getChildren(new Chroot(), "/", false));
    expect(log.names).toEqual([]);
    const { code } = await rejection(send(make));
    expect(["CONNECTION_LOSS", "SESSION_MOVED"]).toContain(code);
    await log.has("reconnected");
    await send(make);
  });

  test("through a follower, the zxid in a write's reply is the transaction's, whoever else writes", async () => {
    const { client: any, folder } = await open();
    const clients = await Promise.all(
      cluster.servers.map((one) => openClient({ servers: [nameOf(one)] })),
    );
    const made = await Promise.all(
      Array.from({ length: 300 }, (_, i) => {
        const client = clients[i % clients.length]!;
        const path = `${folder}/n-`;
        return i % 2 === 0
          ? client.multi([{ op: "create", path, mode: "persistent-sequential" }])
          : client.create(path, { mode: "persistent-sequential" });
      }),
    );
    await any.sync("/");
    for (const one of made) {
      const path = "results" in one ? one.results[0].path : one.path;
      expect((await any.exists(path)).stat?.czxid).toBe(one.reply.zxid);
    }
  });
});

describeWith(["zookeeper"], "a server of ZooKeeper in read-only mode", () => {
  test("refuses a session without a word, and open() says what that may mean", async () => {
    await using lab = await Lab.open();
    const env = { JAVA_TOOL_OPTIONS: "-Dreadonlymode.enabled=true" };
    const sites = [1, 2, 3].map(() => ({ ...LOOPBACK, env }));
    const [alone, ...others] = (await lab.zookeeper({ nodes: 3, sites })).servers;
    for (const one of others) await one.kill();
    await until("it serves reads only", async () =>
      (await alone!.ask("srvr").catch(() => "")).includes("Mode: read-only"),
    );
    const opened = ZooKeeperClient.open({ servers: [nameOf(alone!)], connectTimeoutMs: 1_000 });
    expect((await rejection(opened)).message).toMatch(
      /last failure: 127\S+ the server closed it without granting a session: it may have no majority/,
    );
  }, 60_000);
});

describeWith(["zookeeper", "tls"], "the ZooKeeper client by TLS", () => {
  test("checks the server's certificate, and presents its own", async () => {
    await using lab = await Lab.open();
    const folder = join(lab.folder, "certificates");
    mkdirSync(folder);
    const path = (name: string): string => join(folder, name);
    const pem = (name: string): string => readFileSync(path(name), "utf8");
    makeAuthority(folder, "ca");
    makeAuthority(folder, "stranger");
    makeCertificate(folder, "server", "IP:127.0.0.1");
    makeCertificate(folder, "client", "DNS:client");
    writeFileSync(path("keystore.pem"), pem("server.key") + pem("server.pem"));
    const port = await freePort();
    await lab.zookeeper({
      config: {
        secureClientPort: String(port),
        secureClientPortAddress: "127.0.0.1",
        serverCnxnFactory: "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": path("keystore.pem"),
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": path("ca.pem"),
        "ssl.trustStore.type": "PEM",
      },
    });
    const servers = [`127.0.0.1:${port}`];
    const own = { cert: pem("client.pem"), key: pem("client.key") };
    const client = await openClient({ servers, tls: { ca: pem("ca.pem"), ...own } });
    await client.create("/a", { data: Buffer.alloc(100_000, "x") });
    expect((await client.getData("/a")).data).toHaveLength(100_000);
    const wrong = [
      [{ ca: pem("stranger.pem"), ...own }, /self.signed|unable to|certificate/],
      [{ ca: pem("ca.pem"), ...own, servername: "other.example" }, /altnames|Hostname/],
      [{ ca: pem("ca.pem") }, /certificate|closed|ECONNRESET/],
    ] as const;
    for (const [tls, reason] of wrong) {
      const error = await rejection(
        ZooKeeperClient.open({ servers, tls, connectTimeoutMs: 1_000, sessionTimeoutMs: 1_000 }),
      );
      expect(error.message).toMatch(reason);
    }
  });
});
