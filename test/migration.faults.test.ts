import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Lab } from "../src/verify/lab/lab.js";
import { describeWith } from "./support/needs.js";

const root = fileURLToPath(new URL("..", import.meta.url));
const text = (path: string): string => readFileSync(join(root, path), "utf8");

const page = text("docs/migration.md");
const [, program, printed] =
  /^<!-- run by test\/migration\.faults\.test\.ts -->\n```js\n(.*?)^```\n\n```\n(.*?)^```/ms.exec(
    page,
  )!;

test("the page and the benchmarks name the versions of redlock and redis-semaphore that run here", () => {
  const installed = JSON.parse(text("package.json")).devDependencies;
  const measured = JSON.parse(text("bench/package.json")).dependencies;
  for (const name of ["redis-semaphore", "redlock"]) {
    expect(page).toContain(`${name}@${installed[name]}`);
    expect(text("README.md")).toContain(`${name} ${installed[name]}`);
    expect(measured[name]).toBe(installed[name]);
  }
});

// Inside the project, so that "holdfast" is this package by its own exports.
const folder = join(root, ".examples-migration");

describeWith(["redis"], "a server that answers nobody", () => {
  let lab: Lab;
  beforeAll(async () => {
    lab = await Lab.open();
  });
  afterAll(async () => {
    rmSync(folder, { recursive: true, force: true });
    await lab?.close();
  });

  test("Holdfast's lease of 2 s is lost, redis-semaphore and redlock report theirs as held after 10 s", async () => {
    const { address, port } = await lab.redis();
    mkdirSync(folder, { recursive: true });
    const file = join(folder, "difference.mjs");
    writeFileSync(file, program!.replaceAll("127.0.0.1:6379", `${address}:${port}`));
    const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: 100_000 });
    const lines = stdout.trim().split("\n");
    expect(lines).toHaveLength(10);
    for (const line of lines) expect(line).toMatch(/^\d+ (held|jeopardy|lost) true true$/);
    // A second that ends later than its number says is no earlier: the lease is over by then.
    for (const second of [2, 3, 10]) {
      const line = `${second} lost true true`;
      expect(lines[second - 1]).toBe(line);
      expect(printed).toContain(line);
    }
  });
});
