import { type Runtime, standardSeams } from "../../core/runtime.js";
import type { Store } from "../../core/store.js";
import { delegate } from "../../testing/delegate.js";
import type { Mutant } from "../../testing/mutants.js";
import { checkHistory, type Limits, type Verdict } from "../check/check.js";
import type { Event, History } from "../check/history.js";
import type { EventWithoutTime } from "../traffic/time-line.js";
import { Client, nameOf } from "./client.js";
import { OPENING_MS, opensLate } from "./late-opening.js";
import { MemorySite } from "./memory-site.js";
import { LATE_MS } from "./message-path.js";
import { opOf, plainName } from "./observe.js";
import { type Pause, SimulatedProcess } from "./process.js";
import type { QuorumMutant } from "./quorum/mutant.js";
import { QuorumSite } from "./quorum/site.js";
import { Resource } from "./resource.js";
import type { MessageFault, Schedule, StoreTrouble, Trouble } from "./schedule.js";
import { clientName, type Site } from "./site.js";
import { World } from "./world.js";

/** A simulated run: its schedule and its result. */
export interface Outcome {
  /** The plan of the run. */
  readonly schedule: Schedule;
  /** The observed events. */
  readonly history: History;
  /** The verdict of each rule. */
  readonly verdicts: readonly Verdict[];
}

/** A request and its reply may both be late. */
const SLACK_MS = 2 * LATE_MS + 1_000;
const LOOKS_EVERY_MS = 1_000;
const DOUBT_MS = 5_000;
/** The longest interval between two readings of the clock by a client with a lease. */
const LOOKS_AT_CLOCK_MS = 250;
const LONGEST_STOP_MS = 6_000;
const ENDS_WITHIN_MS = 120_000;
/** Shorter than any ttl: if the reply to a ticket is lost, the claim is repeated before the ticket expires. */
const STORE_TIMEOUT_MS = 200;
/** Long enough for the timeouts of a quorum's nodes, one after another. */
const QUORUM_TIMEOUT_MS = 1_000;

/** A mistake in the core, the store, a fence or the nodes of a quorum. */
export interface SimulatedMutant extends Mutant {
  /** Breaks a rule of the quorum. */
  readonly quorum?: QuorumMutant;
}

/** Runs the real core on several simulated processes over one store. */
export async function simulate(schedule: Schedule, mutant: SimulatedMutant = {}): Promise<Outcome> {
  const simulation = new Simulation(schedule, mutant);
  const history = await simulation.run();
  const fair = schedule.place !== "ticketless" && schedule.place !== "quorum";
  const { excuses } = simulation.site;
  const ofHistory = checkHistory(history, { ...LIMITS, fair }, { excuses });
  const verdicts = [...ofHistory, ...simulation.site.verdicts()];
  return { schedule, history, verdicts };
}

/** Simulated time is exact. After a suspension, the agenda reads the clock within 250 ms. */
const LIMITS: Partial<Limits> = {
  lossMs: 5,
  wakeMs: 260,
  // Tolerates rounding errors.
  recordMs: 0.001,
  orphanMs: SLACK_MS,
  cleanMs: 50,
  repayMs: 1_000,
  endMs: 500,
  complete: true,
};

class Simulation {
  readonly #schedule: Schedule;
  readonly #world: World;
  readonly #site: Site;
  readonly #clients: readonly Client[];
  readonly #history: Event[] = [];
  /** A rejection that must never happen. */
  #wrong: { readonly error: unknown } | null = null;

  constructor(schedule: Schedule, mutant: SimulatedMutant) {
    this.#schedule = schedule;
    this.#world = new World(schedule.seed);
    const record = (event: Event): void => {
      this.#history.push(event);
    };
    const resources = Array.from(
      { length: schedule.names },
      (_, name) => new Resource(this.#world, nameOf(name), record, mutant.fence),
    );
    const processes = this.#processes();
    const around = {
      world: this.#world,
      schedule,
      processes,
      isActive: this.#isActive.bind(this),
      stop: this.#stop.bind(this),
      record,
      window: this.#window.bind(this),
    };
    this.#site =
      schedule.nodes === undefined
        ? new MemorySite(around, mutant)
        : new QuorumSite(around, schedule.nodes, mutant.quorum);
    const broken = mutant.store?.();
    this.#clients = processes.map((process, number) => {
      const name = clientName(number);
      const reached = this.#refusedAfterClose(number, this.#site.storeFor(number));
      const store = this.#opened(number, process, reached);
      const runtime: Runtime = {
        clock: process.clock,
        random: this.#world.chance(`${name} of ${schedule.seed}`),
        seams: standardSeams,
      };
      return new Client(process, {
        name,
        runtime: mutant.runtime?.(runtime) ?? runtime,
        store: this.#site.observe(number, broken?.(store, process.clock) ?? store),
        abortBefore: schedule.abortBefore,
        commandTimeoutMs: schedule.nodes === undefined ? STORE_TIMEOUT_MS : QUORUM_TIMEOUT_MS,
        resources,
        permitsOf: (name) => this.#permitsOf(name),
        record,
        isShared: () => this.#clientsOn(process).some((one) => !one.isClosed),
        wrong: (error) => {
          this.#wrong ??= { error };
        },
      });
    });
  }

  get site(): Site {
    return this.#site;
  }

  async run(): Promise<History> {
    for (const [i, task] of this.#schedule.tasks.entries()) {
      const client = this.#clients[task.client]!;
      this.#world.at(task.atMs, () => client.process.deliver(() => client.start(task, `op-${i}`)));
    }
    for (const trouble of this.#schedule.troubles) this.#plan(trouble);
    const last = Math.max(
      0,
      ...this.#schedule.tasks.map(({ atMs }) => atMs),
      ...this.#schedule.troubles.map((one) => ("toMs" in one ? one.toMs : one.fromMs)),
    );
    this.#lookEvery(LOOKS_EVERY_MS);
    await this.#world.run(last + 1);
    await this.#world.run(last + ENDS_WITHIN_MS, () => this.#clients.every((one) => one.isIdle));
    for (const client of this.#clients) client.close();
    await this.#world.run(this.#world.nowMs + ENDS_WITHIN_MS, () =>
      this.#clients.every((one) => one.isClosed),
    );
    // Messages that are still under way arrive, and their claims expire.
    await this.#world.run(this.#world.nowMs + SLACK_MS + 5_000);
    this.#look();
    if (this.#wrong !== null) throw this.#wrong.error;
    return this.#history.sort((a, b) => a.atMs - b.atMs);
  }

  /** The process of each client. */
  #processes(): readonly SimulatedProcess[] {
    const { place, rates } = this.#schedule;
    const processes = rates
      .slice(0, place === "process" ? 1 : rates.length)
      .map((rate, number) => new SimulatedProcess(this.#world, clientName(number), rate));
    return rates.map((_, number) => processes[number] ?? processes[0]!);
  }

  /** Reports a claim after the end of `close()`, which would leave a grant for nobody. */
  #refusedAfterClose(client: number, store: Store): Store {
    return {
      ...delegate(store),
      claim: (claim, push) => {
        const { isClosed, name, process } = this.#clients[client]!;
        if (isClosed && !process.isDead) {
          this.#wrong ??= { error: new Error(`${name} sent a claim after it had closed`) };
        }
        return store.claim(claim, push);
      },
    };
  }

  /** Wraps the store so that the first request opens it, if the schedule says that it opens late. */
  #opened(client: number, process: SimulatedProcess, store: Store): Store {
    const late = this.#schedule.troubles.filter(
      (one) => one.kind === "store opens late" && one.client === client,
    );
    if (late.length === 0) return store;
    const thereAtMs = (): number => {
      const { nowMs } = this.#world;
      return late.reduce(
        (atMs, one) => ("toMs" in one && one.fromMs <= nowMs ? Math.max(atMs, one.toMs) : atMs),
        nowMs,
      );
    };
    return opensLate(this.#world, process, clientName(client), store, thereAtMs);
  }

  #clientsOn(process: SimulatedProcess): readonly Client[] {
    return this.#clients.filter((one) => one.process === process);
  }

  #plan(trouble: Trouble): void {
    const { kind, fromMs } = trouble;
    const at = (atMs: number, run: () => void): void => this.#world.at(atMs, run);
    if (isOfStore(trouble)) {
      this.#site.plan(trouble);
      return;
    }
    const { process } = this.#clients[trouble.client]!;
    switch (kind) {
      case "killed":
        at(fromMs, () => this.#kill(process));
        return;
      case "closed":
        at(fromMs, () =>
          process.deliver(() => this.#clients[trouble.client]!.close(trouble.graceMs)),
        );
        return;
      case "forces a release":
        at(fromMs, () =>
          process.deliver(() => this.#clients[trouble.client]!.forceRelease(trouble.name)),
        );
        return;
      case "resizes a semaphore":
        at(fromMs, () =>
          process.deliver(() => this.#clients[trouble.client]!.resize(trouble.name, trouble.limit)),
        );
        return;
      case "wall clock jumps":
        if (trouble.byMs < 0 && this.#isFrozenAround(trouble.client, fromMs)) return;
        at(fromMs, () => process.jumpWall(trouble.byMs));
        // A client may doubt its lease until the next renewal.
        this.#window(`${process.name}: ${kind}`, { fromMs, toMs: fromMs + DOUBT_MS });
        return;
      case "machine frozen":
        // The client may doubt its lease, as after a jump of the wall clock.
        this.#window(`${process.name}: ${kind}`, { fromMs, toMs: trouble.toMs + DOUBT_MS });
        at(fromMs, () => this.#pause(process, trouble));
        return;
      case "paused":
      case "machine suspended":
        at(fromMs, () => this.#pause(process, trouble));
        return;
      case "subscription is down":
        this.#window(`${process.name}: ${kind}`, trouble);
        at(trouble.toMs, () => this.#site.resubscribe(trouble.client));
        return;
      case "messages are late":
      case "pushes are late":
        // The fault ends when the last late message has arrived.
        this.#window(`${process.name}: ${kind}`, { ...trouble, toMs: trouble.toMs + LATE_MS });
        return;
      case "store opens late":
        this.#window(`${this.#clients[trouble.client]!.name}: ${kind}`, {
          fromMs,
          toMs: trouble.toMs + OPENING_MS,
        });
        return;
      case "stops between statements":
        // Each stop is recorded as a pause.
        return;
      default:
        this.#window(`${process.name}: ${kind}`, trouble);
    }
  }

  /**
   * Only the wall clock reveals a freeze, because it is right afterwards. If it were set back
   * before a client reads it again, nothing would reveal the freeze, so nothing is promised then.
   */
  #isFrozenAround(client: number, atMs: number): boolean {
    return this.#schedule.troubles.some(
      (one) =>
        one.kind === "machine frozen" &&
        one.client === client &&
        atMs > one.fromMs - LOOKS_AT_CLOCK_MS &&
        atMs < one.toMs + LOOKS_AT_CLOCK_MS,
    );
  }

  #pause(process: SimulatedProcess, { kind, toMs }: { kind: Pause; toMs: number }): void {
    if (process.isDead || process.isPaused) return;
    process.pause(kind);
    const frozen = kind === "machine frozen" ? { frozen: true } : {};
    for (const { name } of this.#clientsOn(process)) {
      this.#record({ kind: "paused", client: name, ...frozen });
    }
    this.#world.at(toMs, () => {
      if (process.isDead) return;
      for (const { name } of this.#clientsOn(process)) {
        this.#record({ kind: "resumed", client: name });
      }
      process.resume();
    });
  }

  #kill(process: SimulatedProcess): void {
    // The process has already carried out the rest of a turn in which it stopped, so it dies after
    // that turn.
    if (process.nowMs > this.#world.nowMs) {
      this.#world.at(process.nowMs, () => this.#kill(process));
    } else if (!process.isDead) {
      process.kill();
      for (const { name } of this.#clientsOn(process)) {
        this.#record({ kind: "killed", client: name });
      }
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

  #window(what: string, span: { fromMs: number; toMs: number; sparesStore?: boolean }): void {
    const { fromMs, toMs, sparesStore = true } = span;
    // Two faults of a kind may overlap, and each is healed by its own name.
    const fault = `${what} (${fromMs}–${toMs} ms)`;
    this.#world.at(fromMs, () => this.#record({ kind: "injected", fault, sparesStore }));
    this.#world.at(toMs, () => this.#record({ kind: "healed", fault }));
  }

  #permitsOf(name: number): number {
    const resized = this.#schedule.troubles.findLast(
      (one) =>
        one.kind === "resizes a semaphore" && one.name === name && one.fromMs <= this.#world.nowMs,
    );
    return resized !== undefined && "limit" in resized
      ? resized.limit
      : this.#schedule.semaphores[name]!;
  }

  #isActive(fault: MessageFault, client: number, node?: number): boolean {
    const { nowMs } = this.#world;
    return this.#schedule.troubles.some(
      (one) =>
        one.kind === fault &&
        one.client === client &&
        one.fromMs <= nowMs &&
        nowMs < one.toMs &&
        (!("node" in one) || one.node === node),
    );
  }

  #lookEvery(ms: number): void {
    this.#look();
    this.#world.at(this.#world.nowMs + ms, () => this.#lookEvery(ms));
  }

  /** Records the content of the store. */
  #look(): void {
    for (const info of this.#site.list()) {
      const name = plainName(info.name);
      const closed = info.holders.filter((one) => one.closed);
      this.#record({
        kind: "seen",
        sinceMs: this.#world.nowMs,
        name,
        holders: info.holders
          .filter((one) => !one.closed)
          .map(({ holder, token }) => ({ op: opOf(holder, name), token })),
        waiters: info.waiters.map(({ holder }) => opOf(holder, name)),
        ...(closed.length === 0 ? {} : { closed: closed.map(({ holder }) => opOf(holder, name)) }),
      });
    }
  }

  #record(event: EventWithoutTime): void {
    this.#history.push({ atMs: this.#world.nowMs, ...event } as Event);
  }
}

const isOfStore = (trouble: Trouble): trouble is StoreTrouble =>
  "node" in trouble || !("client" in trouble);
