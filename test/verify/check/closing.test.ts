import { describe, it } from "vitest";
import {
  asked,
  clockSet,
  granted,
  healed,
  injected,
  made,
  notGranted,
  ok,
  releasing,
  resized,
  revoked,
  seen,
  some,
  unknown,
  violated,
} from "./story.js";

const atLeast = { atLeastMs: 400 };
const a = [asked(0, "a", atLeast), granted(2, "a", 1, 90), releasing(50, "a"), asked(60, "b")];

describe("S9, a name that atLeast closes opens at its time", () => {
  it("holds when the next is granted after that time, which counts from the claim at the latest", () => {
    ok("S9", [...a, granted(400, "b", 2, 490)]);
    ok("S9", [...a, made(400, "b", 2), granted(410, "b", 2, 490)]);
  });

  it("is violated by an earlier grant, whatever became of the lease", () => {
    const why =
      /b \(b\) was granted "name" with token 2 by \+0\.\d+ s, though a \(a\) with token 1 had closed it until/;
    violated("S9", [...a, granted(399, "b", 2, 490)], [0, 1, 3, 4], why);
    violated("S9", [...a.toSpliced(2, 1), granted(399, "b", 2, 490)], [0, 1, 2, 3], why);
    // With the store's own records, the moments are known exactly.
    const exact = [a[0]!, made(1, "a", 1), ...a.slice(1)];
    violated("S9", [...exact, granted(400, "b", 2, 490)], [0, 1, 2, 4, 5], why);
    violated("S9", [...a, made(399, "b", 2), granted(420, "b", 2, 500)], [0, 1, 3, 4, 5], why);
  });

  it("ends with a release by force", () => {
    ok("S9", [...a, revoked(100, "a", 1), granted(101, "b", 2, 190)]);
    violated(
      "S9",
      [...a, granted(99, "b", 2, 190), revoked(100, "a", 1)],
      [0, 1, 3, 4],
      /closed it/,
    );
  });

  it("goes by the store's wall clock", () => {
    ok("S9", [...a, clockSet(100, 300), granted(101, "b", 2, 190)]);
    violated(
      "S9",
      [...a, clockSet(100, 200), granted(199, "b", 2, 290)],
      [0, 1, 3, 5],
      /closed it/,
    );
    violated(
      "S9",
      [...a, clockSet(100, -200), granted(399, "b", 2, 490)],
      [0, 1, 3, 5],
      /closed it/,
    );
  });

  it("lets others have the remaining permits of a semaphore", () => {
    const permits = (of: number) => [
      asked(0, "a", { ...some(of, 4), ...atLeast }),
      granted(2, "a", 1, 90),
      releasing(50, "a"),
      asked(60, "b", some(2, 4)),
    ];
    unknown("S9", [...permits(2), granted(61, "b", 2, 150)], /closed by atLeast/);
    violated("S9", [...permits(3), granted(61, "b", 2, 150)], [0, 1, 3, 4], /closed it/);
    unknown("S9", [...permits(3), resized(55, 5), granted(61, "b", 2, 150)], /closed by atLeast/);
  });

  it("is violated by a name that is closed for longer, or by a client that never held it", () => {
    const closed = (atMs: number) => seen(atMs, { closed: ["a"] });
    ok("S9", [...a, closed(402)]);
    violated("S9", [...a, closed(403)], [0, 1, 4], /may close it until \+0\.402 s/);
    ok("S9", [...a, clockSet(100, -100), closed(502)]);
    const unused = [asked(0, "a", atLeast), notGranted(50, "a")];
    const clean = { cleanMs: 10 };
    violated("S9", [...unused, closed(61)], [0, 1, 2], /was closed at \+0\.061 s by a/, clean);
    ok("S9", [...unused, closed(60)], clean);
    // The release may be lost.
    unknown("S9", [injected(1), healed(2), ...unused, closed(61)], /closed by atLeast/, clean);
  });
});
