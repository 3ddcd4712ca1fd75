import { type ChildProcess, spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { isStopped, listensOn, processesIn, signal } from "./processes.js";
import { plainEnv, type RunOptions } from "./run.js";
import type { Server, Site } from "./server.js";
import { until } from "./until.js";

const START_MS = 30_000;
const STOP_MS = 30_000;
const SIGNAL_MS = 10_000;
const LOG_LINES = 12;

/** The things that the lab gives to each of its servers. */
export interface Place {
  readonly name: string;
  readonly site: Site;
  /** The ports, beginning with the one for clients. */
  readonly ports: readonly number[];
  /** The folder of the log and the settings. */
  readonly home: string;
  readonly data: string;
  /** The path of a program; throws an error that says what to install. */
  find(file: string): string;
  /** The same as `Lab.onEnd`. */
  onEnd(command: string): () => void;
  /** Runs a command line at the server's site, and resolves to its output. */
  run(argv: readonly string[], options?: RunOptions): Promise<string>;
  /** Throws once the lab is closed: a server that starts later would be left behind. */
  checkOpen(): void;
}

/** The operations for any server that is one child process with children of its own. */
export abstract class ChildServer implements Server {
  abstract readonly url: string;
  protected readonly place: Place;
  /** The signal for a regular end. */
  protected readonly stopSignal: NodeJS.Signals = "SIGTERM";
  #child: ChildProcess | null = null;
  #starting: Promise<void> | null = null;
  #paused = false;
  #kills = 0;

  constructor(place: Place) {
    this.place = place;
  }

  /** Creates the initial data, in an empty folder. */
  protected async prepare(): Promise<void> {}
  protected abstract command(): readonly string[];
  /** Whether the server replies to a real command. May reject while it does not. */
  protected abstract answers(): Promise<boolean>;
  protected async afterStart(): Promise<void> {}
  protected async afterKill(): Promise<void> {}
  abstract commands(): Promise<number>;

  get name(): string {
    return this.place.name;
  }
  get address(): string {
    return this.place.site.address;
  }
  get port(): number {
    return this.place.ports[0]!;
  }
  get pid(): number | null {
    return this.#child?.pid ?? null;
  }
  get state(): "running" | "paused" | "down" {
    if (this.#child === null) return "down";
    return this.#paused ? "paused" : "running";
  }

  async start(): Promise<void> {
    if (this.#starting === null && this.state === "running") return;
    if (this.state === "paused") throw new Error(`${this.name} is paused: resume it`);
    this.#starting ??= this.#start().finally(() => {
      this.#starting = null;
    });
    await this.#starting;
  }

  async #start(): Promise<void> {
    const kills = this.#kills;
    await this.#makeData();
    // `kill` finds no process yet while the data is made.
    if (this.#kills !== kills) throw new Error(`${this.name} was killed while it started`);
    const child = this.#spawn();
    try {
      await until("it answers", START_MS, async () => {
        if (this.#child !== child) throw new Error(howEnded(child));
        // A reply proves nothing if another process's server has the port.
        if (!listensOn(child.pid!, this.port)) return false;
        // A server that answers may go down once more, to recover.
        return this.#isReady().catch(() => false);
      });
    } catch (error) {
      await this.kill();
      const reason = (error as Error).message;
      throw new Error(`${this.name} did not start: ${reason}${this.#endOfLog()}`, { cause: error });
    }
  }

  async #isReady(): Promise<boolean> {
    if (!(await this.answers())) return false;
    await this.afterStart();
    return true;
  }

  async stop(): Promise<void> {
    if (this.pid === null) return;
    signal(this.pid, this.stopSignal);
    if (this.#paused) this.#signalAll("SIGCONT");
    await until(`${this.name} has ended`, STOP_MS, () => this.#isGone());
  }

  async kill(): Promise<void> {
    this.#kills++;
    await until(`${this.name} is dead`, SIGNAL_MS, () => {
      this.#signalAll("SIGKILL");
      return this.#isGone();
    });
    await this.afterKill();
  }

  async pause(): Promise<void> {
    this.#expect("running");
    await until(`${this.name} is stopped`, SIGNAL_MS, () => {
      const moving = this.#pids().filter((pid) => !isStopped(pid));
      for (const pid of moving) signal(pid, "SIGSTOP");
      return moving.length === 0;
    });
    this.#paused = true;
  }

  async resume(): Promise<void> {
    this.#expect("paused");
    this.#signalAll("SIGCONT");
    await until(`${this.name} goes on`, SIGNAL_MS, () => !this.#pids().some(isStopped));
    this.#paused = false;
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async wipe(): Promise<void> {
    await this.kill();
    await rm(this.place.data, { recursive: true, force: true });
    await this.start();
  }

  async #makeData(): Promise<void> {
    const { home, data } = this.place;
    this.place.checkOpen();
    await mkdir(home, { recursive: true });
    if (existsSync(data)) return;
    await mkdir(data, { recursive: true });
    try {
      await this.prepare();
    } catch (error) {
      await rm(data, { recursive: true, force: true });
      throw error;
    }
  }

  #spawn(): ChildProcess {
    const { home, site } = this.place;
    const [program, ...args] = site.command(this.command());
    this.place.checkOpen();
    const log = openSync(this.#log, "a");
    const child = spawn(program!, args, {
      cwd: home,
      env: { ...plainEnv(home), ...site.env },
      stdio: ["ignore", log, log],
      // Ctrl-C in the terminal is for the lab's owner.
      detached: true,
    });
    closeSync(log);
    const gone = (): void => {
      if (this.#child === child) this.#child = null;
    };
    child.once("exit", gone);
    child.once("error", gone);
    child.unref();
    this.#child = child;
    this.#paused = false;
    return child;
  }

  /** The parent first, so that it starts no more children. */
  #pids(): number[] {
    const first = this.pid === null ? [] : [this.pid];
    return [...new Set([...first, ...processesIn([this.place.home, this.place.data])])];
  }

  #signalAll(name: NodeJS.Signals): void {
    for (const pid of this.#pids()) signal(pid, name);
  }

  #isGone(): boolean {
    return this.#pids().length === 0;
  }

  #expect(state: "running" | "paused"): void {
    if (this.state !== state) throw new Error(`${this.name} is ${this.state}, not ${state}`);
  }

  get #log(): string {
    return join(this.place.home, "log");
  }

  #endOfLog(): string {
    if (!existsSync(this.#log)) return "";
    const lines = readFileSync(this.#log, "utf8").trim().split("\n").slice(-LOG_LINES);
    return lines[0] === "" ? "; it logged nothing" : `; its log ends with\n${lines.join("\n")}`;
  }
}

function howEnded({ exitCode, signalCode, spawnfile }: ChildProcess): string {
  if (signalCode !== null) return `it was ended by ${signalCode}`;
  return exitCode === null ? `${spawnfile} can't be run` : `it exited with code ${exitCode}`;
}
