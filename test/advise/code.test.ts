import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { advise } from "../../src/advise/advise.js";
import { RULES } from "../../src/advise/rules.js";
import { codes, commands, needsServer, programs, withCheck } from "./codes.js";
import { Playground, root } from "./playground.js";

let playground: Playground;
beforeAll(async () => {
  playground = await Playground.open();
});
afterAll(() => playground[Symbol.asyncDispose]());

test("every rule leads to code, and every resource with a fence", () => {
  expect(new Set(codes.map(({ rule }) => rule)).size).toBe(Object.keys(RULES).length);
  expect(programs.length).toBeGreaterThan(60);
  const guarded = programs.filter(({ text }) =>
    /fence\.(guard|replace|update)|fencedFetch/.test(text),
  );
  expect(guarded.length).toBeGreaterThan(40);
  for (const { text } of guarded) expect(text).toContain(`purpose: "correctness", fenced: true`);
});

test("a client whose BEGIN fails goes back to its pool", () => {
  const { text } = advise({ doubleRun: "corruption", writesTo: "postgres", work: "1m" }).code;
  expect(text).toMatch(/pool\.connect\(\);\s+try \{\s+await tx\.query\("BEGIN"\)/);
});

test("all code is type-checked", { timeout: 120_000 }, () => {
  const types = join(playground.folder, "types");
  mkdirSync(types);
  for (const { name, text } of programs) writeFileSync(join(types, `${name}.mjs`), text);
  const config = {
    extends: "../../tsconfig.json",
    compilerOptions: { allowJs: true, checkJs: true },
    include: ["*.mjs"],
  };
  writeFileSync(join(types, "tsconfig.json"), JSON.stringify(config));
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, "-p", types], {
    stdio: ["ignore", "inherit", "inherit"],
  });
});

describe.concurrent("code that needs no server runs, also a second time", () => {
  test.each(programs.filter((one) => !needsServer(one)))(
    "$name",
    { timeout: 60_000 },
    async (code) => playground.run(withCheck(code), [], code.rule === "fenced" ? 1 : 2),
  );
});

test("commands for other runtimes run in a shell", { timeout: 60_000 }, async () => {
  const onFile = commands.filter((one) => !needsServer(one));
  expect(onFile.length).toBeGreaterThan(3);
  for (const code of onFile) expect(await playground.runInShell(code)).toMatch(/^\d+\n$/);
});

test("a program and a command that fail open do their work without their store", {
  timeout: 120_000,
}, async () => {
  const [program, command] = [programs, commands].map((all) => {
    const code = all.find(({ rule, store }) => rule === "fail-open" && store === "redis")!;
    return { ...code, name: `${code.name}0` };
  });
  const closed = [["127.0.0.1:6379", "127.0.0.1:1"]] as const;
  const [, token] = await Promise.all([
    playground.run(withCheck(program!), closed),
    playground.runInShell(command!, closed),
  ]);
  expect(token).toMatch(/^0?\n$/);
});
