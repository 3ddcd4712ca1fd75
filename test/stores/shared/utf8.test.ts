import fc from "fast-check";
import { expect, test } from "vitest";
import { compareUtf8 } from "../../../src/stores/shared/utf8.js";

test("texts are in the order of their UTF-8 bytes, also with characters beyond U+FFFF", () => {
  const text = fc.string({
    unit: fc.constantFrom("a", "b", "ä", "\ud7ff", "\ue000", "\uffff", "😀"),
  });
  fc.assert(
    fc.property(text, text, (one, two) => {
      const byBytes = Buffer.compare(Buffer.from(one), Buffer.from(two));
      expect(Math.sign(compareUtf8(one, two))).toBe(byBytes);
    }),
    { seed: 7 },
  );
});
