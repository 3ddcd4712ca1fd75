import type { StoreClock } from "../core/clock.js";
import type {
  Claim,
  ClaimAnswer,
  Grant,
  HolderInfo,
  NameInfo,
  Position,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
  Traits,
} from "../core/store.js";

export const MEMORY_TRAITS: Traits = {
  store: "memory",
  scope: "process",
  liveness: "lease",
  waiting: "pushed",
  fair: true,
  minTtlMs: 1,
  survives: ["pauses of the event loop"],
  grantsTwiceAfter: [],
  cannot: {},
};

/** A claim as the store keeps it: a ticket until it has a token, then a grant. */
export interface MemoryRecord {
  readonly grantId: string;
  readonly permits: number;
  readonly limit: number;
  readonly atLeastMs: number;
  readonly holder: string;
  /** When it asked; from the grant on, when it was granted. */
  sinceMs: number;
  seq: number;
  ttlMs: number;
  expiresAtMs: number;
  /** 0n: waiting. */
  token: bigint;
  floor: bigint;
  /** The name stays closed until then, also after the lease. */
  closedUntilMs: number;
  ended: "no" | "released" | "revoked";
  push: ((push: Push) => void) | null;
}

/**
 * Locks within one process, and the specification of a store: every other store gives these answers.
 * Per name, the claims in the order in which they came; strict first come, first served keeps the
 * grants before the tickets. Nothing runs by itself: every call first advances the name.
 */
export class MemoryStore implements Store {
  readonly traits: Traits = MEMORY_TRAITS;
  protected readonly names = new Map<string, MemoryRecord[]>();
  protected readonly clock: StoreClock;
  #lastToken = 0n;

  constructor(clock: StoreClock) {
    this.clock = clock;
  }

  claim(claim: Claim, push: (push: Push) => void): ClaimAnswer {
    const nowMs = this.clock.nowMs();
    for (const name of claim.names) {
      const records = this.advance(name, nowMs);
      const other = records.find((one) => one.limit !== claim.limit && one.ended === "no");
      if (other !== undefined) return { kind: "mismatch", limit: other.limit };
    }
    const missing: string[] = [];
    for (const name of claim.names) {
      const own = this.find(name, claim.grantId);
      if (own === undefined) missing.push(name);
      else this.extend(own, claim, nowMs);
    }
    // All or nothing: the first name that is not free decides.
    const busy = missing.find((name) => !this.isFree(name, claim.permits, claim.limit));
    if (busy !== undefined && !claim.queue) {
      return { kind: "busy", position: this.position(busy, null, nowMs) };
    }
    for (const name of missing) this.#add(name, claim, nowMs);
    if (busy === undefined) for (const name of missing) this.advance(name, nowMs);

    const grants: Grant[] = [];
    for (const name of claim.names) {
      const own = this.find(name, claim.grantId)!;
      if (own.token === 0n) {
        own.push = push;
        return { kind: "queued", position: this.position(name, own, nowMs) };
      }
      grants.push(toGrant(own, false));
    }
    return { kind: "granted", grants };
  }

  renew(renewals: readonly Renewal[]): readonly RenewAnswer[] {
    const nowMs = this.clock.nowMs();
    return renewals.map((renewal): RenewAnswer => {
      const records = this.advance(renewal.name, nowMs);
      const own = records.find((one) => one.grantId === renewal.grantId);
      if (own?.ended === "revoked") return { kind: "lost", reason: "revoked" };
      if (own === undefined || own.ended !== "no" || own.expiresAtMs <= nowMs) {
        const taken = records.some((one) => one.ended === "no" && one.token > 0n && one !== own);
        return { kind: "lost", reason: taken ? "superseded" : "expired" };
      }
      this.extend(own, renewal, nowMs);
      if (own.token > 0n) return { kind: "granted", grant: toGrant(own, false) };
      return { kind: "queued", position: this.position(renewal.name, own, nowMs) };
    });
  }

  release(releases: readonly Release[]): readonly ReleaseAnswer[] {
    const nowMs = this.clock.nowMs();
    return releases.map(({ name, grantId }): ReleaseAnswer => {
      this.advance(name, nowMs);
      const own = this.find(name, grantId);
      if (own === undefined) return "gone";
      if (own.token > 0n && own.closedUntilMs > nowMs) {
        own.ended = "released";
        own.expiresAtMs = nowMs;
      } else this.#remove(name, own);
      this.advance(name, nowMs);
      return "released";
    });
  }

  revoke(name: string): readonly HolderInfo[] {
    const nowMs = this.clock.nowMs();
    const holders = this.advance(name, nowMs).filter(
      (one) => one.token > 0n && one.ended !== "revoked",
    );
    const infos = holders.map((one) => toHolderInfo(one, nowMs));
    for (const one of holders) {
      // Stays until its lease would have ended, so that its renewal learns why it is gone.
      one.ended = "revoked";
      one.closedUntilMs = 0;
    }
    this.advance(name, nowMs);
    return infos;
  }

  inspect(name: string): NameInfo | null {
    const nowMs = this.clock.nowMs();
    const records = this.advance(name, nowMs).filter(
      (one) => one.ended !== "revoked" && !isOver(one, nowMs),
    );
    const first = records[0];
    if (first === undefined) return null;
    return {
      name,
      limit: first.limit,
      holders: records.filter((one) => one.token > 0n).map((one) => toHolderInfo(one, nowMs)),
      waiters: records
        .filter((one) => one.token === 0n)
        .map((one) => ({
          holder: one.holder,
          permits: one.permits,
          waitingMs: nowMs - one.sinceMs,
          expiresInMs: one.expiresAtMs - nowMs,
        })),
    };
  }

  list(prefix: string, limit: number): readonly NameInfo[] {
    return [...this.names.keys()]
      .filter((name) => name.startsWith(prefix))
      .sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
      .map((name) => this.inspect(name))
      .filter((info) => info !== null)
      .slice(0, limit);
  }

  close(): void {}

  /** Drops what has run out and grants from the front of the queue while it fits. */
  protected advance(name: string, nowMs: number): readonly MemoryRecord[] {
    const records = this.names.get(name);
    if (records === undefined) return [];
    const granted: MemoryRecord[] = [];
    let inUse = 0;
    for (let i = 0; i < records.length; ) {
      const one = records[i]!;
      if (isOver(one, nowMs)) {
        records.splice(i, 1);
        continue;
      }
      if (one.token === 0n) {
        if (inUse + one.permits > one.limit) break;
        this.grant(one, records, nowMs);
        granted.push(one);
      }
      if (one.ended !== "revoked") inUse += one.permits;
      i++;
    }
    if (records.length === 0) this.names.delete(name);
    // Told last, when the name is in order again: a waiter may answer with another call.
    for (const one of granted) {
      const push = one.push;
      one.push = null;
      push?.({ kind: "granted", grant: toGrant(one, true) });
    }
    return records;
  }

  /** A grant keeps the expiry of its ticket: it rests on the ask that the ticket last heard of. */
  protected grant(record: MemoryRecord, records: readonly MemoryRecord[], nowMs: number): void {
    record.token = this.drawToken();
    record.sinceMs = nowMs;
    record.closedUntilMs = nowMs + record.atLeastMs;
    record.floor = record.token;
    for (const one of records) {
      if (one.token === 0n) break;
      if (one.ended === "no" && one.expiresAtMs > nowMs && one.token < record.floor) {
        record.floor = one.token;
      }
    }
  }

  /** One counter for all names rises for each of them, and leaves nothing per name behind. */
  protected drawToken(): bigint {
    const clockUs = BigInt(Math.floor(this.clock.wallMs() * 1_000));
    this.#lastToken = this.#lastToken < clockUs ? clockUs : this.#lastToken + 1n;
    return this.#lastToken;
  }

  protected extend(record: MemoryRecord, by: { seq: number; ttlMs: number }, nowMs: number): void {
    record.ttlMs = by.ttlMs;
    record.expiresAtMs = nowMs + by.ttlMs;
    record.seq = by.seq;
  }

  protected isFree(name: string, permits: number, limit: number): boolean {
    let inUse = 0;
    for (const one of this.names.get(name) ?? []) {
      if (one.token === 0n) return false;
      if (one.ended !== "revoked") inUse += one.permits;
    }
    return inUse + permits <= limit;
  }

  /** The living claim of this grantId. */
  protected find(name: string, grantId: string): MemoryRecord | undefined {
    return this.names.get(name)?.find((one) => one.grantId === grantId && one.ended === "no");
  }

  protected position(name: string, own: MemoryRecord | null, nowMs: number): Position {
    let ahead = 0;
    let freeInMs = Number.POSITIVE_INFINITY;
    let holder: string | null = null;
    for (const one of this.names.get(name) ?? []) {
      if (one === own) break;
      if (one.ended === "revoked" || isOver(one, nowMs)) continue;
      if (one.token === 0n) ahead++;
      else {
        holder ??= one.holder;
        freeInMs = Math.min(freeInMs, endsAtMs(one) - nowMs);
      }
    }
    return { ahead, freeInMs, holder };
  }

  #add(name: string, claim: Claim, nowMs: number): void {
    const record: MemoryRecord = {
      grantId: claim.grantId,
      permits: claim.permits,
      limit: claim.limit,
      atLeastMs: claim.atLeastMs,
      holder: claim.holder,
      sinceMs: nowMs,
      seq: claim.seq,
      ttlMs: claim.ttlMs,
      expiresAtMs: nowMs + claim.ttlMs,
      token: 0n,
      floor: 0n,
      closedUntilMs: 0,
      ended: "no",
      push: null,
    };
    const records = this.names.get(name);
    if (records === undefined) this.names.set(name, [record]);
    else records.push(record);
  }

  #remove(name: string, record: MemoryRecord): void {
    const records = this.names.get(name)!;
    records.splice(records.indexOf(record), 1);
    if (records.length === 0) this.names.delete(name);
  }
}

export function memoryStore(options: { clock?: StoreClock } = {}): MemoryStore {
  return new MemoryStore(
    options.clock ?? { nowMs: () => performance.now(), wallMs: () => Date.now() },
  );
}

const endsAtMs = (record: MemoryRecord): number =>
  Math.max(record.expiresAtMs, record.closedUntilMs);

const isOver = (record: MemoryRecord, nowMs: number): boolean => endsAtMs(record) <= nowMs;

function toGrant(record: MemoryRecord, handedOver: boolean): Grant {
  return {
    token: record.token,
    floor: record.floor,
    ttlMs: record.ttlMs,
    seq: record.seq,
    handedOver,
  };
}

function toHolderInfo(record: MemoryRecord, nowMs: number): HolderInfo {
  return {
    holder: record.holder,
    token: record.token,
    permits: record.permits,
    heldMs: nowMs - record.sinceMs,
    expiresInMs: endsAtMs(record) - nowMs,
    closed: record.ended === "released" || record.expiresAtMs <= nowMs,
  };
}
