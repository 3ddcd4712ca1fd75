import { expect, test } from "vitest";
import { type FenceSubject, fenceConformance } from "../../src/conformance/fence-suite.js";
import { InvalidArgumentError } from "../../src/core/errors.js";
import type { Fence, Fenced } from "../../src/fence/fence.js";
import type { FencedResource, FenceListOptions } from "../../src/fence/shared/list.js";

type Listed = Fence<undefined> & {
  list(options?: FenceListOptions): Promise<readonly FencedResource[]>;
};

/** One test for each promise of a fence, each on a fresh subject. */
export function suiteOf(fresh: () => Promise<FenceSubject>): void {
  test.each(fenceConformance.map((one) => [one.name, one] as const))("%s", async (_name, one) => {
    const subject = await fresh();
    try {
      await one.run(subject);
    } finally {
      await subject.dispose?.();
    }
  });
}

/** `list` of a fresh fence: order, prefix, limit, and the time where the backend can tell it. */
export async function expectListed(
  fence: Listed,
  { tellsTime }: { tellsTime: boolean },
): Promise<void> {
  const by = (token: bigint): Fenced => ({ token, floor: token });
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
