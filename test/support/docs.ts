import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/**
 * Imports the block of a page whose comment names this test. The file is inside the project, so that
 * "holdfast" is this package by its own exports. `edit` puts the address of a server into the code.
 */
export async function importBlock<Module>(
  page: string,
  test: string,
  edit = (code: string): string => code,
): Promise<Module> {
  const marker = `<!-- run by ${test}`;
  const [, after] = readFileSync(join(root, page), "utf8").split(marker);
  const [, code] = /```js\n(.*?)```/s.exec(after ?? "") ?? [];
  if (code === undefined) throw new Error(`${page} has no block with the comment ${marker}`);
  const folder = join(root, `.block-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${test.replaceAll("/", "-")}.mjs`);
  writeFileSync(file, edit(code));
  try {
    return (await import(file)) as Module;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
