// Adds one to a counter many times without a lock, and prints its conflict statistics.
// Usage: node adder.mjs KIND TARGET TIMES; it begins when a line arrives on its input.
import { once } from "node:events";
import {
  ConflictStats,
  changing,
  etcdText,
  httpDocument,
  optimistic,
  postgresRow,
  redisText,
  sqliteRow,
} from "holdfast/lockfree";

const addToRow = ({ count }) => ({ count: count + 1 });
const addToText = (text) => String(Number(text) + 1);

/** By kind: opens the place of the counter, with the change that adds one. */
const PLACES = {
  async sqlite(file) {
    const { openSqlite } = await import("holdfast/stores/sqlite");
    return [sqliteRow(await openSqlite(file), "stock", { item: "hat" }), addToRow];
  },
  async postgres(url) {
    const { default: pg } = await import("pg");
    const pool = new pg.Pool({ connectionString: url, max: 1 });
    return [postgresRow(pool, "stock", { item: "hat" }), addToRow];
  },
  async redis(url) {
    const { Redis } = await import("ioredis");
    return [redisText(new Redis(url), "counter"), addToText];
  },
  async cluster(nodes) {
    const { Cluster } = await import("ioredis");
    return [redisText(new Cluster(JSON.parse(nodes)), "counter"), addToText];
  },
  async etcd(endpoint) {
    const { openEtcdClient } = await import("holdfast/stores/etcd");
    const client = await openEtcdClient({ endpoints: [endpoint] });
    return [etcdText(client, "counter"), addToText];
  },
  http: async (url) => [httpDocument(url), addToText],
};

const [kind, target, times] = process.argv.slice(2);
const [place, add] = await PLACES[kind](target);
await place.read();
process.stdout.write("ready\n");
await once(process.stdin, "data");
const stats = new ConflictStats();
for (let i = 0; i < Number(times); i++) {
  await optimistic({ ...changing(place, add), retries: 1_000, stats });
}
process.stdout.write(`${JSON.stringify(stats)}\n`);
process.exit(0);
