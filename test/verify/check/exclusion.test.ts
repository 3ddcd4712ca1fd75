import { describe, expect, it } from "vitest";
import {
  ALONE,
  asked,
  granted,
  judge,
  kept,
  killed,
  lost,
  made,
  ok,
  paused,
  releasing,
  renewed,
  resized,
  resumed,
  revoked,
  SHARED,
  some,
  unknown,
  violated,
} from "./story.js";

describe("S1, one holder at a time, where the store's own records are known", () => {
  const a = [asked(0, "a"), kept(1, "a", 101), granted(2, "a", 1, 95)];

  it("holds while no client relies on more time than the store keeps", () => {
    ok("S1", a);
    ok("S1", [...a, kept(30, "a", 130), renewed(31, "a", 125)]);
    // The client relies on less before the store receives the change.
    ok("S1", [...a, renewed(30, "a", 70), kept(31, "a", 80)]);
    ok("S1", [...a, lost(30, "a"), kept(31, "a", 31)]);
    ok("S1", [...a, releasing(30, "a"), kept(31, "a", 31)]);
    ok("S1", [...a, kept(96, "a", 96)]);
    // Another grant, which a late copy of the claim has made.
    ok("S1", [...a, kept(40, "a", 60, { token: 2n }), kept(60, "a", 60, { token: 2n })]);
  });

  it("is violated by a client that relies on more time, though no other came", () => {
    const why = /a \(a\) counted on "name" with token 1 until/;
    violated("S1", [...a, renewed(30, "a", 130)], [0, 1, 2, 3], why);
    violated("S1", [...a, kept(40, "a", 40)], [0, 2, 3], why);
    violated("S1", [asked(0, "a"), kept(1, "a", 90), granted(2, "a", 1, 95)], [0, 1, 2], why);
  });
});

describe("S1, one holder at a time", () => {
  it("holds when one client's belief ends before the next one's begins, or in the same moment", () => {
    const a = [asked(0, "a"), granted(1, "a", 1, 90)];
    ok("S1", [...a, asked(2, "b"), releasing(50, "a"), granted(60, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), releasing(50, "a"), granted(50, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), granted(50, "b", 2, 150), releasing(50, "a")]);
    ok("S1", [...a, asked(2, "b"), granted(90, "b", 2, 150), lost(95, "a")]);
    ok("S1", [...a, asked(2, "b"), lost(40, "a", "revoked"), granted(40, "b", 2, 150)]);
    ok("S1", [...a, asked(2, "b"), killed(40, "a"), granted(41, "b", 2, 150)]);
  });

  it("is violated by two beliefs that overlap", () => {
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

  it("is violated by a reader beside a writer, not by two readers", () => {
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

  it("judges each name on its own, and leaves re-entries out", () => {
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

  it("reports the earliest of several violations", () => {
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

  it("takes a client that comes back under a dead client's name for another", () => {
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

describe("S1, one holder at a time, after a release by force", () => {
  const a = [asked(0, "a"), kept(1, "a", 101), granted(2, "a", 1, 95)];
  const next = [asked(3, "b"), revoked(20, "a", 1), granted(21, "b", 2, 110)];

  it("holds while the old holder does not know, for as long as its lease had left", () => {
    ok("S1", [...a, ...next, kept(20, "a", 20)]);
    ok("S1", [...a, ...next, lost(40, "a", "revoked")]);
    // A reply from before the release by force.
    ok("S1", [...a, kept(15, "a", 115), ...next, kept(20, "a", 20), renewed(22, "a", 105)]);
    // Renewed and revoked at the same moment.
    const renewedFirst = [kept(20, "a", 120), renewed(20, "a", 115), kept(20, "a", 20)];
    ok("S1", [...a, ...renewedFirst, ...next]);
    // The client receives its grant when that is already gone.
    ok("S1", [
      asked(0, "a"),
      asked(1, "b"),
      revoked(20, "a", 1),
      granted(21, "b", 2, 110),
      granted(22, "a", 1, 95),
      asked(100, "c"),
      granted(111, "c", 3, 200),
    ]);
  });

  it("is violated before the release, and by another grant of the same claim", () => {
    violated(
      "S1",
      [...a.toSpliced(1, 1), asked(3, "b"), granted(21, "b", 2, 110), revoked(22, "a", 1)],
      [0, 1, 2, 3],
      /while a \(a\) held it with token 1 until \+0\.022 s/,
    );
    violated(
      "S1",
      [
        asked(0, "a"),
        revoked(1, "a", 1),
        granted(2, "a", 2, 95),
        asked(3, "b"),
        granted(4, "b", 3, 95),
      ],
      [0, 2, 3, 4],
      /while a/,
    );
  });

  it("is violated by a client that relies on more time than the store had given until then", () => {
    violated(
      "S1",
      [...a, revoked(20, "a", 1), kept(20, "a", 20), renewed(30, "a", 125)],
      [0, 1, 2, 5],
      /counted on "name" with token 1 until \+0\.125 s, and the store kept it until \+0\.101 s/,
    );
  });
});

describe("S8, permits stay within the limit", () => {
  const two = some(2, 4);

  it("holds while no more permits are held than there are", () => {
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

  it("is violated by one permit too many; the evidence has as few leases as possible", () => {
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

  it("is violated by readers beside a writer; two writers are left to S1", () => {
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

  it("is violated by two limits at the same time", () => {
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

  it("counts by the new limit after a resize, and lets holders stay", () => {
    const held = [
      asked(0, "a", two),
      granted(1, "a", 1, 90),
      asked(2, "b", two),
      granted(3, "b", 2, 90),
    ];
    const more = [asked(5, "c", some(3, 7)), granted(6, "c", 3, 95)];
    ok("S8", [...held, resized(4, 7), ...more]);
    // The holders have more permits than there are, until some are released.
    ok("S8", [
      ...held,
      resized(4, 2),
      asked(5, "c", some(1, 2)),
      releasing(50, "a"),
      releasing(60, "b"),
      granted(61, "c", 3, 150),
    ]);
    // Granted under the old limit, and received after the new one.
    ok("S8", [...held.toSpliced(3, 1), made(3, "b", 2), resized(4, 1), granted(5, "b", 2, 90)]);
    // The client waited, and the limit was raised.
    ok("S8", [...held, asked(5, "c", some(3, 4)), resized(6, 7), granted(7, "c", 3, 95)]);
    const tooMany = [...held, resized(4, 6), asked(5, "c", some(3, 6)), granted(6, "c", 3, 95)];
    const verdict = judge("S8", tooMany);
    expect(verdict.why).toMatch(/^too many for "name"/);
    // The resize is part of the evidence: without it, the limits would seem to differ.
    expect(verdict.evidence).toEqual(tooMany);
    violated("S8", [...held, ...more, resized(7, 7)], [0, 1, 4, 5], /of different limits/);
  });

  it("is violated by a grant that still goes by the old limit", () => {
    const held = [asked(0, "a", two), granted(1, "a", 1, 90), asked(2, "b", two)];
    ok("S8", [...held, resized(4, 3), made(5, "b", 2), granted(6, "b", 2, 95)]);
    violated(
      "S8",
      [...held, resized(4, 3), made(5, "b", 2, { limit: 3 }), granted(6, "b", 2, 95)],
      [0, 1, 2, 4, 5],
      /b \(b\) with 2 of 3/,
    );
  });

  it("leaves out a client whose permits were released by force", () => {
    const two = some(2, 3);
    const held = [asked(0, "a", two), granted(1, "a", 1, 90), asked(2, "b", two)];
    ok("S8", [...held, revoked(4, "a", 1), granted(6, "b", 2, 95), lost(20, "a", "revoked")]);
    violated("S8", [...held, granted(6, "b", 2, 95), revoked(7, "a", 1)], [0, 1, 2, 3], /too many/);
  });

  it("is violated by a re-entry with another token than the lease that it shares", () => {
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
