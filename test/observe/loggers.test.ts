import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, expect, test } from "vitest";

const root = fileURLToPath(new URL("../..", import.meta.url));
/** Inside the project, so that "holdfast" is this package by its own exports. */
const folder = join(root, ".examples-with-loggers");
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const BLOCK = /^<!-- run by test\/observe\/loggers\.test\.ts -->\n```js\n(.*?)^```/gms;
const examples = [...readFileSync(join(root, "docs/events.md"), "utf8").matchAll(BLOCK)].map(
  ([, code]) => ({ name: /from "(?!holdfast)(\w+)"/.exec(code!)?.[1] ?? "console", code: code! }),
);

test("there is an example for each logger", () => {
  expect(examples.map(({ name }) => name)).toEqual(["pino", "winston", "console"]);
});

test.each(examples)("$name prints the sentence and the fields of a warning", async (example) => {
  const url = "redis://127.0.0.1:6379";
  expect(example.code).toContain(url);
  const lose = `
    const lease = await locks.acquire("order:7");
    await locks.forceRelease("order:7", { why: "test" });
    await lease.renew().catch(() => {}); // Learns of the loss now.
    await locks.close();`;
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${example.name}.mjs`);
  writeFileSync(file, example.code.replace(url, "memory:") + lose);
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [file], {
    timeout: 60_000,
  });
  if (example.name === "console") {
    expect(stderr).toMatch(/^the lease on "order:7" .* was lost .* \{\n {2}event: 'lost',$/m);
    // Lines of debug would be here.
    expect(stdout).toBe("");
    return;
  }
  const lines = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  const lost = lines.find((line) => (line.holdfast ?? line).event === "lost");
  const fields = { name: "order:7", store: "memory", reason: "revoked" };
  expect(lost.holdfast ?? lost).toMatchObject(fields);
  expect(lost.message ?? lost.msg).toMatch(/^the lease on "order:7" .* was lost/);
  // A field that is there twice hides one of the two from most readers.
  for (const line of stdout.trim().split("\n")) expect(JSON.stringify(JSON.parse(line))).toBe(line);
});
