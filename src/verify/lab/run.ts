import { execFile } from "node:child_process";
import { findProgram } from "./requirements.js";

const RUN_MS = 10_000;
const TOOL_MS = 20_000;
const OUTPUT_BYTES = 64 * 1024 * 1024;

export interface RunOptions {
  readonly input?: string;
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly timeoutMs?: number;
}

/** Runs a program, and resolves to its output; rejects with its error output. */
export function run(
  [program, ...args]: readonly string[],
  { input = "", cwd, env = plainEnv(), timeoutMs = RUN_MS }: RunOptions = {},
): Promise<string> {
  return new Promise((resolve, reject) => {
    const limits = { timeout: timeoutMs, killSignal: "SIGKILL", maxBuffer: OUTPUT_BYTES } as const;
    const child = execFile(program!, args, { cwd, env, ...limits }, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout);
      const why = error.killed ? `no answer in ${timeoutMs} ms` : stderr.trim() || error.message;
      reject(new Error(`${program}: ${why}`, { cause: error }));
    });
    // The program may end without reading its input.
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
  });
}

/** Runs a tool of the system, wherever it is installed. */
export function runTool(
  [tool, ...args]: readonly [string, ...string[]],
  input = "",
): Promise<string> {
  const program = tool.startsWith("/") ? tool : findProgram(tool);
  return run([program, ...args], { input, timeoutMs: TOOL_MS });
}

/** An environment in which no setting of the user reaches a server or its clients. */
export function plainEnv(home = "/"): Record<string, string> {
  return { PATH: process.env["PATH"] ?? "/usr/bin:/bin", HOME: home, LC_ALL: "C" };
}
