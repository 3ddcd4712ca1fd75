import { setTimeout as sleep } from "node:timers/promises";
import type { LocksOptions } from "../../core/options.js";
import type { MutantName } from "../../testing/mutants.js";
import type { Connections, Program } from "../traffic/protocol.js";
import { machineMs, type TimeLine } from "../traffic/time-line.js";
import { Worker } from "../traffic/worker.js";
import type { Way } from "./target.js";

const START_AGAIN_MS = 300;
const FIRST_START_MS = 30_000;

export interface MemberOptions {
  readonly client: string;
  readonly way: Way;
  readonly timeLine: TimeLine;
  readonly locks: LocksOptions;
  readonly connections: readonly Connections[];
  readonly programs: readonly Omit<Program, "untilMs">[];
  readonly resourceFile: string;
  readonly mutant?: MutantName | undefined;
  readonly module?: string | undefined;
}

/** A worker of a run; when its process was killed, another process takes its place. */
export class Member {
  readonly client: string;
  readonly way: Way;
  readonly #options: MemberOptions;
  readonly #programs = new Set<Promise<number>>();
  #worker: Worker | null = null;
  #starting: Promise<void> = Promise.resolve();
  #processes = 0;
  /** By their URLs: several faults may have one each at the same time. */
  readonly #twins = new Map<string, Worker>();
  #twinLanes = 0;
  #isKilled = false;
  /** When its programs end; null before they begin. */
  #untilMs: number | null = null;
  /** What should not have happened to its processes. */
  readonly faults: string[] = [];

  constructor(options: MemberOptions) {
    this.client = options.client;
    this.way = options.way;
    this.#options = options;
  }

  get worker(): Worker {
    return this.#worker!;
  }

  /** Starts a process, and its programs if they have begun; again in a moment while the store is down. */
  start(): Promise<void> {
    this.#starting = this.#start();
    return this.#starting;
  }

  /** Begins its programs, which go on until then in this process and in those that take its place. */
  begin(untilMs: number): void {
    this.#untilMs = untilMs;
    if (this.isRunning) this.#perform(this.#worker!, untilMs);
  }

  get isRunning(): boolean {
    return this.#worker !== null && this.#worker.ended === null;
  }

  async kill(): Promise<void> {
    this.#isKilled = true;
    const twins = [...this.#twins.keys()].map((url) => this.endTwin(url));
    await Promise.all([this.#worker?.kill(), ...twins]);
  }

  /** Another process of the same programs, by another URL. A refusal to connect is no fault. */
  async startTwin(url: string): Promise<void> {
    const client = `${this.client}-twin`;
    const twin = await this.#open({ client, url }).catch(() => null);
    if (twin === null) return;
    this.#twins.set(url, twin);
    for (const program of this.#options.programs) {
      const lane = `${program.lane}-twin${++this.#twinLanes}`;
      twin.program({ ...program, lane, untilMs: this.#untilMs ?? 0 }).catch(() => {});
    }
  }

  async endTwin(url: string): Promise<void> {
    const twin = this.#twins.get(url);
    this.#twins.delete(url);
    await twin?.kill();
  }

  /** Resolves when its programs are done; false if they are not within the time. */
  async finished(withinMs: number): Promise<boolean> {
    await this.#starting;
    return inTime(Promise.all(this.#programs), withinMs);
  }

  /** Aborts what waits. */
  async finish(): Promise<void> {
    if (this.isRunning) await this.#worker!.finish().catch(() => {});
  }

  /** Closes its locks and ends the process; false if that is not done within the time. */
  async close(withinMs: number): Promise<boolean> {
    if (!this.isRunning) return true;
    const worker = this.#worker!;
    const isDone = await inTime(
      worker.close().catch(() => {}),
      withinMs,
    );
    if (!isDone) await worker.kill();
    this.#note(worker);
    return isDone;
  }

  async #start(): Promise<void> {
    const { client, way } = this.#options;
    this.#processes++;
    const givesUpMs = this.#untilMs ?? machineMs() + FIRST_START_MS;
    while (machineMs() < givesUpMs) {
      const worker = await this.#open({ client, url: way.url }).catch((error: Error) => error);
      if (worker instanceof Worker) {
        this.#isKilled = false;
        this.#worker = worker;
        if (this.#untilMs !== null) this.#perform(worker, this.#untilMs);
        return;
      }
      if (!isStoreDown(worker)) {
        this.faults.push(worker.message);
        return;
      }
      await sleep(START_AGAIN_MS);
    }
  }

  #open(as: { readonly client: string; readonly url: string }): Promise<Worker> {
    const { way, timeLine, locks, connections, resourceFile, mutant, module } = this.#options;
    return Worker.start({
      ...as,
      locks,
      connections,
      timeLine,
      resourceFile,
      reportsStalls: true,
      ...(way.site === undefined ? {} : { site: way.site }),
      ...(mutant === undefined ? {} : { mutant }),
      ...(module === undefined ? {} : { module }),
    });
  }

  #perform(worker: Worker, untilMs: number): void {
    const number = this.#processes;
    for (const program of this.#options.programs) {
      // Ops of another process are others.
      const lane = number === 1 ? program.lane : `${program.lane}'${number}`;
      const performing = worker.program({ ...program, lane, untilMs }).catch((error: Error) => {
        if (!this.#isKilled) this.faults.push(error.message);
        this.#note(worker);
        return 0;
      });
      this.#programs.add(performing);
    }
  }

  /** A library prints nothing. */
  #note({ printed, client }: Worker): void {
    if (printed.length === 0) return;
    this.faults.push(`${client} printed: ${printed.splice(0).join("\n").slice(0, 2_000)}`);
  }
}

async function inTime(done: Promise<unknown>, withinMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), withinMs);
  });
  const isDone = await Promise.race([done.then(() => true), late]);
  clearTimeout(timer);
  return isDone;
}

/** Or refuses, as a file with two names does. */
const isStoreDown = ({ message }: Error): boolean =>
  /StoreUnavailableError|UnsupportedError/.test(message);
