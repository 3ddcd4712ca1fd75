import { InvalidArgumentError } from "./errors.js";

/** Milliseconds as a number, or `"250ms"`, `"30s"`, `"5m"`, `"1h"`. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h"}`;

const UNIT_MS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 };
export const YEAR_MS = 365 * 24 * UNIT_MS["h"]!;
const NAME_BYTES = 255;

/** A value as a message shows it: short, and never with the content of an object or a function. */
export function show(value: unknown): string {
  switch (typeof value) {
    case "string":
      // A URL that was passed for something else may hold a password.
      return /:.*@/s.test(value) ? "a URL" : JSON.stringify(shorten(value));
    case "bigint":
      return `${shorten(String(value))}n`;
    case "function":
      return "a function";
    case "object":
      return value === null ? "null" : Array.isArray(value) ? "an array" : kindOf(value);
    default:
      return shorten(String(value));
  }
}

/** "an object", or the class by its tag: "a Map". */
function kindOf(value: object): string {
  const kind = shorten(Object.prototype.toString.call(value).slice("[object ".length, -1));
  return kind === "Object" ? "an object" : `${/^[AEIOU]/.test(kind) ? "an" : "a"} ${kind}`;
}

const shorten = (text: string): string => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

/** Only undefined means absent: null and 0 are values, and may be wrong ones. */
export function orElse<T>(value: T | undefined, fallback: T): T {
  return value === undefined ? fallback : value;
}

export function parseDuration(
  value: unknown,
  what: string,
  rule: { min: number; max?: number; infinite?: boolean },
): number {
  const max = rule.max ?? YEAR_MS;
  let ms = Number.NaN;
  if (typeof value === "number") ms = value;
  else if (typeof value === "string") {
    const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(value);
    if (match) ms = Number(match[1]) * UNIT_MS[match[2]!]!;
    // Enough digits are Infinity as a number, which a text can't ask for.
    if (ms === Number.POSITIVE_INFINITY) ms = Number.NaN;
  }
  if (ms === Number.POSITIVE_INFINITY && rule.infinite) return ms;
  if (!(ms >= rule.min && ms <= max)) {
    throw new InvalidArgumentError(
      `${what} is ${show(value)}; it must be milliseconds or a string like "250ms", "30s", "5m", "1h", ` +
        `from ${durationText(rule.min)} to ${durationText(max)}${rule.infinite ? ", or Infinity" : ""}`,
    );
  }
  return ms;
}

/** A duration as text, in its largest unit. */
export function durationText(ms: number): string {
  if (ms === 0) return "0";
  const unit = ["h", "m", "s"].find((one) => ms % UNIT_MS[one]! === 0) ?? "ms";
  return ms / UNIT_MS[unit]! + unit;
}

export function checkNumber(
  value: unknown,
  what: string,
  rule: { min: number; max: number; integer?: boolean },
): number {
  if (
    typeof value !== "number" ||
    !(value >= rule.min && value <= rule.max) ||
    (rule.integer && !Number.isInteger(value))
  ) {
    throw new InvalidArgumentError(
      `${what} is ${show(value)}; it must be a ${rule.integer ? "whole " : ""}number from ${rule.min} to ${rule.max}`,
    );
  }
  return value;
}

/** Text that people read and stores keep: well-formed, bounded, without control characters. */
export function checkText(
  value: unknown,
  what: string,
  min: number,
  maxBytes: number,
  hint = "",
): string {
  if (
    typeof value !== "string" ||
    value.length < min ||
    // 85 code units are at most 255 bytes: the usual name is not measured.
    (value.length > maxBytes / 3 && Buffer.byteLength(value) > maxBytes) ||
    // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is refused
    /[\u0000-\u001f\u007f-\u009f]/.test(value) ||
    !value.isWellFormed()
  ) {
    throw new InvalidArgumentError(
      `${what} is ${show(value)}; it must be a string of ${min} to ${maxBytes} bytes of UTF-8 without control characters${hint}`,
    );
  }
  return value;
}

export function checkName(value: unknown): string {
  const hint = Array.isArray(value) ? "; acquireAll takes several names" : "";
  return checkText(value, "the name", 1, NAME_BYTES, hint);
}

export function checkBoolean(value: unknown, what: string): boolean {
  if (typeof value !== "boolean") {
    throw new InvalidArgumentError(`${what} is ${show(value)}; it must be true or false`);
  }
  return value;
}

export function checkOneOf<T extends string>(value: unknown, what: string, all: readonly T[]): T {
  if (!all.includes(value as T)) {
    throw new InvalidArgumentError(
      `${what} is ${show(value)}; it must be one of ${all.map((one) => JSON.stringify(one)).join(", ")}`,
    );
  }
  return value as T;
}

/** Refuses anything but a plain options object with known keys: a misspelt option must not be a silent default. */
export function checkOptions(value: unknown, what: string, known: readonly string[]): void {
  // By its tag, so that an object of another realm passes, and a Date, a Map or a signal does not.
  if (Object.prototype.toString.call(value) !== "[object Object]") {
    const example = known.includes("ttl") ? ', such as { ttl: "30s" }' : "";
    throw new InvalidArgumentError(
      `${what} are ${show(value)}; they must be a plain object${example}`,
    );
  }
  for (const key of Object.keys(value as object)) {
    if (!known.includes(key)) {
      throw new InvalidArgumentError(
        `${what} have no option ${JSON.stringify(key)}; known: ${known.join(", ")}`,
      );
    }
  }
}

/** An option: it may be absent. */
export function checkSignal(value: unknown): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  throw new InvalidArgumentError(`signal is ${show(value)}; it must be an AbortSignal`);
}

export function checkToken(value: unknown, what: string): bigint {
  if (typeof value !== "bigint" || value < 0n || value > 2n ** 63n - 1n) {
    throw new InvalidArgumentError(
      `${what} is ${show(value)}; it must be a bigint from 0 to 2^63 - 1`,
    );
  }
  return value;
}
