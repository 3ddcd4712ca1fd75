import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Lab } from "../src/verify/lab/lab.js";
import { describeWith } from "./support/needs.js";

const root = fileURLToPath(new URL("..", import.meta.url));
let project: string;

/** A project that has installed the package, as it is built, and a client library. */
beforeAll(() => {
  project = mkdtempSync(join(tmpdir(), "holdfast-project-"));
  mkdirSync(join(project, "node_modules"));
  symlinkSync(root, join(project, "node_modules", "holdfast"));
  symlinkSync(join(root, "node_modules", "ioredis"), join(project, "node_modules", "ioredis"));
});
afterAll(() => rmSync(project, { recursive: true, force: true }));

const run = (...args: string[]): string =>
  execFileSync(process.execPath, args, { cwd: project, encoding: "utf8" }).trim();

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
