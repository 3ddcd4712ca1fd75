import { AssertionError } from "node:assert";
import { describe, expect, test } from "vitest";
import { conformance, MUTANTS, type MutantName, runCase } from "../../src/testing/index.js";
import { memorySubject } from "./subjects.js";

/** The cases that have to say so. */
const CAUGHT_BY: Record<MutantName, readonly string[]> = {
  "delete without compare": ["a stale release touches neither the successor nor the queue"],
  "release that touches the successor": [
    "a stale release touches neither the successor nor the queue",
  ],
  "token not atomic with the grant": ["a token belongs to the moment of its grant"],
  "token that repeats": [
    "tokens rise for every new client, and never repeat",
    "tokens rise though the store's wall clock is set back",
    "50 contenders: never two holders, tokens unique and in order",
  ],
  "a repeated ask that extends only locally": [
    "asking again with the same grantId finds the same grant and token, and extends it",
    "the watchdog keeps a lease for many ttls",
  ],
  "obeys a renewal that was overtaken": ["a renewal that was overtaken on its way changes nothing"],
  barging: [
    "shared, exclusive and permits follow one rule",
    "readers hold together, a writer alone",
  ],
  "deadline counted from the reply": [
    "the deadline counts from before the claim was sent, not from its answer",
    "the deadline counts from before a renewal was sent, not from its answer",
    "an answer that comes after the ttl is no grant",
  ],
  "deadline on the wall clock": ["the wall clock decides nothing"],
  "pushed grant without its sequence number": ["a push that comes too late is no grant"],
  "fence that is not entered before the read": [
    "withLock enters the fence before the first read, so no update is lost",
  ],
};

describe("the suite catches, by name,", () => {
  for (const [mutant, caughtBy] of Object.entries(CAUGHT_BY)) {
    for (const name of caughtBy) {
      test(`${mutant}: ${name}`, async () => {
        const one = conformance.find((each) => each.name === name)!;
        const broken = await memorySubject(MUTANTS[mutant as MutantName]);
        await expect(runCase(one, broken)).rejects.toThrow(AssertionError);
        expect(await runCase(one, await memorySubject())).toBe("passed");
      });
    }
  }
});
