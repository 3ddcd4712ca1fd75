import fc from "fast-check";
import { expect, test } from "vitest";
import { type BatchedNames, toBatches } from "../../../src/stores/shared/name-batches.js";
import { runs } from "../../support/chance.js";

interface Request extends BatchedNames {
  readonly id: string;
}

const claim = (id: string, ...names: string[]): Request => ({ id, names, sharesNames: false });
const release = (id: string, ...names: string[]): Request => ({ id, names, sharesNames: true });
const batched = (requests: readonly Request[], most = 64): string[][] =>
  toBatches(requests, most, (request) => request).map((batch) => batch.map(({ id }) => id));

test("two claims of one name never share a batch, and stay in their order", () => {
  const requests = [claim("1", "a"), claim("2", "a"), claim("3", "b"), claim("4", "a", "b")];
  expect(batched(requests)).toEqual([["1", "3"], ["2"], ["4"]]);
});

test("releases of one name share a batch, and none with a claim of that name", () => {
  const requests = [release("1", "a"), release("2", "a"), claim("3", "a"), release("4", "a")];
  expect(batched(requests)).toEqual([["1", "2"], ["3"], ["4"]]);
});

test("a batch has at most so many requests", () => {
  const requests = ["a", "b", "c", "d", "e"].map((name) => claim(name, name));
  expect(batched(requests, 2)).toEqual([["a", "b"], ["c", "d"], ["e"]]);
});

test("whatever the requests: each is sent once, no two of one name together unless both share it, in order", () => {
  const request = fc.record({
    names: fc.uniqueArray(fc.constantFrom("a", "b", "c"), { minLength: 1 }),
    sharesNames: fc.boolean(),
  });
  const check = (drawn: readonly BatchedNames[], most: number): void => {
    const requests = drawn.map((one, i) => ({ ...one, id: i }));
    const batches = toBatches(requests, most, (one) => one);
    expect(
      batches
        .flat()
        .map(({ id }) => id)
        .sort((a, b) => a - b),
    ).toEqual(requests.map(({ id }) => id));
    const at = new Map(batches.flatMap((batch, i) => batch.map(({ id }) => [id, i] as const)));
    for (const batch of batches) expect(batch.length).toBeLessThanOrEqual(most);
    for (const [i, later] of requests.entries()) {
      for (const earlier of requests.slice(0, i)) {
        if (!later.names.some((name) => earlier.names.includes(name))) continue;
        if (later.sharesNames && earlier.sharesNames) continue;
        expect(at.get(earlier.id)).toBeLessThan(at.get(later.id)!);
      }
    }
  };
  fc.assert(
    fc.property(fc.array(request, { maxLength: 20 }), fc.integer({ min: 1, max: 4 }), check),
    runs(300),
  );
});
