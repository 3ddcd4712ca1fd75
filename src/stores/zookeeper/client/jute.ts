import { isUtf8 } from "node:buffer";

/** A frame begins with its length, which does not count itself. */
export const LENGTH_BYTES = 4;
const FIRST_BYTES = 256;

/** Encodes one frame in jute, ZooKeeper's wire format: big-endian, with a length before all that varies. */
export class JuteWriter {
  #bytes = Buffer.allocUnsafe(FIRST_BYTES);
  #length = LENGTH_BYTES;

  int(value: number): void {
    this.#length = this.#room(4).writeInt32BE(value, this.#length);
  }

  long(value: bigint): void {
    this.#length = this.#room(8).writeBigInt64BE(value, this.#length);
  }

  bool(value: boolean): void {
    this.#length = this.#room(1).writeUInt8(value ? 1 : 0, this.#length);
  }

  bytes(value: Uint8Array): void {
    this.int(value.length);
    this.encoded(value);
  }

  text(value: string): void {
    const length = Buffer.byteLength(value);
    this.int(length);
    this.#length += this.#room(length).write(value, this.#length, length, "utf8");
  }

  /** Bytes that are encoded already. */
  encoded(value: Uint8Array): void {
    this.#room(value.length).set(value, this.#length);
    this.#length += value.length;
  }

  list<T>(values: readonly T[], writeOne: (value: T) => void): void {
    this.int(values.length);
    for (const value of values) writeOne(value);
  }

  texts(values: readonly string[]): void {
    this.list(values, (value) => this.text(value));
  }

  /** The frame, with its length before it. */
  frame(): Buffer {
    this.#bytes.writeInt32BE(this.#length - LENGTH_BYTES, 0);
    return this.#bytes.subarray(0, this.#length);
  }

  #room(more: number): Buffer {
    if (this.#length + more > this.#bytes.length) {
      const larger = Buffer.allocUnsafe(2 * (this.#length + more));
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    return this.#bytes;
  }
}

/** The bytes are not what a ZooKeeper server sends. */
export class MalformedReply extends Error {
  constructor(what: string, why = "it is no ZooKeeper server, or its reply was damaged") {
    super(`the server sent ${what}: ${why}`);
    this.name = "MalformedReply";
  }
}

/** Decodes one frame. No length is trusted: all methods throw `MalformedReply` before they read past the end. */
export class JuteReader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get remaining(): number {
    return this.#bytes.length - this.#at;
  }

  int(): number {
    return this.#bytes.readInt32BE(this.#take(4));
  }

  long(): bigint {
    return this.#bytes.readBigInt64BE(this.#take(8));
  }

  bool(): boolean {
    return this.#bytes[this.#take(1)] !== 0;
  }

  /** A copy: a part of the frame would keep the whole frame in memory. Absent bytes are read as none. */
  bytes(): Buffer {
    const length = Math.max(0, this.int());
    const from = this.#take(length);
    return Buffer.from(this.#bytes.subarray(from, from + length));
  }

  text(): string {
    const length = Math.max(0, this.int());
    const from = this.#take(length);
    const text = this.#bytes.toString("utf8", from, from + length);
    // Bytes that are not UTF-8 are read as this character, which may also be in the text itself.
    if (text.includes("\ufffd") && !isUtf8(this.#bytes.subarray(from, from + length))) {
      throw new MalformedReply("a text that is not UTF-8");
    }
    return text;
  }

  /** `leastBytes`: what one element takes at least, which bounds the count. */
  list<T>(leastBytes: number, readOne: () => T): T[] {
    const count = this.int();
    if (count > this.remaining / leastBytes) {
      throw new MalformedReply(`a list of ${count} in a reply that is too short for it`);
    }
    return Array.from({ length: Math.max(0, count) }, readOne);
  }

  texts(): string[] {
    return this.list(LENGTH_BYTES, () => this.text());
  }

  #take(count: number): number {
    if (count > this.remaining) throw new MalformedReply("half a reply");
    const from = this.#at;
    this.#at += count;
    return from;
  }
}

/** Cuts what the socket delivers into frames. */
export class FrameReader {
  /** The longest frame that is accepted. */
  maxBytes: number;
  #chunks: Buffer[] = [];
  #length = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#length += chunk.length;
  }

  /** The next frame without its length; null until it is there. Throws `MalformedReply` for a wrong length. */
  next(): Buffer | null {
    if (this.#length < LENGTH_BYTES) return null;
    if (this.#chunks[0]!.length < LENGTH_BYTES) this.#join();
    const length = this.#chunks[0]!.readInt32BE(0);
    if (length < 0 || length > this.maxBytes) {
      throw new MalformedReply(
        `a reply of ${length} bytes, where ${this.maxBytes} are accepted`,
        "raise maxReplyBytes, or see whether it is a ZooKeeper server",
      );
    }
    const end = LENGTH_BYTES + length;
    if (this.#length < end) return null;
    // Chunks are joined once for each frame, not at each chunk of a long one.
    if (this.#chunks[0]!.length < end) this.#join();
    const first = this.#chunks[0]!;
    if (first.length === end) this.#chunks.shift();
    else this.#chunks[0] = first.subarray(end);
    this.#length -= end;
    return first.subarray(LENGTH_BYTES, end);
  }

  #join(): void {
    this.#chunks = [Buffer.concat(this.#chunks, this.#length)];
  }
}
