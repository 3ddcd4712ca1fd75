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
import type { RegisterPlace } from "./registers/register.js";
import { machineMs, TimeLine } from "./time-line.js";

/** How many lines of a worker's output are kept. */
const MOST_LINES = 1_000;

/** The beginning of a reply; no event begins so. */
const ANSWERED = '{"id":';

/** The built module, even if this file runs from source. */
export const WORKER_PROGRAM = join(
  createRequire(import.meta.url).resolve("holdfast/package.json"),
  "../dist/verify/traffic/worker-process.js",
);

/**
 * A prefix by which the worker dies with this process even if it is stopped; where that is not
 * available, the worker notices the end of its input.
 */
function dieWithParent(): readonly string[] {
  const setpriv = process.platform === "linux" ? findFile("setpriv") : null;
  return setpriv === null ? [] : [setpriv, "--pdeathsig", "KILL"];
}

/** Options of `Worker.start`. */
export interface WorkerOptions {
  /** The worker's name in the history, and the holder in the store. */
  readonly client: string;
  /** The store's URL for `connect`. */
  readonly url: string;
  /** Options of its `Locks`. */
  readonly locks?: LocksOptions;
  /** The time line for its reports; several workers may share one. */
  readonly timeLine?: TimeLine;
  /** An SQLite file, created if missing: a counter behind a fence. */
  readonly resourceFile?: string;
  /** Another place for that counter. */
  readonly register?: RegisterPlace;
  /** The network and the clock of its process. */
  readonly site?: Site;
  /** Breaks its core on purpose. */
  readonly mutant?: MutantName;
  /** Its clients of the store, and how many `Locks` share each. Default: one client, one `Locks`. */
  readonly connections?: readonly Connections[];
  /** Whether it reports when its event loop stood still. */
  readonly reportsStalls?: boolean;
  /** The built module of the worker processes, if it is not the usual one. */
  readonly module?: string;
}

/** The error of a request that failed in the worker. */
export class WorkerError extends Error {
  /** The `code` of the error in the worker. */
  readonly code: string;

  constructor(client: string, code: string, message: string) {
    super(`${client}: ${message}`);
    this.code = code;
  }
}

/** A real process that takes locks on command, to be paused and killed. */
export class Worker implements AsyncDisposable {
  /** The worker's name in the history. */
  readonly client: string;
  /** The time line of its reports. */
  readonly timeLine: TimeLine;
  /** The lines that its process wrote to its standard error. */
  readonly printed: string[] = [];
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, { resolve(a: Answer): void; reject(error: Error): void }>();
  /** Ops and the times of their grants, in that order. */
  readonly #held = new Map<string, number>();
  /** The ops that wait in a queue, and when each was queued, in that order. */
  readonly #queued = new Map<string, number>();
  #ended: Error | null = null;
  #closing = false;
  /** When it was killed; later if a report of its process came after that. */
  #killedAtMs: number | null = null;
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
      ...(options.register === undefined ? {} : { register: options.register }),
      ...(options.mutant === undefined ? {} : { mutant: options.mutant }),
      ...(options.connections === undefined ? {} : { connections: options.connections }),
      ...(options.reportsStalls === undefined ? {} : { reportsStalls: options.reportsStalls }),
    };
    const argv = [...dieWithParent(), process.execPath, options.module ?? WORKER_PROGRAM];
    const [command, ...args] = site.command(argv);
    this.#child = spawn(command!, args, {
      stdio: ["pipe", "pipe", "pipe"],
      env: { ...process.env, ...site.env },
    });
    const { printed } = this;
    createInterface({ input: this.#child.stderr! }).on("line", (line) => {
      if (printed.length < MOST_LINES) printed.push(line);
    });
    createInterface({ input: this.#child.stdout! }).on("line", (line) => this.#read(line));
    // A failed write is not an error here: the end of the process rejects all pending requests.
    this.#child.stdin!.on("error", () => {});
    // Not on the command line, which every user of the machine can read: a URL may contain a
    // password.
    this.#child.stdin!.write(toLine(task));
    this.#child.once("error", (error) => this.#end(error));
    this.#child.once("close", (code, signal) => {
      if (!this.#closing) {
        // The end of the process is noticed late: by then, others may hold its names.
        this.timeLine.add({ kind: "killed", client, atMs: this.#killedAtMs ?? machineMs() });
      }
      const why = printed.length > 0 ? `: ${printed.join("\n")}` : "";
      this.#end(new Error(`worker ${client} ended by ${signal ?? `code ${code}`}${why}`));
    });
  }

  /** Starts the process; resolves when it is connected. */
  static async start(options: WorkerOptions): Promise<Worker> {
    const worker = new Worker(options);
    await worker.#answer(0);
    return worker;
  }

  /** The reason why its process is gone; null while it runs. */
  get ended(): Error | null {
    return this.#ended;
  }

  /** How long it has held its oldest lease; 0 if it holds none. */
  get heldForMs(): number {
    return sinceFirst(this.#held);
  }

  /** For how long its first ticket has waited in a queue; 0 without a ticket. */
  get queuedForMs(): number {
    return sinceFirst(this.#queued);
  }

  /** The process id. */
  get pid(): number {
    return this.#child.pid!;
  }

  /**
   * Acquires, and resolves to the op and the tokens by name; rejects with a WorkerError if there is
   * no lease. Each name of a multi-lock is an op of its own in the history, `${op}.${name}`.
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

  /** Releases the lease of this op. */
  async release(op: string): Promise<"released" | "lost" | "unknown"> {
    return (await this.#ask({ do: "release", op })) as "released" | "lost" | "unknown";
  }

  /** Checks the lease of this op by `assertHeld`. */
  async look(op: string): Promise<boolean> {
    return (await this.#ask({ do: "look", op })) as boolean;
  }

  /** Renews the lease of this op to another ttl, in milliseconds. */
  async renew(op: string, ttlMs: number): Promise<void> {
    await this.#ask({ do: "renew", op, ttlMs });
  }

  /** Aborts the wait of this op, by its signal. */
  async abort(op: string): Promise<void> {
    await this.#ask({ do: "abort", op });
  }

  /** Writes to the resource of this op, and resolves to whether the fence accepted the write. */
  async write(op: string, { pauseMs = 0 } = {}): Promise<boolean> {
    return (await this.#ask({ do: "write", op, pauseMs })) as boolean;
  }

  /** Runs a loop, and resolves to the number of grants. */
  async loop(loop: Loop): Promise<number> {
    return (await this.#ask({ do: "loop", loop })) as number;
  }

  /** Campaigns, and writes to the resource while it leads, until it is aborted. Resolves to the number of terms. */
  async lead(lead: Lead, op = this.#nextOp()): Promise<number> {
    return (await this.#ask({ do: "lead", op, lead })) as number;
  }

  /** Runs work once per period, and resolves to whether it ran. */
  async once(once: Once, op = this.#nextOp()): Promise<boolean> {
    return (await this.#ask({ do: "once", op, once })) as boolean;
  }

  /** Releases a name by force, and resolves to the tokens of its holders. */
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

  /** Draws operations from a seed until the time is over, and resolves to their number. */
  async program(program: Program): Promise<number> {
    return (await this.#ask({ do: "program", program })) as number;
  }

  /** Aborts all pending acquires; programs begin nothing more. */
  async finish(): Promise<void> {
    await this.#ask({ do: "finish" });
  }

  /** Blocks its event loop. */
  async block(forMs: number): Promise<void> {
    await this.#ask({ do: "block", forMs });
  }

  /** Pauses the process (SIGSTOP). */
  pause(): void {
    if (this.#ended !== null) return;
    this.timeLine.now({ kind: "paused", client: this.client });
    this.#child.kill("SIGSTOP");
  }

  /** Resumes the process (SIGCONT). */
  resume(): void {
    if (this.#ended !== null) return;
    this.#child.kill("SIGCONT");
    this.timeLine.now({ kind: "resumed", client: this.client });
  }

  /** Kills the process (SIGKILL); resolves when it is gone. */
  async kill(): Promise<void> {
    if (this.#ended !== null) return;
    const gone = once(this.#child, "close");
    this.#killedAtMs = machineMs();
    this.#child.kill("SIGKILL");
    await gone;
  }

  /** Closes its locks and reports what is left; the process ends. */
  async close(): Promise<void> {
    if (this.#ended !== null) return;
    await this.#ask({ do: "close" });
    this.#closing = true;
    const gone = once(this.#child, "close");
    this.#child.stdin!.end();
    await gone;
  }

  /** The same as `kill`. */
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

  #read(text: string): void {
    try {
      if (text.startsWith(ANSWERED)) this.#answered(fromLine<Answered>(text));
      else for (const event of decodeHistory(text)) this.#report(event);
    } catch {
      // The process was killed in the middle of a line, or something else writes there.
      this.#end(
        new Error(
          `worker ${this.client} printed a line that is not a report: ${text.slice(0, 200)}`,
        ),
      );
      this.#child.kill("SIGKILL");
    }
  }

  #report(event: Event): void {
    this.timeLine.add(event);
    if (this.#killedAtMs !== null) this.#killedAtMs = Math.max(this.#killedAtMs, event.atMs);
    if (event.kind === "queued" && !this.#queued.has(event.op)) {
      this.#queued.set(event.op, event.atMs);
    }
    if (event.kind === "granted" || event.kind === "not-granted") this.#queued.delete(event.op);
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

function sinceFirst(moments: ReadonlyMap<string, number>): number {
  const [sinceMs] = moments.values();
  return sinceMs === undefined ? 0 : machineMs() - sinceMs;
}
