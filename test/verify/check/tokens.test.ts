import { describe, it } from "vitest";
import {
  asked,
  granted,
  healed,
  injected,
  made,
  ok,
  releasing,
  revoked,
  SHARED,
  unknown,
  violated,
} from "./story.js";

describe("S2, tokens are unique and rise", () => {
  const first = [asked(0, "a"), granted(1, "a", 5, 90), releasing(10, "a")];

  it("holds when tokens rise", () => {
    ok("S2", [...first, asked(20, "b"), granted(21, "b", 6, 110)]);
    ok("S2", [...first, asked(20, "b"), granted(21, "b", 600, 110)]);
  });

  it("is violated by a token that is given twice, or falls", () => {
    violated(
      "S2",
      [...first, asked(20, "b"), granted(21, "b", 5, 110)],
      [0, 1, 3, 4],
      /also had token 5/,
    );
    violated(
      "S2",
      [...first, asked(20, "b"), granted(21, "b", 4, 110)],
      [0, 1, 3, 4],
      /token 4.*token 5/,
    );
  });

  it("lets shared grants that overlap in time have any order", () => {
    const shared = [asked(0, "a", SHARED), asked(1, "b", SHARED), granted(2, "a", 5, 90)];
    ok("S2", [...shared, granted(3, "b", 4, 90)]);
    violated("S2", [...shared, granted(3, "b", 5, 90)], [0, 1, 2, 3], /also had/);
    // Claimed at the moment of the other's release: either may have been first.
    ok("S2", [
      asked(0, "a", SHARED),
      granted(2, "a", 5, 90),
      asked(2, "b", SHARED),
      granted(3, "b", 4, 90),
    ]);
    violated(
      "S2",
      [
        asked(0, "a", SHARED),
        granted(2, "a", 5, 90),
        asked(3, "b", SHARED),
        granted(4, "b", 4, 90),
      ],
      [0, 1, 2, 3],
      /earlier grant/,
    );
  });

  it("knows the order of leases of which one was exclusive, unless a fault hit the store", () => {
    const story = [asked(0, "a"), asked(1, "b"), granted(2, "b", 6, 90), releasing(10, "b")];
    violated("S2", [...story, granted(20, "a", 5, 110)], [0, 1, 2, 4], /token 5/);
    violated(
      "S2",
      [
        asked(0, "a"),
        asked(1, "b", SHARED),
        granted(2, "b", 6, 90),
        releasing(10, "b"),
        granted(20, "a", 5, 110),
      ],
      [0, 1, 2, 4],
      /token 5/,
    );
    ok("S2", [
      asked(0, "a"),
      asked(1, "b"),
      injected(1),
      healed(2),
      ...story.slice(2),
      granted(20, "a", 5, 110),
    ]);
    violated(
      "S2",
      [
        ...story.slice(0, 2),
        injected(1, { sparesStore: true }),
        healed(2),
        ...story.slice(2),
        granted(20, "a", 5, 110),
      ],
      [0, 1, 4, 6],
      /token 5/,
    );
    // This lease was never good: it says nothing about the order.
    ok("S2", [...story, granted(20, "a", 5, 15)]);
  });

  it("knows the order of grants that were recorded in the store", () => {
    const shared = [asked(0, "a", SHARED), asked(1, "b", SHARED)];
    ok("S2", [
      ...shared,
      made(2, "b", 4),
      made(3, "a", 5),
      granted(4, "a", 5, 90),
      granted(9, "b", 4, 90),
    ]);
    violated("S2", [...shared, made(2, "b", 5), made(3, "a", 4)], [0, 1, 2, 3], /token 4/);
    ok("S2", [...shared, made(2, "b", 5), made(2, "a", 4)]);
  });

  it("is unknown with one grant per name, and leaves re-entries out", () => {
    unknown(
      "S2",
      [...first, asked(20, "b", { name: "other" }), granted(21, "b", 5, 110)],
      /granted twice/,
    );
    unknown(
      "S2",
      [...first, asked(2, "i", { within: "a" }), granted(3, "i", 5, 90)],
      /granted twice/,
    );
  });

  it("allows a lower token to a client that received too late a grant that was released by force", () => {
    const late = [asked(0, "a"), asked(1, "b"), granted(5, "b", 6, 95), releasing(6, "b")];
    ok("S2", [...late.toSpliced(2, 0, revoked(4, "a", 5)), granted(7, "a", 5, 90)]);
    violated("S2", [...late, granted(7, "a", 5, 90)], [0, 1, 2, 4], /earlier grant/);
  });
});
