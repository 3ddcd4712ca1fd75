import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { InvalidArgumentError } from "../../src/core/errors.js";
import {
  checkName,
  checkNumber,
  checkOneOf,
  checkOptions,
  checkText,
  checkToken,
  type Duration,
  parseDuration,
  show,
  YEAR_MS,
} from "../../src/core/validate.js";
import { runs } from "../support/chance.js";
import { refusal } from "./helpers.js";

const any = { min: 0 };

function refused(run: () => unknown, ...inMessage: string[]): void {
  const error = refusal(run);
  expect(error).toBeInstanceOf(InvalidArgumentError);
  expect(error.code).toBe("INVALID_ARGUMENT");
  for (const part of inMessage) expect(error.message).toContain(part);
}

describe("durations", () => {
  it("with an unknown unit is refused by the compiler already", () => {
    const good: Duration[] = [5, "250ms", "1.5s", "5m", "1h"];
    // @ts-expect-error: no unit that we know
    const bad: Duration = "30 seconds";
    for (const one of good) parseDuration(one, "ttl", { min: 0 });
    refused(() => parseDuration(bad, "ttl", { min: 0 }), 'ttl is "30 seconds"');
  });

  it.each([
    ["1ms", 1],
    ["250ms", 250],
    ["30s", 30_000],
    ["5m", 300_000],
    ["1h", 3_600_000],
    ["0s", 0],
    ["1.5s", 1_500],
    ["0.5ms", 0.5],
    ["007s", 7_000],
    [0, 0],
    [1, 1],
    [0.25, 0.25],
    [YEAR_MS, YEAR_MS],
  ])("%j is %d ms", (value, ms) => {
    expect(parseDuration(value, "ttl", any)).toBe(ms);
  });

  it.each([
    "1 s",
    " 1s",
    "1s ",
    "1s\n",
    "1d",
    "1S",
    "1sec",
    "1",
    "s",
    "",
    "-1s",
    "+1s",
    "1e3ms",
    "0x10ms",
    ".5s",
    "1.s",
    "1_000ms",
    "1s2s",
    "Infinity",
    "NaNms",
    "١s",
    "constructor",
  ])("the text %j is refused, with the value and the rule", (value) => {
    refused(
      () => parseDuration(value, "ttl", any),
      `ttl is ${show(value)};`,
      '"250ms"',
      "from 0 to ",
    );
  });

  it.each([
    Number.NaN,
    -1,
    -0.001,
    Number.NEGATIVE_INFINITY,
    Number.POSITIVE_INFINITY,
    YEAR_MS + 1,
    Number.MAX_VALUE,
    "9007199254740993h",
  ])("%s is out of range", (value) => {
    refused(() => parseDuration(value, "wait", any), "wait is ", `to ${YEAR_MS / 3_600_000}h`);
  });

  it.each([
    [undefined, "undefined"],
    [null, "null"],
    [true, "true"],
    [10n, "10n"],
    [[1_000], "an array"],
    [{ ms: 1 }, "an object"],
    [Object(5), "a Number"],
    [new Date(0), "a Date"],
    [Symbol("x"), "Symbol(x)"],
  ])("a value that is neither number nor text is refused: %s", (value, shown) => {
    refused(() => parseDuration(value, "ttl", any), `ttl is ${shown};`);
  });

  it("Infinity is allowed only where it makes sense, and only as the number", () => {
    const rule = { min: 0, infinite: true };
    expect(parseDuration(Number.POSITIVE_INFINITY, "wait", rule)).toBe(Number.POSITIVE_INFINITY);
    refused(() => parseDuration(Number.NEGATIVE_INFINITY, "wait", rule), "or Infinity");
    refused(() => parseDuration("Infinity", "wait", rule));
    // More digits than a number holds are a mistake, not a wish to wait for ever.
    refused(() => parseDuration(`${"9".repeat(400)}s`, "wait", rule));
  });

  it("must be within the bounds of the option", () => {
    const rule = { min: 20, max: 50 };
    expect(parseDuration(20, "ttl", rule)).toBe(20);
    expect(parseDuration("50ms", "ttl", rule)).toBe(50);
    refused(() => parseDuration(19.999, "ttl", rule), "ttl is 19.999", "from 20ms to 50ms");
    refused(() => parseDuration("51ms", "ttl", rule), 'ttl is "51ms"');
  });

  it("any text is either refused or written as the rule says", () => {
    const almost = fc.stringMatching(/^[ 0-9.e+-]{0,4}[ ]?(ms|s|m|h|d)?$/);
    fc.assert(
      fc.property(fc.oneof(fc.string(), almost), (text) => {
        let ms: number;
        try {
          ms = parseDuration(text, "ttl", any);
        } catch (error) {
          expect(error).toBeInstanceOf(InvalidArgumentError);
          return;
        }
        expect(text).toMatch(/^[0-9]+(\.[0-9]+)?(ms|s|m|h)$/);
        expect(ms >= 0 && ms <= YEAR_MS).toBe(true);
      }),
      runs(2_000),
    );
  });
});

describe("names", () => {
  it.each([
    ["one byte", "a"],
    ["255 bytes", "a".repeat(255)],
    ["255 bytes of three each", "€".repeat(85)],
    ["254 bytes of two each", "é".repeat(127)],
    ["252 bytes of four each", "😀".repeat(63)],
    ["255 bytes, mixed", `${"😀".repeat(63)}abc`],
    ["emoji with joiners", "👩‍👩‍👧‍👦"],
    ["what looks like a path or a pattern", "../*?[x]{y}%:'\";--"],
    ["a space", " "],
    ["a no-break space, the first after the control characters", "\u00a0"],
    ["the highest code point", "\u{10ffff}"],
    ["prototype words", "__proto__"],
  ])("may be %s", (_what, name) => {
    expect(checkName(name)).toBe(name);
  });

  it.each([
    ["empty", ""],
    ["256 bytes", "a".repeat(256)],
    ["256 bytes of two each", "é".repeat(128)],
    ["258 bytes of three each", "€".repeat(86)],
    ["256 bytes of four each", "😀".repeat(64)],
    ["255 code units, 258 bytes", `${"a".repeat(253)}é€`],
    ["NUL", "a\0b"],
    ["a newline", "a\n"],
    ["a tab", "\t"],
    ["escape", "\u001b[31m"],
    ["DEL", "\u007f"],
    ["C1, first", "\u0080"],
    ["C1, last", "\u009f"],
    ["a lone high surrogate", "a\ud83d"],
    ["a lone low surrogate", "\ude00a"],
    ["surrogates in the wrong order", "\ude00\ud83d"],
    ["a number", 1],
    ["undefined", undefined],
    ["null", null],
    ["an array", ["a"]],
    ["a boxed string", Object("a")],
    ["a symbol", Symbol("a")],
    ["a bigint", 1n],
    ["bytes", Buffer.from("a")],
  ])("may not be %s", (_what, name) => {
    refused(() => checkName(name), "the name is ", "1 to 255 bytes of UTF-8");
  });

  it("may not be several, which acquireAll takes", () => {
    refused(() => checkName(["a", "b"]), "without control characters; acquireAll takes several");
  });

  it("are limited in bytes, whatever the characters", () => {
    fc.assert(
      fc.property(
        fc.string({ unit: "grapheme", minLength: 1, maxLength: 260 }),
        fc.integer({ min: 0, max: 3 }),
        (text, more) => {
          const name = text.repeat(more + 1);
          // biome-ignore lint/suspicious/noControlCharactersInRegex: the rule under test
          const fits = Buffer.byteLength(name) <= 255 && !/[\x00-\x1f\x7f-\x9f]/.test(name);
          if (fits) expect(checkName(name)).toBe(name);
          else refused(() => checkName(name));
        },
      ),
      runs(1_000),
    );
  });
});

describe("other values", () => {
  it("tokens are bigints from 0 to 2^63 - 1", () => {
    for (const token of [0n, 1n, 2n ** 53n + 1n, 2n ** 63n - 1n]) {
      expect(checkToken(token, "token")).toBe(token);
    }
    for (const bad of [-1n, 2n ** 63n, 5, "5", null, undefined, 1.5, Number.NaN, {}]) {
      refused(() => checkToken(bad, "token"), `token is ${show(bad)};`, "2^63 - 1");
    }
  });

  it("numbers must be within their bounds, and NaN never is", () => {
    const rule = { min: 0, max: 1 };
    for (const good of [0, 0.5, 1]) expect(checkNumber(good, "jitter", rule)).toBe(good);
    for (const bad of [Number.NaN, -0.1, 1.1, "0.5", null, undefined, 1n, true]) {
      refused(() => checkNumber(bad, "jitter", rule), `jitter is ${show(bad)};`, "from 0 to 1");
    }
    refused(() => checkNumber(1.5, "limit", { min: 1, max: 9, integer: true }), "whole number");
  });

  it("words are compared exactly, case included", () => {
    const all = ["a", "b"] as const;
    expect(checkOneOf("a", "mode", all)).toBe("a");
    for (const bad of ["A", "a ", "", undefined, null, ["a"], 0]) {
      refused(() => checkOneOf(bad, "mode", all), `mode is ${show(bad)};`, '"a", "b"');
    }
  });

  it("text may be empty only where that is allowed", () => {
    expect(checkText("", "prefix", 0, 255)).toBe("");
    refused(() => checkText("", "note", 1, 255), 'note is "";', "1 to 255 bytes");
  });
});

describe("options objects", () => {
  it("with an unknown key are refused; the message names the key and the known ones", () => {
    refused(
      () => checkOptions({ ttl: 1, tll: 2 }, "the options of x", ["ttl", "wait"]),
      '"tll"',
      "known: ttl, wait",
    );
    refused(() => checkOptions({ "": 1 }, "the options of x", ["ttl"]), '""');
    refused(() => checkOptions(JSON.parse('{"__proto__":1}'), "options", ["ttl"]), '"__proto__"');
    refused(() => checkOptions({ constructor: 1 }, "options", ["ttl"]), '"constructor"');
  });

  it("may have no prototype", () => {
    expect(() => checkOptions(Object.assign(Object.create(null), { ttl: 1 }), "o", ["ttl"]))
      .not //
      .toThrow();
  });

  it.each([
    ["null", null],
    ["undefined", undefined],
    ["text", "30s"],
    ["a number", 1],
    ["an array", []],
    ["a function", () => {}],
  ])("can't be %s", (_what, value) => {
    refused(
      () => checkOptions(value, "the options of x", ["ttl"]),
      'they must be a plain object, such as { ttl: "30s" }',
    );
  });

  // `acquire(name, controller.signal)` has no keys of its own, and would be a silent default.
  it.each([
    ["an AbortSignal", new AbortController().signal],
    ["a Map", new Map([["ttl", 1]])],
    ["a Date", new Date(0)],
    ["a promise", Promise.resolve({ ttl: 1 })],
  ])("can't be %s either", (_what, value) => {
    refused(() => checkOptions(value, "the options of x", ["ttl"]), "they must be a plain object");
  });
});

describe("a value in an error message", () => {
  it("is shown briefly, whatever it is", () => {
    const secret = (): string => "a function's source does not belong into a message, least of all";
    const values = ["x".repeat(10_000), secret, { a: "x".repeat(100) }, [1, 2, 3], Symbol("s")];
    for (const value of values) expect(show(value).length).toBeLessThan(60);
    expect(show(["secret"])).toBe("an array");
    expect(show({ password: "secret" })).toBe("an object");
  });

  it("never makes the message fail", () => {
    fc.assert(
      fc.property(fc.anything({ withBigInt: true, withNullPrototype: true }), (value) => {
        expect(typeof show(value)).toBe("string");
      }),
      runs(),
    );
  });
});
