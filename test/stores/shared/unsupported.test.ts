import { expect, test } from "vitest";
import { LOCK_LIMIT, type Traits } from "../../../src/core/store.js";
import { memoryStore } from "../../../src/stores/memory/index.js";
import { refuseUnsupported } from "../../../src/stores/shared/unsupported.js";
import { refusal } from "../../core/helpers.js";
import { claimOf } from "../../support/redis.js";

const cannot = {
  shared: "no readers",
  permits: "no counters",
  "many-names": "one by one",
  "at-least": "no clock",
};
const traits: Traits = { ...memoryStore().traits, store: "PostgreSQL behind a pooler", cannot };

test.each([
  ["shared", 'mode "shared"', { permits: 1, limit: LOCK_LIMIT }],
  ["permits", "semaphores", { permits: 1, limit: 4 }],
  ["many-names", "several names in one claim", { names: ["a", "b"] }],
  ["at-least", "atLeast", { atLeastMs: 1 }],
] as const)(
  "a claim that needs %s is refused with the reason, by stores that can't do it only",
  (feature, what, numbers) => {
    const claim = { ...claimOf("name"), ...numbers };
    expect(refusal(() => refuseUnsupported(traits, claim))).toMatchObject({
      code: "UNSUPPORTED",
      message: `the store (PostgreSQL behind a pooler) can't do ${what}: ${cannot[feature]}`,
    });
    refuseUnsupported({ ...traits, cannot: { ...cannot, [feature]: undefined } as never }, claim);
    refuseUnsupported(traits, claimOf("name"));
  },
);
