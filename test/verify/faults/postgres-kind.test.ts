import { expect, test } from "vitest";
import { postgresConnectionKind } from "../../../src/verify/faults/postgres-kind.js";

/** A message of the protocol with a statement in it. */
const query = (statement: string): Buffer => {
  const text = Buffer.from(`${statement}\0`);
  const length = Buffer.alloc(4);
  length.writeInt32BE(text.length + 4);
  return Buffer.concat([Buffer.from("Q"), length, text]);
};

const kindAfter = (...pieces: readonly Buffer[]): string | undefined => {
  const read = postgresConnectionKind();
  return pieces.map((piece) => read(piece)).at(-1);
};

const START = Buffer.from("\0\0\0\x4c\0\x03\0\0user\0locks\0database\0app\0\0");
const SUBSCRIBES = query('LISTEN "holdfast:1"');

test("a PostgreSQL connection has no kind before its first statement", () => {
  expect(kindAfter(START)).toBe(undefined);
  expect(kindAfter(START, Buffer.from("p\0\0\0\x0bsecret\0"))).toBe(undefined);
});

test("its first statement says what it is for, and later ones change nothing", () => {
  expect(kindAfter(START, SUBSCRIBES)).toBe("subscription");
  expect(kindAfter(START, SUBSCRIBES, query("SELECT 1"))).toBe("subscription");
  for (const statement of ["SELECT holdfast.claim($1)", "BEGIN"]) {
    expect(kindAfter(START, query(statement))).toBe("commands");
    expect(kindAfter(START, query(statement), SUBSCRIBES)).toBe("commands");
  }
});

test("the kind does not depend on how the bytes are split", () => {
  const all = Buffer.concat([START, SUBSCRIBES]);
  for (let at = 0; at <= all.length; at++) {
    expect(kindAfter(all.subarray(0, at), all.subarray(at)), `split at ${at}`).toBe("subscription");
  }
  expect(kindAfter(...[...all].map((byte) => Buffer.of(byte)))).toBe("subscription");
});
