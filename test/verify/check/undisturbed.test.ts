import { describe, it } from "vitest";
import {
  asked,
  granted,
  healed,
  injected,
  looked,
  lost,
  notGranted,
  ok,
  paused,
  releasing,
  resumed,
  revoked,
  unknown,
  violated,
} from "./story.js";

const complete = { complete: true };
const a = [asked(10_000, "a"), granted(10_001, "a", 1, 10_090)];

describe("L6, a client that is not disturbed keeps its lease", () => {
  it("holds for a lease that is released, and for one whose time was limited", () => {
    ok("L6", [...a, looked(10_050, "a"), releasing(10_060, "a"), lost(10_061, "a")], complete);
    ok("L6", [...a, lost(10_050, "a", "max-hold"), releasing(10_060, "a")], complete);
    ok("L6", [asked(10_000, "a"), notGranted(10_500, "a", "timeout")], complete);
  });

  it("is violated by a lease that is lost without a cause, or an outage without one", () => {
    violated("L6", [...a, lost(10_050, "a")], [0, 1, 2], /nothing disturbed a \(a\)/, complete);
    violated("L6", [...a, looked(10_050, "a", false)], [0, 1, 2], /no longer held/, complete);
    violated(
      "L6",
      [asked(10_000, "a"), notGranted(10_500, "a", "unknown")],
      [0, 1],
      /reported as unavailable/,
      complete,
    );
  });

  it("does not judge a client that was disturbed, even shortly before", () => {
    const nobody = /every client was disturbed/;
    const pause = [paused(9_000, "a"), resumed(9_100, "a")];
    unknown("L6", [...pause, ...a, lost(10_050, "a")], nobody, complete);
    unknown("L6", [injected(9_000), healed(9_100), ...a, lost(10_050, "a")], nobody, complete);
    ok("L6", [paused(9_000, "b"), ...a, releasing(10_050, "a")], complete);
  });

  it("does not judge where a disturbance may be missing from the history", () => {
    unknown("L6", [...a, lost(10_050, "a")], /may not contain everything/);
  });

  it("leaves out leases that were released by force, are not renewed, or were lost with another name", () => {
    const nobody = /every client was disturbed/;
    ok(
      "L6",
      [...a, revoked(10_010, "a", 1), lost(10_050, "a", "revoked"), releasing(10_060, "a")],
      complete,
    );
    ok(
      "L6",
      [asked(10_000, "a", { renew: false }), a[1]!, lost(10_090, "a"), releasing(10_095, "a")],
      complete,
    );
    const both = [
      asked(10_000, "a", { together: "ab" }),
      asked(10_000, "b", { client: "a", name: "other", together: "ab" }),
    ];
    const granting = [granted(10_001, "a", 1, 10_090), granted(10_001, "b", 2, 10_090)];
    const losing = [lost(10_050, "a"), lost(10_050, "b", "together")];
    violated(
      "L6",
      [...both, ...granting, ...losing],
      [0, 2, 4],
      /nothing disturbed a \(a\)/,
      complete,
    );
    unknown("L6", [...both, ...granting, losing[1]!], nobody, complete);
    // One of several names was revoked while another was waited for.
    ok("L6", [...both, revoked(10_010, "a", 1), notGranted(10_050, "b", "unknown")], complete);
  });
});
