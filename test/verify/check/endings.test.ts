import { describe, it } from "vitest";
import {
  aborting,
  asked,
  frozen,
  granted,
  killed,
  later,
  left,
  lost,
  notGranted,
  ok,
  paused,
  releasing,
  resumed,
  unknown,
  violated,
} from "./story.js";

describe("L3, waits end in time, and closing leaves nothing", () => {
  const brief = { waitMs: 100 };

  it("holds when waits end in time", () => {
    ok("L3", [asked(0, "a", brief), notGranted(110, "a")]);
    ok("L3", [asked(0, "a", brief), granted(110, "a", 1, 200)]);
    ok("L3", [asked(0, "a"), aborting(50, "a"), notGranted(60, "a", "aborted")]);
    ok("L3", [asked(0, "a"), aborting(50, "a"), granted(60, "a", 1, 150)]);
    ok("L3", [asked(0, "a", { waitMs: 0 }), notGranted(40, "a", "busy")]);
    ok("L3", [left(0, 0)]);
  });

  it("is violated by a wait that goes on", () => {
    violated(
      "L3",
      [asked(0, "a", brief), notGranted(111, "a")],
      [0, 1],
      /with a wait of 100 ms, which should have ended it by \+0\.110 s; it waited until \+0\.111 s/,
    );
    violated("L3", [asked(0, "a", brief), granted(111, "a", 1, 200)], [0, 1], /wait of 100/);
    violated("L3", [asked(0, "a", brief), later(110), later(111), later(112)], [0, 2], /or longer/);
    violated("L3", [asked(0, "a", brief), killed(120, "a")], [0, 1], /wait of 100/);
    violated(
      "L3",
      [asked(0, "a", { waitMs: 0 }), notGranted(41, "a", "busy")],
      [0, 1],
      /wait of 0 ms/,
    );
  });

  it("is violated by an abort that does not end the wait", () => {
    violated(
      "L3",
      [asked(0, "a"), aborting(50, "a"), notGranted(61, "a", "aborted")],
      [0, 1, 2],
      /was aborted/,
    );
    violated("L3", [asked(0, "a"), aborting(50, "a"), later(61)], [0, 1, 2], /or longer/);
    // The timeout alone shows the violation.
    violated("L3", [asked(0, "a", brief), aborting(50, "a"), later(200)], [0, 2], /wait of 100/);
  });

  it("is violated by waiters, timers or sockets that are left after close", () => {
    violated(
      "L3",
      [left(0, 0), left(1, 2)],
      [1],
      /other had closed and still had 0 waiters, 2 timers and 0 sockets/,
    );
  });

  it("is violated by a lease that is held after its client has closed", () => {
    const held = [asked(0, "a"), granted(10, "a", 1, 95)];
    ok("L3", [...held, lost(50, "a", "closed"), left(50, 0, "a")]);
    ok("L3", [...held, releasing(49, "a"), left(50, 0, "a")]);
    ok("L3", [...held, left(95, 0, "a")]);
    ok("L3", [...held, left(50, 0, "b")]);
    const why = /a had closed at \+0\.050 s, and a \(a\) held "name" with token 1 until \+0\.095 s/;
    violated("L3", [...held, left(50, 0, "a"), lost(99, "a")], [0, 1, 2], why);
    violated("L3", [asked(0, "a"), left(50, 0, "a"), granted(60, "a", 1, 95)], [0, 1, 2], why);
    // Another client of the same name.
    ok("L3", [left(0, 0, "a"), asked(1, "a"), granted(10, "a", 1, 95)]);
  });

  it("allows a machine that was frozen the time that its clock missed", () => {
    const story = [asked(0, "a", brief), frozen(50, "a"), resumed(70, "a")];
    ok("L3", [...story, notGranted(130, "a")]);
    violated("L3", [...story, notGranted(131, "a")], [0, 3], /waited/);
  });

  it("allows a client that was paused the time until it goes on", () => {
    const story = [asked(0, "a", brief), paused(50, "a"), resumed(500, "a")];
    ok("L3", [...story, notGranted(510, "a")]);
    violated("L3", [...story, notGranted(511, "a")], [0, 3], /waited/);
    unknown("L3", [asked(0, "a", brief), paused(50, "a"), queuedAt(900)], /no wait/);
    unknown("L3", [asked(0, "a"), paused(10, "a"), aborting(50, "a")], /no wait/);
  });

  it("allows time for giving up each of several names", () => {
    const both = { ...brief, together: "ab" };
    const several = [asked(0, "a", both), asked(0, "b", { ...both, client: "a", name: "other" })];
    ok("L3", [...several, notGranted(120, "a"), notGranted(120, "b")]);
    violated("L3", [...several, notGranted(121, "a"), notGranted(120, "b")], [0, 2], /wait of 100/);
  });

  it("is unknown while waits go on", () => {
    unknown("L3", [asked(0, "a", brief), queuedAt(110)], /no wait ended/);
    unknown(
      "L3",
      [asked(0, "a", { waitMs: Number.POSITIVE_INFINITY }), queuedAt(9_999)],
      /no wait/,
    );
  });
});

const queuedAt = (atMs: number) => ({ kind: "queued", atMs, op: "other" }) as const;
