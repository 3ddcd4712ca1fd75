import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { hiddenFromOthers } from "../../../src/verify/lab/rights.js";

test("a program that other users can't load is known before a worker of theirs is started", () => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-rights-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "program.js");
  writeFileSync(file, "");
  chmodSync(file, 0o644);
  chmodSync(folder, 0o700);
  expect(hiddenFromOthers(file)).toContain(`may not search ${folder}`);
  chmodSync(folder, 0o755);
  expect(hiddenFromOthers(file)).toBeNull();
  chmodSync(file, 0o600);
  expect(hiddenFromOthers(file)).toContain(`may not read ${file}`);
});
