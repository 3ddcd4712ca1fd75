import { describe, expect, it } from "vitest";
import {
  asked,
  frozen,
  granted,
  healed,
  injected,
  judge,
  killed,
  later,
  left,
  looked,
  lost,
  notGranted,
  ok,
  paused,
  released,
  releasing,
  renewed,
  resumed,
  revoked,
  seen,
  unknown,
  violated,
} from "./story.js";

describe("S5, a client that runs cleans up what it gave up", () => {
  const clean = { cleanMs: 20 };
  const gaveUp = [asked(0, "a"), notGranted(50, "a", "aborted")];

  it("holds when it is gone in time, or a fault was in the way", () => {
    ok("S5", [...gaveUp, seen(60, { waiters: ["a"] })], clean);
    ok("S5", [...gaveUp, seen(80, { waiters: ["a"] })]);
    ok("S5", [...gaveUp, paused(55, "a"), seen(80, { waiters: ["a"] })], clean);
    ok("S5", [...gaveUp, injected(55), healed(56), seen(80, { waiters: ["a"] })], clean);
    ok("S5", [asked(0, "a"), killed(50, "a"), seen(80, { waiters: ["a"] })], clean);
  });

  it("is violated by a claim that is still in the store, even long before its ttl", () => {
    const why = /the store still showed a \(a\) at "name" at \+0\.080 s/;
    violated("S5", [...gaveUp, seen(80, { waiters: ["a"] })], [0, 1, 2], why, clean);
    const released = [asked(0, "a"), granted(1, "a", 1, 90), releasing(50, "a")];
    violated("S5", [...released, seen(80, { holders: ["a"] })], [0, 2, 3], why, clean);
  });
});

describe("S7, nothing counts as held after maxHold", () => {
  it("holds when no deadline is later than maxHold allows", () => {
    const short = asked(0, "a", { maxHoldMs: 50 });
    ok("S7", [short, granted(1, "a", 1, 51), renewed(20, "a", 51)]);
    const why = /until \+0\.060 s, with a maxHold of 50 ms from \+0\.001 s/;
    violated("S7", [short, granted(1, "a", 1, 60)], [0, 1], why);
    violated("S7", [short, granted(1, "a", 1, 51), renewed(20, "a", 60)], [0, 1, 2], why);
  });

  it("does not count the time of a freeze, if the lease is long enough", () => {
    const short = [asked(0, "a", { maxHoldMs: 50 }), granted(1, "a", 1, 51)];
    const thawed = [...short, frozen(40, "a"), resumed(60, "a")];
    ok("S7", [...thawed, looked(70, "a")]);
    const why = /still counted as held/;
    expect(judge("S7", [...thawed, looked(71, "a")])).toMatchObject({ verdict: "violated" });
    violated("S7", [...short, looked(60, "a")], [0, 1, 2], why);
    const long = [asked(0, "a", { maxHoldMs: 500 }), granted(1, "a", 1, 51)];
    const late = [...long, frozen(40, "a"), resumed(60, "a"), looked(61, "a")];
    violated("S7", late, [0, 1, 4], why);
  });
});

describe("S5, an acquire that was given up leaves nothing beyond its ttl", () => {
  const gaveUp = [asked(0, "a"), notGranted(50, "a", "unknown")];

  it("holds when nothing follows, or its remains expire", () => {
    ok("S5", gaveUp);
    ok("S5", [...gaveUp, seen(100, { holders: ["a"] }), seen(160, { waiters: ["a"] })]);
  });

  it("is violated by a grant after the acquire has ended, or a second one", () => {
    violated(
      "S5",
      [...gaveUp, granted(60, "a", 1, 100)],
      [0, 1, 2],
      /though its request had ended "unknown"/,
    );
    violated(
      "S5",
      [asked(0, "a"), granted(1, "a", 1, 90), releasing(2, "a"), granted(60, "a", 2, 150)],
      [0, 1, 3],
      /had ended with token 1/,
    );
  });

  it("is violated by a claim that is still in the store when it should have expired", () => {
    violated(
      "S5",
      [...gaveUp, seen(161, { holders: ["a"] })],
      [0, 1, 2],
      /still showed a \(a\) at "name" at \+0\.161 s; its op had ended \(not-granted\)/,
    );
    violated(
      "S5",
      [...gaveUp, seen(150, { waiters: ["a"] }), seen(170, { waiters: ["a"] })],
      [0, 1, 3],
      /still showed/,
    );
    violated(
      "S5",
      [asked(0, "a"), killed(20, "a"), seen(131, { waiters: ["a"] })],
      [0, 1, 2],
      /\(killed\)/,
    );
    violated(
      "S5",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        lost(90, "a"),
        releasing(91, "a"),
        seen(201, { holders: ["a"] }),
      ],
      [0, 2, 4],
      /\(lost\)/,
    );
  });

  it('is violated by a grant that is still in the store after the reply "released"', () => {
    const held = [asked(0, "a"), granted(1, "a", 1, 90), releasing(20, "a")];
    const answered = [...held, released(21, "a")];
    const still = seen(22, { holders: ["a"] });
    const why =
      /still showed a \(a\) with token 1 .* its release was answered "released" at \+0\.021 s/;
    violated("S5", [...answered, still], [0, 1, 3, 4], why);
    // A lost or doubled message does not explain it.
    const spared = { sparesStore: true };
    violated("S5", [...answered, injected(22, spared), still, healed(23)], [0, 1, 3, 5], why);
    ok("S5", [...answered, injected(22), still, healed(23)]);
    ok("S5", [...held, released(21, "a", "unknown"), still]);
    ok("S5", [...answered, seen(21, { holders: ["a"] })]);
    // A late copy of the claim made this grant.
    ok("S5", [asked(0, "a"), granted(1, "a", 2, 90), ...answered.slice(2), still]);
  });

  it("is violated by a release that failed, and was not sent again after the fault", () => {
    const repay = { repayMs: 20 };
    const failed = [
      asked(0, "a", { ttlMs: 900 }),
      granted(1, "a", 1, 800),
      injected(2, { sparesStore: true }),
      releasing(20, "a"),
      released(25, "a", "unknown"),
      healed(30),
    ];
    const still = (atMs: number) => seen(atMs, { holders: ["a"] });
    ok("S5", [...failed, still(50)], repay);
    const why = /its release was sent at \+0\.020 s, and was due by \+0\.050 s/;
    const verdict = judge("S5", [...failed, still(51)], repay);
    expect(verdict.verdict).toBe("violated");
    expect(verdict.why).toMatch(why);
    ok("S5", [...failed, still(500)]);
    ok("S5", [...failed, paused(31, "a"), still(51)], repay);
    ok("S5", [...failed, killed(31, "a"), still(51)], repay);
    ok("S5", [...failed, left(31, 0, "a"), still(51)], repay);
  });

  it("counts the longest ttl that the lease was renewed to", () => {
    const story = [asked(0, "a", { longestTtlMs: 200 }), notGranted(50, "a", "unknown")];
    ok("S5", [...story, seen(260, { holders: ["a"] })]);
    violated("S5", [...story, seen(261, { holders: ["a"] })], [0, 1, 2], /a ttl of 200 ms/);
  });

  it("does not judge clients that hold or wait, nor a snapshot whose reading began in time", () => {
    ok("S5", [
      ...gaveUp,
      asked(1, "b"),
      granted(2, "b", 1, 90),
      renewed(80, "b", 900),
      seen(500, { holders: ["b", "stranger"] }),
    ]);
    unknown("S5", [asked(1, "b", { waitMs: 9_000 }), seen(5_000, { waiters: ["b"] })], /gave up/);
    ok("S5", [...gaveUp, { ...seen(155, { holders: ["a"] }), atMs: 900 }]);
  });

  it("counts the ttl from the healing of a fault", () => {
    const story = [asked(0, "a"), injected(40), notGranted(50, "a", "unknown"), healed(300)];
    ok("S5", [...story, seen(410, { holders: ["a"] })]);
    violated("S5", [...story, seen(411, { holders: ["a"] })], [0, 2, 4], /still showed/);
  });
});

describe("S6, a holder is notified of a loss by its deadline", () => {
  const lease = [asked(0, "a"), granted(1, "a", 1, 90)];

  it("holds when the holder is notified by the deadline, or a little later", () => {
    ok("S6", [...lease, lost(90, "a")]);
    ok("S6", [...lease, lost(100, "a"), later(500)]);
    ok("S6", [...lease, renewed(50, "a", 140), lost(150, "a")]);
    ok("S6", [...lease, lost(40, "a", "revoked"), later(500)]);
  });

  it("is violated when the holder is notified too late, or never", () => {
    violated(
      "S6",
      [...lease, lost(101, "a")],
      [0, 1, 2],
      /was notified of the loss at \+0\.101 s, though its lease on "name" with token 1 ended at \+0\.090 s/,
    );
    violated("S6", [...lease, later(50), later(101), later(102)], [0, 1, 3], /was never notified/);
    violated(
      "S6",
      [...lease, renewed(30, "a", 120), renewed(50, "a", 140), lost(151, "a")],
      [0, 1, 3, 4],
      /notified/,
    );
    violated(
      "S6",
      [...lease, renewed(30, "a", 60), lost(80, "a")],
      [0, 1, 2, 3],
      /ended at \+0\.060 s/,
    );
  });

  it("allows a machine that woke up shortly before a moment to read its clock", () => {
    const story = [...lease, paused(20, "a"), resumed(80, "a")];
    ok("S6", [...story, lost(100, "a")]);
    violated("S6", [...story, lost(101, "a")], [0, 1, 4], /notified/);
    ok("S6", [...story.with(3, resumed(85, "a")), lost(105, "a")]);
  });

  it("allows a client that was paused the time until it goes on", () => {
    const story = [...lease, paused(50, "a"), resumed(500, "a")];
    ok("S6", [...story, lost(520, "a")]);
    violated("S6", [...story, lost(521, "a")], [0, 1, 4], /notified/);
    ok("S6", [...lease, paused(95, "a"), resumed(500, "a"), lost(510, "a")]);
    ok("S6", [...story, paused(510, "a"), resumed(900, "a"), lost(910, "a")]);
    violated(
      "S6",
      [...lease, paused(101, "a"), resumed(500, "a"), lost(510, "a")],
      [0, 1, 4],
      /notified/,
    );
    unknown("S6", [...lease, paused(50, "a"), later(900)], /deadline/);
  });

  it("does not judge a machine that was frozen", () => {
    unknown("S6", [...lease, frozen(20, "a"), resumed(40, "a"), lost(120, "a")], /deadline/);
  });

  it("does not judge a client that released or died before, nor what is yet to come", () => {
    unknown("S6", [...lease, releasing(50, "a"), released(51, "a"), later(900)], /deadline/);
    unknown("S6", [...lease, releasing(95, "a"), later(900)], /deadline/);
    unknown("S6", [...lease, killed(95, "a"), later(900)], /deadline/);
    unknown("S6", [...lease, later(100)], /deadline/);
  });
});

describe("S7, nothing counts as held after the deadline", () => {
  const lease = [asked(0, "a"), granted(1, "a", 1, 90)];

  it("holds until the deadline", () => {
    ok("S7", [
      ...lease,
      looked(89, "a"),
      renewed(89, "a", 180),
      looked(179, "a"),
      looked(180, "a", false),
    ]);
  });

  it("holds when a client that suspects a freeze believes again after a renewal", () => {
    ok("S7", [...lease, renewed(50, "a", 50), looked(51, "a", false), renewed(52, "a", 140)]);
    violated(
      "S7",
      [...lease, renewed(50, "a", 50), looked(51, "a")],
      [0, 1, 2, 3],
      /still counted/,
    );
  });

  it("is violated by a lease that counts as held from the deadline on", () => {
    violated(
      "S7",
      [...lease, looked(50, "a"), looked(90, "a")],
      [0, 1, 3],
      /still counted as held at \+0\.090 s, after its deadline of \+0\.090 s/,
    );
    violated(
      "S7",
      [...lease, renewed(50, "a", 140), looked(145, "a")],
      [0, 1, 2, 3],
      /deadline of \+0\.140 s/,
    );
    violated(
      "S7",
      [...lease, renewed(50, "a", 60), looked(70, "a")],
      [0, 1, 2, 3],
      /deadline of \+0\.060 s/,
    );
  });

  it("is violated by a renewal or a grant that comes too late", () => {
    violated("S7", [...lease, renewed(95, "a", 185)], [0, 1, 2], /was renewed at \+0\.095 s/);
    violated("S7", [asked(0, "a"), granted(95, "a", 1, 95)], [0, 1], /was granted at \+0\.095 s/);
    ok("S7", [asked(0, "a"), granted(94, "a", 1, 95)]);
  });

  it("is violated by a lease that counts as held after its loss or release", () => {
    violated(
      "S7",
      [...lease, lost(40, "a", "revoked"), looked(50, "a")],
      [0, 1, 2, 3],
      /after "lost"/,
    );
    violated(
      "S7",
      [...lease, releasing(40, "a"), looked(50, "a")],
      [0, 1, 2, 3],
      /after "releasing"/,
    );
    violated(
      "S7",
      [...lease, releasing(40, "a"), renewed(50, "a", 140)],
      [0, 1, 2, 3],
      /was renewed/,
    );
    violated("S7", [...lease, lost(40, "a"), looked(40, "a")], [0, 1, 2, 3], /after "lost"/);
    ok("S7", [...lease, looked(40, "a"), lost(40, "a")]);
  });

  it("judges a machine that was frozen by what it reports of itself", () => {
    const frost = [...lease, frozen(20, "a"), resumed(50, "a")];
    ok("S7", [...frost, looked(60, "a", false), renewed(100, "a", 190), looked(180, "a")]);
    violated("S7", [...frost, looked(95, "a")], [0, 1, 4], /still counted as held/);
  });

  it("tolerates a record that is late", () => {
    ok("S7", [...lease, looked(90.9, "a")], { recordMs: 1 });
    violated("S7", [...lease, looked(91, "a")], [0, 1, 2], /held/, { recordMs: 1 });
  });

  it("is unknown without a grant", () => {
    unknown("S7", [asked(0, "a"), looked(5, "a")], /nothing was granted/);
  });
});

describe("S6, a holder is notified in time of a release by force", () => {
  const a = [asked(0, "a"), granted(1, "a", 1, 90)];

  it("holds when the holder is notified while its lease would have lasted", () => {
    ok("S6", [...a, revoked(20, "a", 1), lost(35, "a", "revoked")]);
    ok("S6", [...a, revoked(20, "a", 1), renewed(22, "a", 110), lost(110, "a")]);
    ok("S6", [...a, revoked(20, "a", 1, 10), releasing(30, "a")]);
  });

  it("is violated when a renewal, or the grant itself, lasts longer", () => {
    const why =
      /counted on it until .*, though its lease on "name" with token 1 was taken by force/;
    violated(
      "S6",
      [...a, revoked(20, "a", 1), renewed(50, "a", 131), lost(130, "a")],
      [0, 1, 2, 3],
      why,
    );
    violated("S6", [asked(0, "a"), revoked(5, "a", 1), granted(6, "a", 1, 3_000)], [0, 1, 2], why);
    // The revoked grant is not the one that the client has.
    ok("S6", [...a, revoked(20, "a", 7), renewed(50, "a", 131), lost(131, "a")]);
  });
});
