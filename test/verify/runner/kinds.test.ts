import { expect, test } from "vitest";
import type { Member } from "../../../src/verify/runner/crew.js";
import { connectionKinds } from "../../../src/verify/runner/kinds.js";
import { fixedRandom } from "../../core/helpers.js";

/** From this draw on, a fault does not wait for its moment. */
const AT_ANY_TIME = 0.7;
const LONG_MS = 1_000;

/** Cuts these connections of a worker, and returns how often it was looked whether the worker waits. */
async function looksBeforeCut(
  only: string,
  {
    drawn = 0,
    queuedForMs = (_looks: number): number => 0,
    isRunning = (_looks: number): boolean => true,
  },
): Promise<number> {
  let looks = 0;
  let cuts = 0;
  const inject = async (): Promise<void> => void cuts++;
  const member = {
    client: "w1",
    get isRunning() {
      return isRunning(looks);
    },
    worker: {
      get queuedForMs() {
        return queuedForMs(++looks);
      },
    },
    way: { proxies: [{ cut: () => ({ name: "cut", inject, heal: async () => {} }) }] },
  };
  const kind = connectionKinds(only).find(({ name }) => name === `${only} cut`)!;
  await kind.make(member as unknown as Member, fixedRandom(drawn), 100)!.inject();
  expect(cuts).toBe(1);
  return looks;
}

test.each(["subscription", "watch"])("a %s is cut as soon as its worker waits", async (only) => {
  const queuedForMs = (looks: number): number => (looks < 5 ? 0 : LONG_MS);
  expect(await looksBeforeCut(only, { queuedForMs })).toBe(5);
});

test("a subscription is cut in the end if its worker never waits, and as soon as it has died", async () => {
  const never = await looksBeforeCut("subscription", {});
  expect(never).toBeGreaterThan(100);
  const isRunning = (looks: number): boolean => looks < 5;
  expect(await looksBeforeCut("subscription", { isRunning })).toBe(5);
});

test("some subscriptions, and connections that notify nobody, are cut at any time", async () => {
  expect(await looksBeforeCut("subscription", { drawn: AT_ANY_TIME })).toBe(0);
  for (const only of ["connection", "commands", "calls", "keepalive"]) {
    expect(await looksBeforeCut(only, {}), only).toBe(0);
  }
});

test("a lost reply says how often it struck on all connections of its worker; a delay strikes whatever is sent", () => {
  const one = { name: "one", inject: async () => {}, heal: async () => {} };
  const struckOf = (name: string, counts: readonly number[]) => {
    const proxies = counts.map((struck) => ({
      loseReply: () => ({ ...one, struck }),
      delay: () => one,
    }));
    const member = { client: "w1", way: { proxies } } as unknown as Member;
    const kind = connectionKinds("commands").find((kind) => kind.name === name)!;
    return kind.make(member, fixedRandom(0), 100)!.struck;
  };
  expect(struckOf("commands reply lost", [0, 0])).toBe(0);
  expect(struckOf("commands reply lost", [1, 0, 2])).toBe(3);
  expect(struckOf("commands delayed", [1])).toBeUndefined();
});

test("only a subscription is left half open", () => {
  const names = ["connection", "commands", "subscription", "watch"].flatMap((only) =>
    connectionKinds(only).map(({ name }) => name),
  );
  expect(names.filter((name) => name.endsWith("half open"))).toEqual(["subscription half open"]);
});
