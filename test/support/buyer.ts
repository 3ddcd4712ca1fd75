import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished } from "vitest";

type Kind = "fenced" | "unfenced";

/** A process that buys, line by line. */
class Buyer {
  readonly process: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor(program: URL, args: readonly string[]) {
    this.process = spawn(process.execPath, [fileURLToPath(program), ...args], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#lines = createInterface({ input: this.process.stdout! })[Symbol.asyncIterator]();
    onTestFinished(() => void this.process.kill("SIGKILL"));
  }

  async says(): Promise<string> {
    return (await this.#lines.next()).value;
  }

  goOn(): void {
    this.process.stdin!.write("\n");
  }
}

/** Ann is paused between her read and her write until Bob has bought. Resolves with the outcome for Ann. */
export async function sellTheLastHat(program: URL, url: string, kind: Kind): Promise<string> {
  const paused = new Buyer(program, [url, "Ann", kind]);
  expect(await paused.says()).toBe("read 1");
  paused.process.kill("SIGSTOP");
  const other = new Buyer(program, [url, "Bob", kind]);
  // As soon as the lease of the first has expired.
  expect(await other.says()).toBe("read 1");
  other.goOn();
  expect(await other.says()).toBe("bought");
  paused.goOn();
  paused.process.kill("SIGCONT");
  return paused.says();
}
