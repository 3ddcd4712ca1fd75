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

/** What the code depends on. */
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

/** The URL of a store, as an example. */
export function urlOf(store: StoreName, { survive }: CompleteAnswers, { ttl }: Timing): string {
  switch (store) {
    case "sqlite":
      return "sqlite:./locks.db";
    case "redis":
      return `redis://127.0.0.1:6379${survive === "yes" ? "?replicas=1" : ""}`;
    case "redlock": {
      const maxTtl = ttl.ms > 60_000 ? `?maxTtl=${durationText(ttl.ms)}` : "";
      return `redlock://127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003${maxTtl}`;
    }
    case "postgres":
      return "postgres://app:secret@127.0.0.1:5432/app";
    case "etcd":
      return "etcd://127.0.0.1:2379";
    case "zookeeper":
      return "zookeeper://127.0.0.1:2181";
  }
}

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

/** The result is kept with the effect if that is in a database, or else in a store that keeps records. */
function keyed({ answers, timing }: CodeInput): string {
  const { writesTo, stores } = answers;
  const store = stores.find((one) => KEEPS_RECORDS.includes(one));
  if (writesTo === "sqlite" || writesTo === "postgres" || store === undefined) return KEYED_ROW;
  return `import { connect } from "holdfast";
import { idempotent } from "holdfast/lockfree";

const locks = await connect("${urlOf(store, answers, timing)}");

const key = "report:2026-11-18"; // the same for every delivery of the same work
const result = await idempotent(locks, key, { keep: "24h" }, async () => {
  console.log("working"); // send the key along: what this does elsewhere is repeated after a crash
  return "done";
});
console.log(result);

await locks.close();`;
}

const KEEPS_RECORDS: readonly StoreName[] = ["sqlite", "redis", "postgres"];

const KEYED_ROW = `import { openSqlite } from "holdfast/stores/sqlite";

const db = await openSqlite("./data.db");
db.exec("PRAGMA busy_timeout = 2000");
db.exec("CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)");

const key = "report:2026-11-18"; // the same for every delivery of the same work
db.exec("BEGIN IMMEDIATE");
try {
  const known = db.prepare("SELECT result FROM results WHERE key = ?").get(key);
  if (known === undefined) {
    // The work writes to the same database, in this transaction: either both happen, or neither.
    db.prepare("INSERT INTO results VALUES (?, ?)").run(key, "done");
  }
  db.exec("COMMIT");
} catch (error) {
  db.exec("ROLLBACK");
  throw error;
}
db.close();`;

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
