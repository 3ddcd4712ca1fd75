import { InvalidArgumentError, StaleTokenError } from "../core/errors.js";
import {
  checkBoolean,
  checkOptions,
  checkText,
  checkToken,
  orElse,
  show,
} from "../core/validate.js";
import { reportRefusal } from "./shared/refusals.js";

/** The numbers of a lease that a fence needs; they may also come by a queue or a header. */
export interface Fenced {
  /** The fencing token of the grant. */
  readonly token: bigint;
  /** The lowest token that still held the name when the grant was made; at most `token`. */
  readonly floor: bigint;
}

/**
 * Guards a resource: keeps the highest floor that it has seen, and refuses tokens below it.
 *
 * The protocol: `enter` before the first read, then read, then write with `guard` in the same
 * transaction. Without entering first, a stale write that lands between the new holder's read and
 * write is accepted, and an update is lost.
 */
export interface Fence<Tx> {
  /**
   * Raises the highest floor to this holder's: earlier holders are refused from now on. Rejects
   * with `StaleTokenError` if the holder is stale itself.
   */
  enter(tx: Tx, resource: string, lease: Fenced): Promise<void>;
  /**
   * Rejects with `StaleTokenError` if the holder is stale; with `strict` (default false), also if
   * it has not entered.
   */
  guard(tx: Tx, resource: string, lease: Fenced, options?: { strict?: boolean }): Promise<void>;
  /** The highest floor seen; 0 for a resource that was never entered. */
  highest(tx: Tx, resource: string): Promise<bigint>;
  /** Sets the highest floor, also to a lower one: for moving to a store whose tokens start lower. */
  reset(tx: Tx, resource: string, token: bigint): Promise<void>;
}

/** The part of a fence that `withLock` calls: `enter` in a transaction of its own. */
export type EnterableFence = Pick<Fence<undefined>, "enter">;

/** Whether `guard` refuses a holder that has not entered. */
export function isStrict(options: unknown = {}): boolean {
  checkOptions(options, "the options of guard", ["strict"]);
  return checkBoolean(orElse((options as { strict?: boolean }).strict, false), "strict");
}

/**
 * For a fence of your own: checks the name of a resource, also in `highest` and `reset`. Throws
 * `InvalidArgumentError`.
 */
export const checkResource = (resource: unknown): string =>
  checkText(resource, "the resource", 1, 255);

export function checkFenced(resource: unknown, lease: Fenced): { token: bigint; floor: bigint } {
  checkResource(resource);
  if (lease === null || typeof lease !== "object") {
    throw new InvalidArgumentError(
      `the lease is ${show(lease)}; a fence needs a lease or { token, floor }`,
    );
  }
  const token = checkToken(lease.token, "token");
  const floor = checkToken(lease.floor, "floor");
  if (floor > token) {
    throw new InvalidArgumentError(
      `floor ${floor} is above token ${token}; a floor must not be higher than its token`,
    );
  }
  return { token, floor };
}

export function stale(resource: string, token: bigint, highest: bigint): StaleTokenError {
  reportRefusal(resource, token, highest);
  return new StaleTokenError(resource, token, highest);
}

export function notEntered(resource: string, token: bigint, highest: bigint): StaleTokenError {
  reportRefusal(resource, token, highest);
  return new StaleTokenError(
    resource,
    token,
    highest,
    `token ${token} has not entered ${JSON.stringify(resource)}: call enter before the first read`,
  );
}

/** One resource and one holder of it. */
export interface Entry extends Fenced {
  /** The name of the guarded resource: 1 to 255 bytes of UTF-8. */
  readonly resource: string;
}

/**
 * For a fence of your own: checks the arguments of `enter` and `guard`. Throws `InvalidArgumentError`.
 * `strict` is that of the options, default false.
 */
export const checkEntry = (
  resource: string,
  lease: Fenced,
  options?: { strict?: boolean },
): Entry & { readonly strict: boolean } => ({
  resource,
  ...checkFenced(resource, lease),
  strict: isStrict(options),
});

/**
 * For a fence of your own: whether this holder has entered. If a later one has, the refusal is published and
 * counted, and it throws `StaleTokenError`. `highest` is null before the first entry.
 */
export function hasEntered({ resource, token, floor }: Entry, highest: bigint | null): boolean {
  if (highest !== null && token < highest) throw stale(resource, token, highest);
  return highest !== null && floor <= highest;
}

/**
 * For a fence of your own: throws `StaleTokenError` unless this holder has entered, and no later one. The refusal
 * is published and counted.
 */
export function refuseUnlessEntered(entry: Entry, highest: bigint | null): void {
  if (hasEntered(entry, highest)) return;
  throw notEntered(entry.resource, entry.token, highest ?? 0n);
}
