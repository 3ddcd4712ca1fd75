/** PostgreSQL's text has no NUL, and no halves of surrogate pairs. */
export const storable = (text: string): string => text.toWellFormed().replaceAll("\0", "\ufffd");

export type LiteralValue = string | number | null | readonly string[];

/** A value as SQL has it. E'…' means the same under each setting of standard_conforming_strings. */
export function literal(value: LiteralValue): string {
  if (value === null || typeof value === "number") return String(value);
  if (typeof value !== "string") return `ARRAY[${value.map(literal).join(", ")}]::text[]`;
  return `E'${value.replaceAll("\\", "\\\\").replaceAll("'", "''")}'`;
}

/** The next text after this one, as \0 can't be stored. */
export const firstAfter = (text: string): string => `${text}\u0001`;

/** The first text after all those that start with the prefix, in order of UTF-8 bytes; null: there is none. */
export function firstBeyond(prefix: string): string | null {
  const points = [...prefix].map((char) => char.codePointAt(0)!);
  while (points.length > 0) {
    const next = points.pop()! + 1;
    // Surrogates are no characters.
    if (next <= 0x10_ff_ff)
      return String.fromCodePoint(...points, next === 0xd8_00 ? 0xe0_00 : next);
  }
  return null;
}
