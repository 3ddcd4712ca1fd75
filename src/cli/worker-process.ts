import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { CliError, Exit } from "./exit.js";

/** Long enough for a machine that is busy with other work. */
const PATIENCE_MS = 60_000;

/** How a worker is started. */
export interface WorkerStart {
  readonly name: string;
  readonly script: string;
  /** The one argument of the script, as JSON. */
  readonly task: object;
  /** The words that start a process so that it dies with this one. */
  readonly launcher: readonly string[];
  /** For its temporary files, which are removed with the folder if it is killed. */
  readonly folder: string;
}

/** A worker of the demo or of a story: its reports are lines of JSON on its stdout. */
export class WorkerProcess<Report> {
  readonly name: string;
  readonly #process: ChildProcess;
  readonly #reports: Report[] = [];
  #ended = false;
  #changed: () => void = () => {};

  constructor({ name, script, task, launcher, folder }: WorkerStart) {
    this.name = name;
    const [program, ...args] = [...launcher, process.execPath, script, JSON.stringify(task)];
    this.#process = spawn(program!, args, {
      stdio: ["pipe", "pipe", "inherit"],
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

  /** The next report. Rejects with a text that names what was expected. */
  async next(
    expected: string,
    isExpected: (report: Report) => boolean = () => true,
  ): Promise<Report> {
    const untilMs = performance.now() + PATIENCE_MS;
    while (this.#reports.length === 0 && !this.#ended && performance.now() < untilMs) {
      await this.#change(untilMs - performance.now());
    }
    const report = this.#reports.shift();
    if (report !== undefined && isExpected(report)) return report;
    const got =
      report === undefined ? (this.#ended ? "its end" : "nothing") : JSON.stringify(report);
    throw new CliError(
      Exit.failed,
      `worker ${this.name} should have reported ${expected} and reported ${got}`,
    );
  }

  async ended(): Promise<void> {
    while (!this.#ended) await this.#change(PATIENCE_MS);
  }

  /** Writes a line to its stdin. */
  send(line: string): void {
    this.#process.stdin!.write(`${line}\n`);
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
