import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { CliError, Exit } from "../exit.js";
import type { Report, WorkerTask } from "./worker.js";

const PATIENCE_MS = 20_000;
const SCRIPT = fileURLToPath(new URL("./worker.js", import.meta.url));

type Kind = Report["kind"];

/** A worker process, and its reports. */
export class Worker {
  readonly name: string;
  readonly #process: ChildProcess;
  readonly #reports: Report[] = [];
  #ended = false;
  #changed: () => void = () => {};

  constructor(task: WorkerTask, launcher: readonly string[], folder: string) {
    this.name = task.name;
    const [program, ...args] = [...launcher, process.execPath, SCRIPT, JSON.stringify(task)];
    this.#process = spawn(program!, args, {
      stdio: ["pipe", "pipe", "inherit"],
      // Temporary files of a killed worker are removed with our folder.
      env: { ...process.env, TMPDIR: folder, NODE_NO_WARNINGS: "1" },
    });
    this.#process.stdin!.on("error", () => {});
    createInterface(this.#process.stdout!).on("line", (line) => {
      this.#reports.push(JSON.parse(line) as Report);
      this.#changed();
    });
    this.#process.on("close", () => this.#end());
    this.#process.on("error", () => this.#end());
  }

  /** The next report, which must be one of these kinds. */
  async next<K extends Kind>(...kinds: K[]): Promise<Extract<Report, { kind: K }>> {
    const untilMs = performance.now() + PATIENCE_MS;
    while (this.#reports.length === 0 && !this.#ended && performance.now() < untilMs) {
      await this.#change(untilMs - performance.now());
    }
    const report = this.#reports.shift();
    if (report !== undefined && kinds.includes(report.kind as K)) {
      return report as Extract<Report, { kind: K }>;
    }
    const got = report?.kind ?? (this.#ended ? "its end" : "nothing");
    throw new CliError(
      Exit.failed,
      `worker ${this.name} should have reported "${kinds.join('" or "')}" and reported ${got}`,
    );
  }

  async ended(): Promise<void> {
    while (!this.#ended) await this.#change(PATIENCE_MS);
  }

  /** Lets it go on to its write. */
  go(): void {
    this.#process.stdin!.write("\n");
  }

  signal(signal: NodeJS.Signals): void {
    if (!this.#ended) this.#process.kill(signal);
  }

  #end(): void {
    this.#ended = true;
    this.#changed();
  }

  #change(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, Math.max(1, ms));
      this.#changed = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
