import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TEMPLATES } from "../../src/verify/lab/postgres.js";

/** One folder for all test files: the first PostgreSQL server of a run leaves its initial data there for the others. */
export function setup(): () => void {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-templates-"));
  // PostgreSQL runs as another user, who must be able to enter the folder.
  chmodSync(folder, 0o711);
  writeFileSync(join(folder, "password"), randomBytes(16).toString("hex"), { mode: 0o600 });
  process.env[TEMPLATES] = folder;
  return () => rmSync(folder, { recursive: true, force: true });
}
