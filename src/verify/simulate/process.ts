import { type Clock, systemClock, type Timer } from "../../core/clock.js";
import type { World } from "./world.js";

/** The extent of a pause: the process alone, or its machine too. */
export type Pause = "paused" | "machine suspended" | "machine frozen";

/**
 * One process of a simulation. Deliveries wait while it is paused and are dropped once it is dead.
 * Its clock is the real one over simulated sources, and runs a little fast or slow.
 */
export class SimulatedProcess {
  readonly name: string;
  readonly clock: Clock;
  readonly #world: World;
  readonly #rate: number;
  #heldBack: (() => void)[] | null = null;
  #dead = false;
  #timers = 0;
  #wallAheadMs = Date.UTC(2030, 0, 1);
  /** The start of the machine's suspension, during which hrtime and timers stand still but uptime does not. */
  #suspendedAtMs: number | null = null;
  /** How long the process has stopped in the middle of the present turn: the rest of the turn is that much later. */
  #stalledMs = 0;
  #sleptMs = 0;
  /**
   * The start of a freeze, during which all clocks of the machine stand still. The wall clock is
   * right again afterwards.
   */
  #frozenAtMs: number | null = null;
  #frozenMs = 0;

  constructor(world: World, name: string, rate: number) {
    this.name = name;
    this.#world = world;
    this.#rate = rate;
    const real = systemClock({
      hrtimeMs: () => this.#hrtimeMs(),
      uptimeMs: () => ((this.#frozenAtMs ?? this.nowMs) - this.#frozenMs) * rate,
      wallMs: () => this.nowMs * rate + this.#wallAheadMs,
    });
    const count = (by: 1 | -1): void => {
      this.#timers += by;
    };
    this.clock = { ...real, after: (ms, run) => this.#after(ms, run, count) };
  }

  get isPaused(): boolean {
    return this.#heldBack !== null;
  }

  get isDead(): boolean {
    return this.#dead;
  }

  /**
   * The total time of its freezes: a deadline computed before them is that much later in simulated
   * time than the process thinks.
   */
  get frozenMs(): number {
    return this.#frozenMs;
  }

  /** How many timers of the library would still fire. */
  get timers(): number {
    return this.#timers;
  }

  /** The present of this process in simulated time. */
  get nowMs(): number {
    return this.#world.nowMs + this.#stalledMs;
  }

  /** Converts an interval on its clock into a moment in simulated time. */
  worldMs(aheadMs: number): number {
    return this.nowMs + aheadMs / this.#rate;
  }

  /** Runs `run` now, or when the process goes on. */
  deliver(run: () => void): void {
    if (this.#dead) return;
    if (this.#heldBack !== null) this.#heldBack.push(run);
    else run();
  }

  /** A timer of the program. The library's timers are those of the clock, and are counted. */
  later(ms: number, run: () => void): Timer {
    return this.#after(ms, run, () => {});
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => this.later(ms, resolve));
  }

  /** Stops the process between two statements for `ms`. */
  stall(ms: number): void {
    this.#stalledMs = ms;
    this.pause("paused");
    this.#world.at(this.nowMs, () => {
      this.#stalledMs = 0;
      this.resume();
    });
  }

  pause(what: Pause): void {
    this.#heldBack ??= [];
    if (what === "paused") return;
    this.#suspendedAtMs ??= this.#world.nowMs;
    if (what === "machine frozen") this.#frozenAtMs ??= this.#world.nowMs;
  }

  /** Goes on: the deliveries of the pause happen now, in random order. */
  resume(): void {
    if (this.#suspendedAtMs !== null) this.#sleptMs += this.#world.nowMs - this.#suspendedAtMs;
    if (this.#frozenAtMs !== null) this.#frozenMs += this.#world.nowMs - this.#frozenAtMs;
    this.#suspendedAtMs = null;
    this.#frozenAtMs = null;
    const held = this.#heldBack ?? [];
    this.#heldBack = null;
    const chance = this.#world.chance(`${this.name} resumes at ${this.#world.nowMs}`);
    while (held.length > 0) {
      const [run] = held.splice(Math.floor(chance.unit() * held.length), 1);
      // Each delivery gets a turn of its own.
      this.#world.at(this.#world.nowMs, () => this.deliver(run!));
    }
  }

  kill(): void {
    this.#dead = true;
  }

  jumpWall(ms: number): void {
    this.#wallAheadMs += ms;
  }

  #hrtimeMs(): number {
    return ((this.#suspendedAtMs ?? this.nowMs) - this.#sleptMs) * this.#rate;
  }

  #after(ms: number, run: () => void, count: (by: 1 | -1) => void): Timer {
    // Node's timers have whole milliseconds.
    const waitMs = Math.max(0, Math.ceil(ms));
    const dueMs = this.#hrtimeMs() + waitMs;
    let pending = true;
    count(1);
    const done = (): void => {
      if (pending) count(-1);
      pending = false;
    };
    const fire = (): void => {
      const leftMs = dueMs - this.#hrtimeMs();
      // The machine slept meanwhile, so its timers did not advance.
      if (leftMs > 1e-6) this.#world.at(this.worldMs(leftMs), () => this.deliver(fire));
      else if (pending) {
        done();
        run();
      }
    };
    this.#world.at(this.worldMs(waitMs), () => this.deliver(fire));
    return { cancel: done, keepAlive: () => {} };
  }
}
