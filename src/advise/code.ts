import { durationText } from "../core/validate.js";
import { FENCE_CODE, type ResourceCode } from "./fence-code.js";
import type { CompleteAnswers, ResourceName, StoreName } from "./questions.js";
import type { RuleId } from "./rules.js";
import type { Timing } from "./timing.js";

/** Code to paste. */
export interface Code {
  /** `js` is a complete program. */
  readonly language: "js" | "sh";
  /** The code itself, in lines. */
  readonly text: string;
}

/** The facts that the code depends on. */
export interface CodeInput {
  readonly rule: RuleId;
  readonly store: StoreName;
  readonly answers: CompleteAnswers;
  readonly timing: Timing;
}

/** The name that is locked in all examples. */
const NAME = "report";

/** A program for Node, or for other runtimes a command that holds the lock while their program runs. */
export function codeFor(input: CodeInput): Code {
  const ofRule = input.rule === "idempotent" ? keyed(input) : WITHOUT_LEASE[input.rule];
  if (ofRule !== undefined) return { language: "js", text: ofRule };
  return input.answers.runtime === "node"
    ? { language: "js", text: program(input) }
    : { language: "sh", text: command(input) };
}

/** The URL of a store, as an example: with all servers if it must survive one of them. */
export function urlOf(store: StoreName, { survive }: CompleteAnswers, { ttl }: Timing): string {
  const survives = survive === "yes";
  switch (store) {
    case "sqlite":
      return "sqlite:./locks.db";
    case "redis":
      return survives
        ? `redis://${local(26379, 26380, 26381)}?sentinel=mymaster&replicas=1`
        : `redis://${local(6379)}`;
    case "redlock": {
      const maxTtl = ttl.ms > 60_000 ? `?maxTtl=${durationText(ttl.ms)}` : "";
      return `redlock://${local(7001, 7002, 7003)}${maxTtl}`;
    }
    case "postgres":
      return "postgres://app:secret@127.0.0.1:5432/app";
    case "etcd":
      return `etcd://${survives ? local(2379, 22379, 32379) : local(2379)}`;
    case "zookeeper":
      return `zookeeper://${survives ? local(2181, 2182, 2183) : local(2181)}`;
  }
}

const local = (...ports: number[]): string => ports.map((port) => `127.0.0.1:${port}`).join(",");

function program({ rule, store, answers, timing }: CodeInput): string {
  const fence: ResourceCode =
    rule === "fenced"
      ? FENCE_CODE[answers.writesTo as Exclude<ResourceName, "other">]
      : {
          imports: [],
          before: [],
          options: [],
          work: rule === "unfenced" ? [CHECK, ...PLAIN_WORK] : PLAIN_WORK,
          after: [],
        };
  const options = [`ttl: "${durationText(timing.ttl.ms)}"`, ...OPTIONS[rule]];
  const call = [`wait: "10s"`, `maxHold: "${durationText(timing.maxHold.ms)}"`, ...fence.options];
  return [
    `import { connect } from "holdfast";`,
    ...fence.imports,
    "",
    ...fence.before,
    `const locks = await connect("${urlOf(store, answers, timing)}", { ${options.join(", ")} });`,
    "",
    `await locks.withLock("${NAME}", { ${call.join(", ")} }, async (lease) => {`,
    ...fence.work.map((line) => `  ${line}`),
    "});",
    "",
    "await locks.close();",
    ...fence.after,
  ].join("\n");
}

const OPTIONS: Readonly<Record<RuleId, readonly string[]>> = {
  idempotent: [],
  transaction: [],
  "local-transaction": [],
  "compare-and-set": [],
  fenced: [`purpose: "correctness"`, "fenced: true"],
  unfenced: [],
  "fail-open": [`onUnavailable: "run"`, "lazy: true"],
  "fail-closed": [],
};

const CHECK =
  "lease.assertHeld(); // before each effect that can't be undone: it makes the gap small, not zero";

const PLAIN_WORK = [
  "// Pass lease.signal to everything that takes time: it aborts before the lease can expire.",
  "if (lease.signal.aborted) return;",
  `console.log("working");`,
];

function command({ rule, store, answers, timing }: CodeInput): string {
  const words = [
    `holdfast run ${NAME}`,
    `--store '${urlOf(store, answers, timing)}'`,
    `--ttl ${durationText(timing.ttl.ms)}`,
    "--wait 10s",
    `--max-hold ${durationText(timing.maxHold.ms)}`,
    ...(rule === "fail-open" ? ["--if-unavailable run"] : []),
    "-- ./job",
  ];
  const comment =
    rule === "fenced"
      ? ["# ./job sends HOLDFAST_TOKEN with each write, and the resource checks it."]
      : [];
  return [...comment, words.join(" \\\n  ")].join("\n");
}

/** Where the key of idempotent work is kept: with its effect, in a store that keeps records, or by whoever does the work. */
export type KeyPlace = "transaction" | "records" | "elsewhere";

export const keyPlaceOf = (answers: CompleteAnswers): KeyPlace =>
  KEYED_ROWS[answers.writesTo] !== undefined
    ? "transaction"
    : recordStoreOf(answers) !== undefined
      ? "records"
      : "elsewhere";

/** The first of the user's stores that keeps records. */
const recordStoreOf = ({ writesTo, stores }: CompleteAnswers): StoreName | undefined =>
  KEEP_RECORDS.find((one) => one === writesTo || stores.includes(one));

const KEEP_RECORDS = ["redis", "postgres", "sqlite"] as const satisfies readonly StoreName[];

const KEY = `const key = "report:2026-11-18"; // the same for every delivery of the same work`;

function keyed({ answers, timing }: CodeInput): string {
  const row = KEYED_ROWS[answers.writesTo];
  if (row !== undefined) return row;
  const store = recordStoreOf(answers);
  if (store === undefined) return KEYED_REQUEST;
  return `import { connect } from "holdfast";
import { idempotent } from "holdfast/lockfree";

const locks = await connect("${urlOf(store, answers, timing)}");

${KEY}
const result = await idempotent(locks, key, { keep: "24h" }, async () => {
  console.log("working"); // send the key along: what this does elsewhere is repeated after a crash
  return "done";
});
console.log(result);

await locks.close();`;
}

const KEYED_ROWS: Readonly<Partial<Record<ResourceName, string>>> = {
  sqlite: `import { openSqlite } from "holdfast/stores/sqlite";

const db = await openSqlite("./data.db");
db.exec("PRAGMA busy_timeout = 2000");
db.exec("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)");

${KEY}
db.exec("BEGIN IMMEDIATE");
try {
  const known = db.prepare("SELECT result FROM results WHERE key = ?").get(key);
  if (known === undefined) {
    // The work writes to the same database, in this transaction: either both happen, or neither.
    db.prepare("INSERT INTO results VALUES (?, ?)").run(key, "done");
  }
  db.exec("COMMIT");
  console.log(known ?? "done now");
} catch (error) {
  db.exec("ROLLBACK");
  throw error;
}
db.close();`,
  postgres: `import pg from "pg";

const pool = new pg.Pool({ connectionString: "postgres://app:secret@127.0.0.1:5432/app" });
await pool.query("CREATE TABLE IF NOT EXISTS results (key text PRIMARY KEY, result text)");

${KEY}
const tx = await pool.connect();
try {
  await tx.query("BEGIN");
  // If another transaction has inserted the key, this waits for its end.
  const insert = "INSERT INTO results VALUES ($1) ON CONFLICT DO NOTHING";
  const { rowCount } = await tx.query(insert, [key]);
  if (rowCount === 1) {
    // The work writes with tx, in this transaction: either both happen, or neither.
    await tx.query("UPDATE results SET result = 'done' WHERE key = $1", [key]);
  }
  const { rows } = await tx.query("SELECT result FROM results WHERE key = $1", [key]);
  await tx.query("COMMIT");
  console.log(rowCount === 1 ? "done now" : rows[0]);
} catch (error) {
  await tx.query("ROLLBACK");
  throw error;
} finally {
  tx.release();
}
await pool.end();`,
};

const KEYED_REQUEST = `// None of your stores keeps records: the service that does the work remembers the key, with the effect.
${KEY}
const headers = { "Idempotency-Key": key };
const reply = await fetch("http://127.0.0.1:8080/report", { method: "POST", headers, body: "1" });
if (!reply.ok) throw new Error(\`the service replied \${reply.status}\`);
console.log("done now");`;

const WITHOUT_LEASE: Readonly<Partial<Record<RuleId, string>>> = {
  transaction: `import pg from "pg";
import { withTransactionLock } from "holdfast/postgres";

const pool = new pg.Pool({ connectionString: "postgres://app:secret@127.0.0.1:5432/app" });
await pool.query("CREATE TABLE IF NOT EXISTS reports (text text)");

await withTransactionLock(pool, "report", { wait: "5s" }, async (tx) => {
  // Write with tx: a write by another connection is not protected.
  await tx.query("INSERT INTO reports VALUES ('done')");
});
await pool.end();`,
  "local-transaction": `import { openSqlite } from "holdfast/stores/sqlite";

const db = await openSqlite("./data.db");
db.exec("PRAGMA busy_timeout = 2000");
db.exec("CREATE TABLE IF NOT EXISTS counter (value INTEGER)");

db.exec("BEGIN IMMEDIATE"); // before the first read
try {
  const row = db.prepare("SELECT count(*) AS rows FROM counter").get();
  db.prepare("INSERT INTO counter SELECT coalesce(max(value), 0) + 1 FROM counter").run();
  db.exec("COMMIT");
  console.log(row);
} catch (error) {
  db.exec("ROLLBACK");
  throw error;
}
db.close();`,
  "compare-and-set": `import { changing, httpDocument, optimistic } from "holdfast/lockfree";

const report = httpDocument("http://127.0.0.1:8080/report"); // must obey If-Match
await optimistic(changing(report, (text) => String(Number(text) + 1))); // repeats it if another was faster`,
};
