/** Has four bytes. Names may have it too. */
const HIGHEST = "\u{10ffff}";
const SURROGATE = /[\ud800-\udfff]/;

/** Sorts after every text that has at most 255 bytes behind this beginning. */
export const endOf = (beginning: string): string => beginning + HIGHEST.repeat(64);

/** Orders texts by their UTF-8 bytes: the same for every process, whatever its language. */
export function compareUtf8(a: string, b: string): number {
  // Without surrogates, the order of UTF-16 is the same.
  if (!SURROGATE.test(a) && !SURROGATE.test(b)) return a < b ? -1 : a > b ? 1 : 0;
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}
