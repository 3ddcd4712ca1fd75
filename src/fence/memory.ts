import { AsyncLocalStorage } from "node:async_hooks";
import { InvalidArgumentError } from "../core/errors.js";
import { checkToken } from "../core/validate.js";
import {
  checkEntry,
  checkResource,
  type Fence,
  type Fenced,
  hasEntered,
  refuseUnlessEntered,
} from "./fence.js";
import {
  checkListOptions,
  type FencedResource,
  type FenceListOptions,
  firstOf,
} from "./shared/list.js";

/** The transaction that the caller runs in. */
export interface MemoryTx {
  /** The fence whose transaction this is. */
  readonly fence: MemoryFence;
}

/**
 * A fence for resources within this process. Put the guard and the write that it protects into the same
 * `transaction`. Transactions run one at a time; a call without a `tx` is a transaction of its own.
 */
export class MemoryFence implements Fence<MemoryTx | undefined> {
  readonly #seen = new Map<string, { highest: bigint; enteredAtMs: number }>();
  readonly #inside = new AsyncLocalStorage<MemoryTx>();
  #open: MemoryTx | null = null;
  #last: Promise<unknown> = Promise.resolve();

  /**
   * Runs `fn` while no other transaction runs. Rejects with `InvalidArgumentError` inside another
   * transaction of this fence.
   */
  transaction<T>(fn: (tx: MemoryTx) => T | Promise<T>): Promise<T> {
    const tx: MemoryTx = { fence: this };
    return this.#inTurn(async () => {
      this.#open = tx;
      try {
        return await this.#inside.run(tx, fn, tx);
      } finally {
        this.#open = null;
      }
    });
  }

  async enter(tx: MemoryTx | undefined, resource: string, lease: Fenced): Promise<void> {
    await this.guard(tx, resource, lease);
  }

  async guard(
    tx: MemoryTx | undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    const entry = checkEntry(resource, lease, options);
    await this.#within(tx, () => {
      const highest = this.#of(resource);
      if (entry.strict) refuseUnlessEntered(entry, highest);
      if (!hasEntered(entry, highest)) this.#set(resource, entry.floor);
    });
  }

  /** Reads the present value at once, also while a transaction runs. */
  async highest(_tx: MemoryTx | undefined, resource: string): Promise<bigint> {
    return this.#of(checkResource(resource)) ?? 0n;
  }

  /** The resources that it has seen, in the order of their UTF-8 bytes. */
  async list(options?: FenceListOptions): Promise<readonly FencedResource[]> {
    return firstOf([...this.#seen.keys()], checkListOptions(options)).map((resource) => ({
      resource,
      ...this.#seen.get(resource)!,
    }));
  }

  async reset(tx: MemoryTx | undefined, resource: string, token: bigint): Promise<void> {
    checkResource(resource);
    checkToken(token, "token");
    await this.#within(tx, () => {
      this.#set(resource, token);
    });
  }

  #set(resource: string, highest: bigint): void {
    this.#seen.set(resource, { highest, enteredAtMs: Date.now() });
  }

  #within(tx: MemoryTx | undefined, step: () => void): void | Promise<void> {
    if (tx === undefined) return this.#inTurn(async () => step());
    if (tx !== this.#open) {
      throw new InvalidArgumentError(
        "the transaction has ended, or is not one of this fence; pass the tx that fence.transaction gives to its function, and await what you do with it",
      );
    }
    step();
  }

  async #inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (this.#open !== null && this.#inside.getStore() === this.#open) {
      throw new InvalidArgumentError(
        "inside a transaction of this fence, another one would wait for its end for ever; pass the tx of the transaction that is running",
      );
    }
    const result = this.#last.then(work);
    this.#last = result.catch(() => {});
    return result;
  }

  /** Null before the first entry. */
  #of(resource: string): bigint | null {
    return this.#seen.get(resource)?.highest ?? null;
  }
}

/**
 * Makes a fence for resources within this process. It starts empty: every first token is accepted.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { memoryFence } from "holdfast/fence/memory";
 *
 * const fence = memoryFence();
 * let stock = 10;
 * const locks = await connect("memory:");
 * await locks.withLock("stock", { fence }, async (lease) => {
 *   const read = stock;
 *   await fence.transaction(async (tx) => {
 *     await fence.guard(tx, "stock", lease); // throws StaleTokenError if a later holder has entered
 *     stock = read - 1;
 *   });
 * });
 * await locks.close();
 * ```
 */
export function memoryFence(): MemoryFence {
  return new MemoryFence();
}
