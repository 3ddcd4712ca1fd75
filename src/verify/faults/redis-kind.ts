import type { KindReader } from "./tcp-link.js";

const SUBSCRIBES = new Set(["SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE"]);
/** Commands that clients send on every new connection, before its purpose shows. */
const SETS_UP = new Set(["AUTH", "CLIENT", "HELLO", "INFO", "PING", "QUIT", "READONLY", "SELECT"]);
/** Longer than any line that is parsed. */
const LINE_BYTES = 64;

/**
 * Distinguishes the kinds of Redis connections, for `TcpProxy.open(redis, { kindOf: redisConnectionKind })`.
 * A connection on which SUBSCRIBE, SSUBSCRIBE or PSUBSCRIBE was ever sent is "subscription". Any
 * other is "commands", from its first command that does more than set up the connection.
 */
export function redisConnectionKind(): KindReader {
  const names = new CommandNames();
  let kind: "subscription" | "commands" | undefined;
  return (bytes) => {
    if (kind === "subscription") return kind;
    for (const name of names.read(bytes)) {
      if (SUBSCRIBES.has(name)) kind = "subscription";
      else if (!SETS_UP.has(name)) kind ??= "commands";
      if (kind === "subscription") break;
    }
    return kind;
  };
}

/** Reads the names of commands from a stream of commands, and skips their arguments. */
class CommandNames {
  #line = "";
  #skipBytes = 0;
  #argumentsLeft = 0;
  /** Whether the next `$` line announces a name, or the next line is one. */
  #expects: "size of name" | "name" | "size of argument" = "size of argument";

  *read(bytes: Buffer): Generator<string> {
    let at = 0;
    while (at < bytes.length) {
      const skipped = Math.min(this.#skipBytes, bytes.length - at);
      this.#skipBytes -= skipped;
      at += skipped;
      const end = bytes.indexOf("\n", at);
      const piece = bytes.toString("latin1", at, end === -1 ? bytes.length : end);
      this.#line = (this.#line + piece).slice(0, LINE_BYTES);
      if (end === -1) return;
      at = end + 1;
      const line = this.#line.trimEnd();
      this.#line = "";
      const name = this.#take(line);
      if (name !== undefined) yield name.toUpperCase();
    }
  }

  #take(line: string): string | undefined {
    if (this.#expects === "name") {
      this.#expects = "size of argument";
      return line;
    }
    if (this.#argumentsLeft > 0) {
      this.#argumentsLeft--;
      if (this.#expects === "size of name") this.#expects = "name";
      else this.#skipBytes = Number(line.slice(1)) + "\r\n".length;
      return undefined;
    }
    if (!line.startsWith("*")) return line.split(" ")[0] || undefined;
    this.#argumentsLeft = Number(line.slice(1));
    this.#expects = "size of name";
    return undefined;
  }
}
