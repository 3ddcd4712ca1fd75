import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { Cluster } from "ioredis";
import { expect, onTestFinished, test } from "vitest";
import { redisStore } from "../../../src/stores/redis/index.js";
import { claimOf } from "../../support/redis.js";

/** A node's reaction to a command; undefined: it has no reply of its own. */
type Behaviour = (command: string, connection: Socket) => string | undefined;

/** No reply. */
const SILENCE = "";

/** Nodes that know a few commands. The first one serves all slots. */
async function startNodes(...behaviours: readonly Behaviour[]) {
  const ports: number[] = [];
  const connections = new Set<Socket>();
  const bulk = (text: string): string => `$${text.length}\r\n${text}\r\n`;
  const slots = (): string => {
    const nodes = ports.map((port) => `*2\r\n${bulk("127.0.0.1")}:${port}\r\n`);
    return `*1\r\n*${2 + nodes.length}\r\n:0\r\n:16383\r\n${nodes.join("")}`;
  };
  const reply = (command: string): string => {
    if (command === "cluster slots") return slots();
    if (command === "cluster info") return bulk("cluster_state:ok");
    return "+OK\r\n";
  };
  for (const behaviour of behaviours) {
    const server = createServer((connection) => {
      connections.add(connection);
      connection.on("close", () => connections.delete(connection));
      connection.on("error", () => {});
      connection.on("data", (data) => {
        // A command is a list of texts; clients send each of these short ones in one piece.
        for (const words of String(data)
          .split(/^\*\d+\r\n/m)
          .slice(1)) {
          const command = words.split("\r\n").filter((_, i) => i % 2 === 1);
          const text = command.join(" ").toLowerCase();
          connection.write(behaviour(text, connection) ?? reply(text));
        }
      });
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    ports.push((server.address() as AddressInfo).port);
    onTestFinished(() => {
      server.close();
    });
  }
  onTestFinished(() => {
    for (const one of connections) one.destroy();
  });
  return { ports, connections };
}

function openCluster(ports: readonly number[], options: object = {}): Cluster {
  const cluster = new Cluster(
    ports.map((port) => ({ host: "127.0.0.1", port })),
    { redisOptions: { protocol: 2 }, ...options },
  );
  cluster.on("error", () => {});
  onTestFinished(() => cluster.disconnect());
  return cluster;
}

/** The parts of a cluster that ioredis does not declare. */
interface Internals {
  readonly isRefreshing: boolean;
  readonly delayQueue: { readonly timeouts: Record<string, unknown> };
}
const internalsOf = (cluster: Cluster): Internals => cluster as unknown as Internals;

test("a connection that ends before the reply to ASKING leaves no rejection unhandled", async () => {
  const unhandled: unknown[] = [];
  const note = (error: unknown): void => void unhandled.push(error);
  process.on("unhandledRejection", note);
  onTestFinished(() => void process.off("unhandledRejection", note));
  let asked = 0;
  const { ports } = await startNodes(
    (command) => (command.startsWith("evalsha") ? `-ASK 1 127.0.0.1:${ports[1]}\r\n` : undefined),
    (command, connection) => {
      if (command !== "asking") return undefined;
      asked++;
      connection.destroy();
      return SILENCE;
    },
  );
  const cluster = openCluster(ports, { retryDelayOnFailover: 1, maxRedirections: 3 });
  const store = redisStore(cluster);
  await expect(store.claim(claimOf("name"), () => {})).rejects.toThrow();
  expect(asked).toBeGreaterThan(0);
  // A rejection is reported when the turn of the event loop is over.
  await new Promise((resolve) => setImmediate(resolve));
  expect(unhandled).toEqual([]);
});

test("close() also ends the timer of a command that the cluster wants to get again", async () => {
  const { ports } = await startNodes((command) =>
    command.startsWith("evalsha") ? "-TRYAGAIN the slot is being moved\r\n" : undefined,
  );
  const cluster = openCluster(ports, { retryDelayOnTryAgain: 600 });
  const store = redisStore(cluster, { closeClient: true });
  const failed = store.claim(claimOf("name"), () => {}).catch((error: Error) => error);
  const timers = (): unknown[] => Object.values(internalsOf(cluster).delayQueue.timeouts);
  await expect.poll(() => timers().length, { timeout: 20_000 }).toBe(1);
  await store.close();
  expect(timers()).toEqual([null]);
  expect(await failed).toBeInstanceOf(Error);
});

test("close() does not wait for nodes that do not tell their slots, and leaves no connection to them", async () => {
  let isSilent = false;
  let unanswered = 0;
  const behaviour: Behaviour = (command) => {
    if (!isSilent || command !== "cluster slots") return undefined;
    unanswered++;
    return SILENCE;
  };
  const { ports, connections } = await startNodes(behaviour, behaviour, behaviour);
  const cluster = openCluster(ports, { slotsRefreshTimeout: 60_000 });
  const store = redisStore(cluster, { closeClient: true });
  await once(cluster, "ready");
  isSilent = true;
  cluster.refreshSlotsCache();
  await expect.poll(() => unanswered, { timeout: 20_000 }).toBe(1);
  await store.close();
  expect(internalsOf(cluster).isRefreshing).toBe(false);
  await expect.poll(() => connections.size, { timeout: 20_000 }).toBe(0);
  expect(unanswered).toBe(1);
});
