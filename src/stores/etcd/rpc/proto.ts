/**
 * The part of protobuf that etcd's messages need, driven by tables. A field that is `undefined` is not
 * written; any other value is, zero too. A decoded message has every field: zero, empty or `undefined` (a
 * message) where the bytes have none. Fields that are not in the table are skipped.
 *
 * - `text`: bytes or a string, UTF-8
 * - `int64`, `uint64`: a bigint; `number`: an int64 that is small enough for one
 * - a list of names: an enum; a message: a message
 */
type Kind = keyof Scalars | readonly string[] | Message<object>;

interface Scalars {
  text: string;
  int64: bigint;
  uint64: bigint;
  number: number;
  bool: boolean;
}

/** `optional`: may be `undefined`. `list`: may be `undefined`, and is only written. */
type Presence = "one" | "optional" | "many" | "list";

interface Field<K extends Kind = Kind, P extends Presence = Presence> {
  readonly number: number;
  readonly kind: K;
  readonly presence: P;
}

type Fields = Readonly<Record<string, Field>>;

type ValueOf<K extends Kind> =
  K extends Message<infer T>
    ? T
    : K extends readonly (infer Name)[]
      ? Name
      : K extends keyof Scalars
        ? Scalars[K]
        : never;

type FieldValue<F extends Field> =
  F extends Field<infer K, infer P>
    ? P extends "many"
      ? ValueOf<K>[]
      : P extends "list"
        ? readonly ValueOf<K>[]
        : ValueOf<K>
    : never;

type LeftOut = Field<Kind, "optional" | "list">;

/** The values of a message, by the table of its fields. */
type Values<F extends Fields> = {
  [N in keyof F as F[N] extends LeftOut ? never : N]: FieldValue<F[N]>;
} & {
  [N in keyof F as F[N] extends LeftOut ? N : never]?: FieldValue<F[N]> | undefined;
};

/** The values that a message is written from, or read into. */
export type Of<M> = M extends Message<infer T> ? T : never;

const field =
  <P extends Presence>(presence: P) =>
  <const K extends Kind>(number: number, kind: K): Field<K, P> => ({ number, kind, presence });

export const one = field("one");
export const optional = field("optional");
export const many = field("many");
export const list = field("list");

export function message<const F extends Fields>(name: string, fields: F): Message<Values<F>> {
  return new Message(name, fields);
}

interface NumberedField extends Field {
  readonly name: string;
  readonly repeated: boolean;
  /** Number and wire type, as they stand before each value. */
  readonly tag: number;
}

const VARINT = 0;
const FIXED64 = 1;
const DELIMITED = 2;
const FIXED32 = 5;

export class Message<T extends object> {
  readonly name: string;
  readonly #fields: readonly NumberedField[];
  readonly #byNumber: (NumberedField | undefined)[] = [];
  readonly #blank: Record<string, unknown> = {};
  readonly #lists: readonly string[];

  constructor(name: string, fields: Fields) {
    this.name = name;
    this.#fields = Object.entries(fields)
      .map(([key, field]) => ({
        ...field,
        name: key,
        repeated: field.presence === "many" || field.presence === "list",
        tag: field.number * 8 + wireTypeOf(field),
      }))
      .sort((a, b) => a.number - b.number);
    for (const field of this.#fields) {
      this.#byNumber[field.number] = field;
      this.#blank[field.name] = blankOf(field);
    }
    this.#lists = this.#fields.filter(({ repeated }) => repeated).map((field) => field.name);
  }

  encode(value: T): Buffer {
    at = scratch.length;
    this.write(value as Record<string, unknown>);
    const bytes = Buffer.allocUnsafe(scratch.length - at);
    scratch.copy(bytes, 0, at);
    if (scratch.length > SCRATCH_KEPT) scratch = Buffer.allocUnsafe(SCRATCH_KEPT);
    return bytes;
  }

  decode(bytes: Buffer): T {
    return this.read(new Reader(bytes), bytes.length) as T;
  }

  /** One field of a message that is too long to be read at once: each value is decoded when the caller reads it. */
  *each<K extends keyof T & string>(
    bytes: Buffer,
    name: K,
  ): Generator<T[K] extends readonly (infer One)[] ? One : never> {
    const reader = new Reader(bytes);
    while (reader.at < bytes.length) {
      const tag = reader.number(bytes.length);
      const field = this.#byNumber[Math.floor(tag / 8)];
      if (field?.name !== name || field.tag !== tag) reader.skip(tag, bytes.length);
      else yield this.#readField(field, reader, bytes.length) as never;
    }
  }

  /** From the last field to the first: the length of what is inside is known when it is written. */
  write(value: Record<string, unknown>): void {
    for (let i = this.#fields.length - 1; i >= 0; i--) {
      const field = this.#fields[i]!;
      const one = value[field.name];
      if (one === undefined) continue;
      if (!field.repeated) this.#writeField(field, one);
      else {
        const list = one as readonly unknown[];
        for (let j = list.length - 1; j >= 0; j--) this.#writeField(field, list[j]);
      }
    }
  }

  #writeField({ kind, tag, name }: NumberedField, value: unknown): void {
    if (kind instanceof Message) {
      const end = scratch.length - at;
      kind.write(value as Record<string, unknown>);
      writeVarint(scratch.length - at - end);
    } else if (kind === "text") writeText(value as string);
    else if (kind === "bool") writeVarint(value === true ? 1 : 0);
    else if (kind === "number") writeInt64(BigInt(value as number));
    else if (kind === "int64" || kind === "uint64") writeInt64(value as bigint);
    else {
      const number = kind.indexOf(value as string);
      if (number === -1) throw new TypeError(`${this.name}.${name} can't be ${String(value)}`);
      writeVarint(number);
    }
    writeVarint(tag);
  }

  read(reader: Reader, end: number): Record<string, unknown> {
    const value = { ...this.#blank };
    for (const list of this.#lists) value[list] = [];
    while (reader.at < end) {
      const tag = reader.number(end);
      const field = this.#byNumber[Math.floor(tag / 8)];
      if (field === undefined || field.tag !== tag) reader.skip(tag, end);
      else if (field.repeated)
        (value[field.name] as unknown[]).push(this.#readField(field, reader, end));
      else value[field.name] = this.#readField(field, reader, end);
    }
    return value;
  }

  #readField({ kind, name }: NumberedField, reader: Reader, end: number): unknown {
    if (kind instanceof Message) {
      const inner = reader.endOfDelimited(end);
      return kind.read(reader, inner);
    }
    if (kind === "text") return reader.text(end);
    if (kind === "bool") return reader.number(end) !== 0;
    if (kind === "number") return reader.signedNumber(end);
    if (kind === "int64") return reader.int64(end);
    if (kind === "uint64") return reader.uint64(end);
    const number = reader.number(end);
    const known = kind[number];
    if (known === undefined) throw new RangeError(`${this.name}.${name} is of kind ${number}`);
    return known;
  }
}

function wireTypeOf({ kind }: Field): number {
  return kind === "text" || kind instanceof Message ? DELIMITED : VARINT;
}

function blankOf({ kind, repeated }: NumberedField): unknown {
  if (repeated || kind instanceof Message) return undefined;
  if (kind === "text") return "";
  if (kind === "bool") return false;
  if (kind === "number") return 0;
  return typeof kind === "string" ? 0n : kind[0];
}

const SCRATCH_KEPT = 16 * 1024;
/** Filled from its end. Encoding is one synchronous step, so that one will do for all. */
let scratch = Buffer.allocUnsafe(SCRATCH_KEPT);
let at = 0;

function reserve(size: number): void {
  if (at >= size) return;
  const used = scratch.length - at;
  const next = Buffer.allocUnsafe(Math.max(scratch.length * 2, used + size));
  scratch.copy(next, next.length - used, at);
  at = next.length - used;
  scratch = next;
}

function writeText(text: string): void {
  const size = Buffer.byteLength(text);
  reserve(size);
  at -= size;
  scratch.write(text, at, size, "utf8");
  writeVarint(size);
}

/** Writes a whole number from 0 to 2^53 - 1. */
function writeVarint(value: number): void {
  if (value < 128) {
    reserve(1);
    scratch[--at] = value;
    return;
  }
  let size = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) size++;
  reserve(size);
  at -= size;
  writeBytes(at, value, size);
}

function writeBytes(from: number, value: number, size: number): void {
  let rest = value;
  for (let i = 0; i < size - 1; i++) {
    scratch[from + i] = (rest % 128) + 128;
    rest = Math.floor(rest / 128);
  }
  scratch[from + size - 1] = rest;
}

const LOW_BITS = 49n;
const LOW = 2 ** 49;

function writeInt64(value: bigint): void {
  if (value >= 0n && value <= Number.MAX_SAFE_INTEGER) {
    writeVarint(Number(value));
    return;
  }
  if (value < -(2n ** 63n) || value >= 2n ** 64n) throw new RangeError(`${value} has over 64 bits`);
  const bits = BigInt.asUintN(64, value);
  const low = Number(BigInt.asUintN(49, bits));
  const high = Number(bits >> LOW_BITS);
  const highSize = high < 128 ? 1 : high < 16_384 ? 2 : 3;
  reserve(7 + highSize);
  at -= 7 + highSize;
  writeBytes(at, low, 7);
  scratch[at + 6]! += 128;
  writeBytes(at + 7, high, highSize);
}

class Reader {
  readonly #bytes: Buffer;
  at = 0;
  /** The varint that was read last: 49 bits, and the 15 above. */
  #low = 0;
  #high = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  number(end: number): number {
    this.#varint(end);
    return this.#high * LOW + this.#low;
  }

  signedNumber(end: number): number {
    this.#varint(end);
    return this.#high === 0 ? this.#low : Number(BigInt.asIntN(64, this.#bits()));
  }

  int64(end: number): bigint {
    this.#varint(end);
    return this.#high === 0 ? BigInt(this.#low) : BigInt.asIntN(64, this.#bits());
  }

  uint64(end: number): bigint {
    this.#varint(end);
    return this.#high === 0 ? BigInt(this.#low) : this.#bits();
  }

  text(end: number): string {
    const from = this.passDelimited(end);
    return this.#bytes.toString("utf8", from, this.at);
  }

  endOfDelimited(end: number): number {
    const size = this.number(end);
    if (size > end - this.at) throw truncated();
    return this.at + size;
  }

  /** Skips a delimited value, and returns the index at which it begins. */
  passDelimited(end: number): number {
    const inner = this.endOfDelimited(end);
    const from = this.at;
    this.at = inner;
    return from;
  }

  skip(tag: number, end: number): void {
    const wireType = tag % 8;
    if (tag < 8 || tag >= 2 ** 32) throw new RangeError("a message has a field without a number");
    if (wireType === VARINT) this.#varint(end);
    else if (wireType === DELIMITED) this.passDelimited(end);
    else if (wireType === FIXED64) this.#pass(8, end);
    else if (wireType === FIXED32) this.#pass(4, end);
    else throw new RangeError(`a message has a field of wire type ${wireType}`);
  }

  #pass(size: number, end: number): void {
    if (size > end - this.at) throw truncated();
    this.at += size;
  }

  #bits(): bigint {
    return (BigInt(this.#high) << LOW_BITS) | BigInt(this.#low);
  }

  #varint(end: number): void {
    this.#high = 0;
    let low = 0;
    for (let i = 0, factor = 1; i < 7; i++, factor *= 128) {
      const byte = this.#byte(end);
      low += (byte & 127) * factor;
      if (byte < 128) {
        this.#low = low;
        return;
      }
    }
    this.#low = low;
    for (let i = 0, factor = 1; i < 3; i++, factor *= 128) {
      const byte = this.#byte(end);
      if (i === 2 && byte > 1) break;
      this.#high += (byte & 127) * factor;
      if (byte < 128) return;
    }
    throw new RangeError("a message has a number of over 64 bits");
  }

  #byte(end: number): number {
    if (this.at >= end) throw truncated();
    return this.#bytes[this.at++]!;
  }
}

const truncated = (): RangeError => new RangeError("a message ends too early");
