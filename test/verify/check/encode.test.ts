import { describe, expect, it } from "vitest";
import { decodeHistory, encodeEvent, encodeHistory } from "../../../src/verify/check/encode.js";
import type { History } from "../../../src/verify/check/history.js";
import {
  aborting,
  asked,
  clockSet,
  counted,
  entered,
  frozen,
  granted,
  healed,
  injected,
  kept,
  killed,
  left,
  looked,
  lost,
  made,
  notGranted,
  paused,
  queued,
  released,
  releasing,
  renewed,
  resized,
  resumed,
  revoked,
  seen,
  wrote,
} from "./story.js";

const every: History = [
  asked(-1.5, "a", { waitMs: Number.POSITIVE_INFINITY, name: 'ü "\n🔒' }),
  asked(0, "i", { within: "a", longestTtlMs: 500 }),
  queued(1, "a"),
  aborting(1, "a"),
  notGranted(1, "a"),
  asked(0, "t", { together: "t", atLeastMs: 9.5, renew: false }),
  made(1, "a", 2),
  made(1, "a", 2, { limit: 4 }),
  kept(1, "a", 99),
  { ...granted(2, "a", 2, 90), token: 2n ** 63n - 1n } as History[number],
  renewed(3, "a", 99.25),
  looked(4, "a"),
  lost(5, "a"),
  releasing(5, "a"),
  released(6, "a"),
  entered(7, "a", 2),
  wrote(8, "a", 2, [0, 1]),
  seen(9, { holders: ["a"], waiters: ["b"] }),
  seen(9, { closed: ["a"] }),
  revoked(9, "a", 2, 8),
  resized(9, 4, 8),
  paused(10, "a"),
  frozen(10, "b"),
  resumed(10, "a"),
  killed(10, "a"),
  injected(11),
  injected(11, { sparesStore: true }),
  healed(12),
  clockSet(12, -500),
  counted(13, 1, 2, 3),
  left(14, 0),
];

describe("a history as text", () => {
  it("is read back as it was, with or without its header", () => {
    expect(decodeHistory(encodeHistory(every))).toEqual(every);
    expect(decodeHistory(every.map(encodeEvent).join("\r\n"))).toEqual(every);
    expect(decodeHistory("")).toEqual([]);
  });

  it("has a line for each event, with tokens as text", () => {
    expect(encodeHistory([made(1, "a", 2)])).toBe(
      '{"holdfast":"history","version":1}\n{"kind":"made","atMs":1,"op":"a","token":"2"}\n',
    );
  });

  const line = '{"kind":"made","atMs":1,"op":"a","token":"2"}';
  it.each([
    ["not JSON", "{", /line 2: is not JSON/],
    ["no object", "[]", /line 2: is an array; it must be an object/],
    [
      "an unknown kind",
      '{"kind":"toString","atMs":1}',
      /line 2: has the kind "toString"; known: asked/,
    ],
    ["no kind", '{"atMs":1}', /the kind undefined/],
    ["no time", '{"kind":"queued","op":"a"}', /queued: atMs is undefined; it must be a number/],
    ["a time that is none", '{"kind":"queued","atMs":"1","op":"a"}', /atMs is "1"/],
    [
      "a token that is a number",
      line.replace('"2"', "2"),
      /made: token is 2; it must be a whole number as text/,
    ],
    ["a token that is none", line.replace('"2"', '"-2"'), /token is "-2"/],
    ["a token beyond all bounds", line.replace('"2"', `"${"9".repeat(31)}"`), /token is "999/],
    [
      "an unknown word",
      '{"kind":"released","atMs":1,"op":"a","result":"maybe"}',
      /one of released, lost, unknown/,
    ],
    ["a field too many", line.replace("}", ',"toke":"2"}'), /made has no field "toke"/],
    [
      "a wrong list",
      '{"kind":"seen","atMs":1,"sinceMs":1,"name":"n","holders":[{"op":"a"}],"waiters":[]}',
      /holders is an array; it must be a list, each with op and token/,
    ],
    [
      "a newer version",
      '{"holdfast":"history","version":2}',
      /version 2; this Holdfast reads version 1/,
    ],
    ["a line too long", `"${"x".repeat(1_000_001)}"`, /has more than 1000000 characters/],
  ])("is refused with %s; the error says in which line", (_what, bad, message) => {
    expect(() => decodeHistory(`${line}\n${bad}\n${line}`)).toThrow(message);
    expect(() => decodeHistory(`${line}\n${bad}\n${line}`)).toThrow(
      expect.objectContaining({ code: "INVALID_ARGUMENT" }),
    );
  });

  it("is read up to a limit", () => {
    expect(decodeHistory(`${line}\n${line}`, { most: 2 })).toHaveLength(2);
    expect(() => decodeHistory(`${line}\n\n${line}`, { most: 1 })).toThrow(
      /line 3: is beyond the 1/,
    );
  });

  it("is refused with a field __proto__", () => {
    const bad = line.replace("}", ',"__proto__":{"x":1}}');
    expect(() => decodeHistory(bad)).toThrow(/no field "__proto__"/);
  });
});
