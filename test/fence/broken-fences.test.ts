import { describe, expect, test } from "vitest";
import type { FenceSubject } from "../../src/conformance/fence-suite.js";
import { checkToken } from "../../src/core/validate.js";
import {
  checkEntry,
  checkResource,
  hasEntered,
  refuseUnlessEntered,
} from "../../src/fence/index.js";
import { fenceConformance, runFenceConformance } from "../../src/testing.js";

/** The parts of a fence in memory, each of which can be broken. */
class Parts {
  readonly highest = new Map<string, bigint>();
  readonly values = new Map<string, number>();
  find = (resource: string): bigint | null => this.highest.get(resource) ?? null;
  save = (resource: string, highest: bigint): void => void this.highest.set(resource, highest);
  check = checkEntry;
  checkResource = checkResource;
  hasEntered = hasEntered;
  refuseUnlessEntered = refuseUnlessEntered;
  reset = (resource: string, token: bigint): void => this.save(resource, token);
  /** The step between the check and the write. */
  betweenCheckAndWrite = (_token: bigint): Promise<void> | null => null;
  forget = (resource: string): void => void this.values.delete(resource);
}

function subjectOf(parts: Parts): FenceSubject {
  const guard: FenceSubject["fence"]["guard"] = async (_tx, resource, lease, options) => {
    const entry = parts.check(resource, lease, options);
    const highest = parts.find(resource);
    if (entry.strict) parts.refuseUnlessEntered(entry, highest);
    if (!parts.hasEntered(entry, highest)) parts.save(resource, entry.floor);
  };
  return {
    fence: {
      guard,
      enter: (tx, resource, lease) => guard(tx, resource, lease),
      highest: async (_tx, resource) => parts.find(parts.checkResource(resource)) ?? 0n,
      async reset(_tx, resource, token) {
        parts.reset(parts.checkResource(resource), checkToken(token, "token"));
      },
    },
    read: async (resource) => parts.values.get(resource) ?? 0,
    async write(resource, lease, value, options) {
      // Checks and writes happen in the order of the calls, so a correct fence passes without a lock.
      await guard(undefined, resource, lease, options);
      const between = parts.betweenCheckAndWrite(lease.token);
      if (between !== null) await between;
      parts.values.set(resource, value);
    },
    forget: async (resource) => parts.forget(resource),
  };
}

const FIRST = "a holder from before is refused once a later one has entered";

/** A fault of a fence, how it is planted, and the case that has to fail first. */
const BROKEN: readonly (readonly [string, (parts: Parts) => void, string])[] = [
  [
    "checks nothing",
    (parts) => {
      parts.hasEntered = ({ floor }, highest) => highest !== null && floor <= highest;
    },
    FIRST,
  ],
  [
    "refuses also a holder whose token is the highest",
    (parts) => {
      parts.hasEntered = (entry, highest) =>
        hasEntered({ ...entry, token: entry.token - 1n }, highest);
    },
    FIRST,
  ],
  [
    "takes a lower token for the new highest one",
    (parts) => {
      parts.hasEntered = (entry, highest) => highest === entry.floor;
    },
    FIRST,
  ],
  [
    "does not tell the highest token with a refusal",
    (parts) => {
      parts.hasEntered = (entry, highest) =>
        hasEntered(entry, highest !== null && entry.token < highest ? entry.token + 2n : highest);
    },
    "a refusal tells the resource, the token and the highest floor",
  ],
  [
    "ignores strict",
    (parts) => {
      parts.refuseUnlessEntered = () => {};
    },
    "a write of a holder that has not entered enters for it; strict refuses it",
  ],
  [
    "takes a missing number for 0",
    (parts) => {
      parts.find = (resource) => parts.highest.get(resource) ?? 0n;
    },
    "strict refuses a holder that has not entered, also with floor 0",
  ],
  [
    "ignores the floor",
    (parts) => {
      parts.check = (resource, { token }, options) =>
        checkEntry(resource, { token, floor: token }, options);
    },
    "holders of the same time do not refuse each other",
  ],
  [
    "keeps a number of JavaScript",
    (parts) => {
      parts.save = (resource, highest) => void parts.highest.set(resource, BigInt(Number(highest)));
    },
    "tokens are exact up to 2^63 - 1",
  ],
  [
    "knows one resource only",
    (parts) => {
      const { find, save } = parts;
      parts.find = () => find("");
      parts.save = (_resource, highest) =>
        save("strict accepts all holders of a floor that one of them has entered", highest);
    },
    "",
  ],
  [
    "ignores case",
    (parts) => {
      const { find, save } = parts;
      parts.find = (resource) => find(resource.toLowerCase());
      parts.save = (resource, highest) => save(resource.toLowerCase(), highest);
    },
    "resources do not know of each other",
  ],
  [
    "resets only upwards",
    (parts) => {
      parts.reset = (resource, token) => {
        if (token > (parts.find(resource) ?? 0n)) parts.save(resource, token);
      };
    },
    "reset moves the fence, also downwards",
  ],
  [
    "forgets the number with the value",
    (parts) => {
      parts.forget = (resource) => {
        parts.values.delete(resource);
        parts.highest.delete(resource);
      };
    },
    "the number outlives what it guards",
  ],
  [
    "lets others enter between check and write",
    (parts) => {
      let writes = 0;
      // Every second write takes longer.
      parts.betweenCheckAndWrite = () =>
        writes++ % 2 === 0 ? new Promise((resolve) => setImmediate(resolve)) : null;
    },
    "64 writers at once",
  ],
  [
    "lets others enter between check and write, though the highest token writes last",
    (parts) => {
      const waiting: { token: bigint; resolve: () => void }[] = [];
      const release = (): void => {
        waiting.sort((a, b) => Number(b.token - a.token));
        waiting.splice(waiting.length === 1 ? 0 : 1, 1)[0]!.resolve();
        if (waiting.length > 0) setTimeout(release, 2);
      };
      parts.betweenCheckAndWrite = (token) =>
        new Promise((resolve) => {
          if (waiting.push({ token, resolve }) === 1) setTimeout(release, 2);
        });
    },
    "64 writers at once",
  ],
  [
    "accepts a misspelt option",
    (parts) => {
      parts.check = (resource, lease, { strict = false } = {}) =>
        checkEntry(resource, lease, { strict });
    },
    "bad arguments are refused, and change nothing",
  ],
  [
    "takes any resource for highest and reset",
    (parts) => {
      parts.checkResource = (resource) => resource as string;
    },
    "bad arguments are refused, and change nothing",
  ],
];

describe("runFenceConformance, as docs/fences.md shows it", () => {
  test("passes a correct fence", async () => {
    const { passed, skipped } = await runFenceConformance(() => subjectOf(new Parts()));
    expect(passed).toEqual(fenceConformance.map(({ name }) => name));
    expect(skipped).toEqual([]);
  });

  test("reports the case that it has skipped for want of a function", async () => {
    const { passed, skipped } = await runFenceConformance(() => {
      const { forget: _, ...subject } = subjectOf(new Parts());
      return subject;
    });
    expect(skipped).toEqual([
      {
        name: expect.stringContaining("the number outlives what it guards"),
        why: "the subject has no function forget",
      },
    ]);
    expect(passed).toHaveLength(fenceConformance.length - 1);
  });

  test.each(BROKEN)("catches a fence that %s", async (_what, spoil, failing) => {
    const fresh = (): FenceSubject => {
      const parts = new Parts();
      spoil(parts);
      return subjectOf(parts);
    };
    await expect(runFenceConformance(fresh)).rejects.toThrow(`the fence fails: ${failing}`);
  });
});
