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
    check(value, "the result", 0);
    return JSON.stringify(value);
  },
  decode: (text) => (text === "" ? undefined : JSON.parse(text)),
};

function check(value: unknown, path: string, level: number): void {
  if (value === null || typeof value === "string" || typeof value === "boolean") return;
  if (typeof value === "number" && Number.isFinite(value)) return;
  const fields = typeof value === "object" ? fieldsOf(value) : null;
  if (fields === null) throw changedByJson(path, show(value));
  if (level === MOST_LEVELS) throw changedByJson(path, "nested too deep, or in a circle");
  for (const [name, field] of fields) check(field, path + name, level + 1);
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

const changedByJson = (path: string, what: string): InvalidArgumentError =>
  new InvalidArgumentError(
    `${path} is ${what}, which JSON can't give back as it was: return plain data, or pass a codec`,
  );
