import { setTimeout as sleep } from "node:timers/promises";
import type { LocksOptions } from "../../core/options.js";
import type { MutantName } from "../../testing/mutants.js";
import { LOOPBACK, type Site } from "../lab/server.js";
import type { Connections, Program } from "../traffic/protocol.js";
import type { RegisterPlace } from "../traffic/registers/register.js";
import { machineMs, type TimeLine } from "../traffic/time-line.js";
import { Worker, WorkerError } from "../traffic/worker.js";
import type { Way } from "./way.js";

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
  readonly register?: RegisterPlace | undefined;
  readonly mutant?: MutantName | undefined;
  readonly module?: string | undefined;
}

/** A worker of a run. When its process is killed, another process takes its place. */
export class Member {
  readonly client: string;
  readonly way: Way;
  readonly #options: MemberOptions;
  readonly #programs = new Set<Promise<number>>();
  #worker: Worker | null = null;
  #starting: Promise<void> = Promise.resolve();
  #isStarting = false;
  #processes = 0;
  /** Extra processes: each of several faults may start one. */
  readonly #twins = new Set<Worker>();
  #startedTwins = 0;
  #isKilled = false;
  /** The end of its programs; null before they begin. */
  #untilMs: number | null = null;
  /** Misbehaviour of its processes: crashes, calls of `close()` that reject, and printed text. */
  readonly faults: string[] = [];
  /** The rejection of its close() if the store did not reply. */
  outage: string | null = null;

  constructor(options: MemberOptions) {
    this.client = options.client;
    this.way = options.way;
    this.#options = options;
  }

  get worker(): Worker {
    return this.#worker!;
  }

  /**
   * Starts a process, and its programs if they have begun; while the store is down, tries again
   * after a pause. Two faults that killed the process both restart it: one process takes its place,
   * not two.
   */
  start(): Promise<void> {
    if (this.isRunning || this.#isStarting) return this.#starting;
    this.#isStarting = true;
    this.#starting = this.#start().finally(() => {
      this.#isStarting = false;
    });
    return this.#starting;
  }

  /** Begins the programs. They run until `untilMs`, in this process and in those that replace it. */
  begin(untilMs: number): void {
    this.#untilMs = untilMs;
    if (this.isRunning) this.#perform(this.#worker!, untilMs);
  }

  get isRunning(): boolean {
    return this.#worker !== null && this.#worker.ended === null;
  }

  async kill(): Promise<void> {
    this.#isKilled = true;
    const twins = [...this.#twins];
    this.#twins.clear();
    await Promise.all([this.#worker, ...twins].map((one) => one?.kill()));
  }

  /**
   * Starts another process with the same programs, by another URL or as another user; the returned
   * function ends it. A store that refuses to be opened is not an error of the process.
   */
  async startTwin({
    url,
    ...as
  }: {
    readonly url: string;
    readonly uid?: number;
    readonly gid?: number;
  }): Promise<() => Promise<void>> {
    const number = ++this.#startedTwins;
    const site = as.uid === undefined ? this.way.site : siteOfUser(as, this.way.site);
    const client = `${this.client}-twin${number}`;
    const twin = await this.#open({ client, url, site, hasResource: as.uid === undefined }).catch(
      (error: Error) => error,
    );
    if (!(twin instanceof Worker)) {
      if (!isStoreDown(twin)) this.faults.push(twin.message);
      return async () => {};
    }
    this.#twins.add(twin);
    for (const program of this.#options.programs) {
      const lane = `${program.lane}-twin${number}`;
      twin.program({ ...program, lane, untilMs: this.#untilMs ?? 0 }).catch((error: Error) => {
        if (this.#twins.has(twin)) this.faults.push(error.message);
      });
    }
    return async () => {
      this.#twins.delete(twin);
      await twin.kill();
      this.#note(twin);
    };
  }

  /** Resolves to true when its programs are done, or to false after `withinMs`. */
  async finished(withinMs: number): Promise<boolean> {
    await this.#starting;
    return inTime(Promise.all(this.#programs), withinMs);
  }

  /** Aborts pending acquires. */
  async finish(): Promise<void> {
    if (this.isRunning) await this.#worker!.finish().catch(() => {});
  }

  /** Closes its locks and ends the process; false if that takes longer than `withinMs`. */
  async close(withinMs: number): Promise<boolean> {
    if (!this.isRunning) return true;
    const worker = this.#worker!;
    let failure: Error | null = null;
    const closing = worker.close().catch((error: Error) => {
      failure = error;
    });
    const isDone = await inTime(closing, withinMs);
    // A worker that is late is reported as such; its request fails because it is killed.
    if (isDone && failure !== null) this.#noteClose(failure);
    if (!isDone || failure !== null) await worker.kill();
    this.#note(worker);
    return isDone;
  }

  async #start(): Promise<void> {
    const { client, way } = this.#options;
    this.#processes++;
    const givesUpMs = this.#untilMs ?? machineMs() + FIRST_START_MS;
    while (machineMs() < givesUpMs) {
      const worker = await this.#open({ client, url: way.url, site: way.site }).catch(
        (error: Error) => error,
      );
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

  /** `hasResource`: false for another user, who can't open the file of the resources. */
  #open({
    site,
    hasResource = true,
    ...as
  }: {
    readonly client: string;
    readonly url: string;
    readonly site: Site | undefined;
    readonly hasResource?: boolean;
  }): Promise<Worker> {
    const { timeLine, locks, connections, resourceFile, register, mutant, module } = this.#options;
    return Worker.start({
      ...as,
      locks,
      connections,
      timeLine,
      reportsStalls: true,
      ...(hasResource ? { resourceFile } : {}),
      ...(hasResource && register !== undefined ? { register } : {}),
      ...(site === undefined ? {} : { site }),
      ...(mutant === undefined ? {} : { mutant }),
      ...(module === undefined ? {} : { module }),
    });
  }

  #perform(worker: Worker, untilMs: number): void {
    const number = this.#processes;
    for (const program of this.#options.programs) {
      // The ops of a later process need ids of their own.
      const lane = number === 1 ? program.lane : `${program.lane}'${number}`;
      const performing = worker.program({ ...program, lane, untilMs }).catch((error: Error) => {
        if (!this.#isKilled) this.faults.push(error.message);
        this.#note(worker);
        return 0;
      });
      this.#programs.add(performing);
    }
  }

  #noteClose(failure: Error): void {
    const about = `close(): ${failure.message}`;
    if (failure instanceof WorkerError && failure.code === "STORE_UNAVAILABLE") this.outage = about;
    else this.faults.push(about);
  }

  /** Printed text is an error: a library prints nothing. */
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

/** Whether the store is down, or refuses to be opened, as for a file with two names. */
const isStoreDown = ({ message }: Error): boolean =>
  /StoreUnavailableError|UnsupportedError/.test(message);

/** The same site as another user, who needs no entry in passwd. */
function siteOfUser(
  { uid, gid = uid }: { readonly uid?: number; readonly gid?: number },
  site: Site = LOOPBACK,
): Site {
  const as = ["setpriv", `--reuid=${uid}`, `--regid=${uid}`, `--groups=${gid}`];
  return { ...site, command: (argv) => site.command([...as, ...argv]) };
}
