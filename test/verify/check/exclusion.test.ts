import { describe, it } from "vitest";
import {
  ALONE,
  asked,
  granted,
  kept,
  killed,
  lost,
  ok,
  paused,
  releasing,
  renewed,
  resumed,
  SHARED,
  some,
  unknown,
  violated,
} from "./story.js";

describe("S1, where the store was looked into", () => {
  const a = [asked(0, "a"), kept(1, "a", 101), granted(2, "a", 1, 95)];

  it("holds while nobody counts on more than the store keeps", () => {
    ok("S1", a);
    ok("S1", [...a, kept(30, "a", 130), renewed(31, "a", 125)]);
    // It counts on less before the store hears of it.
    ok("S1", [...a, renewed(30, "a", 70), kept(31, "a", 80)]);
    ok("S1", [...a, lost(30, "a"), kept(31, "a", 31)]);
    ok("S1", [...a, releasing(30, "a"), kept(31, "a", 31)]);
    ok("S1", [...a, kept(96, "a", 96)]);
  });

  it("is violated by who counts on more, though nobody else came", () => {
    const why = /a \(a\) counted on "name" with token 1 until/;
    violated("S1", [...a, renewed(30, "a", 130)], [0, 1, 2, 3], why);
    violated("S1", [...a, kept(40, "a", 40)], [0, 2, 3], why);
    violated("S1", [asked(0, "a"), kept(1, "a", 90), granted(2, "a", 1, 95)], [0, 1, 2], why);
  });
});

describe("S1", () => {
  it("holds when one belief ends before the next begins, or as it does", () => {
    const a = [asked(0, "a"), granted(1, "a", 1, 90)];
    ok("S1", [...a, asked(2, "b"), releasing(50, "a"), granted(60, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), releasing(50, "a"), granted(50, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), granted(50, "b", 2, 150), releasing(50, "a")]);
    ok("S1", [...a, asked(2, "b"), granted(90, "b", 2, 150), lost(95, "a")]);
    ok("S1", [...a, asked(2, "b"), lost(40, "a", "revoked"), granted(40, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), killed(40, "a"), granted(41, "b", 2, 150)]);
  });

  it("is violated by an overlap", () => {
    violated(
      "S1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        asked(2, "b"),
        granted(89, "b", 2, 150),
        lost(90, "a"),
        releasing(120, "b"),
      ],
      [0, 1, 2, 3],
      /b \(b\) held "name" with token 2 from \+0\.089 s, while a \(a\) held it with token 1 until \+0\.090 s/,
    );
  });

  it("is violated in the time that a renewal added, which a pause does not end", () => {
    violated(
      "S1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        renewed(30, "a", 120),
        renewed(60, "a", 150),
        paused(61, "a"),
        asked(62, "b"),
        granted(130, "b", 2, 220),
        resumed(300, "a"),
      ],
      [0, 1, 3, 5, 6],
      /until \+0\.150 s/,
    );
  });

  it("is violated by a renewal that revives a lease, from then on", () => {
    const story = [asked(0, "a"), granted(1, "a", 1, 90), asked(2, "b"), granted(95, "b", 2, 180)];
    violated("S1", [...story, renewed(120, "a", 200)], [0, 1, 2, 3, 4], /a \(a\) held/);
    ok("S1", [...story, releasing(100, "b"), renewed(120, "a", 200)]);
  });

  it("is violated by readers beside a writer, not by readers", () => {
    const readers = [
      asked(0, "a", SHARED),
      granted(1, "a", 1, 90),
      asked(2, "b", SHARED),
      granted(3, "b", 2, 92),
    ];
    unknown("S1", readers, /held more than once/);
    violated("S1", [...readers, asked(4, "w"), granted(91, "w", 3, 180)], [2, 3, 4, 5], /b \(b\)/);
    violated(
      "S1",
      [asked(0, "w"), granted(1, "w", 1, 90), asked(2, "r", SHARED), granted(50, "r", 2, 140)],
      [0, 1, 2, 3],
      /r \(r\) held/,
    );
    ok("S1", [...readers, asked(4, "w"), granted(92, "w", 3, 180)]);
  });

  it("keeps names apart, and leaves re-entries out", () => {
    unknown(
      "S1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        asked(2, "b", { name: "other" }),
        granted(3, "b", 2, 90),
        asked(4, "c", { client: "a", within: "a" }),
        granted(5, "c", 1, 90),
      ],
      /held more than once/,
    );
    unknown("S1", [], /held more than once/);
  });

  it("tells the earliest of several", () => {
    const other = { name: "other" };
    violated(
      "S1",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        asked(1, "c", other),
        granted(2, "c", 1, 90),
        asked(3, "d", other),
        granted(40, "d", 2, 120),
        asked(41, "b"),
        granted(50, "b", 2, 120),
      ],
      [2, 3, 4, 5],
      /"other"/,
    );
  });

  it("takes who comes back under a dead client's name for another", () => {
    violated(
      "S1",
      [
        asked(0, "a", { client: "c" }),
        killed(5, "c"),
        asked(10, "b", { client: "c" }),
        granted(11, "b", 2, 100),
        asked(12, "d"),
        granted(20, "d", 3, 100),
      ],
      [2, 3, 4, 5],
      /d \(d\)/,
    );
  });
});

describe("S8", () => {
  const two = some(2, 4);

  it("holds within the limit", () => {
    ok("S8", [
      asked(0, "a", two),
      granted(1, "a", 1, 90),
      asked(2, "b", two),
      granted(3, "b", 2, 90),
      asked(4, "c", two),
      releasing(50, "a"),
      granted(50, "c", 3, 140),
    ]);
  });

  it("is violated beyond it, shown by as few as can be", () => {
    violated(
      "S8",
      [
        asked(0, "a", some(1, 4)),
        granted(1, "a", 1, 90),
        asked(2, "b", two),
        granted(3, "b", 2, 90),
        asked(4, "c", some(1, 4)),
        granted(5, "c", 3, 90),
        asked(6, "d", some(3, 4)),
        granted(80, "d", 4, 140),
      ],
      [2, 3, 6, 7],
      /too many for "name" at \+0\.080 s: b \(b\) with 2 of 4 and token 2, d \(d\) with 3 of 4/,
    );
    violated(
      "S8",
      [
        asked(0, "a", two),
        granted(1, "a", 1, 90),
        asked(2, "b", two),
        granted(3, "b", 2, 90),
        asked(4, "c", some(1, 4)),
        granted(5, "c", 3, 90),
      ],
      [0, 1, 2, 3, 4, 5],
      /too many/,
    );
  });

  it("is violated by readers beside a writer; two writers are S1's", () => {
    violated(
      "S8",
      [asked(0, "r", SHARED), granted(1, "r", 1, 90), asked(2, "w"), granted(50, "w", 2, 140)],
      [0, 1, 2, 3],
      /too many/,
    );
    violated(
      "S8",
      [asked(0, "w"), granted(1, "w", 1, 90), asked(2, "r", SHARED), granted(50, "r", 2, 140)],
      [0, 1, 2, 3],
      /too many/,
    );
    unknown(
      "S8",
      [asked(0, "v", ALONE), granted(1, "v", 1, 90), asked(2, "w"), granted(50, "w", 2, 140)],
      /no name was held by shared leases/,
    );
  });

  it("is violated by different limits at one time", () => {
    violated(
      "S8",
      [
        asked(0, "a", some(1, 4)),
        granted(1, "a", 1, 90),
        asked(2, "b", some(1, 5)),
        granted(3, "b", 2, 90),
      ],
      [0, 1, 2, 3],
      /of different limits/,
    );
    ok("S8", [
      asked(0, "a", some(1, 4)),
      granted(1, "a", 1, 90),
      asked(2, "b", some(1, 5)),
      releasing(50, "a"),
      granted(60, "b", 2, 150),
    ]);
  });

  it("wants the token of the lease that is re-entered", () => {
    const outer = [
      asked(0, "a"),
      granted(1, "a", 7, 90),
      asked(2, "i", { client: "a", within: "a" }),
    ];
    ok("S8", [...outer, granted(3, "i", 7, 90)]);
    violated("S8", [...outer, granted(3, "i", 8, 90)], [0, 1, 2, 3], /got token 8/);
    unknown("S8", [...outer.toSpliced(1, 1), granted(3, "i", 8, 90)], /re-entered/);
  });
});
