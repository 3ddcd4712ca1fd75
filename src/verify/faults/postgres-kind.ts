import type { KindReader } from "./tcp-link.js";

/** A statement may be cut in two between pieces of the stream. */
const OVERLAP = 16;

/**
 * Tells the kinds of PostgreSQL connections apart, for `TcpProxy.open(postgres, { kindOf: postgresConnectionKind })`.
 * A connection whose first statement is LISTEN is "subscription", any other is "commands".
 */
export function postgresConnectionKind(): KindReader {
  let kind: "subscription" | "commands" | undefined;
  let seen = "";
  return (bytes) => {
    if (kind !== undefined) return kind;
    seen = seen.slice(-OVERLAP) + bytes.toString("latin1");
    const statement = /LISTEN "|SELECT |BEGIN/.exec(seen)?.[0];
    if (statement !== undefined)
      kind = statement.startsWith("LISTEN") ? "subscription" : "commands";
    return kind;
  };
}
