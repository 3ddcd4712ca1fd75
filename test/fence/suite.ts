import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { expect, test } from "vitest";
import { type FenceSubject, fenceConformance } from "../../src/conformance/fence-suite.js";
import { InvalidArgumentError } from "../../src/core/errors.js";
import type { Fence, Fenced } from "../../src/fence/fence.js";
import type { FencedResource, FenceListOptions } from "../../src/fence/shared/list.js";

/** The functions that a subject may lack. */
type Missing = "forget" | "loseNumber";

type Listed = Fence<undefined> & {
  list(options?: FenceListOptions): Promise<readonly FencedResource[]>;
};

const by = (token: bigint): Fenced => ({ token, floor: token });

interface LosableCase {
  readonly name: string;
  readonly needs?: Missing;
  run(subject: LosableSubject): Promise<void>;
}

/** Not in the suite for users: their fence may refuse in another process. */
const PUBLISHES: LosableCase = {
  name: "each refusal is published once",
  async run({ fence, write }) {
    await fence.enter(undefined, "cell", by(9n));
    const events: unknown[] = [];
    const onEvent = (event: unknown): unknown => events.push(event);
    subscribe("holdfast:stale-token", onEvent);
    try {
      await expect(write("cell", by(8n), 1)).rejects.toThrow(/stale/);
      await expect(fence.enter(undefined, "cell", by(7n))).rejects.toThrow(/stale/);
      await expect(fence.guard(undefined, "cell", by(6n))).rejects.toThrow(/stale/);
      const strict = fence.guard(undefined, "cell", by(10n), { strict: true });
      await expect(strict).rejects.toThrow(/not entered/);
    } finally {
      unsubscribe("holdfast:stale-token", onEvent);
    }
    const refused = { resource: "cell", highest: 9n };
    expect(events).toEqual([8n, 7n, 6n, 10n].map((token) => ({ ...refused, token })));
  },
};

/** A fence whose number can be deleted behind its back. */
export interface LosableSubject extends FenceSubject {
  /** Deletes the number of "cell", as the loss of the backend's data does. */
  loseNumber?(): Promise<unknown>;
}

const STATE_LOST: LosableCase = {
  name: "state lost: a stale holder is accepted until the present one enters again",
  needs: "loseNumber",
  async run({ fence, read, write, loseNumber }) {
    await fence.enter(undefined, "cell", by(9n));
    await expect(write("cell", by(8n), 1)).rejects.toThrow(/stale/);
    await loseNumber!();
    expect(await fence.highest(undefined, "cell")).toBe(0n);
    await write("cell", by(8n), 2);
    await fence.enter(undefined, "cell", by(9n));
    await expect(write("cell", by(8n), 3)).rejects.toThrow(/stale/);
    expect(await read("cell")).toBe(2);
  },
};

/**
 * One test for each promise of a fence, each on a fresh subject. A function that the subject lacks has to be named
 * here with the reason, so that nothing is skipped silently.
 */
export function suiteOf(
  fresh: () => Promise<LosableSubject>,
  lacks: Partial<Record<Missing, string>> = {},
): void {
  const cases: readonly LosableCase[] = [...fenceConformance, PUBLISHES, STATE_LOST];
  for (const { name, needs, run } of cases) {
    test(name, async ({ skip }) => {
      const subject = await fresh();
      try {
        const why = needs && lacks[needs];
        if (needs !== undefined)
          expect(subject[needs] === undefined, needs).toBe(why !== undefined);
        if (why !== undefined) return skip(why);
        await run(subject);
      } finally {
        await subject.dispose?.();
      }
    });
  }
}

/** `list` of a fresh fence: order, prefix, limit, and the time where the backend can tell it. */
export async function expectListed(
  fence: Listed,
  { tellsTime }: { tellsTime: boolean },
): Promise<void> {
  expect(await fence.list()).toEqual([]);
  // A minute either way: the clock may be a server's.
  const sinceMs = Date.now() - 60_000;
  for (const [i, resource] of ["b", "a:2", "a:1", "ä", "a%*", "{a}x", "\u{10ffff}"].entries())
    await fence.enter(undefined, resource, by(BigInt(i + 1)));
  await fence.enter(undefined, "b", by(2n ** 63n - 1n));
  const all = await fence.list();
  expect(all.map(({ resource }) => resource)).toEqual([
    "a%*",
    "a:1",
    "a:2",
    "b",
    "{a}x",
    "ä",
    "\u{10ffff}",
  ]);
  expect(all[3]!.highest).toBe(2n ** 63n - 1n);
  for (const { enteredAtMs } of all) {
    if (!tellsTime) expect(enteredAtMs).toBeNull();
    else {
      expect(enteredAtMs).toBeGreaterThan(sinceMs);
      expect(enteredAtMs).toBeLessThan(Date.now() + 60_000);
    }
  }
  const some = await fence.list({ prefix: "a:" });
  expect(some).toMatchObject([
    { resource: "a:1", highest: 3n },
    { resource: "a:2", highest: 2n },
  ]);
  expect(await fence.list({ prefix: "a:", limit: 1 })).toEqual([some[0]]);
  expect(await fence.list({ prefix: "nothing" })).toEqual([]);
  for (const bad of [{ limit: 0 }, { limit: 10_001 }, { prefix: 7 }, { perfix: "a" }])
    await expect(fence.list(bad as never)).rejects.toThrow(InvalidArgumentError);
}
