import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { type Runtime, standardSeams, systemRuntime } from "../../src/core/runtime.js";
import type { Store, Traits } from "../../src/core/store.js";
import { memoryFence } from "../../src/fence/memory.js";
import { sqliteFence } from "../../src/fence/sqlite.js";
import { MemoryStore } from "../../src/stores/memory/index.js";
import { openSqlite } from "../../src/stores/sqlite/driver.js";
import { openSqliteStore } from "../../src/stores/sqlite/open.js";
import {
  type Case,
  conformance,
  type FencedCell,
  type Mutant,
  runCase,
  type Subject,
  seededRandom,
  VirtualClock,
} from "../../src/testing.js";

/** The memory store under virtual time, or one that is broken in one way. */
export async function memorySubject(mutant: Mutant = {}): Promise<Subject> {
  const clock = new VirtualClock();
  const store = new MemoryStore(clock.forStore(), mutant.rule);
  const runtime: Runtime = { clock, random: seededRandom(7), seams: standardSeams };
  const broken = mutant.store?.();
  return {
    runtime: mutant.runtime?.(runtime) ?? runtime,
    virtual: clock,
    ttlMs: 1_000,
    open: async () => broken?.(store, clock) ?? store,
    fence: async () => memoryCell(mutant.fence),
    dispose: async () => {},
  };
}

function memoryCell(mutate: Mutant["fence"] = (fence) => fence): FencedCell {
  const fence = memoryFence();
  let value = 0;
  return {
    fence: mutate(fence as FencedCell["fence"]),
    transaction: (fn) => fence.transaction(fn),
    read: async () => value,
    write: async (_tx, to) => {
      value = to;
    },
  };
}

/** SQLite in a file of its own, in real time, every client on its own connection. */
export async function sqliteSubject(): Promise<Subject> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-test-"));
  const closing: (() => unknown)[] = [];
  return {
    runtime: systemRuntime(),
    ttlMs: 1_000,
    open: () => openSqliteStore(join(folder, "locks.db")),
    fence: async () => {
      const db = await openSqlite(join(folder, "data.db"));
      closing.push(() => db.close());
      db.exec("CREATE TABLE cell (value INTEGER); INSERT INTO cell VALUES (0)");
      return {
        fence: sqliteFence(db) as FencedCell["fence"],
        transaction: async (fn) => {
          db.exec("BEGIN IMMEDIATE");
          try {
            const result = await fn(db);
            db.exec("COMMIT");
            return result;
          } catch (error) {
            db.exec("ROLLBACK");
            throw error;
          }
        },
        read: async () => (db.prepare("SELECT value FROM cell").get() as { value: number }).value,
        write: async (_tx, value) => {
          db.prepare("UPDATE cell SET value = ?").run(value);
        },
      };
    },
    dispose: async () => {
      for (const close of closing) close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** A store in real time, with a fence in memory. */
export const realSubject = (open: () => Promise<Store>, ttlMs = 1_000): Subject => ({
  runtime: systemRuntime(),
  ttlMs,
  open,
  fence: async () => memoryCell(),
  dispose: async () => {},
});

/** The cases that do not apply to stores in real time. */
export const NEEDS_VIRTUAL_TIME = Object.fromEntries(
  conformance.filter((one) => one.virtualOnly).map(({ name }) => [name, "needs virtual time"]),
);

/** The cases about places in a queue. */
export const NEEDS_QUEUE = Object.fromEntries(
  conformance
    .filter((one) => one.needsQueue)
    .map(({ name }) => [name, "its waiters poll, and have no place in a queue"]),
);

/** The cases about features that a store refuses, with its reasons. */
export const casesRefusedBy = ({ cannot }: Traits): Record<string, string> =>
  Object.fromEntries(
    conformance.flatMap(({ name, feature }) => {
      const [refused] = [feature ?? []].flat().filter((one) => cannot[one] !== undefined);
      return refused === undefined ? [] : [[name, cannot[refused]!] as const];
    }),
  );

/** The suite as tests. A case that a store skips has to be named here, so that nothing is skipped silently. */
export function describeConformance(
  store: string,
  fresh: () => Promise<Subject>,
  skips: Record<string, string> = {},
  /** The case takes so long that it starts first: the others run beside it. */
  longest?: string,
  cases: readonly Case[] = conformance,
): void {
  const inOrder = [
    ...cases.filter(({ name }) => name === longest),
    ...cases.filter(({ name }) => name !== longest),
  ];
  const run = (one: Case): void => {
    test(one.name, { timeout: 120_000 }, async () => {
      const outcome = await runCase(one, await fresh());
      expect(outcome).toEqual(one.name in skips ? { skipped: skips[one.name] } : "passed");
    });
  };
  const [alone, together] = [true, false].map((is) =>
    inOrder.filter((one) => (one.alone ?? false) === is),
  ) as [Case[], Case[]];
  if (together.length > 0) {
    describe.concurrent(`${store}: conformance`, () => {
      for (const one of together) run(one);
    });
  }
  if (alone.length > 0) {
    describe(`${store}: conformance, one by one`, () => {
      for (const one of alone) run(one);
    });
  }
}
