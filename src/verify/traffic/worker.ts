import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { LocksOptions } from "../../core/options.js";
import type { MutantName } from "../../testing/mutants.js";
import { decodeHistory } from "../check/encode.js";
import type { Event } from "../check/history.js";
import { findFile } from "../lab/requirements.js";
import { LOOPBACK, type Site } from "../lab/server.js";
import {
  type Answer,
  type Answered,
  type Connections,
  fromLine,
  type Lead,
  type Loop,
  type Names,
  type Once,
  type Options,
  type Program,
  type Request,
  toLine,
  type Value,
  type WorkerTask,
} from "./protocol.js";
import { machineMs, TimeLine } from "./time-line.js";

/** As much of what a worker prints is kept. */
const MOST_LINES = 1_000;

/** How an answer begins; no event does. */
const ANSWERED = '{"id":';

/** The built one, whoever runs this. */
const PROCESS = join(
  createRequire(import.meta.url).resolve("holdfast/package.json"),
  "../dist/verify/traffic/worker-process.js",
);

/** It dies with us even if it is stopped; where that can't be had, it notices the end of its input. */
function dieWithParent(): readonly string[] {
  const setpriv = process.platform === "linux" ? findFile("setpriv") : null;
  return setpriv === null ? [] : [setpriv, "--pdeathsig", "KILL"];
}

export interface WorkerOptions {
  /** Its name in the history, and the holder's in the store. */
  readonly client: string;
  readonly url: string;
  readonly locks?: LocksOptions;
  /** Where its reports go, with those of others. */
  readonly timeLine?: TimeLine;
  /** An SQLite file, made if missing: a counter behind a fence. */
  readonly resourceFile?: string;
  /** In which network and under which clock it runs. */
  readonly site?: Site;
  readonly mutant?: MutantName;
  readonly connections?: readonly Connections[];
  readonly reportsStalls?: boolean;
  /** The built module of the worker's process, if it is another one. */
  readonly module?: string;
}

/** What a worker answered no to. */
export class WorkerError extends Error {
  readonly code: string;

  constructor(client: string, code: string, message: string) {
    super(`${client}: ${message}`);
    this.code = code;
  }
}

/** A real process that takes locks on command, to be paused and killed. */
export class Worker implements AsyncDisposable {
  readonly client: string;
  readonly timeLine: TimeLine;
  /** What its process has written to its standard error. */
  readonly printed: string[] = [];
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, { resolve(a: Answer): void; reject(error: Error): void }>();
  /** Ops and when they were granted, in that order. */
  readonly #held = new Map<string, number>();
  #ended: Error | null = null;
  #closing = false;
  #asked = 0;
  #ops = 0;

  private constructor({ client, timeLine, site = LOOPBACK, ...options }: WorkerOptions) {
    this.client = client;
    this.timeLine = timeLine ?? new TimeLine();
    const task: WorkerTask = {
      client,
      url: options.url,
      options: options.locks ?? {},
      ...(options.resourceFile === undefined ? {} : { resourceFile: options.resourceFile }),
      ...(options.mutant === undefined ? {} : { mutant: options.mutant }),
      ...(options.connections === undefined ? {} : { connections: options.connections }),
      ...(options.reportsStalls === undefined ? {} : { reportsStalls: options.reportsStalls }),
    };
    const argv = [...dieWithParent(), process.execPath, options.module ?? PROCESS];
    const [command, ...args] = site.command(argv);
    this.#child = spawn(command!, args, {
      stdio: ["pipe", "pipe", "pipe"],
      env: { ...process.env, ...site.env },
    });
    const { printed } = this;
    createInterface({ input: this.#child.stderr! }).on("line", (line) => {
      if (printed.length < MOST_LINES) printed.push(line);
    });
    createInterface({ input: this.#child.stdout! }).on("line", (line) => this.#hear(line));
    // What can't be written is answered by the end.
    this.#child.stdin!.on("error", () => {});
    // Not on the command line, which every user of the machine can read: a URL may hold a password.
    this.#child.stdin!.write(toLine(task));
    this.#child.once("error", (error) => this.#end(error));
    this.#child.once("close", (code, signal) => {
      if (!this.#closing) this.timeLine.now({ kind: "killed", client });
      const why = printed.length > 0 ? `: ${printed.join("\n")}` : "";
      this.#end(new Error(`worker ${client} ended by ${signal ?? `code ${code}`}${why}`));
    });
  }

  static async start(options: WorkerOptions): Promise<Worker> {
    const worker = new Worker(options);
    await worker.#answer(0);
    return worker;
  }

  /** Why its process is gone; null while it runs. */
  get ended(): Error | null {
    return this.#ended;
  }

  /** For how long it has held the lease that it has held the longest; 0 if it holds none. */
  get heldForMs(): number {
    const [sinceMs] = this.#held.values();
    return sinceMs === undefined ? 0 : machineMs() - sinceMs;
  }

  get pid(): number {
    return this.#child.pid!;
  }

  /**
   * The op, and the tokens by name; rejects with a WorkerError when there is no lease. Each of
   * several names is an op of its own in the history, `${op}.${name}`.
   */
  async acquire(
    name: Names,
    options: Options = {},
    op = this.#nextOp(),
  ): Promise<{ op: string; token: bigint; tokens: ReadonlyMap<string, bigint> }> {
    const value = await this.#ask({ do: "acquire", op, name, options });
    const tokens = new Map((value as [string, string][]).map(([of, token]) => [of, BigInt(token)]));
    return { op, token: [...tokens.values()][0]!, tokens };
  }

  async release(op: string): Promise<"released" | "lost" | "unknown"> {
    return (await this.#ask({ do: "release", op })) as "released" | "lost" | "unknown";
  }

  /** Whether `assertHeld` is content. */
  async look(op: string): Promise<boolean> {
    return (await this.#ask({ do: "look", op })) as boolean;
  }

  async renew(op: string, ttlMs: number): Promise<void> {
    await this.#ask({ do: "renew", op, ttlMs });
  }

  async abort(op: string): Promise<void> {
    await this.#ask({ do: "abort", op });
  }

  /** Whether the fence let it write. */
  async write(op: string, { pauseMs = 0 } = {}): Promise<boolean> {
    return (await this.#ask({ do: "write", op, pauseMs })) as boolean;
  }

  /** How many grants it had. */
  async loop(loop: Loop): Promise<number> {
    return (await this.#ask({ do: "loop", loop })) as number;
  }

  /** Campaigns, and writes to the resource while it leads, until it is aborted. How many terms it had. */
  async lead(lead: Lead, op = this.#nextOp()): Promise<number> {
    return (await this.#ask({ do: "lead", op, lead })) as number;
  }

  /** Whether it ran. */
  async once(once: Once, op = this.#nextOp()): Promise<boolean> {
    return (await this.#ask({ do: "once", op, once })) as boolean;
  }

  /** The tokens of those who held it. */
  async forceRelease(name: string, why: string): Promise<readonly bigint[]> {
    const sinceMs = machineMs();
    const value = await this.#ask({ do: "forceRelease", name, why });
    const tokens = (value as readonly string[]).map(BigInt);
    for (const token of tokens) {
      const op = this.timeLine.opOf(name, token);
      if (op !== undefined) this.timeLine.now({ kind: "revoked", sinceMs, op, token });
    }
    return tokens;
  }

  /** Draws operations from a seed until the time is over. How many there were. */
  async program(program: Program): Promise<number> {
    return (await this.#ask({ do: "program", program })) as number;
  }

  /** Aborts everything that waits; programs begin nothing more. */
  async finish(): Promise<void> {
    await this.#ask({ do: "finish" });
  }

  /** Its event loop runs nothing else meanwhile. */
  async block(forMs: number): Promise<void> {
    await this.#ask({ do: "block", forMs });
  }

  pause(): void {
    if (this.#ended !== null) return;
    this.timeLine.now({ kind: "paused", client: this.client });
    this.#child.kill("SIGSTOP");
  }

  resume(): void {
    if (this.#ended !== null) return;
    this.#child.kill("SIGCONT");
    this.timeLine.now({ kind: "resumed", client: this.client });
  }

  async kill(): Promise<void> {
    if (this.#ended !== null) return;
    const gone = once(this.#child, "close");
    this.#child.kill("SIGKILL");
    await gone;
  }

  /** Closes its locks and reports what is left then; the process ends. */
  async close(): Promise<void> {
    if (this.#ended !== null) return;
    await this.#ask({ do: "close" });
    this.#closing = true;
    const gone = once(this.#child, "close");
    this.#child.stdin!.end();
    await gone;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  #nextOp(): string {
    return `${this.client}.${++this.#ops}`;
  }

  async #ask(request: Request): Promise<Value | undefined> {
    const id = ++this.#asked;
    const answering = this.#answer(id);
    this.#child.stdin!.write(toLine({ id, ...request }));
    const answer = await answering;
    if (!answer.ok) throw new WorkerError(this.client, answer.code, answer.message);
    return answer.value;
  }

  #answer(id: number): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#ended !== null) reject(this.#ended);
      else this.#waiting.set(id, { resolve, reject });
    });
  }

  #hear(text: string): void {
    try {
      if (text.startsWith(ANSWERED)) this.#answered(fromLine<Answered>(text));
      else for (const event of decodeHistory(text)) this.#report(event);
    } catch {
      // Killed in the middle of a line; or something else writes there.
      this.#end(new Error(`worker ${this.client} said what is no report: ${text.slice(0, 200)}`));
      this.#child.kill("SIGKILL");
    }
  }

  #report(event: Event): void {
    this.timeLine.add(event);
    if (event.kind === "granted") this.#held.set(event.op, event.atMs);
    if (event.kind === "releasing" || event.kind === "lost") this.#held.delete(event.op);
  }

  #answered({ id, answer }: Answered): void {
    this.#waiting.get(id)?.resolve(answer);
    this.#waiting.delete(id);
  }

  #end(error: Error): void {
    this.#ended ??= error;
    for (const { reject } of this.#waiting.values()) reject(this.#ended);
    this.#waiting.clear();
  }
}
