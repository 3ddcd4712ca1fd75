import { checkToken } from "../core/validate.js";
import { checkFenced, type Fence, type Fenced, notEntered, stale } from "./fence.js";

/** Stands for the transaction that the caller runs in. */
export interface MemoryTx {
  readonly fence: MemoryFence;
}

/** For resources within this process. Writes that a guard protects belong into the same `transaction`. */
export class MemoryFence implements Fence<MemoryTx | undefined> {
  readonly #highest = new Map<string, bigint>();
  #last: Promise<unknown> = Promise.resolve();

  /** One at a time: between a guard and the write after it, nobody else enters. */
  transaction<T>(fn: (tx: MemoryTx) => T | Promise<T>): Promise<T> {
    const result = this.#last.then(() => fn({ fence: this }));
    this.#last = result.catch(() => {});
    return result;
  }

  async enter(_tx: MemoryTx | undefined, resource: string, lease: Fenced): Promise<void> {
    const { token, floor } = checkFenced(resource, lease);
    const highest = this.#of(resource);
    if (token < highest) throw stale(resource, token, highest);
    if (floor > highest) this.#highest.set(resource, floor);
  }

  async guard(
    tx: MemoryTx | undefined,
    resource: string,
    lease: Fenced,
    options: { strict?: boolean } = {},
  ): Promise<void> {
    const { token, floor } = checkFenced(resource, lease);
    const highest = this.#of(resource);
    if (options.strict && highest < floor) throw notEntered(resource, token, highest);
    await this.enter(tx, resource, lease);
  }

  async highest(_tx: MemoryTx | undefined, resource: string): Promise<bigint> {
    return this.#of(resource);
  }

  async reset(_tx: MemoryTx | undefined, resource: string, token: bigint): Promise<void> {
    this.#highest.set(resource, checkToken(token, "token"));
  }

  #of(resource: string): bigint {
    return this.#highest.get(resource) ?? 0n;
  }
}

export function memoryFence(): MemoryFence {
  return new MemoryFence();
}
