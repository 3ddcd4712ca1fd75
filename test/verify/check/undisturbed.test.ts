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

describe("L6", () => {
  it("holds for a lease that is given back, and one whose time was limited", () => {
    ok("L6", [...a, looked(10_050, "a"), releasing(10_060, "a"), lost(10_061, "a")], complete);
    ok("L6", [...a, lost(10_050, "a", "max-hold"), releasing(10_060, "a")], complete);
    ok("L6", [asked(10_000, "a"), notGranted(10_500, "a", "timeout")], complete);
  });

  it("is violated by a lease that goes by itself, or an outage that nothing explains", () => {
    violated("L6", [...a, lost(10_050, "a")], [0, 1, 2], /nothing disturbed a \(a\)/, complete);
    violated("L6", [...a, looked(10_050, "a", false)], [0, 1, 2], /no longer held/, complete);
    violated(
      "L6",
      [asked(10_000, "a"), notGranted(10_500, "a", "unknown")],
      [0, 1],
      /told as unavailable/,
      complete,
    );
  });

  it("says nothing of who was disturbed, even shortly before", () => {
    const nobody = /nobody was left undisturbed/;
    const pause = [paused(9_000, "a"), resumed(9_100, "a")];
    unknown("L6", [...pause, ...a, lost(10_050, "a")], nobody, complete);
    unknown("L6", [injected(9_000), healed(9_100), ...a, lost(10_050, "a")], nobody, complete);
    ok("L6", [paused(9_000, "b"), ...a, releasing(10_050, "a")], complete);
  });

  it("says nothing where a disturbance may be missing from the history", () => {
    unknown("L6", [...a, lost(10_050, "a")], /may not tell all/);
  });

  it("leaves out what was taken by force, is not renewed, or was lost with another name", () => {
    const nobody = /nobody was left undisturbed/;
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
    // One of several was taken while another was waited for.
    ok("L6", [...both, revoked(10_010, "a", 1), notGranted(10_050, "b", "unknown")], complete);
  });
});
