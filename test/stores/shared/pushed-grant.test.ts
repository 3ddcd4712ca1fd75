import { describe, expect, test } from "vitest";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import { parseMessage } from "../../../src/stores/postgres/messages.js";
import { parseSocketMessage } from "../../../src/stores/sqlite/push-socket.js";

interface Numbers {
  readonly token: unknown;
  readonly floor: unknown;
  readonly ttlMs: unknown;
  readonly seq: unknown;
}

const GOOD: Numbers = {
  token: "1700000000000001",
  floor: "1700000000000000",
  ttlMs: 2_000,
  seq: 3,
};

/** How each store reads a message with these numbers. */
const STORES = {
  SQLite: (numbers: Numbers) =>
    parseSocketMessage(JSON.stringify({ grantId: "id", ...numbers }))?.push,
  PostgreSQL: ({ token, floor, ttlMs, seq }: Numbers) => {
    const ttl = typeof ttlMs === "number" ? ttlMs * 1_000 : ttlMs;
    const message = parseMessage(`granted ${token} ${floor} ${ttl} ${seq} id`);
    return message?.kind === "granted" ? { kind: message.kind, grant: message.grant } : message;
  },
};

describe.each(Object.entries(STORES))("%s", (_, read) => {
  test("a pushed grant is read", () => {
    const grant = {
      token: 1_700_000_000_000_001n,
      floor: 1_700_000_000_000_000n,
      ttlMs: 2_000,
      seq: 3,
      handedOver: true,
    };
    expect(read(GOOD)).toEqual({ kind: "granted", grant });
    expect(read({ ...GOOD, seq: LOCK_LIMIT })).not.toBeNull();
  });

  test.each<[string, Partial<Numbers>]>([
    ["token 0", { token: "0", floor: "0" }],
    ["a negative token", { token: "-1" }],
    ["a token in other digits", { token: "0x10" }],
    ["a token with a leading zero", { token: "01700000000000001" }],
    ["a token beyond 64 bits", { token: "99999999999999999999" }],
    ["floor 0", { floor: "0" }],
    ["a floor above the token", { floor: "1700000000000002" }],
    ["no time", { ttlMs: 0 }],
    ["a negative ttl", { ttlMs: -1 }],
    ["a ttl without end", { ttlMs: "1e999" }],
    ["a ttl that is no number", { ttlMs: "NaN" }],
    ["request 0", { seq: 0 }],
    ["a negative request", { seq: -1 }],
    ["half a request", { seq: 1.5 }],
    ["a request beyond any lease", { seq: LOCK_LIMIT + 1 }],
    ["a request that is no number", { seq: "x" }],
  ])("a message with %s is ignored", (_title, hostile) => {
    expect(read({ ...GOOD, ...hostile }) ?? null).toBeNull();
  });
});
