import { StaleTokenError } from "../../core/errors.js";
import type { Fence, Fenced } from "../../fence/fence.js";
import { type MemoryTx, memoryFence } from "../../fence/memory.js";
import type { Event, OpId } from "../check/history.js";
import type { SimulatedProcess } from "./process.js";
import type { World } from "./world.js";

type AnyFence = Fence<MemoryTx | undefined>;

const DELAY_MS = 40;

/** A number behind a fence, reached over the network: a write that was sent arrives even if its sender dies. */
export class Resource {
  readonly #world: World;
  readonly #name: string;
  readonly #record: (event: Event) => void;
  readonly #fence: AnyFence;
  #value = 0;
  #step = 0;
  #messages = 0;

  constructor(
    world: World,
    name: string,
    record: (event: Event) => void,
    mutate: (fence: AnyFence) => AnyFence = (fence) => fence,
  ) {
    this.#world = world;
    this.#name = name;
    this.#record = record;
    this.#fence = mutate(memoryFence());
  }

  enter(process: SimulatedProcess, op: OpId, lease: Fenced): Promise<void> {
    return this.#trip(process, async () => {
      const accepted = await this.#accepts(() => this.#fence.enter(undefined, this.#name, lease));
      this.#record({ kind: "entered", ...this.#about(op, lease), accepted });
    });
  }

  read(process: SimulatedProcess): Promise<number> {
    return this.#trip(process, async () => this.#value);
  }

  write(
    process: SimulatedProcess,
    op: OpId,
    lease: Fenced,
    read: number,
    value: number,
  ): Promise<void> {
    return this.#trip(process, async () => {
      const accepted = await this.#accepts(() => this.#fence.guard(undefined, this.#name, lease));
      if (accepted) this.#value = value;
      this.#record({ kind: "wrote", ...this.#about(op, lease), accepted, read, value });
    });
  }

  #about(op: OpId, { token, floor }: Fenced) {
    return {
      atMs: this.#world.nowMs,
      op,
      resource: this.#name,
      step: ++this.#step,
      token,
      floor,
    };
  }

  async #accepts(ask: () => Promise<void>): Promise<boolean> {
    try {
      await ask();
      return true;
    } catch (error) {
      if (error instanceof StaleTokenError) return false;
      throw error;
    }
  }

  #trip<T>(process: SimulatedProcess, act: () => Promise<T>): Promise<T> {
    const chance = this.#world.chance(`${process.name} at ${this.#name} ${++this.#messages}`);
    const inAWhile = (run: () => void): void =>
      this.#world.at(this.#world.nowMs + chance.unit() * DELAY_MS, run);
    return new Promise((resolve, reject) => {
      inAWhile(() => {
        act().then((value) => inAWhile(() => process.deliver(() => resolve(value))), reject);
      });
    });
  }
}
