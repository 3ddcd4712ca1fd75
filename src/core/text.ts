/** C0 and C1 controls, line and paragraph separators, and characters that change the direction of text. */
const UNPRINTABLE =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is replaced
  /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Text from a store, a client library or a user, made safe for a terminal and for one line of a log. */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, "?");
}
