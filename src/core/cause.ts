import { HoldfastError } from "./errors.js";
import { hideGrantIds } from "./random.js";
import { printable } from "./text.js";

/** How many causes within causes are followed. */
const DEPTH = 5;
const NOT_TEXT = "something that is no error";

/** The copy of each error, by the original and by the copy itself: one failed batch is the cause for many leases. */
const copies = new WeakMap<object, unknown>();

/**
 * A client library's error, made safe to show. Its message or its fields may repeat the whole batch
 * that was sent, and a grantId is a secret. So the result is a copy with name, code, message and
 * stack only. An error of our own stays the same object, with its causes replaced.
 */
export function safeCause(cause: unknown, depth = DEPTH): unknown {
  if (typeof cause === "string") return clean(cause);
  if ((typeof cause !== "object" && typeof cause !== "function") || cause === null) return cause;
  const known = copies.get(cause);
  if (known !== undefined) return known;
  const safe = HoldfastError.is(cause) ? cleanOwn(cause, depth) : copyOf(cause, depth);
  copies.set(cause, safe);
  copies.set(safe, safe);
  return safe;
}

/** The reason as one line. */
export function reasonOf(cause: unknown): string {
  try {
    if (!(cause instanceof Error)) return clean(String(cause));
    return clean(String(cause.message || (cause as { code?: unknown }).code || cause.name));
  } catch {
    return NOT_TEXT;
  }
}

function cleanOwn(error: HoldfastError, depth: number): HoldfastError {
  const message = hideGrantIds(error.message);
  if (message !== error.message) {
    error.stack = cleanStack(error);
    error.message = message;
  }
  if (error.cause !== undefined) error.cause = depth > 0 ? safeCause(error.cause, depth - 1) : "…";
  return error;
}

function copyOf(cause: object, depth: number): Error {
  const copy: Error & { code?: unknown; errors?: unknown } = new Error(reasonOf(cause));
  if (!(cause instanceof Error)) return copy;
  try {
    const { name, code, errors } = cause as { name?: unknown; code?: unknown; errors?: unknown };
    copy.name = clean(String(name));
    copy.stack = cleanStack(cause);
    if (typeof code === "number") copy.code = code;
    if (typeof code === "string") copy.code = clean(code);
    if (depth === 0) return copy;
    if (cause.cause !== undefined) copy.cause = safeCause(cause.cause, depth - 1);
    if (Array.isArray(errors)) copy.errors = errors.map((one) => safeCause(one, depth - 1));
  } catch {
    // A property threw when it was read: the copy keeps what was read before.
  }
  return copy;
}

const cleanStack = ({ stack }: Error): string => String(stack).split("\n").map(clean).join("\n");

/**
 * A server that does not know a command repeats its arguments: that of AUTH is a password. A client
 * may repeat its URL.
 */
const clean = (text: string): string => {
  const known = text
    .replace(/,? with args beginning with:.*/s, "")
    .replaceAll(/\/\/[^\s/]*@/g, "//***@");
  return printable(hideGrantIds(known));
};
