import { describe, it } from "vitest";
import type { Event } from "../../../src/verify/check/history.js";
import {
  asked,
  entered,
  granted,
  healed,
  injected,
  ok,
  releasing,
  SHARED,
  unknown,
  violated,
  wrote,
} from "./story.js";

const refused = { accepted: false };

describe("S3, floors of grants", () => {
  const withFloor = (atMs: number, op: string, token: number, floor: number): Event =>
    ({ ...granted(atMs, op, token, atMs + 90), floor: BigInt(floor) }) as Event;
  const writer = [asked(0, "w"), granted(1, "w", 5, 90), releasing(2, "w")];
  const reader = [asked(3, "a", SHARED), withFloor(4, "a", 6, 6)];

  it("hold when readers share the lowest token that still holds", () => {
    ok("S3", [...writer, ...reader, asked(5, "b", SHARED), withFloor(6, "b", 7, 6)]);
    ok("S3", [...reader, releasing(5, "a"), asked(6, "b", SHARED), withFloor(7, "b", 7, 7)]);
  });

  it("are violated when one reader's floor shuts out another reader", () => {
    violated(
      "S3",
      [...reader, asked(5, "b", SHARED), withFloor(6, "b", 7, 7)],
      [0, 1, 2, 3],
      /b \(b\) was granted "name" with token 7 and floor 7, though a \(a\) had token 6/,
    );
  });

  it("may shut out a reader whose grant the store lost before the reader received it", () => {
    const other = [asked(7, "b", SHARED), withFloor(8, "b", 7, 7)];
    const late = [asked(3, "a", SHARED), injected(4), healed(5), withFloor(6, "a", 6, 6)];
    ok("S3", [...late, ...other]);
    violated(
      "S3",
      [injected(1), healed(2), ...reader, ...other],
      [2, 3, 4, 5],
      /token 7 and floor 7/,
    );
  });

  it("are violated when a floor would let an earlier writer in again", () => {
    violated(
      "S3",
      [...writer, asked(3, "a", SHARED), withFloor(4, "a", 6, 5)],
      [0, 1, 3, 4],
      /token 6 and floor 5, though w \(w\) had token 5/,
    );
  });

  it("are violated when a writer's floor is not its own token", () => {
    violated("S3", [asked(0, "w"), withFloor(1, "w", 5, 4)], [0, 1], /token 5 and floor 4$/);
  });
});

describe("S3, a fence accepts no stale token, and loses no update", () => {
  it("holds for two holders that enter, read and write", () => {
    ok("S3", [
      entered(1, "a", 5),
      wrote(2, "a", 5, [0, 1]),
      entered(3, "b", 6),
      wrote(4, "a", 5, [1, 2], refused),
      wrote(5, "b", 6, [1, 2]),
    ]);
  });

  it("is violated by a stale token that is accepted", () => {
    violated(
      "S3",
      [entered(1, "a", 5), entered(2, "b", 6), wrote(3, "a", 5, [0, 1])],
      [1, 2],
      /"file" \(step 3\) accepted token 5 of a at \+0\.002 s, after floor 6 of b in step 2/,
    );
    violated("S3", [wrote(1, "b", 6, [0, 1]), entered(2, "a", 5)], [0, 1], /accepted token 5/);
    violated(
      "S3",
      [entered(1, "b", 6), wrote(2, "b", 6, [0, 1]), wrote(3, "a", 5, [1, 2])],
      [0, 2],
      /step 1/,
    );
  });

  it("goes by the resource's own order, not by time", () => {
    ok("S3", [entered(2, "b", 6, { atMs: 0 }), entered(1, "a", 5, { atMs: 9 })]);
  });

  it("lets concurrent holders in, down to their floor", () => {
    ok("S3", [
      entered(1, "a", 5),
      entered(2, "b", 6, { floor: 5n }),
      wrote(3, "a", 5, [0, 1]),
      wrote(4, "b", 6, [0, 2], { floor: 5n }),
    ]);
    violated("S3", [entered(1, "a", 6, { floor: 5n }), entered(2, "b", 4)], [0, 1], /floor 5/);
  });

  it("is violated by a token below an earlier floor, though a later one was lower", () => {
    violated(
      "S3",
      [entered(1, "b", 6), entered(2, "c", 7, { floor: 5n }), entered(3, "a", 5)],
      [0, 2],
      /after floor 6 of b/,
    );
  });

  it("is violated by an update that is lost", () => {
    violated(
      "S3",
      [entered(1, "a", 5), wrote(2, "a", 5, [0, 1]), entered(3, "b", 6), wrote(4, "b", 6, [0, 2])],
      [1, 2, 3],
      /an update was lost: b read 0 and wrote 2 .* though a had written 1 in step 2/,
    );
    violated(
      "S3",
      [
        entered(1, "b", 6),
        wrote(2, "b", 6, [0, 1]),
        wrote(3, "a", 5, [0, 9], refused),
        wrote(4, "b", 6, [0, 2]),
      ],
      [0, 1, 2, 3],
      /an update was lost/,
    );
  });

  it("does not blame the fence for a write without enter", () => {
    unknown(
      "S3",
      [entered(1, "a", 5), wrote(2, "a", 5, [0, 1]), wrote(3, "b", 6, [0, 2])],
      /without entering first, which no fence prevents: b read 0/,
    );
  });

  it("does not judge an update across a step that is missing from the history", () => {
    ok("S3", [
      entered(1, "a", 5),
      wrote(2, "a", 5, [0, 1]),
      entered(4, "b", 6),
      wrote(5, "b", 6, [7, 8]),
    ]);
  });

  it("is violated by a refusal of a holder that nobody can have overtaken", () => {
    const story = [asked(0, "a"), granted(0, "a", 5, 90)];
    violated("S3", [...story, entered(1, "a", 5, refused)], [2], /refused token 5 of a/);
    violated(
      "S3",
      [...story, entered(1, "a", 5), wrote(2, "a", 5, [0, 1], refused)],
      [2, 3],
      /refused/,
    );
    // A client with a higher floor may have entered and died before it was recorded.
    ok("S3", [...story, asked(0, "b"), granted(0, "b", 6, 90), entered(1, "a", 5, refused)]);
    // A strict fence.
    ok("S3", [...story, entered(1, "b", 4), wrote(2, "a", 5, [0, 1], refused)]);
  });

  it("is unknown when no fence was used", () => {
    unknown("S3", [], /no resource/);
    unknown("S3", [entered(1, "a", 5)], /no resource was used twice/);
  });
});
