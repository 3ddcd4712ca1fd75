import assert from "node:assert/strict";
import { type ErrorCode, HoldfastError, type StaleTokenError } from "../core/errors.js";
import type { Fence, Fenced } from "../fence/fence.js";

/** A fence under test, with a number that it guards for each resource. Each case gets a fresh one. */
export interface FenceSubject {
  /** The fence; the suite calls it without a transaction. */
  readonly fence: Fence<undefined>;
  /** Reads the number of a resource; 0 if it was never written. */
  read(resource: string): Promise<number>;
  /** Writes it with `guard`, in one step. */
  write(
    resource: string,
    lease: Fenced,
    value: number,
    options?: { strict?: boolean },
  ): Promise<void>;
  /**
   * Deletes it as the resource's owner would, without the fence's help. Leave it out if the fence keeps its number
   * in the resource, and so loses it too: the case that needs it is skipped, and reported.
   */
  forget?(resource: string): Promise<void>;
  /** Frees what the case has used. */
  dispose?(): Promise<void> | void;
}

/** One promise of a fence. */
export interface FenceCase {
  /** The promise in words. */
  readonly name: string;
  /** A function that a subject may lack: without it, skip the case. */
  readonly needs?: "forget";
  /** Rejects if the fence does not keep the promise. */
  run(subject: FenceSubject): Promise<void>;
}

const by = (token: bigint, floor = token): Fenced => ({ token, floor });
/** By their codes: a fence of yours may use another copy of the library. */
const hasCode =
  (code: ErrorCode) =>
  (error: unknown): boolean =>
    HoldfastError.is(error) && error.code === code;
const isStale = hasCode("STALE_TOKEN");
const isInvalid = hasCode("INVALID_ARGUMENT");
const HIGH = 2n ** 63n - 1n;

/** The cases that every fence has to pass: for a fence of your own, run them with any test runner. */
export const fenceConformance: readonly FenceCase[] = [
  {
    name: "a holder from before is refused once a later one has entered, and writes nothing",
    async run({ fence, read, write }) {
      await fence.enter(undefined, "cell", by(5n));
      await write("cell", by(5n), 1);
      await fence.enter(undefined, "cell", by(6n));
      await assert.rejects(write("cell", by(5n), 2), isStale);
      await assert.rejects(fence.enter(undefined, "cell", by(5n)), isStale);
      await assert.rejects(fence.guard(undefined, "cell", by(5n)), isStale);
      assert.equal(await read("cell"), 1);
      await write("cell", by(6n), 3);
      assert.equal(await read("cell"), 3);
      assert.equal(await fence.highest(undefined, "cell"), 6n);
    },
  },
  {
    name: "a refusal tells the resource, the token and the highest floor",
    async run({ fence, write }) {
      await fence.enter(undefined, "cell", by(9n));
      await assert.rejects(write("cell", by(8n), 1), (error) => {
        const { resource, token, highest } = error as StaleTokenError;
        assert.deepEqual([resource, token, highest], ["cell", 8n, 9n]);
        return true;
      });
    },
  },
  {
    name: "a write of a holder that has not entered enters for it; strict refuses it",
    async run({ fence, read, write }) {
      await assert.rejects(write("cell", by(3n), 1, { strict: true }), /not entered/);
      assert.equal(await read("cell"), 0);
      assert.equal(await fence.highest(undefined, "cell"), 0n);
      await write("cell", by(3n), 2);
      assert.equal(await fence.highest(undefined, "cell"), 3n);
      await write("cell", by(3n), 4, { strict: true });
      await assert.rejects(write("cell", by(2n), 9), isStale);
      assert.equal(await read("cell"), 4);
    },
  },
  {
    name: "holders of the same time do not refuse each other, and those from before their floor are refused",
    async run({ fence, write }) {
      await fence.enter(undefined, "cell", by(4n));
      await fence.enter(undefined, "cell", by(7n, 5n));
      await write("cell", by(5n, 5n), 1);
      await write("cell", by(6n, 5n), 2);
      await write("cell", by(7n, 5n), 3);
      await assert.rejects(write("cell", by(4n), 4), isStale);
      assert.equal(await fence.highest(undefined, "cell"), 5n);
      await fence.enter(undefined, "cell", by(8n));
      await assert.rejects(write("cell", by(7n, 5n), 5), isStale);
    },
  },
  {
    name: "strict accepts all holders of a floor that one of them has entered",
    async run({ fence, write }) {
      await fence.enter(undefined, "cell", by(6n));
      await write("cell", by(9n, 6n), 1, { strict: true });
      await assert.rejects(write("cell", by(9n, 7n), 2, { strict: true }), /not entered/);
      await fence.enter(undefined, "cell", by(12n, 8n));
      await write("cell", by(9n, 6n), 3, { strict: true });
      assert.equal(await fence.highest(undefined, "cell"), 8n);
      await fence.enter(undefined, "other", by(3n, 0n));
      await write("other", by(3n, 0n), 4, { strict: true });
    },
  },
  {
    name: "strict refuses a holder that has not entered, also with floor 0",
    async run({ fence, read, write }) {
      for (const lease of [by(0n), by(3n, 0n)]) {
        await assert.rejects(write("cell", lease, 1, { strict: true }), /not entered/);
        await assert.rejects(
          fence.guard(undefined, "cell", lease, { strict: true }),
          /not entered/,
        );
      }
      assert.equal(await read("cell"), 0);
      await fence.enter(undefined, "cell", by(0n));
      await write("cell", by(3n, 0n), 2, { strict: true });
      assert.equal(await read("cell"), 2);
    },
  },
  {
    name: "tokens are exact up to 2^63 - 1",
    async run({ fence, write }) {
      const odd = 2n ** 53n + 1n;
      await write("cell", by(odd), 1);
      assert.equal(await fence.highest(undefined, "cell"), odd);
      await assert.rejects(write("cell", by(odd - 1n), 2), isStale);
      await write("cell", by(HIGH), 3);
      assert.equal(await fence.highest(undefined, "cell"), HIGH);
      await assert.rejects(write("cell", by(HIGH - 1n), 4), isStale);
      await write("other", by(0n), 5);
      assert.equal(await fence.highest(undefined, "other"), 0n);
    },
  },
  {
    name: "resources do not know of each other",
    async run({ fence, read, write }) {
      for (const [i, resource] of [
        "a",
        "A",
        "a ",
        "ä",
        "a:b",
        "{a}",
        "a}",
        "a'b\"c",
        "a%",
      ].entries()) {
        await write(resource, by(BigInt(10 + i)), i + 1);
        assert.equal(await fence.highest(undefined, resource), BigInt(10 + i), resource);
        assert.equal(await read(resource), i + 1, resource);
      }
      await write("a", by(10n), 99);
    },
  },
  {
    name: "reset moves the fence, also downwards",
    async run({ fence, read, write }) {
      await write("cell", by(100n), 1);
      await fence.reset(undefined, "cell", 4n);
      assert.equal(await fence.highest(undefined, "cell"), 4n);
      await write("cell", by(5n), 2);
      assert.equal(await read("cell"), 2);
      await assert.rejects(write("cell", by(4n), 3), isStale);
    },
  },
  {
    name: "the number outlives what it guards: a stale holder can't write to a resource that was deleted and made again",
    needs: "forget",
    async run(subject) {
      await subject.write("cell", by(6n), 1);
      await subject.forget!("cell");
      await assert.rejects(subject.write("cell", by(5n), 2), isStale);
      await subject.write("cell", by(6n), 3);
      assert.equal(await subject.read("cell"), 3);
    },
  },
  {
    name: "64 writers at once, their tokens in no order: after a write no lower token is accepted",
    async run({ fence, read, write }) {
      const tokens = Array.from({ length: 64 }, (_, i) => BigInt(((i * 37) % 64) + 1));
      const accepted: bigint[] = [];
      let writing = true;
      const writers = Promise.all(
        tokens.map(async (token) => {
          try {
            await write("cell", by(token), Number(token));
            accepted.push(token);
          } catch (error) {
            assert.ok(isStale(error), String(error));
          }
        }),
      ).finally(() => {
        writing = false;
      });
      const reader = async (): Promise<void> => {
        for (let last = 0; writing; ) {
          const value = await read("cell");
          assert.ok(
            value >= last,
            `the write of token ${value} was accepted after that of ${last}`,
          );
          last = value;
          // Other requests of this process get a turn.
          await new Promise((resolve) => setTimeout(resolve, 0));
        }
      };
      await Promise.all([writers, reader()]);
      assert.ok(accepted.includes(64n), "the highest token was refused");
      assert.equal(await read("cell"), 64);
      assert.equal(await fence.highest(undefined, "cell"), 64n);
    },
  },
  {
    name: "bad arguments are refused, and change nothing",
    async run({ fence }) {
      const bad = [null, {}, { token: 1, floor: 1 }, by(1n, 2n), by(-1n), by(HIGH + 1n)];
      for (const lease of bad)
        await assert.rejects(fence.enter(undefined, "cell", lease as Fenced), isInvalid);
      for (const resource of ["", "ä".repeat(128), "a\n", 7, null] as string[]) {
        await assert.rejects(fence.enter(undefined, resource, by(1n)), isInvalid);
        await assert.rejects(fence.guard(undefined, resource, by(1n)), isInvalid);
        await assert.rejects(fence.highest(undefined, resource), isInvalid);
        await assert.rejects(fence.reset(undefined, resource, 1n), isInvalid);
      }
      await assert.rejects(fence.reset(undefined, "cell", -1n), isInvalid);
      const options = { strickt: true } as object as { strict: boolean };
      await assert.rejects(fence.guard(undefined, "cell", by(1n), options), isInvalid);
      assert.equal(await fence.highest(undefined, "cell"), 0n);
    },
  },
];

/** The outcome of `runFenceConformance`, by the names of the cases. */
export interface FenceReport {
  /** Cases that the fence passed. */
  readonly passed: readonly string[];
  /** Cases that were not run, with the reason. */
  readonly skipped: readonly { readonly name: string; readonly why: string }[];
}

/** Runs all cases of `fenceConformance`, each on a fresh subject. Rejects with the first failure. */
export async function runFenceConformance(
  fresh: () => FenceSubject | Promise<FenceSubject>,
): Promise<FenceReport> {
  const passed: string[] = [];
  const skipped: { name: string; why: string }[] = [];
  for (const { name, needs, run } of fenceConformance) {
    const subject = await fresh();
    try {
      if (needs !== undefined && subject[needs] === undefined) {
        skipped.push({ name, why: `the subject has no function ${needs}` });
        continue;
      }
      await run(subject);
      passed.push(name);
    } catch (error) {
      throw new Error(`the fence fails: ${name}`, { cause: error });
    } finally {
      await subject.dispose?.();
    }
  }
  return { passed, skipped };
}
