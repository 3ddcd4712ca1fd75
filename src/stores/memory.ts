import type { StoreClock } from "../core/clock.js";
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
} from "../core/store.js";
import { checkOptions } from "../core/validate.js";
import { type ClaimRecord, type Claims, Rule } from "./rule.js";
import { Pushes } from "./shared/pushes.js";

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

/** Locks within one process: the rule over a map. */
export class MemoryStore implements Store {
  readonly traits = MEMORY_TRAITS;
  readonly #claims: MemoryClaims;
  readonly #rule: Rule;
  readonly #pushes = new Pushes();

  constructor(clock: StoreClock, rule: typeof Rule = Rule) {
    this.#claims = new MemoryClaims();
    this.#rule = new rule(this.#claims, clock);
  }

  claim(claim: Claim, push: (push: Push) => void): ClaimAnswer {
    const answer = this.#rule.claim(claim);
    if (answer.kind === "queued") this.#pushes.add(claim, push);
    this.#tell();
    return answer;
  }

  renew(renewals: readonly Renewal[]): readonly RenewAnswer[] {
    const answers = renewals.map((renewal) => this.#rule.renew(renewal));
    this.#tell();
    return answers;
  }

  release(releases: readonly Release[]): readonly ReleaseAnswer[] {
    const answers = releases.map((release) => {
      this.#pushes.delete(release.grantId);
      return this.#rule.release(release);
    });
    this.#tell();
    return answers;
  }

  revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    const revoked = this.#rule.revoke(name, by);
    this.#tell();
    return revoked;
  }

  resize(name: string, limit: number): number | null {
    const before = this.#rule.resize(name, limit);
    this.#tell();
    return before;
  }

  inspect(name: string): NameInfo | null {
    return this.#rule.inspect(name);
  }

  list(prefix: string, limit: number): readonly NameInfo[] {
    return this.#rule.list(this.#claims.names(prefix), limit);
  }

  close(): void {}

  /** Last, when the names are in order again: whoever is told may answer with another call. */
  #tell(): void {
    const { handedOver, toLook } = this.#rule;
    if (handedOver.length === 0 && toLook.size === 0) return;
    this.#rule.handedOver = [];
    this.#rule.toLook = new Map();
    for (const { record, grant } of handedOver) this.#pushes.grant(record.grantId, grant);
    for (const grantId of toLook.keys()) this.#pushes.look(grantId);
  }
}

/** No step walks a queue of thousands, or claims and renewals would take quadratic time together. */
class MemoryClaims implements Claims {
  /** By place. */
  readonly #byName = new Map<string, ClaimRecord[]>();
  /** Those that began as tickets, which wait for one name each. */
  readonly #queued = new Map<string, ClaimRecord>();
  #lastToken = 0n;

  inOrder(name: string): readonly ClaimRecord[] {
    return this.#byName.get(name) ?? NONE;
  }

  find(name: string, grantId: string): ClaimRecord | undefined {
    const queued = this.#queued.get(grantId);
    if (queued?.name === name && queued.ended === "no") return queued;
    for (const one of this.inOrder(name)) {
      // All that follow are tickets.
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
    const records = this.#byName.get(record.name);
    if (records === undefined) this.#byName.set(record.name, [record]);
    else records.push(record);
    if (record.token === 0n) this.#queued.set(record.grantId, record);
  }

  save(): void {}

  remove(record: ClaimRecord): void {
    const records = this.#byName.get(record.name)!;
    const { grantId, place } = record;
    if (records.length === 1) this.#byName.delete(record.name);
    else
      records.splice(
        countWhile(records, (one) => one.place < place),
        1,
      );
    if (this.#queued.get(grantId) === record) this.#queued.delete(grantId);
  }

  drawToken(least: bigint): bigint {
    this.#lastToken = this.#lastToken < least ? least : this.#lastToken + 1n;
    return this.#lastToken;
  }

  names(prefix: string): string[] {
    return [...this.#byName.keys()]
      .filter((name) => name.startsWith(prefix))
      .sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  }
}

const NONE: readonly ClaimRecord[] = [];

/** How many records, from the first, it is so for; it is so for none after those. */
function countWhile(
  records: readonly ClaimRecord[],
  isSo: (record: ClaimRecord) => boolean,
): number {
  let [low, high] = [0, records.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isSo(records[middle]!)) low = middle + 1;
    else high = middle;
  }
  return low;
}

export function memoryStore(options: { clock?: StoreClock } = {}): MemoryStore {
  checkOptions(options, "the options of memoryStore", ["clock"]);
  return new MemoryStore(
    options.clock ?? { nowMs: () => performance.now(), wallMs: () => Date.now() },
  );
}
