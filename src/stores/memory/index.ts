import type { StoreClock } from "../../core/clock.js";
import type {
  Claim,
  ClaimAnswer,
  HolderInfo,
  NameInfo,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../../core/store.js";
import { checkOptions } from "../../core/validate.js";
import { Rule } from "../rule.js";
import { append } from "../shared/append.js";
import type { ClaimRecord, Claims } from "../shared/claim-record.js";
import { LocalWaiters } from "../shared/local-waiters.js";
import { inspectName, listNames } from "../shared/name-info.js";
import { compareUtf8 } from "../shared/utf8.js";
import { MemoryRecords } from "./records.js";

/** The traits of the memory store. */
export const MEMORY_TRAITS: Traits = {
  store: "memory",
  scope: "process",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 1,
  survives: ["a stalled event loop"],
  grantsTwiceAfter: [],
  cannot: {},
};

/** Locks within one process: the rule, with the claims in a map. */
export class MemoryStore implements Store {
  readonly traits = MEMORY_TRAITS;
  readonly records: MemoryRecords;
  readonly #claims = new MemoryClaims();
  readonly #clock: StoreClock;
  readonly #rule: Rule;
  readonly #waiters = new LocalWaiters();

  constructor(clock: StoreClock, rule: typeof Rule = Rule) {
    this.#clock = clock;
    this.#rule = new rule(this.#claims, clock);
    this.records = new MemoryRecords(clock);
  }

  claim(claim: Claim, push: (push: Push) => void): ClaimAnswer {
    const answer = this.#rule.claim(claim);
    if (answer.kind === "queued") this.#waiters.add(claim, push);
    this.#push();
    return answer;
  }

  renew(renewals: readonly Renewal[]): readonly RenewAnswer[] {
    const answers = renewals.map((renewal) => this.#rule.renew(renewal));
    this.#push();
    return answers;
  }

  release(releases: readonly Release[]): readonly ReleaseAnswer[] {
    const answers = releases.map((release) => {
      this.#waiters.delete(release.grantId);
      return this.#rule.release(release);
    });
    this.#push();
    return answers;
  }

  revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    const revoked = this.#rule.revoke(name, by);
    this.#push();
    return revoked;
  }

  resize(name: string, limit: number): number | null {
    const before = this.#rule.resize(name, limit);
    this.#push();
    return before;
  }

  inspect(name: string): NameInfo | null {
    return inspectName(this.#claims, this.#clock, name);
  }

  list(prefix: string, limit: number): readonly NameInfo[] {
    return listNames(this.#claims, this.#clock, this.#claims.names(prefix), limit);
  }

  close(): void {}

  /** Sending is the last thing in a step, because a waiter may send its next request from within the push. */
  #push(): void {
    for (const { record, push } of this.#rule.takePushes()) {
      this.#waiters.push(record.grantId, push);
    }
  }
}

/**
 * The claims in a map. No step walks the queue: with thousands of waiters, their claims and renewals would take
 * quadratic time. So tickets are found by grantId, and places by binary search.
 */
class MemoryClaims implements Claims {
  /** By place. */
  readonly #byName = new Map<string, ClaimRecord[]>();
  /** The claims that began as tickets, by grantId: a queued claim has one name. */
  readonly #queued = new Map<string, ClaimRecord>();
  #lastToken = 0n;

  inOrder(name: string): readonly ClaimRecord[] {
    return this.#byName.get(name) ?? NONE;
  }

  find(name: string, grantId: string): ClaimRecord | undefined {
    const queued = this.#queued.get(grantId);
    if (queued?.name === name && queued.ended === "no") return queued;
    for (const one of this.inOrder(name)) {
      // Only tickets follow.
      if (one.token === 0n) break;
      if (one.grantId === grantId && one.ended === "no") return one;
    }
    return undefined;
  }

  ticketsBefore(name: string, place: number): number {
    const records = this.inOrder(name);
    const firstTicket = countWhile(records, (one) => one.token > 0n);
    return Math.max(0, countWhile(records, (one) => one.place < place) - firstTicket);
  }

  lastPlace(name: string): number {
    return this.#byName.get(name)?.at(-1)?.place ?? 0;
  }

  add(record: ClaimRecord): void {
    append(this.#byName, record.name, record);
    if (record.token === 0n) this.#queued.set(record.grantId, record);
  }

  save(): void {}

  remove(record: ClaimRecord): void {
    const records = this.#byName.get(record.name)!;
    const { grantId, place } = record;
    if (records.length === 1) this.#byName.delete(record.name);
    else if (records[0] === record) records.shift();
    else {
      const index = countWhile(records, (one) => one.place < place);
      records.splice(index, 1);
    }
    if (this.#queued.get(grantId) === record) this.#queued.delete(grantId);
  }

  drawToken(least: bigint): bigint {
    this.#lastToken = this.#lastToken < least ? least : this.#lastToken + 1n;
    return this.#lastToken;
  }

  names(prefix: string): string[] {
    return [...this.#byName.keys()].filter((name) => name.startsWith(prefix)).sort(compareUtf8);
  }
}

const NONE: readonly ClaimRecord[] = [];

/** Binary search: how many records from the first on satisfy the condition, which no later one does. */
function countWhile(
  records: readonly ClaimRecord[],
  condition: (record: ClaimRecord) => boolean,
): number {
  let [low, high] = [0, records.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (condition(records[middle]!)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * A store for the locks of this process. Every call makes a store of its own. `clock` replaces its
 * clock, for example by that of a `VirtualClock`.
 *
 * @example
 * ```ts
 * import { createLocks } from "holdfast";
 * import { memoryStore } from "holdfast/stores/memory";
 *
 * const locks = createLocks(memoryStore(), { ttl: "30s" });
 * await locks.withLock("report", async () => console.log("one at a time in this process"));
 * await locks.close();
 * ```
 */
export function memoryStore(options: { clock?: StoreClock } = {}): MemoryStore {
  checkOptions(options, "the options of memoryStore", ["clock"]);
  return new MemoryStore(
    options.clock ?? { nowMs: () => performance.now(), wallMs: () => Date.now() },
  );
}
