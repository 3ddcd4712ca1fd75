import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A fresh folder as the place of a measurement. */
export async function openFolder() {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bench-"));
  return {
    place: { folder },
    close: async () => rmSync(folder, { recursive: true, force: true }),
  };
}
