import { afterAll, onTestFinished } from "vitest";
import type { LocksOptions } from "../../src/core/options.js";
import { connect, createLocks, type Locks } from "../../src/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { startRedisCluster } from "../../src/verify/lab/redis-cluster.js";
import { describeWith } from "../support/needs.js";
import { freshFile } from "../support/sqlite.js";

/** Opens locks on the same data each time, as processes do. They are closed when the test is over. */
type Open = (options?: LocksOptions) => Promise<Locks>;

/** The stores on which the tools are tested, each empty at the beginning of a test. */
const STORES: readonly { readonly store: string; start(): Open }[] = [
  {
    store: "memory",
    start() {
      const store = memoryStore();
      return async (options) => closing(createLocks(store, options));
    },
  },
  {
    store: "SQLite",
    start() {
      const url = `sqlite:${freshFile()}`;
      return async (options) => closing(await connect(url, options));
    },
  },
];

type ServerKind = "redis" | "redis-cluster" | "postgres";

let lab: Promise<Lab> | undefined;
const urls = new Map<ServerKind, Promise<string>>();
let namespaces = 0;

afterAll(async () => (await lab)?.close());

/** One server of each kind for the tests of a file, started by the first that needs it. */
export function urlOf(kind: ServerKind): Promise<string> {
  lab ??= Lab.open();
  const url = urls.get(kind) ?? lab.then((it) => startServer(it, kind));
  urls.set(kind, url);
  return url;
}

async function startServer(it: Lab, kind: ServerKind): Promise<string> {
  if (kind !== "redis-cluster") return (await it[kind]()).url;
  const servers = await startRedisCluster(it);
  return `redis://${servers.map(({ address, port }) => `${address}:${port}`).join(",")}?cluster`;
}

function startOn(kind: ServerKind): Open {
  const namespace = `test-${++namespaces}`;
  return async (options) => closing(await connect(await urlOf(kind), { namespace, ...options }));
}

/** Runs the tests on the stores above, and on real servers; `start` is called in each test. */
export function describeOnStores(tests: (start: () => Open) => void): void {
  for (const { store, start } of STORES) describeWith([], `on ${store}`, () => tests(start));
  describeWith(["redis"], "on Redis", () => tests(() => startOn("redis")));
  describeWith(["redis"], "on a Redis Cluster", () => tests(() => startOn("redis-cluster")));
  describeWith(["postgres"], "on PostgreSQL", () => tests(() => startOn("postgres")));
}

function closing(locks: Locks): Locks {
  onTestFinished(() => locks.close());
  return locks;
}
