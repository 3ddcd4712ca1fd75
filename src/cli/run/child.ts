import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { constants } from "node:os";
import { Exit } from "../exit.js";
import { checkCommand, findCommand } from "./find.js";
import { GroupGuard } from "./guard.js";

/** How the child ended, or why it never began. */
export interface Ended {
  readonly exitCode: number;
  readonly problem?: string;
}

/** The child, in a process group of its own. */
export class Child {
  readonly ended: Promise<Ended>;
  /** All of the group is to end, also what the child leaves behind. */
  stopping = false;
  readonly #process: ChildProcess;
  #running = true;

  constructor(command: readonly string[], env: NodeJS.ProcessEnv) {
    const [program, ...args] = command;
    const guard = new GroupGuard();
    this.#process = spawn(program!, args, {
      env,
      stdio: "inherit",
      detached: process.platform !== "win32",
    });
    if (this.#process.pid !== undefined) guard.watch(this.#process.pid);
    const killGroup = (): void => this.kill("SIGKILL");
    // Should holdfast end by an error of its own, the child must not go on without its lease.
    process.once("exit", killGroup);
    this.ended = new Promise<Ended>((resolve) => {
      this.#process.once("error", (error: NodeJS.ErrnoException) =>
        resolve({
          exitCode: error.code === "ENOENT" ? Exit.notFound : Exit.notExecutable,
          problem: error.message,
        }),
      );
      this.#process.once("exit", (code, signal) =>
        resolve({
          exitCode: signal === null ? (code ?? 0) : Exit.signal + constants.signals[signal],
        }),
      );
    }).finally(() => {
      this.#running = false;
      guard.dismiss();
      process.removeListener("exit", killGroup);
    });
  }

  /** To the whole group, until the child has ended. */
  kill(signal: NodeJS.Signals): void {
    const { pid } = this.#process;
    if (pid === undefined) return;
    // What the child leaves behind is not ours to end; and a reaped child's number may be another's.
    if (!this.#running && !this.stopping) return;
    if (process.platform === "win32") this.#process.kill(signal);
    else signalGroup(pid, signal);
  }

  /** Whether any process is left in the group: the child may have gone before its own children. */
  get groupAlive(): boolean {
    const { pid } = this.#process;
    if (pid === undefined) return false;
    return process.platform === "win32" ? this.#running : signalGroup(pid, 0);
  }
}

function signalGroup(pid: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(-pid, signal);
    return true;
  } catch {
    return false;
  }
}

/**
 * The words that start the command, if it can be run. To be asked before there is a lease: to try
 * the wrapper out takes time, and the lease's time would be the wrong one.
 */
export function runnable(command: readonly string[]): readonly string[] {
  checkCommand(command[0]!);
  return [...diesWithParent(), ...command];
}

/** On Linux the kernel kills the child when its parent is gone, if setpriv asks for it. */
export function diesWithParent(): readonly string[] {
  if (process.platform !== "linux") return [];
  if (findCommand("setpriv", process.env["PATH"]) !== "yes") return [];
  const wrapper = ["--pdeathsig", "KILL", "--"];
  // BusyBox's has no such option, and util-linux's only since 2.33.
  const trial = spawnSync("setpriv", [...wrapper, "setpriv", "--version"], { stdio: "ignore" });
  return trial.status === 0 ? ["setpriv", ...wrapper] : [];
}
