import { expect, test } from "vitest";
import { type Claim, type Grant, LOCK_LIMIT, type Push } from "../../../src/core/store.js";
import { LocalWaiters } from "../../../src/stores/shared/local-waiters.js";

const claimOf = (seq: number): Claim => ({
  names: ["name"],
  grantId: "id",
  seq,
  permits: LOCK_LIMIT,
  limit: LOCK_LIMIT,
  ttlMs: 1_000,
  atLeastMs: 0,
  holder: "holder",
  queue: true,
});

const grantedBy = (seq: number): { kind: "granted"; grant: Grant } => ({
  kind: "granted",
  grant: { token: 7n, floor: 7n, ttlMs: 1_000, seq, handedOver: true },
});

function waiting(seq: number): { waiters: LocalWaiters; received: Push[] } {
  const waiters = new LocalWaiters();
  const received: Push[] = [];
  waiters.add(claimOf(seq), (push) => received.push(push));
  return { waiters, received };
}

test("a grant is pushed once", () => {
  const { waiters, received } = waiting(1);
  waiters.push("id", grantedBy(2));
  waiters.push("id", grantedBy(2));
  expect(received).toEqual([grantedBy(2)]);
  expect(waiters.size).toBe(0);
});

test("a grant from before the waiter's claim does not use up the push of that claim", () => {
  const { waiters, received } = waiting(5);
  waiters.push("id", grantedBy(3));
  waiters.push("id", grantedBy(5));
  expect(received.map((push) => push.kind === "granted" && push.grant.seq)).toEqual([3, 5]);
});

test("a reply ends the wait by its own claim and by earlier ones, not by a later one", () => {
  const { waiters } = waiting(5);
  waiters.removeUpTo({ grantId: "id", seq: 4 });
  waiters.removeUpTo({ grantId: "another", seq: 9 });
  expect(waiters.size).toBe(1);
  waiters.removeUpTo({ grantId: "id", seq: 5 });
  expect(waiters.size).toBe(0);
});

test("the reply to a claim does not end the wait by a claim that was sent behind it", () => {
  const waiters = new LocalWaiters();
  const first = waiters.add(claimOf(2), () => {});
  // The numbers of a client rise, but no push depends on that.
  const second = waiters.add(claimOf(1), () => {});
  waiters.removeAnswered(first);
  expect(waiters.has(second)).toBe(true);
  waiters.removeAnswered(second);
  expect(waiters.size).toBe(0);
});

test("a waiter that gives up is not notified to check", () => {
  const { waiters, received } = waiting(1);
  waiters.pushLookToAll();
  waiters.delete("id");
  waiters.pushLookToAll();
  expect(received).toEqual([{ kind: "look" }]);
});

test("a waiter that has claimed again is a new waiter", () => {
  const waiters = new LocalWaiters();
  const first = waiters.add(claimOf(1), () => {});
  expect([waiters.has(first), waiters.find("id") === first]).toEqual([true, true]);
  const second = waiters.add(claimOf(2), () => {});
  expect([waiters.has(first), waiters.has(second)]).toEqual([false, true]);
  waiters.delete("id");
  expect([waiters.has(second), waiters.find("id")]).toEqual([false, undefined]);
});
