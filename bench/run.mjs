// npm run bench [-- memory sqlite handover wake held start]: prints Markdown, and keeps it in bench/results/.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const ALL = ["memory", "sqlite", "handover", "wake", "held", "start"];
const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !ALL.includes(name));
if (unknown.length > 0) {
  console.error(`no benchmark ${unknown.join(", ")}; there are: ${ALL.join(", ")}`);
  process.exit(64);
}

if (!existsSync(`${here}node_modules`)) {
  console.error("installing the peers that are measured beside Holdfast …");
  const { status } = spawnSync("npm", ["ci", "--prefix", here], { stdio: ["ignore", 2, 2] });
  if (status !== 0) process.exit(status ?? 1);
}

const head = `Node ${process.version}, ${cpus().length} × ${cpus()[0].model.trim()}`;
console.log(`${head}\n`);
mkdirSync(`${here}results`, { recursive: true });
for (const name of asked.length > 0 ? asked : ALL) {
  console.error(`measuring ${name} …`);
  const { run } = await import(`./${name}.mjs`);
  const section = await run();
  console.log(`${section}\n`);
  writeFileSync(`${here}results/${name}.md`, `${head}\n\n${section}\n`);
}
