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
  // An idle minute, a store that skips waiters, and malformed batches are in the simulator only.
  "token counter that expires": [],
  "handover past a waiter that the call answers": [],
  "a missing answer that counts as a renewal": [],
  "a missing answer that counts as a release": [],
  "surplus answers that answer the next batch": [],
  "a repeated ask that extends only locally": [
    "asking again with the same grantId finds the same grant and token, and extends it",
    "the watchdog keeps a lease for many ttls",
  ],
  "obeys a renewal that was overtaken": ["a renewal that was overtaken on its way changes nothing"],
  barging: [
    "shared, exclusive and permits follow one rule",
    "readers hold together, a writer alone",
  ],
  "readers that pass a waiting writer": ["a writer is not starved by readers that keep coming"],
  "a handover to a shorter lease that no waiter is told of": [
    "a waiter with a long ttl goes on when a holder with a short one is gone, to which the name was handed over",
    "a waiter with a long ttl goes on when that holder and the two waiters after it are gone",
  ],
  "a floor that shuts out who still holds": [
    "shared grants have tokens in order and the floor of those still there",
    "a semaphore gives out its permits and no more",
  ],
  "a semaphore that trusts the caller's limit": [
    "a name in use with one limit is refused with another",
    "another limit is an error, and so is a lock of that name; resize changes it",
  ],
  "resize that grants beyond the new limit": [
    "resize keeps holders and tickets, and drops tickets that can never be granted",
  ],
  "forced release that gives the token again": [
    "revoke takes the name from its holders, who learn why",
    "forceRelease is kept with who and why, the holder learns it, the next token is higher",
  ],
  "forced release that drops the queue": ["revoke leaves those who wait in their places"],
  "forced release that a renewal undoes": [
    "revoke takes the name from its holders, who learn why",
    "forceRelease is kept with who and why, the holder learns it, the next token is higher",
  ],
  "forced release that a late ask undoes": ["an ask that comes after the revocation makes nothing"],
  "forced release of who comes next": ["revoke does not take the name from who comes next"],
  "an unused grant that closes the name": [
    "a grant that nobody has used does not keep the name closed",
  ],
  "a release that opens the name before its time": [
    "atLeast keeps the name closed after release, and after expiry",
    "atLeast: release returns at once, the name opens later",
  ],
  "some of several names": [
    "many names in one claim: all or nothing",
    "acquireAll gives up everything when one is not to be had in time, or is lost",
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
