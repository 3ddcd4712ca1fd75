import { expect, test } from "vitest";
import type { Grant, Push } from "../../../src/core/store.js";
import { Pushes } from "../../../src/stores/shared/pushes.js";

const grantOf = (seq: number): Grant => ({
  token: 7n,
  floor: 7n,
  ttlMs: 1_000,
  seq,
  handedOver: true,
});

function waiting(seq: number): { pushes: Pushes; heard: Push[] } {
  const pushes = new Pushes();
  const heard: Push[] = [];
  pushes.add({ grantId: "id", seq }, (push) => heard.push(push));
  return { pushes, heard };
}

test("a grant is pushed once", () => {
  const { pushes, heard } = waiting(1);
  pushes.grant("id", grantOf(2));
  pushes.grant("id", grantOf(2));
  expect(heard).toEqual([{ kind: "granted", grant: grantOf(2) }]);
  expect(pushes.size).toBe(0);
});

test("a grant from before the waiter's claim does not take the push of that claim", () => {
  const { pushes, heard } = waiting(5);
  pushes.grant("id", grantOf(3));
  pushes.grant("id", grantOf(5));
  expect(heard.map((push) => push.kind === "granted" && push.grant.seq)).toEqual([3, 5]);
});

test("a reply ends the wait by its own claim and by earlier ones, not by a later one", () => {
  const { pushes } = waiting(5);
  pushes.forget({ grantId: "id", seq: 4 });
  pushes.forget({ grantId: "another", seq: 9 });
  expect(pushes.size).toBe(1);
  pushes.forget({ grantId: "id", seq: 5 });
  expect(pushes.size).toBe(0);
});

test("a waiter that gives up is not told to look", () => {
  const { pushes, heard } = waiting(1);
  pushes.lookAll();
  pushes.delete("id");
  pushes.lookAll();
  expect(heard).toEqual([{ kind: "look" }]);
});
