import { expect, test } from "vitest";
import { load } from "./load.js";

const { allStarted } = await load<{
  allStarted<P extends { kill(): Promise<void> }>(starts: readonly Promise<P>[]): Promise<P[]>;
}>("lib/processes.mjs");

test("processes that start together all end if one can't start", async () => {
  const killed: number[] = [];
  const one = (id: number) => Promise.resolve({ id, kill: async () => void killed.push(id) });
  expect((await allStarted([one(1), one(2)])).map(({ id }) => id)).toEqual([1, 2]);
  const failing = Promise.reject(new Error("no room"));
  await expect(allStarted([one(1), failing, one(3)])).rejects.toThrow("no room");
  expect(killed).toEqual([1, 3]);
});
