import { describe, it } from "vitest";
import {
  asked,
  granted,
  healed,
  injected,
  lost,
  made,
  ok,
  paused,
  released,
  releasing,
  renewed,
  resumed,
  revoked,
  SHARED,
  unknown,
  violated,
} from "./story.js";

describe("S4, a stale release or renewal does not touch a successor", () => {
  const handover = [
    asked(0, "a"),
    granted(1, "a", 1, 90),
    paused(2, "a"),
    asked(3, "b"),
    granted(101, "b", 2, 190),
    resumed(110, "a"),
  ];

  it("holds for a stale release whose reply says so", () => {
    ok("S4", [
      ...handover,
      releasing(111, "a"),
      released(112, "a", "lost"),
      releasing(150, "b"),
      released(151, "b"),
    ]);
    ok("S4", [...handover, releasing(111, "a"), released(112, "a", "unknown")]);
    // The successor's own release, sent twice: the second reply says that nothing is there.
    ok("S4", [...handover, releasing(111, "a"), releasing(150, "b"), lost(151, "b")]);
  });

  it('is violated by a stale release whose reply is "released"', () => {
    violated(
      "S4",
      [...handover, releasing(111, "a"), released(112, "a")],
      [0, 1, 3, 4, 6, 7],
      /release of a \(a\) with token 1, sent at \+0\.111 s, was answered "released", after b \(b\) was granted "name" with token 2 at \+0\.101 s/,
    );
  });

  it("is unknown when no release comes late", () => {
    unknown(
      "S4",
      [
        asked(0, "a"),
        granted(1, "a", 1, 90),
        asked(3, "b"),
        releasing(50, "a"),
        granted(50, "b", 2, 140),
        released(51, "a"),
      ],
      /after a successor's grant/,
    );
    unknown("S4", [], /successor/);
  });

  it("is violated by a renewal in the time in which the successor holds", () => {
    violated(
      "S4",
      [...handover, renewed(111, "a", 200)],
      [0, 1, 3, 4, 6],
      /was renewed at \+0\.111 s/,
    );
    // The reply is from long ago and came late: S7 judges it.
    ok("S4", [...handover, renewed(111, "a", 95)]);
  });

  it("is violated when the successor then loses its lease before its time", () => {
    const stale = [...handover, releasing(111, "a"), released(112, "a", "lost")];
    violated(
      "S4",
      [...stale, lost(150, "b")],
      [0, 1, 3, 4, 6, 8],
      /b \(b\) with token 2 lost its lease at \+0\.150 s, before its deadline/,
    );
    violated("S4", [...stale, lost(150, "b", "superseded")], [0, 1, 3, 4, 6, 8], /lost its lease/);
    violated(
      "S4",
      [...stale, renewed(140, "b", 230), lost(200, "b")],
      [0, 1, 3, 4, 6, 8, 9],
      /before its deadline of \+0\.230 s/,
    );
    ok("S4", [...stale, lost(190, "b")]);
    ok("S4", [...stale, lost(190, "b"), renewed(195, "b", 300)]);
    ok("S4", [...stale, lost(150, "b", "revoked")]);
    ok("S4", [...stale, lost(150, "b", "max-hold")]);
  });

  it("is violated when a third client is granted the name while the successor holds", () => {
    const stale = [...handover, releasing(111, "a"), released(112, "a", "lost"), asked(113, "c")];
    violated(
      "S4",
      [...stale, granted(120, "c", 3, 210)],
      [0, 1, 3, 4, 6, 8, 9],
      /c \(c\) was granted .* while b \(b\) held it/,
    );
    ok("S4", [...stale, granted(190, "c", 3, 280)]);
    // The grant was made before the release: S1 judges it.
    ok("S4", [
      ...handover,
      asked(105, "c"),
      made(106, "c", 3),
      releasing(111, "a"),
      granted(120, "c", 3, 210),
    ]);
  });

  it("is unknown when a fault hit the store, not when it only hit messages or another name", () => {
    const stale = (more: { sparesStore?: boolean; name?: string }) => [
      ...handover,
      releasing(111, "a"),
      injected(115, more),
      healed(116),
      lost(150, "b"),
    ];
    unknown("S4", stale({}), /a fault of the store may explain it: b \(b\)/);
    unknown("S4", stale({ name: "name" }), /a fault of the store may explain it: b \(b\)/);
    violated("S4", stale({ sparesStore: true }), [0, 1, 3, 4, 6, 9], /lost its lease/);
    violated("S4", stale({ name: "other" }), [0, 1, 3, 4, 6, 9], /lost its lease/);
  });

  it("leaves shared leases out: they have no successor", () => {
    unknown(
      "S4",
      [
        asked(0, "a", SHARED),
        granted(1, "a", 1, 90),
        asked(2, "b", SHARED),
        granted(3, "b", 2, 90),
        releasing(50, "a"),
        released(51, "a"),
      ],
      /successor/,
    );
  });

  it("allows a holder that was released by force to receive a reply from before", () => {
    const forced = [
      asked(0, "a"),
      granted(1, "a", 1, 90),
      asked(3, "b"),
      revoked(20, "a", 1),
      granted(21, "b", 2, 110),
    ];
    ok("S4", [...forced, renewed(22, "a", 100), releasing(30, "a"), released(31, "a", "lost")]);
    violated(
      "S4",
      [...forced, releasing(30, "a"), released(31, "a")],
      [0, 1, 2, 4, 5, 6],
      /was answered "released"/,
    );
    // The successor was revoked too.
    const stale = [...forced, releasing(30, "a"), released(31, "a", "lost"), asked(32, "c")];
    ok("S4", [...stale, revoked(33, "b", 2), granted(34, "c", 3, 120), lost(40, "b", "revoked")]);
    violated(
      "S4",
      [...stale, granted(34, "c", 3, 120)],
      [0, 1, 2, 4, 5, 7, 8],
      /c \(c\) was granted/,
    );
  });
});
