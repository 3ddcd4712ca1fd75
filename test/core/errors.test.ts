import { describe, expect, it } from "vitest";
import {
  AcquireTimeoutError,
  ClosedError,
  HoldfastError,
  InvalidArgumentError,
  LeaseLostError,
  StaleTokenError,
  StoreUnavailableError,
  UnsupportedError,
} from "../../src/core/errors.js";
import * as holdfast from "../../src/index.js";
import { rejection, stage } from "./helpers.js";

const lease = { name: "order:1", token: 42n };
const cause = new Error("cause");

const EVERY: [HoldfastError, string, boolean][] = [
  [new AcquireTimeoutError("a", 100, null), "ACQUIRE_TIMEOUT", true],
  [new LeaseLostError(lease, "expired"), "LEASE_LOST", true],
  [new StaleTokenError("r", 1n, 2n), "STALE_TOKEN", false],
  [new StoreUnavailableError("down"), "STORE_UNAVAILABLE", true],
  [new InvalidArgumentError("bad"), "INVALID_ARGUMENT", false],
  [new UnsupportedError("never"), "UNSUPPORTED", false],
  [new ClosedError(), "CLOSED", false],
];

describe("every error", () => {
  it.each(EVERY)("%s", (error, code, retryable) => {
    expect(error).toBeInstanceOf(Error);
    expect(error).toBeInstanceOf(HoldfastError);
    expect(error).toMatchObject({ code, retryable });
    expect(HoldfastError.is(error)).toBe(true);
    expect(error.name).toBe(error.constructor.name);
    expect(error.stack).toContain(error.message);
    expect(String(error)).toBe(`${error.name}: ${error.message}`);
    expect("cause" in error).toBe(false);
    expect(holdfast).toHaveProperty(error.name, error.constructor);
  });

  it("has a code that no other error has", () => {
    expect(new Set(EVERY.map(([error]) => error.code)).size).toBe(EVERY.length);
  });

  it("can be written as JSON, with tokens as text", () => {
    for (const [error] of EVERY) {
      expect(JSON.parse(JSON.stringify(error))).toMatchObject({ code: error.code });
    }
  });

  it("can be cloned to another thread, with its fields", () => {
    for (const [error] of EVERY) expect(structuredClone(error).message).toBe(error.message);
  });

  it("keeps its cause", () => {
    expect(new StoreUnavailableError("down", { cause }).cause).toBe(cause);
    expect(new StoreUnavailableError("down", { retryable: false }).retryable).toBe(false);
    expect(new UnsupportedError("no", cause).cause).toBe(cause);
    expect(new LeaseLostError(lease, "expired", { cause }).cause).toBe(cause);
  });
});

describe("HoldfastError.is", () => {
  it("recognises the errors of another copy of the module", async () => {
    const path = "../../src/core/errors.js?copy";
    const copy = (await import(/* @vite-ignore */ path)) as typeof holdfast;
    expect(copy.HoldfastError).not.toBe(HoldfastError);
    const theirs = new copy.StoreUnavailableError("down");
    expect(theirs).not.toBeInstanceOf(HoldfastError);
    expect(HoldfastError.is(theirs)).toBe(true);
    expect(copy.HoldfastError.is(new ClosedError())).toBe(true);
    // The core passes such an error on as it is, and does not wrap it.
    const { locks, store } = stage();
    const refused = new copy.UnsupportedError("theirs");
    store.onClaim = () => Promise.reject(refused);
    expect(await rejection(locks.acquire("a"))).toBe(refused);
  });

  it("recognises nothing else", () => {
    const lookalike = Object.assign(new Error("x"), { code: "LEASE_LOST", retryable: true });
    for (const other of [lookalike, new Error("x"), {}, null, undefined, "LEASE_LOST", 5]) {
      expect(HoldfastError.is(other)).toBe(false);
    }
  });
});

describe("the message of an error", () => {
  it("names the holder and the wait, for a timeout", () => {
    const timeout = new AcquireTimeoutError('a"b', 0, "host:1 (job)");
    expect(timeout.message).toBe('"a\\"b" is held by host:1 (job); tried once, because wait is 0');
    expect(timeout).toMatchObject({ lockName: 'a"b', waitMs: 0, holder: "host:1 (job)" });
    expect(new AcquireTimeoutError("a", 1_500.4, null).message).toBe(
      '"a" was still held after waiting 1500 ms',
    );
  });

  it.each([
    ["expired", "could not be renewed in time"],
    ["revoked", "released by force"],
    ["superseded", "granted the name to another"],
    ["max-hold", "maxHold"],
  ] as const)("says, for a loss by %s, %j", (reason, words) => {
    const error = new LeaseLostError(lease, reason);
    expect(error.message).toContain('"order:1" (token 42)');
    expect(error.message).toContain(words);
    expect(error).toMatchObject({ lockName: "order:1", token: 42n, reason, value: undefined });
  });

  it("names the stale token and the highest one", () => {
    const error = new StaleTokenError("file", 3n, 9n);
    expect(error.message).toContain("token 3");
    expect(error.message).toContain("with 9");
    expect(error).toMatchObject({ resource: "file", token: 3n, highest: 9n });
  });

  it("keeps the store's own words, for an outage", async () => {
    const { locks, store } = stage({ wait: 0 });
    store.onClaim = () => Promise.reject(cause);
    const error = await rejection(locks.acquire("a"));
    expect(error.message).toContain("store (memory) failed to claim: cause");
    expect(error.cause).toMatchObject({ name: "Error", message: "cause", stack: cause.stack });
    store.onClaim = () => Promise.reject("only text");
    expect((await rejection(locks.acquire("a"))).message).toContain("only text");
  });
});

describe("text from users and servers in a message", () => {
  const nasty = "\u001b[2J\nholdfast: all is well\u009b31m\u202egnihton\u2066\u200f";
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is looked for
  const unprintable = /[\u0000-\u001f\u007f-\u009f\u200f\u202e\u2066]/;

  it("has no control characters, wherever it came from", async () => {
    const on = stage({ wait: 0 });
    const busy = { ahead: 0, freeInMs: 1, holder: nasty };
    on.store.onClaim = () => ({ kind: "busy", name: "default:a", position: busy });
    const held = await rejection(on.locks.acquire("a"));
    expect(held).toMatchObject({ code: "ACQUIRE_TIMEOUT", holder: nasty });
    expect(held.message).toContain("held by ?[2J?holdfast: all is well");
    on.store.onClaim = () => Promise.reject(Object.assign(new Error(nasty), { code: nasty }));
    const down = await rejection(on.locks.acquire("a"));
    on.store.onClaim = (apply) => apply();
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => [{ kind: "lost", reason: "revoked", why: nasty }];
    const revoked = await rejection(lease.renew());
    expect(revoked.message).toContain("all is well");
    const { message, code } = down.cause as Error & { code: string };
    const stack = (down.cause as Error).stack!.replaceAll("\n", "");
    for (const text of [held.message, down.message, revoked.message, message, code, stack]) {
      expect(text).not.toMatch(unprintable);
    }
  });
});

describe("a lease as JSON", () => {
  it("has the token as text, and no grantId", async () => {
    const { locks } = stage({ holder: "me" });
    const held = await locks.acquire("a", { mode: "shared", note: "n" });
    const text = JSON.stringify({ held });
    expect(JSON.parse(text).held).toEqual({
      name: "a",
      token: String(held.token),
      floor: String(held.floor),
      holder: "me (n)",
      mode: "shared",
    });
    expect(text).not.toContain("SECRET");
  });
});
