import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { openSqlite, type SqliteDatabase } from "../../stores/sqlite/driver.js";
import { print, style } from "../output.js";
import { drawTimeline, Lane, LEGEND } from "./timeline.js";
import { Worker } from "./workers.js";

export interface Stage {
  /** Removed at the end. */
  readonly folder: string;
  readonly ttlMs: number;
  /** The words that start a process so that it dies with this one. */
  readonly launcher: readonly string[];
  /** Killed at the end, whatever happens. */
  readonly workers: Worker[];
}

export interface Outcome {
  readonly counter: number;
  /** The number of writes that succeeded, as the workers saw it. */
  readonly acknowledged: number;
  readonly tokensRise: boolean;
}

/** Time to read the last line. */
const BREATH_MS = 500;

/** A is paused between its read and its write, past its lease; B takes over; A wakes and writes. */
export async function playAct(stage: Stage, fenced: boolean): Promise<Outcome> {
  const act = new Act(stage, fenced);
  const db = await act.openCounter();
  const { a, token } = await act.aTakesTheLock();
  act.aIsStopped(a);
  const { b, token: next } = await act.bTakesOver();
  const acksB = await act.writes(b, act.laneB);
  await b.ended();
  await sleep(BREATH_MS);
  act.aIsWoken(a);
  const acksA = await act.writes(a, act.laneA);
  await a.ended();
  act.draw();
  const { value } = db.prepare("SELECT value FROM counter").get() as { value: number };
  db.close();
  return { counter: value, acknowledged: acksA + acksB, tokensRise: next > token };
}

class Act {
  readonly laneA = new Lane("A");
  readonly laneB = new Lane("B");
  readonly #stage: Stage;
  readonly #fenced: boolean;
  readonly #folder: string;
  readonly #startedAtMs = performance.now();

  constructor(stage: Stage, fenced: boolean) {
    this.#stage = stage;
    this.#fenced = fenced;
    this.#folder = join(stage.folder, fenced ? "fenced" : "bare");
    mkdirSync(this.#folder);
  }

  async openCounter(): Promise<SqliteDatabase> {
    const db = await openSqlite(this.#dataFile);
    db.exec("CREATE TABLE counter (value INTEGER NOT NULL); INSERT INTO counter VALUES (0)");
    return db;
  }

  async aTakesTheLock(): Promise<{ a: Worker; token: bigint }> {
    const a = this.#start("A");
    await a.report("asks");
    const { token } = await a.report("holds");
    this.laneA.becomes("holds", this.#nowMs);
    this.#say("A", `holds the lock with token ${token}; its lease is good for ${this.#lease}`);
    const { value } = await a.report("read");
    this.#say(
      "A",
      `${this.#entering}reads the counter: ${value}; it is about to write ${value + 1}`,
    );
    return { a, token: BigInt(token) };
  }

  aIsStopped(a: Worker): void {
    a.signal("SIGSTOP");
    this.laneA.becomes("paused", this.#nowMs);
    this.#say(" ", "A is stopped here (SIGSTOP), like a machine that freezes: it can't renew");
    // From here on, A writes as soon as it runs again.
    a.go();
  }

  async bTakesOver(): Promise<{ b: Worker; token: bigint }> {
    const b = this.#start("B");
    await b.report("asks");
    this.laneB.becomes("waits", this.#nowMs);
    this.#say("B", "requests the lock, and waits as long as the lease of A is good");
    const { token } = await b.report("holds");
    this.laneA.becomes("lost", this.#nowMs);
    this.laneB.becomes("holds", this.#nowMs);
    this.#say("B", `holds the lock with token ${token}, a higher one: the lease of A is over`);
    const { value } = await b.report("read");
    this.#say("B", `${this.#entering}reads the counter: ${value}`);
    await sleep(BREATH_MS);
    b.go();
    return { b, token: BigInt(token) };
  }

  aIsWoken(a: Worker): void {
    this.#say(" ", "A is woken (SIGCONT); for A no time has passed, so it goes on and writes");
    a.signal("SIGCONT");
  }

  /** Waits for the worker's write; 1 if it succeeded. */
  async writes(worker: Worker, lane: Lane): Promise<0 | 1> {
    const report = await worker.report("written", "refused");
    const accepted = report.kind === "written";
    lane.marks(accepted ? "accepted" : "refused", this.#nowMs);
    this.#say(
      worker.name,
      accepted
        ? `${style(process.stdout, "green", "accepted")}: the counter is now ${report.value}`
        : `${style(process.stdout, "red", "refused")}: its token is below ${report.highest}, which has entered since`,
    );
    const { state } = await worker.report("finds");
    if (state === "lost") this.#say(worker.name, "checks its lease now, and finds it lost");
    lane.becomes("none", this.#nowMs);
    return accepted ? 1 : 0;
  }

  draw(): void {
    print("");
    for (const line of drawTimeline([this.laneA, this.laneB], this.#nowMs)) print(line);
    print(style(process.stdout, "dim", `     ${LEGEND}`));
    print("");
  }

  get #nowMs(): number {
    return performance.now() - this.#startedAtMs;
  }

  get #dataFile(): string {
    return join(this.#folder, "data.db");
  }

  get #lease(): string {
    return `${this.#stage.ttlMs / 1_000} s, and renewed while A runs`;
  }

  get #entering(): string {
    return this.#fenced ? "enters the fence with its token, then " : "";
  }

  #start(name: string): Worker {
    const { ttlMs, launcher, folder, workers } = this.#stage;
    const locksFile = join(this.#folder, "locks.db");
    const task = { name, locksFile, dataFile: this.#dataFile, ttlMs, fenced: this.#fenced };
    const worker = new Worker(task, launcher, folder);
    workers.push(worker);
    return worker;
  }

  #say(who: string, text: string): void {
    const time = `${(this.#nowMs / 1_000).toFixed(1)}s`.padStart(6);
    print(`${style(process.stdout, "dim", time)}  ${style(process.stdout, "bold", who)}  ${text}`);
  }
}
