import { execFile, execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { advise } from "../../src/advise/advise.js";
import { allAnswers } from "./answers.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../..", import.meta.url));
/** Inside the project, so that "holdfast" is this package by its own exports. */
const folder = join(root, ".advised");
const home = mkdtempSync(join(tmpdir(), "holdfast-advise-"));

/** Each different piece of code, whatever its times, with the rule that led to it. */
const codes = [
  ...new Map(
    [...allAnswers()].map((answers) => {
      const { rule, store, code } = advise(answers);
      return [
        `${rule} ${code.text.replaceAll(/\b\d+[ms]\b/g, "")}`,
        { rule, store: store?.name, ...code },
      ];
    }),
  ).values(),
];
const programs = codes.filter(({ language }) => language === "js");
const NEEDS_SERVER = /(redis|redlock|postgres|etcd|zookeeper):\/\/|endpoints:|servers:/;
const local = programs
  .filter(({ text }) => !NEEDS_SERVER.test(text))
  .map((one, at) => ({ ...one, name: `${one.rule} ${at + 1}` }));

/** Answers as a storage with ETag and If-Match does, and as a service that checks tokens. */
let storage: Server;
let address: string;
let content = { body: "0", etag: 1, fence: null as string | null };
beforeAll(async () => {
  storage = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    const condition = request.headers["if-match"];
    if (request.method === "PUT") {
      if (condition !== undefined && condition !== `"${content.etag}"`) {
        response.writeHead(412).end();
        return;
      }
      const fence = request.headers["x-fence"]?.toString() ?? null;
      content = { body, etag: content.etag + 1, fence };
    }
    response.setHeader("ETag", `"${content.etag}"`);
    if (content.fence !== null) response.setHeader("x-fence", content.fence);
    response.end(content.body);
  });
  await new Promise<void>((resolve) => storage.listen(0, "127.0.0.1", resolve));
  address = `127.0.0.1:${(storage.address() as AddressInfo).port}`;
  mkdirSync(folder, { recursive: true });
});
afterAll(() => {
  storage.close();
  for (const one of [folder, home]) rmSync(one, { recursive: true, force: true });
});

test("every rule leads to code, and every resource with a fence", () => {
  expect(new Set(codes.map(({ rule }) => rule)).size).toBe(8);
  expect(programs.length).toBeGreaterThan(60);
  const guarded = programs.filter(({ text }) =>
    /fence\.(guard|replace|update)|fencedFetch/.test(text),
  );
  expect(guarded.length).toBeGreaterThan(40);
  for (const { text } of guarded) expect(text).toContain(`purpose: "correctness", fenced: true`);
});

test("all code is type-checked", { timeout: 120_000 }, () => {
  const types = join(folder, "types");
  mkdirSync(types, { recursive: true });
  for (const [at, { text }] of programs.entries()) writeFileSync(join(types, `${at}.mjs`), text);
  const config = {
    extends: "../../tsconfig.json",
    compilerOptions: { allowJs: true, checkJs: true, strict: true },
    include: ["*.mjs"],
  };
  writeFileSync(join(types, "tsconfig.json"), JSON.stringify(config));
  const compiler = join(root, "node_modules/typescript/bin/tsc");
  execFileSync(process.execPath, [compiler, "-p", types], {
    stdio: ["ignore", "inherit", "inherit"],
  });
});

describe.concurrent("code that needs no server runs, also a second time", () => {
  test.each(local)("$name", { timeout: 60_000 }, async ({ text, name }) => {
    const file = join(folder, `${name.replace(" ", "-")}.mjs`);
    writeFileSync(file, text.replaceAll("127.0.0.1:8080", address));
    const cwd = mkdtempSync(join(home, "run-"));
    const times = name.startsWith("fenced") ? 1 : 2;
    for (let i = 0; i < times; i++) await run(process.execPath, [file], { cwd, timeout: 30_000 });
  });
});

test("commands for other runtimes run in a shell", { timeout: 60_000 }, async () => {
  const commands = codes.filter(({ language, store }) => language === "sh" && store === "sqlite");
  expect(commands.length).toBeGreaterThan(3);
  writeFileSync(join(home, "job"), "#!/bin/sh\necho $HOLDFAST_TOKEN\n");
  chmodSync(join(home, "job"), 0o755);
  const holdfast = `holdfast() { "${process.execPath}" "${join(root, "dist/cli/main.js")}" "$@"; }`;
  for (const { text } of commands) {
    const { stdout } = await run("sh", ["-ec", `${holdfast}\n${text}`], { cwd: home });
    expect(stdout).toMatch(/^\d+\n$/);
  }
});
