import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { afterEach } from "vitest";
import { findCommand } from "../../src/cli/run/find.js";
import type { Awaitable } from "../../src/core/store.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";

export const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const PATIENCE_MS = 20_000;

/** The kernel kills a child with its `holdfast`. */
export const canDieWithParent = process.platform === "linux" && findCommand("setpriv") === "yes";

const folders: string[] = [];
const running = new Set<Cli>();

afterEach(async () => {
  await Promise.all([...running].map(end));
  for (const folder of folders.splice(0)) await remove(folder);
});

/** Leftover processes may still write there; Node retries only to remove the folder itself. */
async function remove(folder: string): Promise<void> {
  for (let tries = 20; ; tries--) {
    try {
      rmSync(folder, { recursive: true, force: true });
      return;
    } catch (error) {
      if (tries === 0) throw error;
      await sleep(50);
    }
  }
}

/** Ends the process by a signal that reaches the child too, if it still runs. */
async function end(cli: Cli): Promise<void> {
  cli.signal("SIGCONT");
  cli.signal("SIGTERM");
  const killing = setTimeout(() => cli.signal("SIGKILL"), 3_000);
  await cli.ended;
  clearTimeout(killing);
}

/** An empty folder for the test, with a store in it. */
export function makeFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-cli-test-"));
  folders.push(folder);
  return folder;
}

/** util-linux's `script` runs a command in a terminal of its own. */
export const canMakeTerminals =
  process.platform === "linux" && spawnSync("script", ["-qec", "true", "/dev/null"]).status === 0;

/** As a terminal sends it. */
export const CTRL_C = "\u0003";

const terminals: Terminal[] = [];
afterEach(() => {
  for (const terminal of terminals.splice(0)) terminal.signal("SIGKILL");
});

/** `holdfast` on a terminal of 100 columns. */
export class Terminal {
  text = "";
  readonly exited: Promise<number | null>;
  readonly #script: ChildProcess;

  constructor(args: string, store: string) {
    const line = `stty cols 100 rows 20; exec ${process.execPath} ${MAIN} ${args}`;
    this.#script = spawn("script", ["-qec", line, "/dev/null"], {
      env: { ...process.env, HOLDFAST_STORE: store },
      // A terminal hangs up when its input ends.
      stdio: ["pipe", "pipe", "inherit"],
    });
    this.#script.stdout!.on("data", (chunk) => {
      this.text += chunk;
    });
    this.exited = new Promise((resolve) => this.#script.once("close", resolve));
    terminals.push(this);
  }

  shows(text: string): Promise<true> {
    return until(`it shows ${JSON.stringify(text)}`, () => this.text.includes(text));
  }

  type(keys: string): void {
    this.#script.stdin!.write(keys);
  }

  signal(signal: NodeJS.Signals): void {
    this.#script.kill(signal);
  }
}

export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A `holdfast` process. */
export class Cli {
  readonly ended: Promise<Ended>;
  stdout = "";
  stderr = "";
  readonly #process: ChildProcess;

  constructor(folder: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    const inherited = Object.entries(process.env).filter(
      ([name]) => !/^(HOLDFAST|NODE_)/.test(name),
    );
    this.#process = spawn(process.execPath, [MAIN, ...args], {
      cwd: folder,
      env: {
        ...Object.fromEntries(inherited),
        HOLDFAST_STORE: `sqlite:${join(folder, "locks.db")}`,
        ...env,
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    running.add(this);
    this.#process.stdout!.on("data", (chunk) => {
      this.stdout += chunk;
    });
    this.#process.stderr!.on("data", (chunk) => {
      this.stderr += chunk;
    });
    this.ended = new Promise((resolve) => {
      // Not "close": a grandchild that is left alive holds the pipes open.
      this.#process.on("exit", async (code) => {
        running.delete(this);
        await Promise.race([
          new Promise((closed) => this.#process.once("close", closed)),
          sleep(500, undefined, { ref: false }),
        ]);
        resolve({ code, stdout: this.stdout, stderr: this.stderr });
      });
    });
  }

  get pid(): number {
    return this.#process.pid!;
  }

  signal(signal: NodeJS.Signals): void {
    this.#process.kill(signal);
  }
}

export function holdfast(
  folder: string,
  args: readonly string[],
  env?: NodeJS.ProcessEnv,
): Promise<Ended> {
  return new Cli(folder, args, env).ended;
}

/** Polls until the condition returns something; the failure names the condition. */
export async function until<T>(
  what: string,
  condition: () => Awaitable<T | null | undefined | false>,
): Promise<T> {
  const untilMs = performance.now() + PATIENCE_MS;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > untilMs) throw new Error(`gave up waiting until ${what}`);
    await sleep(10);
  }
}

export function linesOf(folder: string, file: string): string[] {
  const path = join(folder, file);
  return existsSync(path) ? readFileSync(path, "utf8").split("\n").filter(Boolean) : [];
}

export function untilLine(folder: string, file: string, text: string): Promise<true> {
  return until(`${file} has the line ${text}`, () => linesOf(folder, file).includes(text) || null);
}

/** True if the process still runs; one that is dead but not yet reaped does not. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return process.platform !== "linux";
  }
}

/** Blocks all other writers of the store until the returned function is called. */
export async function lockStore(folder: string): Promise<() => void> {
  const db = await openSqlite(join(folder, "locks.db"));
  await until("the file is ours", () => {
    try {
      db.exec("BEGIN EXCLUSIVE");
      return true;
    } catch {
      return false;
    }
  });
  return () => {
    db.exec("ROLLBACK");
    db.close();
  };
}
