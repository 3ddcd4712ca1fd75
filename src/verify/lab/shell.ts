import { execFile } from "node:child_process";
import { findProgram } from "./requirements.js";

const RUN_MS = 20_000;

/** What a program of the system prints, run here with these arguments. */
export function run(
  [program, ...args]: readonly [string, ...string[]],
  input = "",
): Promise<string> {
  return new Promise((resolve, reject) => {
    const options = { timeout: RUN_MS, env: { PATH: process.env["PATH"], LC_ALL: "C" } };
    const path = program.startsWith("/") ? program : findProgram(program);
    const child = execFile(path, args, options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const why = stderr.trim() || error.message;
      reject(new Error(`${program} ${args.join(" ")}: ${why}`, { cause: error }));
    });
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
  });
}
