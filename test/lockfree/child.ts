import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished } from "vitest";

/** A script of this folder in a process of its own, which is killed when the test is over. */
export class Child {
  readonly #process: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #closed: Promise<unknown[]>;

  private constructor(script: string, args: readonly string[]) {
    const file = fileURLToPath(new URL(script, import.meta.url));
    const stdio = ["pipe", "pipe", "inherit"] as const;
    this.#process = spawn(process.execPath, [file, ...args], { stdio: [...stdio] });
    this.#lines = createInterface(this.#process.stdout!)[Symbol.asyncIterator]();
    this.#closed = once(this.#process, "close");
    onTestFinished(() => void this.#process.kill("SIGKILL"));
  }

  /** Resolves when the script has printed its first line: it is ready. */
  static async start(script: string, args: readonly string[]): Promise<Child> {
    const child = new Child(script, args);
    await child.#lines.next();
    return child;
  }

  /** The script reads a line: it begins, or goes on. */
  go(): void {
    this.#process.stdin!.write("go\n");
  }

  kill(signal: "SIGKILL" | "SIGSTOP" | "SIGCONT"): void {
    expect(this.#process.kill(signal)).toBe(true);
  }

  /** Resolves to the last line of the script, as JSON, when it has ended without an error. */
  async result<T>(): Promise<T> {
    const { value } = await this.#lines.next();
    expect(await this.#closed).toEqual([0, null]);
    return JSON.parse(value);
  }
}
