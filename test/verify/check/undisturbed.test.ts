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
});
