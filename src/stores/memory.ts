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
import { type ClaimRecord, type Claims, Rule } from "./rule.js";

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
  readonly #pushes = new Map<string, (push: Push) => void>();

  constructor(clock: StoreClock, rule: typeof Rule = Rule) {
    this.#claims = new MemoryClaims();
    this.#rule = new rule(this.#claims, clock);
  }

  claim(claim: Claim, push: (push: Push) => void): ClaimAnswer {
    const answer = this.#rule.claim(claim);
    if (answer.kind === "queued") this.#pushes.set(claim.grantId, push);
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
    const granted = this.#rule.handedOver;
    if (granted.length === 0) return;
    this.#rule.handedOver = [];
    for (const { record, grant } of granted) {
      const push = this.#pushes.get(record.grantId);
      this.#pushes.delete(record.grantId);
      push?.({ kind: "granted", grant });
    }
  }
}

class MemoryClaims implements Claims {
  readonly #byName = new Map<string, ClaimRecord[]>();
  #lastToken = 0n;

  inOrder(name: string): readonly ClaimRecord[] {
    return this.#byName.get(name) ?? NONE;
  }

  find(name: string, grantId: string): ClaimRecord | undefined {
    return this.#byName.get(name)?.find((one) => one.grantId === grantId && one.ended === "no");
  }

  ticketsBefore(name: string, place: number): number {
    let tickets = 0;
    for (const one of this.inOrder(name)) {
      if (one.place >= place) break;
      if (one.token === 0n) tickets++;
    }
    return tickets;
  }

  lastPlace(name: string): number {
    return this.#byName.get(name)?.at(-1)?.place ?? 0;
  }

  add(record: ClaimRecord): void {
    const records = this.#byName.get(record.name);
    if (records === undefined) this.#byName.set(record.name, [record]);
    else records.push(record);
  }

  save(): void {}

  remove(record: ClaimRecord): void {
    const records = this.#byName.get(record.name)!;
    if (records.length === 1) this.#byName.delete(record.name);
    else records.splice(records.indexOf(record), 1);
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

export function memoryStore(options: { clock?: StoreClock } = {}): MemoryStore {
  return new MemoryStore(
    options.clock ?? { nowMs: () => performance.now(), wallMs: () => Date.now() },
  );
}
