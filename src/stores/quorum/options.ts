import { InvalidArgumentError } from "../../core/errors.js";
import type { Traits } from "../../core/store.js";
import { orElse, parseDuration } from "../../core/validate.js";

/** The traits of a quorum of Redis servers. */
export const QUORUM_TRAITS: Traits = {
  store: "quorum of Redis",
  scope: "network",
  liveness: "lease",
  waiting: "polled",
  fair: false,
  minTtlMs: 100,
  survives: [
    "the crash of any client",
    "lost, late and repeated messages",
    "the failure of any minority of the nodes, with or without their data, unless the lease was granted in a race",
  ],
  grantsTwiceAfter: [
    "the clock of a node set ahead, or running fast",
    "lost data on all nodes within maxTtl, which looks like a new installation",
    "a backup restored on a node with appendfsync always",
    "lost data on one node, unless appendfsync is always, if another one was down at the grant and atLeast or the period of once is longer than maxTtl",
    "eviction on a node, unless maxmemory-policy is noeviction",
  ],
  cannot: {
    shared:
      "a record on a minority of the nodes looks like a living reader, so no floor can be decided",
    permits: "a majority for each holder does not keep the sum of all holders below a limit",
    "many-names": "each name is a ballot by itself",
    records: "a record would need a ballot for each write, and one Redis server keeps it better",
  },
};

const DEFAULT_MAX_TTL = "1m";
/** Shorter than this, a node would be back in the vote before people see it. Longer than a day makes no sense. */
const MAX_TTL_LIMITS = { min: 1_000, max: 86_400_000 };

/** In ms. Throws InvalidArgumentError. */
export const parseMaxTtl = (value: unknown): number =>
  parseDuration(orElse(value, DEFAULT_MAX_TTL), "maxTtl", MAX_TTL_LIMITS);

/** One server more than an odd number makes the majority larger, and no more of them may fail. */
export function checkNodeCount(count: number, what: string): void {
  if (count >= 3 && count % 2 === 1) return;
  throw new InvalidArgumentError(
    `${what}, an odd number of at least three independent servers; there are ${count}`,
  );
}
