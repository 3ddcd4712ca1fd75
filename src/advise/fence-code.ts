import type { ResourceName } from "./questions.js";

/** The parts of a program that writes behind a fence. */
export interface ResourceCode {
  readonly imports: readonly string[];
  readonly before: readonly string[];
  /** Options of `withLock`. */
  readonly options: readonly string[];
  /** The lines inside `withLock`. */
  readonly work: readonly string[];
  readonly after: readonly string[];
}

const failIf = (condition: string, who: string, reply: string): string =>
  `if (${condition}) throw new Error(\`the ${who} replied \${${reply}.status}\`);`;

/** For each resource with a fence, the code that enters it and guards a write. */
export const FENCE_CODE: Readonly<Record<Exclude<ResourceName, "other">, ResourceCode>> = {
  postgres: {
    imports: [`import { postgresFence } from "holdfast/fence/postgres";`, `import pg from "pg";`],
    before: [
      `const pool = new pg.Pool({ connectionString: "postgres://app:secret@127.0.0.1:5432/app" });`,
      `await pool.query("CREATE TABLE IF NOT EXISTS reports (text text)");`,
      "const fence = postgresFence(pool);",
    ],
    options: ["fence"],
    work: [
      "const tx = await pool.connect();",
      "try {",
      `  await tx.query("BEGIN");`,
      `  await fence.guard(tx, "report", lease);`,
      `  await tx.query("INSERT INTO reports VALUES ('done')");`,
      `  await tx.query("COMMIT");`,
      "} catch (error) {",
      `  await tx.query("ROLLBACK");`,
      "  throw error;",
      "} finally {",
      "  tx.release();",
      "}",
    ],
    after: ["await pool.end();"],
  },
  sqlite: {
    imports: [
      `import { sqliteFence } from "holdfast/fence/sqlite";`,
      `import { openSqlite } from "holdfast/stores/sqlite";`,
    ],
    before: [
      `const db = await openSqlite("./data.db");`,
      `db.exec("PRAGMA busy_timeout = 2000");`,
      `db.exec("CREATE TABLE IF NOT EXISTS reports (text TEXT)");`,
      "const fence = sqliteFence(db);",
    ],
    options: ["fence"],
    work: [
      `db.exec("BEGIN IMMEDIATE");`,
      "try {",
      `  await fence.guard(db, "report", lease);`,
      `  db.prepare("INSERT INTO reports VALUES ('done')").run();`,
      `  db.exec("COMMIT");`,
      "} catch (error) {",
      `  db.exec("ROLLBACK");`,
      "  throw error;",
      "}",
    ],
    after: ["db.close();"],
  },
  redis: {
    imports: [
      `import { redisFence } from "holdfast/fence/redis";`,
      `import { Redis } from "ioredis";`,
    ],
    before: [
      `const redis = new Redis("redis://127.0.0.1:6379");`,
      "const fence = redisFence(redis);",
    ],
    options: ["fence"],
    work: [
      `const tx = { commands: [["SET", "text:{report}", "done"]] };`,
      `await fence.guard(tx, "report", lease);`,
      "await fence.commit(tx); // check and commands in one step",
    ],
    after: ["redis.disconnect();"],
  },
  etcd: {
    imports: [
      `import { etcdFence } from "holdfast/fence/etcd";`,
      `import { openEtcdClient } from "holdfast/stores/etcd";`,
    ],
    before: [
      `const client = await openEtcdClient({ endpoints: ["127.0.0.1:2379"] });`,
      "const fence = etcdFence(client);",
    ],
    options: ["fence"],
    work: [
      `const tx = { compare: [], success: [{ put: { key: "report", value: "done" } }] };`,
      `await fence.guard(tx, "report", lease);`,
      "await fence.commit(tx); // check and writes in one step",
    ],
    after: ["await client.close();"],
  },
  zookeeper: {
    imports: [
      `import { zookeeperFence } from "holdfast/fence/zookeeper";`,
      `import { ZooKeeperClient } from "holdfast/zookeeper";`,
    ],
    before: [
      `const client = await ZooKeeperClient.open({ servers: ["127.0.0.1:2181"] });`,
      "const fence = zookeeperFence(client);",
    ],
    options: ["fence"],
    work: [
      `/** @type {import("holdfast/fence/zookeeper").ZooKeeperTx} */`,
      `const tx = [{ op: "create", path: "/report", data: "done" }];`,
      `await fence.guard(tx, "report", lease);`,
      "await fence.commit(tx); // check and writes in one step",
    ],
    after: ["await client.close();"],
  },
  files: {
    imports: [
      `import { openFileFence } from "holdfast/fence/file";`,
      `import { mkdirSync } from "node:fs";`,
    ],
    before: [
      `mkdirSync("./reports", { recursive: true });`,
      `const fence = await openFileFence("./reports");`,
    ],
    options: ["fence", `resource: "report.txt"`],
    work: [`await fence.replace("report.txt", lease, "done");`],
    after: ["fence.close();"],
  },
  service: {
    imports: [`import { fencedFetch } from "holdfast/fence/http";`],
    before: [],
    options: [],
    work: [
      "const send = fencedFetch(lease); // adds the token; the service checks it with guardNode or guardFetch",
      `const reply = await send("http://127.0.0.1:8080/report"); // enters: reads carry the token too`,
      failIf("!reply.ok", "service", "reply"),
      `const written = await send("http://127.0.0.1:8080/report", { method: "PUT", body: "1" });`,
      failIf("!written.ok", "service", "written"),
    ],
    after: [],
  },
  objects: {
    imports: [
      `import { placeFence } from "holdfast/fence/compare-and-set";`,
      `import { httpDocument } from "holdfast/lockfree";`,
    ],
    before: [
      `const report = httpDocument("http://127.0.0.1:8080/report"); // must obey If-Match`,
      "const fence = placeFence({",
      "  // Value and number are one document: an ETag tells a change of the content, not of headers beside it.",
      "  async read() {",
      "    const found = await report.read();",
      `    const { value = null, highest = null } = JSON.parse(found?.value ?? "{}");`,
      "    const version = found?.version ?? null;",
      "    return { value, highest: highest === null ? null : BigInt(highest), version };",
      "  },",
      "  async write(_key, { value, highest }, version) {",
      "    const text = JSON.stringify({ value, highest: String(highest) });",
      "    return (await report.write(text, version)) !== false;",
      "  },",
      "});",
    ],
    options: ["fence"],
    work: [`await fence.update("report", lease, (text) => \`\${text ?? ""}one more line\\n\`);`],
    after: [],
  },
};
