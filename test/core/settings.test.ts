import { describe, expect, it } from "vitest";
import { InvalidArgumentError, UnsupportedError } from "../../src/core/errors.js";
import type { AcquireOptions, LocksOptions } from "../../src/core/options.js";
import { resolveCall, resolveSettings } from "../../src/core/settings.js";
import type { Traits } from "../../src/core/store.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { refusal, rejection, stage } from "./helpers.js";

const MEMORY = memoryStore().traits;

const settingsOf = (options: unknown, traits: Traits = MEMORY) =>
  resolveSettings(options as LocksOptions, traits);

const callOf = (options: unknown, traits: Traits = MEMORY) =>
  resolveCall(options as AcquireOptions, settingsOf({}, traits), traits);

/** Words that must be in the message: the value as given, and what would be right. */
type Bad = [option: string, value: unknown, shown: string, rule: string];

const DURATION = '"250ms", "30s"';

const BAD_SETTINGS: Bad[] = [
  ["ttl", 0, "ttl is 0;", "from 20ms"],
  ["ttl", 19, "ttl is 19;", "from 20ms"],
  ["ttl", "1 s", 'ttl is "1 s";', DURATION],
  ["ttl", Number.POSITIVE_INFINITY, "ttl is Infinity;", DURATION],
  ["ttl", Number.NaN, "ttl is NaN;", DURATION],
  ["wait", -1, "wait is -1;", "or Infinity"],
  ["wait", "", 'wait is "";', DURATION],
  ["wait", false, "wait is false;", DURATION],
  ["drift", 5, "drift are 5;", "must be a plain object"],
  ["drift", { percent: 1 }, '"percent"', "factor, ms"],
  ["drift", { factor: 0.51 }, "drift.factor is 0.51;", "from 0 to 0.5"],
  ["drift", { factor: "1%" }, 'drift.factor is "1%";', "from 0 to 0.5"],
  ["drift", { ms: -1 }, "drift.ms is -1;", "from 0 to 60000"],
  ["abortBefore", -1, "abortBefore is -1;", DURATION],
  ["abortBefore", "30s", "abortBefore of 30000 ms", "leave nothing of a ttl of 30000 ms"],
  ["commandTimeout", 0, "commandTimeout is 0;", "from 1ms"],
  ["commandTimeout", Number.POSITIVE_INFINITY, "commandTimeout is Infinity;", DURATION],
  ["poll", [], "poll are an array;", "must be a plain object"],
  ["poll", { every: 1 }, '"every"', "min, max, jitter"],
  ["poll", { min: 0 }, "poll.min is 0;", "from 1ms"],
  ["poll", { max: 0 }, "poll.max is 0;", "from 50ms"],
  ["poll", { min: 100, max: 99 }, "poll.max is 99;", "from 100ms"],
  ["poll", { jitter: 1.1 }, "poll.jitter is 1.1;", "from 0 to 1"],
  ["retry", "fast", 'retry are "fast";', "must be a plain object"],
  ["retry", { pause: 0 }, "retry.pause is 0;", "from 1ms"],
  ["retry", { times: 3 }, '"times"', "pause, jitter"],
  ["retry", { jitter: -1 }, "retry.jitter is -1;", "from 0 to 1"],
  ["holder", "", 'holder is "";', "1 to 255 bytes"],
  ["holder", "a\nb", 'holder is "a\\nb";', "without control characters"],
  ["holder", "x".repeat(256), "holder is ", "1 to 255 bytes"],
  ["holder", 7, "holder is 7;", "1 to 255 bytes"],
  ["namespace", "", 'namespace is "";', "1 to 64 letters"],
  ["namespace", "a:b", 'namespace is "a:b";', "1 to 64 letters"],
  ["namespace", "ä", 'namespace is "ä";', "1 to 64 letters"],
  ["namespace", "a\n", 'namespace is "a\\n";', "1 to 64 letters"],
  ["namespace", "a".repeat(65), "namespace is ", "1 to 64 letters"],
  ["namespace", 5, "namespace is 5;", "1 to 64 letters"],
  ["purpose", "safety", 'purpose is "safety";', '"efficiency", "correctness"'],
  ["fenced", "yes", 'fenced is "yes";', "true or false"],
  ["fenced", 0, "fenced is 0;", "true or false"],
  ["tokenOffset", 5, "tokenOffset is 5;", "a bigint"],
  ["tokenOffset", -1n, "tokenOffset is -1n;", "from 0"],
  ["tokenOffset", 2n ** 63n, "tokenOffset is ", "2^62 - 1"],
  ["logger", {}, "logger", "debug(message, fields)"],
  ["logger", { debug() {}, info() {} }, "logger", "warn(message, fields)"],
  ["logger", 1, "logger", "debug(message, fields)"],
  ["onUnavailable", "fail", 'onUnavailable is "fail";', '"throw", "run"'],
  ["releaseOnExit", "yes", 'releaseOnExit are "yes";', "a plain object"],
  ["releaseOnExit", { signals: ["TERM"] }, "releaseOnExit.signals", '["SIGTERM"]'],
  ["releaseOnExit", { signals: "SIGTERM" }, "releaseOnExit.signals", '["SIGTERM"]'],
  ["releaseOnExit", { grace: -1 }, "grace is -1;", DURATION],
  ["releaseOnExit", { signal: [] }, "signal", "known: signals, grace"],
];

const BAD_CALLS: Bad[] = [
  ["ttl", 0, "ttl is 0;", "from 20ms"],
  ["ttl", "1d", 'ttl is "1d";', DURATION],
  ["ttl", Number.POSITIVE_INFINITY, "ttl is Infinity;", DURATION],
  ["wait", -1, "wait is -1;", "or Infinity"],
  ["wait", "soon", 'wait is "soon";', DURATION],
  ["signal", {}, "signal is an object;", "an AbortSignal"],
  ["signal", new AbortController(), "signal is an AbortController;", "an AbortSignal"],
  ["mode", "read", 'mode is "read";', '"exclusive", "shared"'],
  ["mode", "", 'mode is "";', '"exclusive", "shared"'],
  ["renew", 0, "renew is 0;", "true or false"],
  ["renew", "false", 'renew is "false";', "true or false"],
  ["maxHold", 0, "maxHold is 0;", "from 1ms"],
  ["maxHold", "x", 'maxHold is "x";', "or Infinity"],
  ["atLeast", -1, "atLeast is -1;", DURATION],
  ["atLeast", Number.POSITIVE_INFINITY, "atLeast is Infinity;", DURATION],
  ["note", "", 'note is "";', "1 to 255 bytes"],
  ["note", "x".repeat(255), "holder with note is ", "1 to 255 bytes"],
  ["note", "\u0007", "note is ", "without control characters"],
  ["reentrant", 1, "reentrant is 1;", "true or false"],
  ["abortBefore", -1, "abortBefore is -1;", DURATION],
  ["abortBefore", "1h", "abortBefore of 3600000 ms", "leave nothing of a ttl of 30000 ms"],
];

function expectRefused(run: () => unknown, [, , shown, rule]: Bad): void {
  const error = refusal(run);
  expect(error).toBeInstanceOf(InvalidArgumentError);
  expect(error.message).toContain(shown);
  expect(error.message).toContain(rule);
}

describe("a bad value of an option of createLocks", () => {
  it.each(BAD_SETTINGS)("is refused: %s: %o", (...bad) => {
    expectRefused(() => settingsOf({ [bad[0]]: bad[1] }), bad);
    expectRefused(() => createLocks(memoryStore(), { [bad[0]]: bad[1] }), bad);
  });

  const options = [...new Set(BAD_SETTINGS.map(([option]) => option))];

  it("is tried here for every option", () => {
    expect(options).toHaveLength(15);
    // The message that lists the known options lists exactly these.
    const known = refusal(() => settingsOf({ x: 1 }))
      .message.split("known: ")[1]!
      .split(", ");
    expect(known.toSorted()).toEqual(options.toSorted());
  });

  it.each(options)("null is refused for %s", (option) => {
    expect(refusal(() => settingsOf({ [option]: null }))).toBeInstanceOf(InvalidArgumentError);
  });

  it.each(options)("undefined is allowed for %s, and means the default", (option) => {
    expect(settingsOf({ [option]: undefined })).toEqual(settingsOf({}));
  });
});

describe("a bad value of an option of acquire", () => {
  it.each(BAD_CALLS)("is refused: %s: %o", async (...bad) => {
    expectRefused(() => callOf({ [bad[0]]: bad[1] }), bad);
    const { locks, store, clock } = stage();
    const options = { [bad[0]]: bad[1] };
    for (const promise of [
      locks.acquire("a", options),
      locks.tryAcquire("a", options),
      locks.withLock("a", options, () => 1),
    ]) {
      expect(await rejection(promise)).toBeInstanceOf(InvalidArgumentError);
    }
    expect(store.claims).toEqual([]);
    expect(clock.timers).toBe(0);
  });

  const options = [...new Set(BAD_CALLS.map(([option]) => option))];

  it("is tried here for every option", () => {
    const known = refusal(() => callOf({ x: 1 }))
      .message.split("known: ")[1]!
      .split(", ");
    expect(known.toSorted()).toEqual(options.toSorted());
  });

  it.each(options)("null is refused for %s", (option) => {
    expect(refusal(() => callOf({ [option]: null }))).toBeInstanceOf(InvalidArgumentError);
  });

  it.each(options)("undefined is allowed for %s, and means the default", (option) => {
    expect(callOf({ [option]: undefined })).toEqual(callOf(undefined));
  });

  it("a bad name is refused by every call that takes a name", async () => {
    const { locks } = stage();
    const bad = "a\0" as string;
    for (const promise of [
      locks.acquire(bad),
      locks.tryAcquire(bad),
      locks.withLock(bad, () => 1),
      locks.inspect(bad),
      locks.list({ prefix: bad }),
      locks.forceRelease(bad, { why: "test" }),
      locks.forceRelease("a", { why: bad }),
      locks.forceRelease("a", {} as { why: string }),
      locks.forceRelease("a", undefined as unknown as { why: string }),
      locks.list({ limit: 0 }),
      locks.list({ limit: 1.5 }),
      locks.list({ prefix: "a", from: 1 } as object),
      locks.withLock("a", {}, undefined as unknown as () => void),
      locks.withLock("a", { onLost: "ignore" as "throw" }, () => 1),
    ]) {
      expect(await rejection(promise)).toBeInstanceOf(InvalidArgumentError);
    }
  });
});

describe("an option that is 0 or false", () => {
  it("is kept, and not replaced by the default, for createLocks", () => {
    const settings = settingsOf({
      wait: 0,
      abortBefore: 0,
      drift: { factor: 0, ms: 0 },
      poll: { jitter: 0 },
      retry: { jitter: 0 },
      fenced: false,
      tokenOffset: 0n,
    });
    expect(settings).toMatchObject({
      driftFactor: 0,
      driftMs: 0,
      poll: { minMs: 50, maxMs: 1_000, jitter: 0 },
      retry: { pauseMs: 200, jitter: 0 },
      tokenOffset: 0n,
      defaults: { waitMs: 0, abortBeforeMs: 0 },
    });
  });

  it("is kept, and not replaced by the default, for a call", () => {
    expect(callOf({ wait: 0, atLeast: 0, abortBefore: 0, renew: false })).toMatchObject({
      waitMs: 0,
      atLeastMs: 0,
      abortBeforeMs: 0,
      renew: false,
    });
    expect(callOf({ wait: "0s" }).waitMs).toBe(0);
  });

  it("wait: 0 sends one claim and returns at once", async () => {
    const { locks, store } = stage({ wait: "1h" });
    await locks.acquire("a");
    const error = await rejection(locks.acquire("a", { wait: 0 }));
    expect(error.code).toBe("ACQUIRE_TIMEOUT");
    expect(store.claims).toHaveLength(2);
    expect(store.claims[1]!.claim.queue).toBe(false);
  });
});

describe("the defaults of options", () => {
  it("are those of the documentation", () => {
    expect(settingsOf({})).toMatchObject({
      driftFactor: 0.01,
      driftMs: 2,
      commandTimeoutMs: 5_000,
      poll: { minMs: 50, maxMs: 1_000, jitter: 0.5 },
      retry: { pauseMs: 200, jitter: 0.5 },
      namespace: "default",
      tokenOffset: 0n,
      logger: undefined,
      defaults: { ttlMs: 30_000, waitMs: 10_000, abortBeforeMs: 3_000, renew: true },
    });
    expect(settingsOf({}).holder).toMatch(/^.+:\d+$/);
    expect(callOf({}).maxHoldMs).toBe(Number.POSITIVE_INFINITY);
  });

  it("poll.max is never below poll.min", () => {
    expect(settingsOf({ poll: { min: "2s" } }).poll).toMatchObject({ minMs: 2_000, maxMs: 2_000 });
  });

  it("abortBefore is a tenth of the call's own ttl", () => {
    expect(callOf({ ttl: "10s" })).toMatchObject({ ttlMs: 10_000, abortBeforeMs: 1_000 });
    expect(callOf({ ttl: 20 })).toMatchObject({ ttlMs: 20, abortBeforeMs: 2 });
  });

  it("an abortBefore that was set for all locks stays when a call has another ttl", () => {
    const settings = settingsOf({ ttl: "30s", abortBefore: 0 });
    expect(resolveCall({ ttl: "10s" }, settings, MEMORY).abortBeforeMs).toBe(0);
  });

  it("a note is appended to the holder's label", () => {
    const settings = settingsOf({ holder: "me" });
    expect(resolveCall({ note: "job 7" }, settings, MEMORY).holder).toBe("me (job 7)");
  });

  it("an option that the store can't carry out is refused with the store's reason", () => {
    const cannot = { "own-ttl": "one session", shared: "no readers", "at-least": "no keeper" };
    const traits: Traits = { ...MEMORY, store: "odd", minTtlMs: 500, cannot };
    expectRefused(
      () => settingsOf({ ttl: 499 }, traits),
      ["", 0, "ttl is 499;", "less than 500 ms"],
    );
    for (const [options, reason] of [
      [{ ttl: "10s" }, "one session"],
      [{ mode: "shared" }, "no readers"],
      [{ atLeast: 1 }, "no keeper"],
    ] as const) {
      const error = refusal(() => callOf(options, traits));
      expect(error).toBeInstanceOf(UnsupportedError);
      expect(error.message).toContain("the store (odd) can't do");
      expect(error.message).toContain(reason);
    }
    expect(callOf({ ttl: "30s", mode: "exclusive", atLeast: 0 }, traits).ttlMs).toBe(30_000);
  });

  it('purpose "correctness" is refused on every store unless fenced is set', () => {
    const odd: Traits = { ...MEMORY, store: "odd", grantsTwiceAfter: ["a failover"] };
    for (const traits of [MEMORY, odd]) {
      const error = refusal(() => settingsOf({ purpose: "correctness" }, traits));
      expect(error).toBeInstanceOf(UnsupportedError);
      expect(error.message).toContain("paused past its lease");
      expect(error.message).toContain("docs/fences.md");
      expect(error.message.includes("a failover")).toBe(traits === odd);
      settingsOf({ purpose: "correctness", fenced: true }, traits);
      settingsOf({ purpose: "efficiency" }, traits);
    }
  });

  it("a token and tokenOffset together must stay below 2^63", () => {
    expect(settingsOf({ tokenOffset: 2n ** 62n - 1n }).tokenOffset).toBe(2n ** 62n - 1n);
    for (const tokenOffset of [2n ** 62n, 2n ** 63n - 1n, -1n, 5 as never]) {
      const error = refusal(() => settingsOf({ tokenOffset }));
      expect(error).toBeInstanceOf(InvalidArgumentError);
      expect(error.message).toContain("from 0 to 2^62 - 1");
    }
  });

  it("options that are no plain object are refused, and the message says what was given", () => {
    for (const [value, kind] of [
      [new Map(), "a Map"],
      [new AbortController().signal, "an AbortSignal"],
      [[], "an array"],
      [null, "null"],
    ] as const) {
      const error = refusal(() => settingsOf(value as never));
      expect(error.message).toBe(
        `the options of locks are ${kind}; they must be a plain object, such as { ttl: "30s" }`,
      );
    }
  });

  it("a value that is no store is refused, and the message shows it", () => {
    for (const bad of [null, undefined, "redis://x", {}, 5]) {
      const error = refusal(() => createLocks(bad as never));
      expect(error).toBeInstanceOf(InvalidArgumentError);
    }
  });
});
