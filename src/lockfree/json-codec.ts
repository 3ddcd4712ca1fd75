import { InvalidArgumentError } from "../core/errors.js";
import { show } from "../core/validate.js";

/** Turns a result into text and back. */
export interface ResultCodec<T> {
  /** The result as text: well-formed, and without U+0000. */
  encode(value: T): string;
  /** The result that `encode` was given. */
  decode(text: string): T;
}

/** Deeper values would exhaust the stack. */
const MOST_LEVELS = 200;

/**
 * JSON, for values that come back as they were. Undefined alone is a result too: that of work without one.
 * Throws InvalidArgumentError for a value that JSON would change.
 */
export const jsonCodec: ResultCodec<unknown> = {
  encode(value) {
    if (value === undefined) return "";
    const change = changeByJson(value, "the result");
    if (change !== null) {
      throw new InvalidArgumentError(`${change}: return plain data, or pass a codec`);
    }
    return JSON.stringify(value);
  },
  decode: (text) => (text === "" ? undefined : JSON.parse(text)),
};

/** Says what JSON would change in a value, or null. `path`: the name of the value in that text. */
export function changeByJson(value: unknown, path: string, level = 0): string | null {
  if (value === null || typeof value === "string" || typeof value === "boolean") return null;
  if (typeof value === "number" && Number.isFinite(value)) return null;
  const fields = typeof value === "object" ? fieldsOf(value) : null;
  const what = fields === null ? show(value) : "nested too deep, or in a circle";
  if (fields === null || level === MOST_LEVELS) {
    return `${path} is ${what}, which JSON can't give back as it was`;
  }
  for (const [name, field] of fields) {
    const change = changeByJson(field, path + name, level + 1);
    if (change !== null) return change;
  }
  return null;
}

/** Null if JSON would lose a part of the object, or its class. */
function fieldsOf(value: object): [string, unknown][] | null {
  const isArray = Array.isArray(value);
  const prototype = Object.getPrototypeOf(value);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  const keys = Object.keys(value);
  // A sparse array has fewer keys, and one with fields of its own has more.
  if (isArray ? keys.length !== value.length : !isPlain) return null;
  if (Object.getOwnPropertySymbols(value).length > 0 || "toJSON" in value) return null;
  return keys.map((key) => [
    isArray ? `[${key}]` : `.${key}`,
    (value as Record<string, unknown>)[key],
  ]);
}
