import { describe, it } from "vitest";
import { counted, ok, unknown, violated } from "./story.js";

describe("L5, commands per handover do not grow with the number of waiters", () => {
  it("holds when handovers cost the same, or a little more", () => {
    ok("L5", [counted(0, 1, 100, 200), counted(1, 100, 100, 200)]);
    ok("L5", [counted(0, 1, 100, 200), counted(1, 100, 100, 400)]);
  });

  it("is violated when the cost grows with the waiters", () => {
    violated(
      "L5",
      [counted(0, 10, 100, 900), counted(1, 1, 100, 200), counted(2, 100, 100, 401)],
      [1, 2],
      /2\.0 commands when 1 waited, and 4\.0 when 100 did/,
    );
  });

  it("takes the lower of two counts", () => {
    ok("L5", [counted(0, 1, 100, 200), counted(1, 100, 100, 900), counted(2, 100, 100, 210)]);
  });

  it("is unknown with nothing to compare", () => {
    unknown("L5", [], /not counted/);
    unknown("L5", [counted(0, 5, 100, 200), counted(1, 5, 100, 900)], /different numbers/);
    unknown("L5", [counted(0, 5, 100, 200), counted(1, 50, 0, 900)], /different numbers/);
  });
});
