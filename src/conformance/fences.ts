import assert from "node:assert/strict";
import { InvalidArgumentError, StaleTokenError } from "../core/errors.js";
import type { Case, FencedCell } from "./subject.js";

const isStale = (error: unknown): boolean => error instanceof StaleTokenError;

const writeGuarded = (
  cell: FencedCell,
  lease: { token: bigint; floor: bigint },
  value: number,
): Promise<void> =>
  cell.transaction(async (tx) => {
    await cell.fence.guard(tx, "cell", lease);
    await cell.write(tx, value);
  });

const read = (cell: FencedCell): Promise<number> => cell.transaction((tx) => cell.read(tx));

/** The fence: which tokens a resource refuses. */
export const fenceCases: readonly Case[] = [
  {
    name: "a misspelt option of guard is refused: without strict the fence would accept more",
    needsFence: true,
    async run(bench) {
      const { fence } = await bench.subject.fence!();
      const lease = { token: 1n, floor: 1n };
      for (const options of [{ strickt: true }, { strict: "yes" }, true, null]) {
        await assert.rejects(
          fence.guard(undefined, "cell", lease, options as { strict: boolean }),
          InvalidArgumentError,
        );
      }
      assert.equal(await fence.highest(undefined, "cell"), 0n);
    },
  },
  {
    name: "a holder that was paused past its lease can't write",
    needsFence: true,
    async run(bench) {
      const cell = await bench.subject.fence!();
      const [one, two] = [await bench.client(), await bench.locks()];
      const paused = await one.locks.acquire("name");
      await cell.fence.enter(undefined, "cell", paused);
      await writeGuarded(cell, paused, 1);
      one.store.all = "hang";
      const next = await bench.settled(two.acquire("name"), bench.ttlMs * 2);
      await cell.fence.enter(undefined, "cell", next);
      await assert.rejects(writeGuarded(cell, paused, 2), isStale);
      await assert.rejects(cell.fence.enter(undefined, "cell", paused), isStale);
      assert.equal(await read(cell), 1, "the refused write left nothing");
      await writeGuarded(cell, next, 3);
      assert.equal(await read(cell), 3);
      assert.equal(await cell.fence.highest(undefined, "cell"), next.token);
      assert.equal(await cell.fence.highest(undefined, "another cell"), 0n);
      await next.release();
    },
  },
  {
    name: "withLock enters the fence before the first read, so no update is lost",
    needsFence: true,
    async run(bench) {
      const cell = await bench.subject.fence!();
      const [one, two] = [await bench.client(), await bench.locks()];
      const stale = await one.locks.acquire("name");
      const staleRead = await read(cell);
      one.store.all = "hang";
      await bench.settled(
        two.withLock("name", { fence: cell.fence, resource: "cell" }, async (lease) => {
          const value = await read(cell);
          // The stale holder wakes between this holder's read and its write.
          await assert.rejects(
            writeGuarded(cell, stale, staleRead + 1),
            isStale,
            "an update is lost",
          );
          await writeGuarded(cell, lease, value + 10);
        }),
        bench.ttlMs * 3,
      );
      assert.equal(await read(cell), 10);
    },
  },
  {
    name: "readers do not fence each other out, and an earlier holder is refused",
    needsFence: true,
    feature: "shared",
    async run(bench) {
      const cell = await bench.subject.fence!();
      const [one, two] = [await bench.client(), await bench.locks()];
      const zombie = await one.locks.acquire("name");
      await cell.fence.enter(undefined, "cell", zombie);
      one.store.all = "hang";
      const first = await bench.settled(two.acquire("name", { mode: "shared" }), bench.ttlMs * 2);
      const second = await two.acquire("name", { mode: "shared" });
      await cell.fence.enter(undefined, "cell", second);
      await cell.fence.enter(undefined, "cell", first);
      await writeGuarded(cell, first, 1);
      await writeGuarded(cell, second, 2);
      await writeGuarded(cell, first, 3);
      await assert.rejects(writeGuarded(cell, zombie, 4), isStale);
      await first.release();
      await second.release();
      const writer = await two.acquire("name");
      await cell.fence.enter(undefined, "cell", writer);
      await assert.rejects(writeGuarded(cell, second, 5), isStale);
      await writer.release();
    },
  },
  {
    name: "strict refuses a holder that has not entered; reset moves the fence",
    needsFence: true,
    async run(bench) {
      const { fence } = await bench.subject.fence!();
      const lease = { token: 9_007_199_254_740_993n, floor: 9_007_199_254_740_993n };
      await assert.rejects(fence.guard(undefined, "cell", lease, { strict: true }), /not entered/);
      assert.equal(await fence.highest(undefined, "cell"), 0n);
      await fence.enter(undefined, "cell", lease);
      await fence.guard(undefined, "cell", lease, { strict: true });
      assert.equal(await fence.highest(undefined, "cell"), lease.token, "exact beyond 2^53");
      const lower = { token: 5n, floor: 5n };
      await assert.rejects(fence.guard(undefined, "cell", lower), isStale);
      await fence.reset(undefined, "cell", 4n);
      await fence.guard(undefined, "cell", lower);
      for (const bad of [
        null,
        {},
        { token: 1, floor: 1 },
        { token: 1n, floor: 2n },
        { token: -1n, floor: 0n },
      ]) {
        await assert.rejects(fence.enter(undefined, "cell", bad as never), {
          code: "INVALID_ARGUMENT",
        });
      }
      await assert.rejects(fence.enter(undefined, "", lower), { code: "INVALID_ARGUMENT" });
    },
  },
];
