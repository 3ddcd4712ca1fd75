import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../src/verify/lab/lab.js";
import type { PostgresServer } from "../src/verify/lab/postgres.js";
import { describeWith } from "./support/needs.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("..", import.meta.url));
const text = (path: string): string => readFileSync(join(root, path), "utf8");

const pages = [
  "README.md",
  ...readdirSync(join(root, "docs"), { recursive: true, encoding: "utf8" })
    .filter((path) => path.endsWith(".md"))
    .map((path) => join("docs", path)),
];

/** The `js` and `sh` blocks of all pages, with the comment in the line above each. */
const blocks = pages.flatMap((path) =>
  [...text(path).matchAll(/(?:^<!-- ([^\n]*) -->\n)?^```(js|sh)\n(.*?)^```/gms)].map(
    ([, marker = "", language, code], i) => ({
      name: `${path}, block ${i + 1}`,
      marker,
      language: language!,
      code: code!,
    }),
  ),
);

/** The id that GitHub and npm give to each heading of a page. */
const anchorsOf = (path: string): string[] =>
  [...text(path).matchAll(/^#+ (.*)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}_ -]/gu, "")
      .replaceAll(" ", "-"),
  );

test("links to a heading lead to one", () => {
  for (const path of [...pages, "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]) {
    for (const [link, page, anchor] of text(path).matchAll(/\]\(([^)#:]*)#([^)]+)\)/g)) {
      const target = page === "" ? path : join(path, "..", page!);
      expect(anchorsOf(target), `${path}: ${link}`).toContain(anchor);
    }
  }
});

const runOn = (server: string): typeof blocks =>
  blocks.filter(({ marker }) => marker === `run on ${server} by test/docs.test.ts`);

test("every js block says which test runs it, or why none does", () => {
  for (const { name, marker, language } of blocks) {
    if (language === "js") expect(marker, name).toMatch(/^(run (on|by) .*\.test\.ts|not run: )/);
  }
});

/** Inside the project, so that "holdfast" is this package by its own exports. */
const folder = join(root, ".examples-on-servers");
let runs = 0;
async function runExample(code: string): Promise<void> {
  const file = join(folder, `${++runs}.${code.includes("require(") ? "cjs" : "mjs"}`);
  mkdirSync(folder, { recursive: true });
  writeFileSync(file, code);
  await run(process.execPath, [file], { timeout: 60_000 });
}
afterAll(() => rmSync(folder, { recursive: true, force: true }));

describeWith(["redis"], "examples on Redis run as they stand", () => {
  let lab: Lab;
  let address: string;
  beforeAll(async () => {
    lab = await Lab.open();
    const server = await lab.redis();
    address = `${server.address}:${server.port}`;
  });
  afterAll(() => lab?.close());

  test.each(runOn("Redis"))("$name", { timeout: 120_000 }, async ({ code }) => {
    expect(code).toContain("127.0.0.1:6379");
    await runExample(code.replaceAll("127.0.0.1:6379", address));
  });
});

describeWith(["redis"], "examples on a quorum run as they stand", () => {
  let lab: Lab;
  let addresses: readonly (readonly [inDocs: string, address: string])[];
  beforeAll(async () => {
    lab = await Lab.open();
    const servers = await Promise.all([1, 2, 3].map(() => lab.redis()));
    addresses = servers.map(({ address, port }, i) => [
      `127.0.0.1:700${i + 1}`,
      `${address}:${port}`,
    ]);
  });
  afterAll(() => lab?.close());

  test.each(runOn("a quorum"))("$name", { timeout: 120_000 }, async ({ code }) => {
    for (const [inDocs] of addresses) expect(code).toContain(inDocs);
    await runExample(addresses.reduce((text, [from, to]) => text.replaceAll(from, to), code));
  });
});

describeWith(["redis"], "examples on five Redis servers run as they stand", () => {
  let lab: Lab;
  let addresses: readonly string[];
  beforeAll(async () => {
    lab = await Lab.open();
    const servers = await Promise.all([1, 2, 3, 4, 5].map(() => lab.redis()));
    addresses = servers.map(({ address, port }) => `${address}:${port}`);
  });
  afterAll(() => lab?.close());

  test.each(runOn("five Redis servers"))("$name", { timeout: 120_000 }, async ({ code }) => {
    const used = addresses.reduce((text, address, i) => {
      expect(text).toContain(`127.0.0.1:${7001 + i}`);
      return text.replaceAll(`127.0.0.1:${7001 + i}`, address);
    }, code);
    await runExample(used);
  });
});

describeWith(["etcd"], "examples on etcd run as they stand", () => {
  let lab: Lab;
  let address: string;
  beforeAll(async () => {
    lab = await Lab.open();
    const server = (await lab.etcd()).servers[0]!;
    address = `${server.address}:${server.port}`;
  });
  afterAll(() => lab?.close());

  test.each(runOn("etcd"))("$name", { timeout: 120_000 }, async ({ code }) => {
    expect(code).toContain("127.0.0.1:2379");
    await runExample(code.replaceAll("127.0.0.1:2379", address));
  });
});

describeWith(["zookeeper"], "examples on ZooKeeper run as they stand", () => {
  let lab: Lab;
  let address: string;
  beforeAll(async () => {
    lab = await Lab.open();
    const server = (await lab.zookeeper()).servers[0]!;
    address = `${server.address}:${server.port}`;
  });
  afterAll(() => lab?.close());

  test.each(runOn("ZooKeeper"))("$name", { timeout: 120_000 }, async ({ code }) => {
    expect(code).toContain("127.0.0.1:2181");
    await runExample(code.replaceAll("127.0.0.1:2181", address));
  });
});

describeWith(["postgres"], "examples on PostgreSQL run as they stand", () => {
  const URL_IN_DOCS = "postgres://app:secret@127.0.0.1:5432/app";
  let lab: Lab;
  let server: PostgresServer;
  let databases = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    server = await lab.postgres();
  });
  afterAll(() => lab?.close());

  test.each(runOn("PostgreSQL"))("$name", { timeout: 120_000 }, async ({ code }) => {
    expect(code).toContain(URL_IN_DOCS);
    const database = `example_${++databases}`;
    await server.sql(`CREATE DATABASE ${database}`);
    await runExample(code.replaceAll(URL_IN_DOCS, server.url.replace(/postgres$/, database)));
  });
});

test("the commands of the README run in a shell", { timeout: 60_000 }, async () => {
  const commands = blocks.filter(({ code }) => code.includes("npx holdfast run"));
  expect(commands.length).toBeGreaterThan(0);
  const home = mkdtempSync(join(tmpdir(), "holdfast-readme-"));
  try {
    writeFileSync(join(home, "report.sh"), "#!/bin/sh\n", { mode: 0o755 });
    // Stands for an installed package.
    const npx = 'npx() { shift; "$NODE" "$CLI" "$@"; }';
    for (const { code } of commands) {
      const env = { PATH: process.env["PATH"], HOME: home, NODE: process.execPath };
      await run("sh", ["-ec", `${npx}\n${code}`], {
        cwd: home,
        env: { ...env, CLI: join(root, "dist/cli/main.js") },
      });
    }
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
});
