import { createHmac, timingSafeEqual } from "node:crypto";
import { InvalidArgumentError } from "./errors.js";
import { HOLDER_BYTES } from "./settings.js";
import type { ClaimMode } from "./store.js";
import { checkName, checkOneOf, checkOptions, checkText, checkToken, show } from "./validate.js";

/** A lease as text that travels with requests: who was granted what. */
export interface Sequencer {
  /** The name that was granted. */
  readonly name: string;
  /** `exclusive` or `shared` for a lock, `permits` for a semaphore. */
  readonly mode: ClaimMode;
  /** The fencing token of the grant. */
  readonly token: bigint;
  /** The lowest token that still held the name when the grant was made. */
  readonly floor: bigint;
  /** The holder's label. */
  readonly holder: string;
  /** When the text was made, by the holder's wall clock, in milliseconds since 1970. */
  readonly madeAtMs: number;
}

/** Options of `lease.sequencer` and `readSequencer`. */
export interface SequencerOptions {
  /**
   * The secret that signs the text (HMAC-SHA256), at least 16 bytes; all who write and read must have it.
   * Default: not signed, and anybody can write such a text. `undefined` is refused: a secret that is missing
   * from the environment must not switch the check off.
   */
  key?: string | Uint8Array;
}

const FORMAT = "hf1";
const MODES = ["exclusive", "shared", "permits"] as const;
const KEY_BYTES = 16;
/** A name and a label of 255 bytes take 4 characters for 3 bytes, and JSON doubles a quote. */
const MOST_CHARACTERS = 2_048;

/** Writes `hf1.CONTENT`, with a key `hf1.CONTENT.SIGNATURE`; both parts in base64url. */
export function writeSequencer(content: Sequencer, options?: SequencerOptions): string {
  const key = keyOf(options);
  const { name, mode, token, floor, holder, madeAtMs } = content;
  const list = [name, mode, String(token), String(floor), holder, madeAtMs];
  const text = `${FORMAT}.${Buffer.from(JSON.stringify(list)).toString("base64url")}`;
  return key === null ? text : `${text}.${sign(text, key).toString("base64url")}`;
}

/**
 * Reads the text that `lease.sequencer` has made, and verifies its signature. Throws
 * `InvalidArgumentError` if the text is damaged or forged, if it is not signed although a key is given,
 * and if it is signed and no key is given.
 *
 * @example
 * ```ts
 * import { readSequencer } from "holdfast/fence";
 *
 * declare const request: { headers: Record<string, string> };
 * const { token, floor } = readSequencer(request.headers["x-sequencer"]!, { key: process.env["KEY"]! });
 * await fence.guard(tx, "stock", { token, floor });
 * ```
 */
export function readSequencer(text: string, options?: SequencerOptions): Sequencer {
  const key = keyOf(options);
  if (typeof text !== "string") throw damaged(`it is ${show(text)}, not a text`);
  if (text.length > MOST_CHARACTERS)
    throw damaged(`it is longer than ${MOST_CHARACTERS} characters`);
  const [format, content = "", signature, ...more] = text.split(".");
  if (format !== FORMAT || more.length > 0)
    throw damaged(`it is not ${FORMAT}.CONTENT or ${FORMAT}.CONTENT.SIGNATURE`);
  verify(`${format}.${content}`, signature, key);
  return parse(content);
}

function verify(text: string, signature: string | undefined, key: Buffer | null): void {
  if (key === null && signature === undefined) return;
  if (key === null) throw damaged("it is signed: pass the key that it was signed with");
  if (signature === undefined) throw damaged("it is not signed, and a key is given");
  const [given, expected] = [bytesOf(signature), sign(text, key)];
  if (given === null || given.length !== expected.length || !timingSafeEqual(given, expected))
    throw damaged("its signature is wrong: it was changed, or signed with another key");
}

function parse(content: string): Sequencer {
  let list: unknown = null;
  try {
    list = JSON.parse(bytesOf(content)?.toString("utf8") ?? "");
  } catch {
    // Reported below.
  }
  if (!Array.isArray(list) || list.length !== 6) throw damaged("its content can't be read");
  const [name, mode, token, floor, holder, madeAtMs] = list;
  try {
    const read = {
      name: checkName(name),
      mode: checkOneOf(mode, "the mode", MODES),
      token: tokenOf(token, "token"),
      floor: tokenOf(floor, "floor"),
      holder: checkText(holder, "the holder", 1, HOLDER_BYTES),
      madeAtMs: checkTime(madeAtMs),
    };
    if (read.floor > read.token) throw new InvalidArgumentError("floor is above token");
    return read;
  } catch (error) {
    throw damaged((error as Error).message);
  }
}

function tokenOf(value: unknown, what: string): bigint {
  if (typeof value !== "string" || !/^\d{1,19}$/.test(value))
    throw new InvalidArgumentError(`${what} is ${show(value)}, not a number as text`);
  return checkToken(BigInt(value), what);
}

function checkTime(value: unknown): number {
  if (!Number.isSafeInteger(value)) throw new InvalidArgumentError(`its time is ${show(value)}`);
  return value as number;
}

/** Null for a text that is not base64url: `Buffer.from` would ignore what it can't read. */
function bytesOf(text: string): Buffer | null {
  const bytes = Buffer.from(text, "base64url");
  return bytes.toString("base64url") === text ? bytes : null;
}

/** Throws `InvalidArgumentError` unless the options have a usable key, or none. */
export const checkKey = (options: SequencerOptions): void => void keyOf(options);

const sign = (text: string, key: Buffer): Buffer => createHmac("sha256", key).update(text).digest();

function keyOf(options: SequencerOptions = {}): Buffer | null {
  checkOptions(options, "the options of a sequencer", ["key"]);
  if (!("key" in options)) return null;
  const { key } = options;
  const isKey = typeof key === "string" || key instanceof Uint8Array;
  const bytes = isKey ? Buffer.from(key as string) : null;
  if (bytes === null || bytes.length < KEY_BYTES) {
    // The key itself is never repeated.
    throw new InvalidArgumentError(
      `the key of a sequencer must be a string or a Uint8Array of at least ${KEY_BYTES} bytes, such as crypto.randomBytes(32)`,
    );
  }
  return bytes;
}

const damaged = (why: string): InvalidArgumentError =>
  new InvalidArgumentError(`the sequencer can't be used: ${why}`);
