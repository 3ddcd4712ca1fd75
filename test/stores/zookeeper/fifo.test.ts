import { expect, test } from "vitest";
import { Fifo } from "../../../src/stores/zookeeper/client/fifo.js";

test("a queue gives its entries back in order, however many were taken in between", () => {
  const queue = new Fifo<number>();
  const taken: (number | undefined)[] = [];
  for (let i = 0; i < 10_000; i++) {
    queue.add(i);
    if (i % 3 !== 0) taken.push(queue.take());
  }
  expect(queue.length).toBe(10_000 - taken.length);
  while (queue.first !== undefined) taken.push(queue.take());
  expect(taken).toEqual(Array.from({ length: 10_000 }, (_, i) => i));
  expect([queue.take(), queue.length]).toEqual([undefined, 0]);
});
