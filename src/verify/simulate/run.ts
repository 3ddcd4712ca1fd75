import { type Runtime, standardSeams } from "../../core/runtime.js";
import type { Store } from "../../core/store.js";
import { MemoryStore } from "../../stores/memory/index.js";
import { Rule } from "../../stores/rule.js";
import { delegate } from "../../testing/delegate.js";
import type { Mutant } from "../../testing/mutants.js";
import { checkHistory, type Limits, type Verdict } from "../check/check.js";
import type { Event, History } from "../check/history.js";
import type { EventWithoutTime } from "../traffic/time-line.js";
import { malformedBatches } from "./batches.js";
import { Client, nameOf } from "./client.js";
import { OPENING_MS, opensLate } from "./late-opening.js";
import { LATE_MS, Link } from "./link.js";
import { Observer, opOf, plainName } from "./observe.js";
import { polledStore } from "./polled-store.js";
import { type Pause, SimulatedProcess } from "./process.js";
import { Resource } from "./resource.js";
import type { MessageFault, Schedule, Trouble } from "./schedule.js";
import { skippingRule } from "./skipping-rule.js";
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

/** Runs the real core on several simulated processes over one store. */
export async function simulate(schedule: Schedule, mutant: Mutant = {}): Promise<Outcome> {
  const history = await new Simulation(schedule, mutant).run();
  const fair = schedule.place !== "ticketless";
  return { schedule, history, verdicts: checkHistory(history, { ...LIMITS, fair }) };
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
  readonly #store: MemoryStore;
  readonly #clients: readonly Client[];
  /** By client; undefined where the store is in the process. */
  readonly #links: readonly (Link | undefined)[];
  readonly #history: Event[] = [];
  #storeWallAheadMs = Date.UTC(2030, 0, 1);
  /** A rejection that must never happen. */
  #wrong: { readonly error: unknown } | null = null;

  constructor(schedule: Schedule, mutant: Mutant) {
    this.#schedule = schedule;
    this.#world = new World(schedule.seed);
    const record = (event: Event): void => {
      this.#history.push(event);
    };
    const observer = new Observer(this.#world, record);
    const clock = {
      nowMs: () => this.#world.nowMs,
      wallMs: () => this.#world.nowMs + this.#storeWallAheadMs,
    };
    this.#store = new MemoryStore(clock, this.#ruleFor(mutant, observer));
    const atStore = this.#placed(observer.atStore(this.#store));
    const broken = mutant.store?.();
    const resources = Array.from(
      { length: schedule.names },
      (_, name) => new Resource(this.#world, nameOf(name), record, mutant.fence),
    );
    const inProcess = schedule.place === "process";
    const processes = schedule.rates
      .slice(0, inProcess ? 1 : schedule.rates.length)
      .map((rate, number) => new SimulatedProcess(this.#world, clientName(number), rate));
    const processOf = (client: number): SimulatedProcess => processes[client] ?? processes[0]!;
    const replying = schedule.rates.map((_, number) => {
      const { isActive } = this.#networkOf(number);
      return malformedBatches(this.#world, clientName(number), atStore, isActive);
    });
    this.#links = processes.map((process, number) =>
      inProcess
        ? undefined
        : new Link(this.#world, process, replying[number]!, this.#networkOf(number)),
    );
    this.#clients = schedule.rates.map((_, number) => {
      const name = clientName(number);
      const process = processOf(number);
      const reached = this.#refusedAfterClose(number, this.#links[number] ?? replying[number]!);
      const store = this.#opened(number, process, reached);
      const runtime: Runtime = {
        clock: process.clock,
        random: this.#world.chance(`${name} of ${schedule.seed}`),
        seams: standardSeams,
      };
      return new Client(process, {
        name,
        runtime: mutant.runtime?.(runtime) ?? runtime,
        store: observer.atClient(broken?.(store, process.clock) ?? store),
        abortBefore: schedule.abortBefore,
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

  #ruleFor({ rule = Rule, skipsAnswered }: Mutant, observer: Observer): typeof Rule {
    if (this.#schedule.place !== "skipping") return rule;
    const reaches = (holder: string): boolean => {
      const number = this.#clients.findIndex(({ name }) => holder.startsWith(name));
      const isDown = this.#networkOf(number).isActive("subscription is down");
      return !isDown && !this.#clients[number]!.process.isDead;
    };
    const skipped = observer.skipped.bind(observer);
    return skippingRule(rule, { reaches, skipped }, skipsAnswered);
  }

  /** Applies the schedule's place and traits to the store. */
  #placed(store: Store): Store {
    const { place, traits } = this.#schedule;
    const described = { ...delegate(store), traits: { ...store.traits, ...traits } };
    return place === "polled" || place === "ticketless"
      ? polledStore(described, { queues: place === "polled" })
      : described;
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
    if (kind === "store's wall clock jumps") {
      at(fromMs, () => {
        this.#storeWallAheadMs += trouble.byMs;
        this.#record({ kind: "clock-set", byMs: trouble.byMs });
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
        at(trouble.toMs, () => this.#links[trouble.client]?.resubscribed());
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

  #window(what: string, { fromMs, toMs }: { fromMs: number; toMs: number }): void {
    // Two faults of a kind may overlap, and each is healed by its own name.
    const fault = `${what} (${fromMs}–${toMs} ms)`;
    this.#world.at(fromMs, () => this.#record({ kind: "injected", fault, sparesStore: true }));
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

  #networkOf(client: number) {
    const now = (one: Trouble): boolean =>
      "toMs" in one && this.#world.nowMs >= one.fromMs && this.#world.nowMs < one.toMs;
    return {
      isActive: (fault: MessageFault): boolean =>
        this.#schedule.troubles.some(
          (one) => one.kind === fault && one.client === client && now(one),
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

  #lookEvery(ms: number): void {
    this.#look();
    this.#world.at(this.#world.nowMs + ms, () => this.#lookEvery(ms));
  }

  /** Records the content of the store. */
  #look(): void {
    for (const info of this.#store.list("", 100)) {
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

const clientName = (number: number): string => `client-${number}`;
