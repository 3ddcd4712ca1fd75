import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";

type Answer = Record<string, unknown> & { error?: string };

/** A real process that takes locks on command; killed when the test is over. */
export class Worker {
  readonly child: ChildProcess;
  readonly #waiting = new Map<number, (answer: Answer) => void>();
  #ids = 0;

  private constructor(url: string, options: object) {
    const script = fileURLToPath(new URL("./worker.mjs", import.meta.url));
    this.child = spawn(process.execPath, [script, url, JSON.stringify(options)], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    onTestFinished(() => this.kill());
    createInterface({ input: this.child.stdout! }).on("line", (line) => {
      const { id, ...answer } = JSON.parse(line) as Answer & { id: number };
      this.#waiting.get(id)?.(answer);
      this.#waiting.delete(id);
    });
  }

  static async start(url: string, options: object = {}): Promise<Worker> {
    const worker = new Worker(url, options);
    await worker.#answer(0);
    return worker;
  }

  async ask(command: string, args: object = {}): Promise<Answer> {
    const id = ++this.#ids;
    const answer = this.#answer(id);
    this.child.stdin!.write(`${JSON.stringify({ id, command, ...args })}\n`);
    return answer;
  }

  pause(): void {
    this.child.kill("SIGSTOP");
  }

  resume(): void {
    this.child.kill("SIGCONT");
  }

  async kill(): Promise<void> {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const gone = once(this.child, "exit");
    this.child.kill("SIGKILL");
    await gone;
  }

  #answer(id: number): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, resolve);
      this.child.once("exit", (code, signal) =>
        reject(new Error(`worker ended: ${code} ${signal}`)),
      );
    });
  }
}

/** Looks until it is so, or fails after a generous time. */
export async function until(
  what: string,
  isSo: () => boolean | Promise<boolean>,
  withinMs = 10_000,
): Promise<void> {
  const untilMs = performance.now() + withinMs;
  while (!(await isSo())) {
    if (performance.now() > untilMs) throw new Error(`not so within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
