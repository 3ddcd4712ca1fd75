import { expect, test } from "vitest";
import { LOCK_LIMIT } from "../../../src/core/store.js";
import { Queue } from "../../../src/stores/zookeeper/queue.js";

/** The node of an exclusive claim. */
const node = (grantId: string, place: number): string =>
  `${LOCK_LIMIT}.${LOCK_LIMIT}.e.${grantId}-${String(place).padStart(10, "0")}`;

/** The claim of `again` was made under a session that is given up, and once more under another. */
const [first, other, second] = [node("again", 1), node("other", 2), node("again", 3)];

const holderOf = (queue: Queue): string | undefined => queue.holders()[0]?.node;

test.each([
  ["read", () => new Queue("name", [second, other, first])],
  [
    "told by events",
    () => {
      const queue = new Queue("name", [first, other]);
      queue.created(second);
      return queue;
    },
  ],
])("a claim with two nodes, as %s, overtakes nobody", (_, made) => {
  const queue = made();
  expect([queue.holds("again"), queue.holds("other"), holderOf(queue)]).toEqual([
    ...[false, false],
    first,
  ]);
  expect(queue.get("again")?.node).toBe(second);
  queue.deleted(first);
  expect([queue.holds("again"), queue.holds("other")]).toEqual([false, true]);
  queue.deleted(other);
  expect(queue.holds("again")).toBe(true);
  queue.deleted(second);
  expect(queue.size).toBe(0);
});

test("an event about the first node that comes late leaves the claim its second", () => {
  const queue = new Queue("name", [other, second]);
  queue.created(first);
  queue.deleted(first);
  queue.created(second);
  expect(queue.get("again")?.node).toBe(second);
  expect(holderOf(queue)).toBe(other);
});
