import { AssertionError } from "node:assert";
import { describe, expect, test } from "vitest";
import { conformance, MUTANTS, type MutantName, runCase } from "../../src/testing.js";
import { memorySubject } from "./subjects.js";

/** The cases that must fail for each mutant. */
const CAUGHT_BY: Record<MutantName, readonly string[]> = {
  "delete without compare": ["a stale release touches neither the successor nor the queue"],
  "release that touches the successor": [
    "a stale release touches neither the successor nor the queue",
  ],
  "token not atomic with the grant": [
    "a token is drawn with the grant: the earlier grant has the lower token",
  ],
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
    "a repeated claim finds its grant with the same token, and extends it",
    "the watchdog keeps a lease for many ttls",
  ],
  "obeys a renewal that was overtaken": [
    "a renewal that a later one has overtaken changes nothing",
  ],
  "an expired ticket that a claim revives": [
    "an expired ticket is gone, also behind a living one: a claim under its id goes to the end",
  ],
  barging: [
    "shared, exclusive and permits follow one rule",
    "readers hold together, a writer alone",
  ],
  "readers that pass a waiting writer": ["a writer is not starved by readers that keep coming"],
  "a handover to a shorter lease that no waiter is told of": [
    "a waiter with a long ttl is granted the name when a holder with a short one, which had waited too, has crashed",
    "a waiter with a long ttl is granted the name when that holder and the two waiters after it have crashed",
  ],
  "a floor that shuts out who still holds": [
    "shared grants have rising tokens, and the lowest token that still holds as their floor",
    "a semaphore gives out its permits and no more",
  ],
  "a semaphore that trusts the caller's limit": [
    "a name in use with one limit is refused with another",
    "another limit, or a lock of the same name, is refused; resize changes the limit",
  ],
  "resize that grants beyond the new limit": [
    "resize keeps holders and tickets, and drops tickets that can never be granted",
  ],
  "forced release that gives the token again": [
    "revoke takes the name from its holders, and their renewals say why",
    "forceRelease records who and why, notifies the holder, and the next token is higher",
  ],
  "forced release that drops the queue": ["revoke leaves waiters in their places"],
  "forced release that a renewal undoes": [
    "revoke takes the name from its holders, and their renewals say why",
    "forceRelease records who and why, notifies the holder, and the next token is higher",
  ],
  "forced release that a late ask undoes": [
    "a claim that arrives after its revocation gets no grant",
  ],
  "forced release of who comes next": ["revoke does not take the name from the next holder"],
  "an unused grant that closes the name": [
    "atLeast does not close the name after a grant that was released unused",
  ],
  "a release that opens the name before its time": [
    "atLeast keeps the name closed after release, and after expiry",
    "atLeast: release returns at once, and the name is free later",
  ],
  "some of several names": [
    "many names in one claim: all or nothing",
    "acquireAll gives back everything when one name times out or is lost",
  ],
  "deadline counted from the reply": [
    "the deadline counts from the sending of the claim, not from the reply",
    "the deadline counts from the sending of a renewal, not from the reply",
    "a reply that arrives after the ttl is no grant",
  ],
  "deadline on the wall clock": ["a wall clock that is set moves no deadline"],
  "pushed grant without its sequence number": ["a push that arrives too late is no grant"],
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
