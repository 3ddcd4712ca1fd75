import { resolve } from "node:path";
import { describe, expect, it } from "vitest";
import { clockTime, ranAlready, whyBusy } from "../../src/cli/names.js";
import { durationOption } from "../../src/cli/options.js";
import { formatMs, jsonText, masked, printable, shellWord } from "../../src/cli/output.js";
import { defaultFile, describeStore } from "../../src/cli/store.js";
import { LOCK_LIMIT } from "../../src/core/store.js";

describe("options for times", () => {
  it("need a unit", () => {
    const read = (text: string, infinite = false): number | undefined =>
      durationOption({ wait: text }, "wait", { min: 0, infinite });
    expect(read("1.5s")).toBe(1_500);
    expect(read("0")).toBe(0);
    expect(read("forever", true)).toBe(Number.POSITIVE_INFINITY);
    for (const text of ["forever", "5", "-1s", "1 s", "1d", "Infinity", "", "1e3s"]) {
      expect(() => read(text), text).toThrow(`--wait is ${JSON.stringify(text)}`);
    }
    expect(() => durationOption({ wait: "99999h" }, "wait", { min: 0 })).toThrow("from 0 to 8760h");
  });
});

describe("text that the command line prints", () => {
  it.each([
    [0, "0ms"],
    [999, "999ms"],
    [1_000, "1s"],
    [1_500, "1.5s"],
    [9_999, "9.9s"],
    [10_900, "10s"],
    [60_000, "1m"],
    [303_000, "5m 3s"],
    [7_500_000, "2h 5m"],
    [273_600_000, "3d 4h"],
    [Number.POSITIVE_INFINITY, "for ever"],
  ])("shows %d ms as %s", (ms, text) => {
    expect(formatMs(ms)).toBe(text);
  });

  it("from a store can't move the cursor, nor show a password", () => {
    expect(printable("a\u001b[2Jb\nc\u202ed")).toBe("a?[2Jb?c?d");
    expect(masked("a\u001b at redis://me:pw@host/0")).toBe("a? at redis://***@host/0");
    expect(masked("redis://me:a/pw@host and redis://you:pw@b")).toBe(
      "redis://***@host and redis://***@b",
    );
    expect(masked('is "redis://me:a-long-one-that-was-cut…"')).not.toContain("me:a");
    // A name is not treated as a URL.
    expect(printable("git//user@host")).toBe("git//user@host");
  });

  it("for programs has no control characters either, and says the same", () => {
    const value = { name: "a\u001b[2J\u009bm\u202eb\u2066\u200f\u061c\u2028é", token: 12n };
    const text = jsonText(value);
    expect(text).toMatch(/^[\n -~é]*$/);
    expect(JSON.parse(text)).toEqual({ ...value, token: "12" });
  });

  it("shows a time with its date only when it is not today", () => {
    expect(clockTime(Date.now())).toMatch(/^\d\d:\d\d:\d\d$/);
    expect(clockTime(Date.now() - 86_400_000)).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/);
  });

  it("about a busy name says who holds it and who is in front", () => {
    const name = {
      name: "job",
      limit: LOCK_LIMIT,
      holders: [],
      waiting: 0,
      waiters: [],
      revoked: [],
    };
    const mode = "exclusive" as const;
    const holder = {
      mode,
      token: 1n,
      permits: 1,
      heldMs: 5_000,
      expiresInMs: 9_000,
      closed: false,
    };
    const waiter = { mode, holder: "w", permits: 1, waitingMs: 1, expiresInMs: 1 };
    expect(whyBusy(null)).toBe(null);
    expect(whyBusy(name)).toBe(null);
    expect(whyBusy({ ...name, waiting: 1, waiters: [waiter] })).toBe(
      "is about to be granted to w, which waits",
    );
    const two = [
      { ...holder, holder: "a" },
      { ...holder, holder: "b" },
    ];
    expect(whyBusy({ ...name, holders: two })).toMatch(/^is held by a and 1 more, for 5s \(since/);
    const closed = [{ ...holder, holder: "a", closed: true }];
    expect(whyBusy({ ...name, holders: closed })).toBe(
      "is closed for another 9s by a (--at-least or --once-per)",
    );
    expect(ranAlready(null)).toBe(null);
    expect(ranAlready({ ...name, holders: two })).toBe(null);
    expect(ranAlready({ ...name, holders: closed })).toMatch(
      /^has been run in this period: a began 5s ago \(.*\); next in 9s \(.*\)$/,
    );
  });

  it("for a shell is quoted where it has to be", () => {
    expect(shellWord("order:1")).toBe("order:1");
    expect(shellWord("it's mine")).toBe("'it'\\''s mine'");
    expect(shellWord("$(x)")).toBe("'$(x)'");
    expect(shellWord("")).toBe("''");
  });
});

describe("the store", () => {
  it("is by default a file in the user's folder for state", () => {
    const home = () => "/home/me";
    expect(defaultFile({}, "linux", home)).toBe("/home/me/.local/state/holdfast/locks.db");
    expect(defaultFile({ XDG_STATE_HOME: "/s" }, "linux", home)).toBe("/s/holdfast/locks.db");
    // The XDG specification says to ignore a relative path.
    expect(defaultFile({ XDG_STATE_HOME: "s" }, "linux", home)).toContain("/.local/state/");
    expect(defaultFile({ XDG_STATE_HOME: "/s" }, "darwin", home)).toBe(
      "/home/me/Library/Application Support/holdfast/locks.db",
    );
    expect(defaultFile({ LOCALAPPDATA: "/L" }, "win32", home)).toBe("/L/holdfast/locks.db");
  });

  it("is described without user, password and options", () => {
    expect(describeStore("redis://me:pw@a:1,b/0?ca=x")).toBe("redis://a:1,b/0");
    expect(describeStore("sqlite:./locks.db")).toBe(`sqlite:${resolve("locks.db")}`);
  });
});
