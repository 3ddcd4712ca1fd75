import { readFileSync } from "node:fs";
import { isStopped, signal } from "../lab/processes.js";
import { until } from "../lab/until.js";

const SIGNAL_MS = 10_000;

/** Any process of this machine, by its number: a holder, a waiter. */
export class Process {
  readonly name: string;
  readonly pid: number;

  constructor(name: string, pid: number) {
    this.name = name;
    this.pid = pid;
  }

  get state(): "running" | "paused" | "down" {
    if (isGone(this.pid)) return "down";
    return isStopped(this.pid) ? "paused" : "running";
  }

  /** Resolves when all of its threads stand still. */
  async pause(): Promise<void> {
    await this.#signal("SIGSTOP", "paused");
  }

  async resume(): Promise<void> {
    await this.#signal("SIGCONT", "running");
  }

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

/** Or has ended, and waits for its parent to notice. */
function isGone(pid: number): boolean {
  try {
    return /^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return true;
  }
}
