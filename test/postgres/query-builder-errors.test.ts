import { Pool } from "pg";
import { describe, expect, onTestFinished, test } from "vitest";
import { StoreUnavailableError } from "../../src/core/errors.js";
import { postgresFence } from "../../src/fence/postgres.js";
import { changing, optimistic, postgresRow } from "../../src/lockfree/index.js";
import { lockRow } from "../../src/postgres/index.js";

/** As Prisma makes them: `meta` describes what Prisma knows of the error. */
function prismaError(code: string, message: string, meta?: object): Error {
  return Object.assign(new Error(message), { code, meta, clientVersion: "6.19.0" });
}

const errors: readonly [
  what: string,
  error: Error,
  retryable: boolean,
  text: string,
  advice?: string,
][] = [
  [
    "a transaction that Prisma has ended",
    prismaError("P2028", "Transaction already closed", { error: "Transaction already closed" }),
    true,
    "Transaction already closed",
    "run it again",
  ],
  [
    "no free connection",
    prismaError("P2024", "Timed out fetching a new connection", { timeout: 10 }),
    false,
    "Timed out fetching a new connection",
  ],
  [
    "a closed connection",
    prismaError("P1017", "Server has closed the connection.", {}),
    true,
    "Server has closed the connection.",
    "begin it again",
  ],
  [
    "a connection that was lost before the statement",
    new Error("Client has encountered a connection error and is not queryable"),
    true,
    "not queryable",
    "begin it again",
  ],
  [
    "a connection that was lost before the statement, by Drizzle",
    Object.assign(new Error("Failed query: UPDATE …"), {
      query: "UPDATE …",
      cause: new Error("Client was closed and is not queryable"),
    }),
    true,
    "not queryable",
    "begin it again",
  ],
  [
    "a statement that Prisma itself refuses",
    prismaError("P2010", "Raw query failed", { code: "N/A", message: "Failed to deserialize" }),
    false,
    "Raw query failed",
  ],
  [
    "a conflict, by Prisma's code",
    prismaError("P2034", "write conflict or a deadlock", { modelName: "Stock" }),
    true,
    "write conflict or a deadlock",
  ],
  ["a conflict without meta", prismaError("P2034", "write conflict"), true, "write conflict"],
  [
    "a conflict, by the server's code",
    prismaError("P2010", "Raw query failed", { code: "40001", message: "could not serialize" }),
    true,
    "could not serialize",
  ],
  [
    "a conflict, by the server's error, with an empty meta",
    Object.assign(new Error("could not serialize"), { code: "40001", meta: {} }),
    true,
    "could not serialize",
  ],
];

describe.each(errors)("of a query builder: %s", (_, error, retryable, text, advice) => {
  const tx = {
    query: async (): Promise<never> => {
      throw error;
    },
  };
  const expected = {
    code: "STORE_UNAVAILABLE",
    retryable,
    message: expect.stringContaining(advice ?? text),
    cause: { message: expect.stringContaining(text) },
  };

  test("guard tells it with its text and its cause", async () => {
    // Nothing connects: the guard runs in the tx alone.
    const pool = new Pool({ host: "127.0.0.1", port: 1 });
    onTestFinished(() => pool.end());
    const guarding = postgresFence(pool).guard(tx, "stock", { token: 1n, floor: 1n });
    await expect(guarding).rejects.toMatchObject(expected);
  });

  test("lockRow tells it with its text and its cause", async () => {
    await expect(lockRow(tx, "stock", { id: 1 })).rejects.toMatchObject(expected);
  });
});

test("a write whose connection Prisma has lost may have been written", async () => {
  const closed = prismaError("P1017", "Server has closed the connection.", {});
  let statements = 0;
  const db = {
    query: async () => {
      if (++statements === 1) return { rows: [{ amount: 1, version: 1 }] };
      throw closed;
    },
  };
  const row = postgresRow<{ amount: number }>(db, "stock", { id: 1 });
  const refused = optimistic(changing(row, ({ amount }) => ({ amount: amount + 1 })));
  await expect(refused).rejects.toSatisfy(
    (error) =>
      error instanceof StoreUnavailableError &&
      !error.retryable &&
      error.message.includes("may have been written"),
  );
});
