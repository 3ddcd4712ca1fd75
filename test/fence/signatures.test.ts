import { timingSafeEqual } from "node:crypto";
import { expect, test, vi } from "vitest";
import { readSequencer, writeSequencer } from "../../src/core/sequencer.js";

vi.mock("node:crypto", async (importOriginal) => {
  const crypto = await importOriginal<typeof import("node:crypto")>();
  return { ...crypto, timingSafeEqual: vi.fn(crypto.timingSafeEqual) };
});

const key = "a secret that both sides have";
const lease = {
  name: "a",
  mode: "exclusive",
  token: 5n,
  floor: 5n,
  holder: "h",
  madeAtMs: 1,
} as const;

test("signatures are compared in constant time, and nothing else decides", () => {
  const compare = vi.mocked(timingSafeEqual);
  const text = writeSequencer(lease, { key });
  const forged = `${text.slice(0, text.lastIndexOf("."))}.${Buffer.alloc(32).toString("base64url")}`;

  expect(readSequencer(text, { key })).toEqual(lease);
  expect(() => readSequencer(forged, { key })).toThrow(/signature is wrong/);
  expect(compare).toHaveBeenCalledTimes(2);
  const [given, expected] = compare.mock.calls[1] as [Buffer, Buffer];
  expect([given.length, expected.length]).toEqual([32, 32]);

  // A comparison before or after this one could tell by its time how much of a signature is right.
  compare.mockReturnValueOnce(true);
  expect(readSequencer(forged, { key })).toEqual(lease);
  compare.mockReturnValueOnce(false);
  expect(() => readSequencer(text, { key })).toThrow(/signature is wrong/);
});
