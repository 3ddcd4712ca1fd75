import { InvalidArgumentError, UnsupportedError } from "../core/errors.js";
import { MOST_RECORD_BYTES, type StoredRecord } from "../core/records.js";
import { show } from "../core/validate.js";

/** The content of the record of a key. */
export interface Entry {
  /** `unstorable`: the work is done, and its result can't be kept. */
  readonly state: "running" | "done" | "failed" | "unstorable";
  /** The token of the lease under which it was written. */
  readonly token: bigint;
  readonly fingerprint: string | null;
  /** The result, the failure, or why it can't be kept. */
  readonly text: string;
  /** The version of the record. */
  readonly version: string;
}

const FORMAT = 1;

/** A line of JSON, and the text. Throws InvalidArgumentError for a text that no store can keep. */
export function entryText(entry: Omit<Entry, "version">): string {
  const { state, token, fingerprint, text } = entry;
  if (typeof text !== "string" || !text.isWellFormed() || text.includes("\0")) {
    throw new InvalidArgumentError(
      `the codec made ${show(text)} of it, which is no well-formed text without U+0000`,
    );
  }
  const head = JSON.stringify({ format: FORMAT, state, token: String(token), fingerprint });
  const value = `${head}\n${text}`;
  const bytes = Buffer.byteLength(value);
  if (bytes <= MOST_RECORD_BYTES) return value;
  throw new InvalidArgumentError(
    `it has ${bytes} bytes as text, and at most ${MOST_RECORD_BYTES} can be kept: return a reference to it`,
  );
}

export function parseEntry({ value, version }: StoredRecord, key: string): Entry {
  const end = value.indexOf("\n");
  const head = JSON.parse(value.slice(0, end)) as Record<string, string> & { format: unknown };
  if (head.format !== FORMAT) {
    throw new UnsupportedError(
      `the record of the key ${show(key)} has format ${show(head.format)}, and this version of Holdfast knows ${FORMAT}: use the version that wrote it`,
    );
  }
  const { state, token, fingerprint } = head as unknown as Omit<Entry, "token"> & { token: string };
  return { state, token: BigInt(token), fingerprint, text: value.slice(end + 1), version };
}
