import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { Declarations, type Declared } from "./support/declarations.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as {
  exports: Record<string, string>;
};
const declarations = new Declarations(root);
const entries = Object.entries(manifest.exports)
  .filter(([, target]) => target.endsWith(".js"))
  .map(([subpath, target]) => ({
    from: subpath.replace(/^\./, "holdfast"),
    declared: declarations.exportedBy(target.replace(/js$/, "d.ts")),
  }));
/** By source and name: several entry points may export the same. */
const exported = new Map<string, Declared>(
  entries.flatMap(({ declared }) => declared).map((one) => [`${one.source} ${one.name}`, one]),
);

/** The entry points of the package for most users. */
const NEED_EXAMPLE = [
  "connect",
  "createLocks",
  "Locks.acquire",
  "Locks.tryAcquire",
  "Locks.withLock",
  "Locks.acquireAll",
  "Locks.semaphore",
  "Locks.election",
  "Locks.once",
  "memoryStore",
  "sqliteStore",
  "redisStore",
  "quorumStore",
  "postgresStore",
  "postgresSessionStore",
  "etcdStore",
  "zookeeperStore",
  "memoryFence",
  "sqliteFence",
  "etcdFence",
  "postgresFence",
  "zookeeperFence",
  "redisFence",
  "openFileFence",
  "placeFence",
  "guardFetch",
  "guardNode",
  "fencedFetch",
  "guardRow",
  "guardTxn",
  "readSequencer",
  "checkSequencer",
  "withTransactionLock",
  "lockRow",
  "updateVersioned",
  "idempotent",
  "idempotentFetch",
  "idempotentNode",
  "optimistic",
  "keyedQueue",
  "rateLimiter",
  "limitFetch",
  "ZooKeeperClient.open",
  "advise",
  "prometheusMetrics",
  "instrument",
  "compareWithRule",
];

/** Declares a name that an example uses without declaring it: ours by an import, the user's as `any`. */
function declare(name: string): string {
  const entry = entries.find(({ declared }) => declared.some((one) => one.name === name));
  if (entry !== undefined) return `import { ${name} } from "${entry.from}";\n`;
  return `declare const ${name}: ${STAND_INS[name] ?? "any"};\n`;
}

const STAND_INS: Readonly<Record<string, string>> = {
  locks: 'import("holdfast").Locks',
  lease: 'import("holdfast").Lease',
};

test("every exported name and every member of it has a doc comment", () => {
  const missing = [...exported.values()].filter(({ comment }) => comment === null);
  expect(missing.map(({ name, source }) => `${name} in ${source}`)).toEqual([]);
});

test("the main entry points have an example", () => {
  const all = [...exported.values()];
  const hasExample = (name: string): boolean =>
    all.some((one) => one.name === name && one.comment?.includes("@example"));
  expect(NEED_EXAMPLE.filter((name) => !all.some((one) => one.name === name))).toEqual([]);
  expect(NEED_EXAMPLE.filter((name) => !hasExample(name))).toEqual([]);
});

/** The example is a block of TypeScript, or all that follows the tag. */
const examples = [...exported.values()].flatMap(({ name, comment }) =>
  (comment ?? "")
    .split("@example")
    .slice(1)
    .map((text, i) => ({
      file: `${name.replaceAll(/\W/g, "-")}-${i + 1}.ts`,
      code: /^```ts\n(.*?)^```/ms.exec(text)?.[1] ?? text,
    })),
);

describe("the examples in doc comments", () => {
  // Inside the project, so that "holdfast" is this package by its own exports.
  const folder = join(root, ".doc-examples");
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** Compiles all, with these declarations in front of them; returns the compiler's errors. */
  function compile(declared: ReadonlyMap<string, ReadonlySet<string>>): string {
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder);
    for (const { file, code } of examples) {
      const standIns = [...(declared.get(file) ?? [])].map(declare).join("");
      writeFileSync(join(folder, file), `export {};\n${standIns}${code}`);
    }
    // `declare` imports types and values alike.
    const compilerOptions = { verbatimModuleSyntax: false };
    const config = { extends: "../tsconfig.json", compilerOptions, include: ["*.ts"] };
    writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(config));
    const compiler = join(root, "node_modules/typescript/bin/tsc");
    try {
      execFileSync(process.execPath, [compiler, "-p", folder], { encoding: "utf8", cwd: folder });
      return "";
    } catch (error) {
      return (error as { stdout: string }).stdout;
    }
  }

  test("are type-checked", {
    timeout: 120_000,
  }, () => {
    expect(examples.length).toBeGreaterThanOrEqual(NEED_EXAMPLE.length);
    const undeclared = new Map<string, Set<string>>();
    const errors = compile(undeclared);
    for (const [, file, name] of errors.matchAll(
      /^([\w-]+\.ts)\(.*(?:Cannot find name|No value exists .* for the shorthand property) '(\w+)'/gm,
    )) {
      undeclared.set(file!, (undeclared.get(file!) ?? new Set()).add(name!));
    }
    expect(undeclared.size === 0 ? errors : compile(undeclared)).toBe("");
  });
});
