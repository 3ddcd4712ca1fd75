import { advise } from "../../src/advise/advise.js";
import type { Code, RuleId, StoreName } from "../../src/advise/index.js";
import { allAnswers } from "./answers.js";

export interface AdvisedCode extends Code {
  readonly name: string;
  readonly rule: RuleId;
  readonly store: StoreName | undefined;
}

/** Each different piece of code, whatever its times, with the rule that led to it. */
export const codes: readonly AdvisedCode[] = [
  ...new Map(
    [...allAnswers()].map((answers) => {
      const { rule, store, code } = advise(answers);
      const text = code.text.replaceAll(/\b\d+[ms]\b/g, "");
      return [`${rule} ${text}`, { rule, store: store?.name, ...code }] as const;
    }),
  ).values(),
].map((one, at) => ({ ...one, name: `${one.rule}-${one.store ?? "none"}-${at + 1}` }));

export const commands = codes.filter(({ language }) => language === "sh");
export const programs = codes.filter(({ language }) => language === "js");

/** Ways to see afterwards what a program has done, by what is in it; each throws if it has done nothing. */
const EFFECTS: readonly (readonly [sign: string, check: string])[] = [
  ["console.log(", `if (globalThis.printed === undefined) throw new Error("nothing was printed");`],
  [
    "127.0.0.1:8080",
    `if ((await (await fetch("http://127.0.0.1:8080/report")).text()) === "0") throw new Error("nothing was sent");`,
  ],
  [
    `"Idempotency-Key"`,
    `const sum = await (await fetch("http://127.0.0.1:8080/report")).text();
if (sum !== "1") throw new Error("the work was done again: " + sum);`,
  ],
  [
    "openFileFence(",
    `(await import("node:fs")).readFileSync("./reports/report.txt"); // throws if there is none`,
  ],
  [
    "sqliteFence(",
    `const after = await openSqlite("./data.db");
if (after.prepare("SELECT text FROM reports").get() === undefined) throw new Error("no row");`,
  ],
  [
    "INTO reports VALUES ('done')\");\n",
    `const after = new pg.Pool({ connectionString: "postgres://app:secret@127.0.0.1:5432/app" });
if ((await after.query("SELECT text FROM reports")).rows.length === 0) throw new Error("no row");
await after.end();`,
  ],
  [
    "redisFence(",
    `const after = new Redis("redis://127.0.0.1:6379");
if ((await after.get("text:{report}")) !== "done") throw new Error("no value");
after.disconnect();`,
  ],
  [
    "zookeeperFence(",
    `const after = await ZooKeeperClient.open({ servers: ["127.0.0.1:2181"] });
await after.getData("/report"); // throws if there is none
await after.close();`,
  ],
];

/** The program, and behind it a look at what it has done. */
export const withCheck = (code: AdvisedCode): AdvisedCode => ({
  ...code,
  text: [
    "const { log } = console;",
    "console.log = (...all) => log((globalThis.printed = all));",
    code.text,
    ...EFFECTS.filter(([sign]) => code.text.includes(sign)).map(([, check]) => check),
  ].join("\n"),
});

/** Whether a program connects to a server. */
export const needsServer = ({ text }: Code): boolean =>
  /(redis|redlock|postgres|etcd|zookeeper):\/\/|endpoints:|servers:/.test(text);
