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
  /** The whole group is to end, including processes that the child leaves behind. */
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
    const killGroup = (): void => void this.kill("SIGKILL");
    // If holdfast fails itself, the child must not go on without its lease.
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

  /** Sends a signal to the whole group, until the child has ended. False if this user may not. */
  kill(signal: NodeJS.Signals): boolean {
    const { pid } = this.#process;
    if (pid === undefined) return true;
    // Processes that the child leaves behind may go on, and the id of a reaped child may be in use again.
    if (!this.#running && !this.stopping) return true;
    if (process.platform === "win32") return this.#process.kill(signal);
    return signalGroup(pid, signal) !== "refused";
  }

  /** Whether any process is left in the group: the child may have gone before its own children. */
  get groupAlive(): boolean {
    const { pid } = this.#process;
    if (pid === undefined) return false;
    return process.platform === "win32" ? this.#running : signalGroup(pid, 0) !== "gone";
  }
}

/** `refused`: every process of the group runs as another user, as under sudo. */
function signalGroup(pid: number, signal: NodeJS.Signals | 0): "sent" | "gone" | "refused" {
  try {
    process.kill(-pid, signal);
    return "sent";
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM" ? "refused" : "gone";
  }
}

/**
 * The words that start the command. Throws if it can't be run. Called before there is a lease,
 * because the trial of the wrapper takes time.
 */
export function runnable(command: readonly string[]): readonly string[] {
  checkCommand(command[0]!);
  return [...diesWithParent(), ...command];
}

/** With setpriv on Linux, the kernel kills the child when its parent dies. */
export function diesWithParent(): readonly string[] {
  if (process.platform !== "linux") return [];
  if (findCommand("setpriv", process.env["PATH"]) !== "yes") return [];
  const wrapper = ["--pdeathsig", "KILL", "--"];
  // BusyBox's setpriv has no such option, and that of util-linux has it since 2.33.
  const trial = spawnSync("setpriv", [...wrapper, "setpriv", "--version"], { stdio: "ignore" });
  return trial.status === 0 ? ["setpriv", ...wrapper] : [];
}
