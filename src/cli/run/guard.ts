import { type ChildProcess, spawn } from "node:child_process";

/**
 * Reads the number of a process group and then waits. A second line is the order to end; without one,
 * its input was closed by the kernel because holdfast was killed.
 */
const SCRIPT = `trap '' HUP INT QUIT TERM
read -r group && { read -r end || kill -s KILL -- "-$group"; }`;

/** A process that outlives holdfast and kills the command's process group when holdfast is killed. */
export class GroupGuard {
  readonly #process: ChildProcess | null;

  constructor() {
    this.#process =
      process.platform === "win32"
        ? null
        : spawn("/bin/sh", ["-c", SCRIPT], {
            // In a session of its own: a Ctrl-C in the terminal does not reach it.
            detached: true,
            stdio: ["pipe", "ignore", "ignore"],
            env: {},
            cwd: "/",
          });
    // Where there is no shell, the command runs without a guard.
    this.#process?.on("error", () => {});
    this.#process?.stdin?.on("error", () => {});
    this.#process?.unref();
  }

  watch(group: number): void {
    this.#process?.stdin?.write(`${group}\n`);
  }

  dismiss(): void {
    this.#process?.stdin?.end("end\n");
  }
}
