import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../src/verify/lab/lab.js";
import { describeWith } from "./support/needs.js";

const root = fileURLToPath(new URL("..", import.meta.url));
let project: string;

/** Source, tests and scripts, to which some pages link, are in a clone only. */
const IN_A_CLONE = / → (src|test|scripts|spec|bench)\//;

/** A project that has installed the result of `npm pack`, and what the programs below need besides. */
beforeAll(() => {
  project = mkdtempSync(join(tmpdir(), "holdfast-project-"));
  const npm = (...args: string[]): string =>
    execFileSync("npm", [...args, "--silent", "--ignore-scripts"], {
      cwd: project,
      encoding: "utf8",
    });
  writeFileSync(join(project, "package.json"), "{}");
  const tarball = npm("pack", root).trim();
  npm("install", "--offline", "--no-audit", "--no-fund", tarball);
  mkdirSync(join(project, "node_modules", "@types"));
  for (const one of ["ioredis", "@types/node"]) {
    symlinkSync(join(root, "node_modules", one), join(project, "node_modules", one));
  }
}, 120_000);
afterAll(() => rmSync(project, { recursive: true, force: true }));

const run = (...args: string[]): string =>
  execFileSync(process.execPath, args, { cwd: project, encoding: "utf8" }).trim();

const installed = (path: string): string => join(project, "node_modules", "holdfast", path);

describe("the package", () => {
  test("has every file that its exports name, and everything that its pages link to or embed", () => {
    const { exports } = JSON.parse(readFileSync(installed("package.json"), "utf8"));
    for (const path of Object.values<string>(exports))
      expect(existsSync(installed(path)), path).toBe(true);
    const pages = readdirSync(installed("docs"), { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".md"))
      .map((path) => join("docs", path));
    expect(pages.length).toBeGreaterThan(30);
    const missing = ["README.md", ...pages].flatMap((page) =>
      [...readFileSync(installed(page), "utf8").matchAll(/\]\(([^)#:]+)[)#]/g)]
        .map(([, target]) => join(dirname(page), target!))
        .filter((path) => !existsSync(installed(path)))
        .map((path) => `${page} → ${path}`),
    );
    expect(missing.filter((one) => !IN_A_CLONE.test(one))).toEqual([]);
  });

  test("has a command that runs", () => {
    expect(run(join("node_modules", ".bin", "holdfast"), "--version")).toMatch(/^holdfast\/\d/);
  });
});

describe("TypeScript", () => {
  test("reads the types with the settings of docs/start.md, in ES modules and in CommonJS", () => {
    const page = readFileSync(installed("docs/start.md"), "utf8");
    const [, settings] = /^```json\n(\{ "compilerOptions".*?)^```/ms.exec(page)!;
    writeFileSync(
      join(project, "tsconfig.json"),
      JSON.stringify({ ...JSON.parse(settings!), files: ["program.mts", "program.cts"] }),
    );
    const code = `import { connect, type Lease } from "holdfast";
      import { memoryStore } from "holdfast/stores/memory";
      export const use = async (): Promise<Lease> => (await connect("memory:")).acquire("name");
      export const store = memoryStore();`;
    for (const file of ["program.mts", "program.cts"]) writeFileSync(join(project, file), code);
    expect(run(join(root, "node_modules/typescript/bin/tsc"), "--noEmit", "-p", ".")).toBe("");
  });
});

describe("CommonJS", () => {
  test("require() gives the same package", () => {
    writeFileSync(
      join(project, "program.cjs"),
      `const { connect } = require("holdfast");
       const { memoryStore } = require("holdfast/stores/memory");
       connect("memory:").then(async (locks) => {
         const lease = await locks.acquire("name");
         console.log(typeof memoryStore, lease.state, await lease.release());
         await locks.close();
       });`,
    );
    expect(run("program.cjs")).toBe("function held released");
  });
});

describeWith(["redis"], "in a bundle without node_modules", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(() => lab.close());

  const PROGRAM = `
    import { Redis } from "ioredis";
    import { connect, createLocks } from "holdfast";
    import { redisStore } from "holdfast/stores/redis";
    const [, , url] = process.argv;
    const client = new Redis(url);
    const locks = createLocks(redisStore(client));
    const held = await locks.withLock("name", (lease) => lease.state);
    await locks.close();
    client.disconnect();
    const error = await connect(url).catch((error) => error);
    console.log(held, error.code, error.message);`;

  test("the user's own client works, and connect() says what to do", async () => {
    const server = await lab.redis();
    writeFileSync(join(project, "program.mjs"), PROGRAM);
    const folder = mkdtempSync(join(tmpdir(), "holdfast-bundle-"));
    try {
      await build({
        root: project,
        logLevel: "silent",
        build: { ssr: "program.mjs", outDir: folder, emptyOutDir: true, target: "node20" },
        ssr: { noExternal: true },
      });
      const said = run(join(folder, "program.mjs"), server.url);
      expect(said).toMatch(/^held UNSUPPORTED Redis needs a client library/);
      expect(said).toMatch(/pass the store a client that you have made/);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});
