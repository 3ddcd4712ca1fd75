// A process that owns a lab and ends as its first argument says.
import { Lab } from "../../../dist/verify/lab/lab.js";

const [how, mark, ...kinds] = process.argv.slice(2);
const lab = await Lab.open();
const servers = await Promise.all(kinds.map((kind) => lab[kind]()));
await servers[0].pause();
lab.onEnd(`echo first >> '${mark}'`);
lab.onEnd(`echo second >> '${mark}'`);
lab.onEnd(`echo undone >> '${mark}'`)();
const pids = servers.map(({ pid }) => pid);
process.stdout.write(`${JSON.stringify({ folder: lab.folder, pids })}\n`);

if (how === "exit") process.exit(3);
if (how === "exception") throw new Error("on purpose");
if (how === "dispose") await lab[Symbol.asyncDispose]();
if (how === "signal") setInterval(() => {}, 1_000);
