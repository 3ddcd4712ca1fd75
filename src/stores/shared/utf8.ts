/** Orders texts by their UTF-8 bytes: the same for every process, whatever its language. */
export const compareUtf8 = (a: string, b: string): number =>
  Buffer.compare(Buffer.from(a), Buffer.from(b));
