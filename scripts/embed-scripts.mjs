/**
 * Writes the Lua files of the stores on Redis and the SQL files of the PostgreSQL store into a TypeScript module
 * each, so that the built package, a bundle of it and the tests need no files at run time. `npm ci`,
 * `npm run build` and vitest run it.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const STORES = join(dirname(fileURLToPath(import.meta.url)), "../src/stores");

const camelCase = (name) => name.replaceAll(/-(\w)/g, (_, letter) => letter.toUpperCase());
const escaped = (code) => code.replaceAll(/\\|`|\$\{/g, "\\$&");

for (const [store, language] of [
  ["redis", "lua"],
  ["quorum", "lua"],
  ["postgres", "sql"],
]) {
  const folder = join(STORES, store, language);
  const files = readdirSync(folder)
    .filter((file) => file.endsWith(`.${language}`))
    .sort();
  const entries = files.map((file) => {
    const code = readFileSync(join(folder, file), "utf8");
    const name = camelCase(file.replace(`.${language}`, ""));
    return `  ${name}: \`${escaped(code)}\`,\n`;
  });
  const module = `// Written by scripts/embed-scripts.mjs from ${language}/*.${language}. Change those files.
export const ${language.toUpperCase()} = {\n${entries.join("")}};\n`;
  const file = join(STORES, store, `${language}.ts`);
  // Left alone if it is up to date: a test that watches or runs beside this one must not see it half written.
  if (!existsSync(file) || readFileSync(file, "utf8") !== module) writeFileSync(file, module);
}
