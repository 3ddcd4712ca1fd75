import { expect, test } from "vitest";
import { parsePushMessage } from "../../../src/stores/redis/push-message.js";

test("the messages look, look ID and granted ID are read", () => {
  expect(parsePushMessage("look")).toEqual({ kind: "look" });
  expect(parsePushMessage("look abc")).toEqual({ kind: "look", grantId: "abc" });
  expect(parsePushMessage("granted a b c")).toEqual({ kind: "granted", grantId: "a b c" });
});

test.each([
  "",
  "abc",
  "look ",
  "granted",
  "granted ",
  "LOOK",
  "granted\tabc",
  "granted a\nb",
  " granted abc",
  `granted ${"x".repeat(1_001)}`,
])("%j is ignored", (text) => {
  expect(parsePushMessage(text)).toBeNull();
});
