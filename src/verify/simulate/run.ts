import type { LeaseLostError } from "../../core/errors.js";
import type { Lease } from "../../core/lease.js";
import { createLocksOn, type Locks } from "../../core/locks.js";
import { honest, type Runtime } from "../../core/runtime.js";
import { LOCK_LIMIT, type NameInfo, type Store } from "../../core/store.js";
import { MemoryStore } from "../../stores/memory.js";
import type { Mutant } from "../../testing/mutants.js";
import { checkHistory, type Limits, type Verdict } from "../check/check.js";
import type { Event, History } from "../check/history.js";
import { outcomeOf } from "../traffic/outcome.js";
import type { EventWithoutTime } from "../traffic/time-line.js";
import { LATE_MS, Link } from "./link.js";
import { Observer, opOf } from "./observe.js";
import { SimulatedProcess } from "./process.js";
import { Resource } from "./resource.js";
import type { Schedule, Task, Trouble, Weather } from "./schedule.js";
import { World } from "./world.js";

export interface Outcome {
  readonly schedule: Schedule;
  readonly history: History;
  readonly verdicts: readonly Verdict[];
}

/** A request and its answer may both be late. */
const SLACK_MS = 2 * LATE_MS + 1_000;
const LOOKS_EVERY_MS = 1_000;
const DOUBT_MS = 5_000;
const LONGEST_STOP_MS = 6_000;
const ENDS_WITHIN_MS = 120_000;

/** One run of the real core, on several processes, over one store. */
export async function simulate(schedule: Schedule, mutant: Mutant = {}): Promise<Outcome> {
  const history = await new Simulation(schedule, mutant).run();
  return { schedule, history, verdicts: checkHistory(history, LIMITS) };
}

/** Simulated time is exact. After a suspended machine's sleep, the agenda looks within 250 ms. */
const LIMITS: Partial<Limits> = {
  lossMs: 5,
  wakeMs: 260,
  // What rounding leaves.
  recordMs: 0.001,
  orphanMs: SLACK_MS,
  cleanMs: 50,
  endMs: 500,
  complete: true,
};

interface Client {
  readonly process: SimulatedProcess;
  readonly locks: Locks;
  /** By name and token, as events name them. */
  readonly leases: Map<string, { readonly op: string; readonly lease: Lease }>;
  tasks: number;
  /** Acquires that have not ended. */
  waiting: number;
  closing: "no" | "yes" | "done";
}

class Simulation {
  readonly #schedule: Schedule;
  readonly #mutant: Mutant;
  readonly #world: World;
  readonly #store: Store;
  readonly #clients: readonly Client[];
  readonly #resources: readonly Resource[];
  readonly #history: Event[] = [];
  #storeWallAheadMs = Date.UTC(2030, 0, 1);
  /** Something rejected that never does. */
  #wrong: { readonly error: unknown } | null = null;

  constructor(schedule: Schedule, mutant: Mutant) {
    this.#schedule = schedule;
    this.#mutant = mutant;
    this.#world = new World(schedule.seed);
    const observer = new Observer(this.#world, (event) => this.#history.push(event));
    const clock = {
      nowMs: () => this.#world.nowMs,
      wallMs: () => this.#world.nowMs + this.#storeWallAheadMs,
    };
    this.#store = new MemoryStore(clock, mutant.rule);
    const atStore = observer.atStore(this.#store);
    const broken = mutant.store?.();
    this.#clients = schedule.rates.map((rate, number) => {
      const process = new SimulatedProcess(this.#world, `client-${number}`, rate);
      const link = new Link(this.#world, process, atStore, this.#networkOf(number));
      const store = observer.atClient(broken?.(link, process.clock) ?? link);
      return this.#open(process, store);
    });
    this.#resources = Array.from(
      { length: schedule.names },
      (_, name) =>
        new Resource(
          this.#world,
          `name-${name}`,
          (event) => this.#history.push(event),
          mutant.fence,
        ),
    );
  }

  async run(): Promise<History> {
    for (const [i, task] of this.#schedule.tasks.entries()) {
      const client = this.#clients[task.client]!;
      this.#world.at(task.atMs, () =>
        client.process.deliver(() => {
          client.tasks++;
          this.#perform(client, task, `op-${i}`).then(
            () => client.tasks--,
            (error) => {
              this.#wrong ??= { error };
            },
          );
        }),
      );
    }
    for (const trouble of this.#schedule.troubles) this.#plan(trouble);
    const last = Math.max(
      0,
      ...this.#schedule.tasks.map(({ atMs }) => atMs),
      ...this.#schedule.troubles.map((one) => ("toMs" in one ? one.toMs : one.fromMs)),
    );
    this.#lookEvery(LOOKS_EVERY_MS);
    await this.#world.run(last + 1);
    await this.#world.run(last + ENDS_WITHIN_MS, () => this.#idle());
    for (const client of this.#clients) if (!client.process.isDead) this.#close(client);
    await this.#world.run(this.#world.nowMs + ENDS_WITHIN_MS, () =>
      this.#clients.every(({ process, closing }) => process.isDead || closing === "done"),
    );
    // Whatever was on its way arrives, and runs out.
    await this.#world.run(this.#world.nowMs + SLACK_MS + 5_000);
    this.#look();
    if (this.#wrong !== null) throw this.#wrong.error;
    return this.#history.sort((a, b) => a.atMs - b.atMs);
  }

  /** One acquire from the ask to the end of its lease. */
  async #perform(client: Client, task: Task, op: string): Promise<void> {
    const { process, locks } = client;
    const record = (event: EventWithoutTime): void => this.#record(event, process);
    const name = `name-${task.name}`;
    const aborter = this.#aborter(process, op, task.abortAfterMs);
    record({
      kind: "asked",
      op,
      client: process.name,
      name,
      permits: task.shared ? 1 : LOCK_LIMIT,
      limit: LOCK_LIMIT,
      ttlMs: task.ttlMs,
      longestTtlMs: Math.max(task.ttlMs, task.renewToMs ?? 0),
      ...(task.maxHoldMs === undefined ? {} : { maxHoldMs: task.maxHoldMs }),
      waitMs: task.waitMs,
    });
    let lease: Lease;
    client.waiting++;
    try {
      lease = await locks.acquire(name, {
        note: op,
        mode: task.shared ? "shared" : "exclusive",
        ttl: task.ttlMs,
        wait: task.waitMs,
        signal: aborter.signal,
        ...(task.maxHoldMs === undefined ? {} : { maxHold: task.maxHoldMs }),
      });
    } catch (error) {
      record({ kind: "not-granted", op, outcome: outcomeOf(error) });
      return;
    } finally {
      client.waiting--;
      aborter.cancel();
    }
    const { token, floor } = lease;
    client.leases.set(`${name} ${token}`, { op, lease });
    const untilMs = process.worldMs(lease.remainingMs);
    record({ kind: "granted", op, token, floor, untilMs });
    this.#tellLoss(op, lease, record);
    await this.#use(client, task, op, lease);
    record({ kind: "releasing", op });
    const result = await lease.release();
    record({ kind: "released", op, result });
  }

  /** Reads and writes behind the fence as the protocol has it, and does not ask whether it still holds. */
  async #use({ process }: Client, task: Task, op: string, lease: Lease): Promise<void> {
    const resource = this.#resources[task.name]!;
    await resource.enter(process, op, lease);
    const read = task.shared ? 0 : await resource.read(process);
    await process.sleep(task.holdMs / 2);
    this.#ask(process, op, lease);
    if (task.renewToMs !== undefined) await this.#renew(process, op, lease, task.renewToMs);
    await process.sleep(task.holdMs / 2);
    this.#ask(process, op, lease);
    if (task.shared) await resource.enter(process, op, lease);
    else await resource.write(process, op, lease, read, read + 1);
  }

  /** By the signal or by the event: both are promised. */
  #tellLoss(op: string, lease: Lease, record: (event: EventWithoutTime) => void): void {
    const lost = ({ reason }: LeaseLostError): void => record({ kind: "lost", op, reason });
    const { signal } = lease;
    if (op.length % 2 === 0) lease.on("lost", lost);
    else signal.addEventListener("abort", () => lost(signal.reason as LeaseLostError));
  }

  async #renew(process: SimulatedProcess, op: string, lease: Lease, ttlMs: number): Promise<void> {
    const renewing = lease.renew(ttlMs).catch(() => {});
    // A shorter one counts from the call.
    if (lease.remainingMs > 0) {
      const untilMs = process.worldMs(lease.remainingMs);
      this.#record({ kind: "renewed", op, untilMs }, process);
    }
    await renewing;
  }

  #ask(process: SimulatedProcess, op: string, lease: Lease): void {
    const { nowMs } = process;
    let held = true;
    try {
      lease.assertHeld();
    } catch {
      held = false;
    }
    this.#record({ kind: "looked", op, held }, { nowMs });
  }

  #aborter(process: SimulatedProcess, op: string, afterMs = Number.POSITIVE_INFINITY) {
    const controller = new AbortController();
    const timer = process.later(afterMs, () => {
      this.#record({ kind: "aborting", op }, process);
      controller.abort(new Error("the caller's own abort"));
    });
    return { signal: controller.signal, cancel: () => timer.cancel() };
  }

  #plan(trouble: Trouble): void {
    const { kind, fromMs } = trouble;
    const at = (atMs: number, run: () => void): void => this.#world.at(atMs, run);
    if (kind === "store's wall clock jumps") {
      at(fromMs, () => {
        this.#storeWallAheadMs += trouble.byMs;
      });
      return;
    }
    if (kind === "store hangs") {
      this.#window("the store hangs", trouble);
      return;
    }
    const { process } = this.#clients[trouble.client]!;
    switch (kind) {
      case "killed":
        at(fromMs, () => this.#kill(process));
        return;
      case "closed":
        at(fromMs, () => process.deliver(() => this.#close(this.#clients[trouble.client]!)));
        return;
      case "wall clock jumps":
        at(fromMs, () => process.jumpWall(trouble.byMs));
        // A lease may be doubted until its next renewal.
        this.#window(`${process.name}: ${kind}`, { fromMs, toMs: fromMs + DOUBT_MS });
        return;
      case "paused":
      case "machine suspended":
        at(fromMs, () => {
          if (process.isDead || process.isPaused) return;
          process.pause(kind === "machine suspended");
          this.#record({ kind: "paused", client: process.name });
          at(trouble.toMs, () => {
            if (process.isDead) return;
            this.#record({ kind: "resumed", client: process.name });
            process.resume();
          });
        });
        return;
      case "messages are late":
        // It is over when the last of them has arrived.
        this.#window(`${process.name}: ${kind}`, { ...trouble, toMs: trouble.toMs + LATE_MS });
        return;
      case "stops between statements":
        // Told as pauses, one by one.
        return;
      default:
        this.#window(`${process.name}: ${kind}`, trouble);
    }
  }

  #kill(process: SimulatedProcess): void {
    // What is left of a turn in which it was stopped has been done already: it dies after that.
    if (process.nowMs > this.#world.nowMs) {
      this.#world.at(process.nowMs, () => this.#kill(process));
    } else if (!process.isDead) {
      process.kill();
      this.#record({ kind: "killed", client: process.name });
    }
  }

  #stop(number: number): void {
    const { process } = this.#clients[number]!;
    if (process.isPaused) return;
    const { unit } = this.#world.chance(`${process.name} stops at ${this.#world.nowMs}`);
    this.#record({ kind: "paused", client: process.name });
    process.stall(unit() ** 2 * LONGEST_STOP_MS);
    const resumedAtMs = process.nowMs;
    this.#world.at(resumedAtMs, () => {
      if (!process.isDead) this.#record({ kind: "resumed", client: process.name });
    });
  }

  #window(what: string, { fromMs, toMs }: { fromMs: number; toMs: number }): void {
    // Two of a kind may overlap, and each is healed by its own name.
    const fault = `${what} (${fromMs}–${toMs} ms)`;
    this.#world.at(fromMs, () => this.#record({ kind: "injected", fault, sparesStore: true }));
    this.#world.at(toMs, () => this.#record({ kind: "healed", fault }));
  }

  #networkOf(client: number) {
    const now = (one: Trouble): boolean =>
      "toMs" in one && this.#world.nowMs >= one.fromMs && this.#world.nowMs < one.toMs;
    return {
      isSo: (weather: Weather): boolean =>
        this.#schedule.troubles.some(
          (one) => one.kind === weather && one.client === client && now(one),
        ),
      stop: (): void => this.#stop(client),
      storeAnswersAtMs: (): number =>
        this.#schedule.troubles.reduce(
          (latest, one) =>
            one.kind === "store hangs" && now(one) ? Math.max(latest, one.toMs) : latest,
          this.#world.nowMs,
        ),
    };
  }

  #open(process: SimulatedProcess, store: Store): Client {
    const { seed, abortBefore } = this.#schedule;
    const runtime: Runtime = {
      clock: process.clock,
      random: this.#world.chance(`${process.name} of ${seed}`),
      seams: honest,
    };
    const client: Client = {
      process,
      leases: new Map(),
      tasks: 0,
      waiting: 0,
      closing: "no",
      locks: createLocksOn(this.#mutant.runtime?.(runtime) ?? runtime, store, {
        holder: process.name,
        // Shorter than any ttl: a ticket whose answer was lost is asked for again before it runs out.
        commandTimeout: 200,
        ...(abortBefore ? {} : { abortBefore: 0 }),
        logger: {
          debug: (message, fields) => {
            if (message === "holdfast:renewed") this.#renewed(client, fields as Renewed);
          },
          info: () => {},
          warn: () => {},
        },
      }),
    };
    return client;
  }

  #renewed({ process, leases }: Client, { name, token }: Renewed): void {
    const held = leases.get(`${name} ${token}`);
    if (held === undefined) return;
    const untilMs = process.worldMs(held.lease.remainingMs);
    this.#record({ kind: "renewed", op: held.op, untilMs }, process);
  }

  #idle(): boolean {
    return this.#clients.every(({ process, tasks }) => process.isDead || tasks === 0);
  }

  #close(client: Client): void {
    const { process, locks, leases } = client;
    if (client.closing !== "no") return;
    client.closing = "yes";
    // It gives back what it holds; a program that comes to its own release later finds it done.
    for (const { op } of leases.values()) this.#record({ kind: "releasing", op }, process);
    const closed = (): void => {
      client.closing = "done";
      const left = { waiters: client.waiting, timers: process.timers, sockets: 0 };
      this.#record({ kind: "left", client: process.name, ...left }, process);
    };
    locks.close().then(closed, (error) => {
      this.#wrong ??= { error };
    });
  }

  #lookEvery(ms: number): void {
    this.#look();
    this.#world.at(this.#world.nowMs + ms, () => this.#lookEvery(ms));
  }

  /** What the store itself shows. */
  #look(): void {
    for (const { name, holders, waiters } of this.#store.list("", 100) as readonly NameInfo[]) {
      this.#record({
        kind: "seen",
        sinceMs: this.#world.nowMs,
        name: name.slice(name.indexOf(":") + 1),
        holders: holders.map(({ holder, token }) => ({ op: opOf(holder), token })),
        waiters: waiters.map(({ holder }) => opOf(holder)),
      });
    }
  }

  /** At the present; that of a client that was stopped in mid-turn is later than the world's. */
  #record(event: EventWithoutTime, { nowMs }: { readonly nowMs: number } = this.#world): void {
    this.#history.push({ atMs: nowMs, ...event } as Event);
  }
}

/** As a logger gets it. */
interface Renewed {
  readonly name: string;
  readonly token: string;
}
