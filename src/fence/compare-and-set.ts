import { retryConflicts } from "../core/conflicts.js";
import { InvalidArgumentError, StoreUnavailableError } from "../core/errors.js";
import {
  checkBoolean,
  checkNumber,
  checkOptions,
  checkToken,
  orElse,
  show,
} from "../core/validate.js";
import {
  checkFenced,
  checkResource,
  type Fence,
  type Fenced,
  hasEntered,
  isStrict,
  refuseUnlessEntered,
} from "./fence.js";

/** The content of a place: your value, and the fence's number beside it. */
export interface FencedValue<Value> {
  /** Null: the place is empty. */
  readonly value: Value | null;
  /** The number that `write` was given last; null if there is none yet. */
  readonly highest: bigint | null;
}

/**
 * A place that can be changed only if it is unchanged: an object with `If-Match`, a row with a version
 * column, a key with a revision. The version must change with every change of value or number, also if only
 * the number changes: an ETag that covers the content alone needs the number in the content.
 */
export interface Place<Value, Version> {
  /** Reads value, number and version in one step. */
  read(resource: string): Promise<FencedValue<Value> & { readonly version: Version }>;
  /**
   * Writes value and number in one step, if the version is still that one. Resolves to false if nothing was
   * written because it is another, or another write was under way; rejects if it is not known whether the
   * write was done.
   */
  write(resource: string, next: FencedValue<Value>, version: Version): Promise<boolean>;
}

/** Options of `placeFence`. */
export interface PlaceFenceOptions {
  /** How often a write is tried again because another came first. Default 16. */
  readonly retries?: number | undefined;
}

const RETRIES = 16;
const PAUSE_MS = { firstMs: 4, maxMs: 256 };

/** A fence for places with compare-and-set: the number is kept in the place itself, beside the value. */
export class PlaceFence<Value, Version> implements Fence<undefined> {
  readonly #place: Place<Value, Version>;
  readonly #retries: number;

  constructor(place: Place<Value, Version>, options: PlaceFenceOptions = {}) {
    checkOptions(options, "the options of a fence", ["retries"]);
    if (typeof place?.read !== "function" || typeof place.write !== "function") {
      throw new InvalidArgumentError(`the place is ${show(place)}; it needs read and write`);
    }
    this.#place = place;
    this.#retries = checkNumber(orElse(options.retries, RETRIES), "retries", {
      min: 0,
      max: 1_000,
      integer: true,
    });
  }

  async enter(_tx: undefined, resource: string, lease: Fenced): Promise<void> {
    await this.#change(resource, lease, false, null);
  }

  async guard(
    _tx: undefined,
    resource: string,
    lease: Fenced,
    options?: { strict?: boolean },
  ): Promise<void> {
    await this.#change(resource, lease, isStrict(options), null);
  }

  /**
   * Enters, reads, and writes what `change` makes of the value, if no later holder has entered meanwhile.
   * `change` is called again when another write came first. Resolves to the value written; rejects with
   * `StaleTokenError` if a later holder has entered.
   */
  async update(
    resource: string,
    lease: Fenced,
    change: (value: Value | null) => Value | Promise<Value>,
  ): Promise<Value> {
    await this.enter(undefined, resource, lease);
    return (await this.#change(resource, lease, true, change))!;
  }

  async highest(_tx: undefined, resource: string): Promise<bigint> {
    return (await this.#read(checkResource(resource))).highest ?? 0n;
  }

  async reset(_tx: undefined, resource: string, token: bigint): Promise<void> {
    checkResource(resource);
    checkToken(token, "token");
    await this.#retry(resource, async () => {
      const { value, version } = await this.#place.read(resource); // Also of a place with a bad number.
      return (await this.#write(resource, { value, highest: token }, version)) || null;
    });
  }

  #change(
    resource: string,
    lease: Fenced,
    strict: boolean,
    change: ((value: Value | null) => Value | Promise<Value>) | null,
  ): Promise<Value | null> {
    const entry = { resource, ...checkFenced(resource, lease) };
    return this.#retry(resource, async () => {
      const found = await this.#read(resource);
      if (strict) refuseUnlessEntered(entry, found.highest);
      const entered = hasEntered(entry, found.highest);
      const value = change === null ? found.value : await change(found.value);
      if (change === null && entered) return { value };
      const next = { value, highest: entered ? found.highest : entry.floor };
      return (await this.#write(resource, next, found.version)) ? { value } : null;
    }).then(({ value }) => value);
  }

  /** Checks the highest token: no token is below a NaN, so every lease would pass. */
  async #read(resource: string): ReturnType<Place<Value, Version>["read"]> {
    const found = await this.#place.read(resource);
    if (found?.highest !== null) checkToken(found?.highest, "highest, as read by the place,");
    return found;
  }

  /** A write that is done and resolves to nothing would look refused, and be repeated. */
  async #write(resource: string, next: FencedValue<Value>, version: Version): Promise<boolean> {
    const written: unknown = await this.#place.write(resource, next, version);
    return checkBoolean(written, `the result of the place's write of ${show(resource)}`);
  }

  /** Repeats a step that resolves to null because another write came first. */
  async #retry<T>(resource: string, step: () => Promise<T | null>): Promise<T> {
    return retryConflicts(
      { retries: this.#retries, ...PAUSE_MS },
      step,
      (attempts) =>
        new StoreUnavailableError(
          `others changed ${JSON.stringify(resource)} before each of ${attempts} attempts to write it; nothing was written, try again`,
        ),
    );
  }
}

/**
 * Makes a fence for anything with compare-and-set. You give it a place to keep a number beside your value: a
 * column, a field of a document. Not in the metadata of an object: the ETag of S3 does not cover them.
 *
 * @example
 * ```ts
 * import { connect } from "holdfast";
 * import { placeFence } from "holdfast/fence/compare-and-set";
 *
 * const objects = new Map<string, { text: string; etag: number }>();
 * const fence = placeFence<string, number>({
 *   async read(key) {
 *     const { text = "{}", etag: version = 0 } = objects.get(key) ?? {};
 *     const { value = null, highest = null } = JSON.parse(text);
 *     return { value, highest: highest === null ? null : BigInt(highest), version };
 *   },
 *   async write(key, { value, highest }, version) {
 *     if ((objects.get(key)?.etag ?? 0) !== version) return false; // 412 or 409 to If-Match
 *     objects.set(key, { text: JSON.stringify({ value, highest: String(highest) }), etag: version + 1 });
 *     return true;
 *   },
 * });
 * const locks = await connect("memory:");
 * await locks.withLock("report", { fence }, async (lease) => {
 *   await fence.update("report", lease, (text) => `${text ?? ""}one more line\n`);
 * });
 * await locks.close();
 * ```
 */
export function placeFence<Value, Version>(
  place: Place<Value, Version>,
  options?: PlaceFenceOptions,
): PlaceFence<Value, Version> {
  return new PlaceFence(place, options);
}
