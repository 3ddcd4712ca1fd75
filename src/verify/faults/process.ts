import { readFileSync } from "node:fs";
import { isStopped, signal } from "../lab/processes.js";
import { until } from "../lab/until.js";

const SIGNAL_MS = 10_000;

/** Any process of this machine, by its pid: a holder, a waiter. */
export class Process {
  /** The name in faults, for people. */
  readonly name: string;
  /** The process id. */
  readonly pid: number;

  constructor(name: string, pid: number) {
    this.name = name;
    this.pid = pid;
  }

  /** The present state, as the system reports it. */
  get state(): "running" | "paused" | "down" {
    if (isGone(this.pid)) return "down";
    return isStopped(this.pid) ? "paused" : "running";
  }

  /** Stops the process; resolves when all of its threads have stopped. */
  async pause(): Promise<void> {
    await this.#signal("SIGSTOP", "paused");
  }

  /** Continues the process (SIGCONT). */
  async resume(): Promise<void> {
    await this.#signal("SIGCONT", "running");
  }

  /** Kills the process (SIGKILL); resolves when it is gone. */
  async kill(): Promise<void> {
    await this.#signal("SIGKILL", "down");
  }

  async #signal(name: NodeJS.Signals, wanted: typeof this.state): Promise<void> {
    if (this.state !== "down") signal(this.pid, name);
    await until(`${this.name} is ${wanted}`, SIGNAL_MS, () => {
      if (this.state === "down" && wanted !== "down") throw new Error(`${this.name} is dead`);
      return this.state === wanted;
    });
  }
}

/** Whether the process is gone, or has ended and waits for its parent to collect it. */
function isGone(pid: number): boolean {
  try {
    return /^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return true;
  }
}
