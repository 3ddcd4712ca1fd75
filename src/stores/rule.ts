import type { StoreClock } from "../core/clock.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type HolderInfo,
  LOCK_LIMIT,
  type LostAnswer,
  MOST_WAITERS,
  modeOf,
  type NameInfo,
  type Position,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  WAITERS_AT_EXPIRY,
  WAITERS_SHOWN,
} from "../core/store.js";

/** A claim as a store keeps it: a ticket until it has a token, then a grant. */
export interface ClaimRecord {
  readonly name: string;
  readonly grantId: string;
  /** Its place in the order of all claims on the name. */
  readonly place: number;
  readonly permits: number;
  /** The same for all claims on the name. */
  limit: number;
  readonly atLeastMs: number;
  readonly holder: string;
  /** When it asked, was granted, was revoked: the last of these. */
  sinceMs: number;
  /** The last ask that the store has seen of it. */
  seq: number;
  ttlMs: number;
  expiresAtMs: number;
  /** 0n: still a ticket. */
  token: bigint;
  floor: bigint;
  /** By the wall clock, which outlives a restart: the name stays closed until then, also after the lease. */
  closedUntilMs: number;
  ended: "no" | "released" | "revoked";
  /** By whom it was revoked, and for what. */
  endedBy: string;
  endedWhy: string;
}

/** Where the records are: a map, or a table inside a transaction. */
export interface Claims {
  /** The claims on a name by place. Strict first come, first served keeps grants before tickets. */
  inOrder(name: string): Iterable<ClaimRecord>;
  /** The one that has not ended. */
  find(name: string, grantId: string): ClaimRecord | undefined;
  /** Tickets before this place. */
  ticketsBefore(name: string, place: number): number;
  lastPlace(name: string): number;
  add(record: ClaimRecord): void;
  save(record: ClaimRecord): void;
  remove(record: ClaimRecord): void;
  /** `last = max(last + 1, least)`, with one `last` for all names: it rises for each, and nothing is kept per name. */
  drawToken(least: bigint): bigint;
}

export interface Handover {
  readonly record: ClaimRecord;
  readonly grant: Grant;
}

/** What a name looks like after it was advanced. */
interface Front {
  readonly holders: readonly ClaimRecord[];
  readonly inUse: number;
  /** The first that has to wait; none: all claims on the name have been seen. */
  readonly waiting: ClaimRecord | undefined;
}

/**
 * The specification of a store, and the code of those that keep their records themselves: who is
 * granted, who waits, what a renewal and a release may touch. It runs inside one atomic step.
 * Nothing happens by itself: every call first advances the name, so any call repairs it.
 */
export class Rule {
  protected readonly claims: Claims;
  protected readonly clock: StoreClock;
  /** Tickets that this step has granted, for the store to tell: what was so then, not what became of it. */
  handedOver: Handover[] = [];
  /** Tickets, by grantId, whose waiters the store tells to look. */
  toLook = new Map<string, ClaimRecord>();

  constructor(claims: Claims, clock: StoreClock) {
    this.claims = claims;
    this.clock = clock;
  }

  claim(claim: Claim): ClaimAnswer {
    const nowMs = this.clock.nowMs();
    const fronts: Front[] = [];
    const own: (ClaimRecord | undefined)[] = [];
    for (const name of claim.names) {
      const front = this.advance(name, nowMs);
      const mine = this.#find(front, name, claim.grantId);
      // An ask that was under way when its grant ended must not make another, nor revive one that
      // has run out and only closes the name: others may have been granted since.
      const past = front.holders.find((one) => one.grantId === claim.grantId);
      if (past !== undefined && (mine === undefined || mine.expiresAtMs <= nowMs)) {
        return this.#lost(front, claim.grantId);
      }
      if (mine === undefined) {
        const limit = limitOf(front);
        if (limit !== null && limit !== claim.limit) return { kind: "mismatch", name, limit };
        if (!claim.queue && !fits(front, claim)) {
          const position = this.#position(front, name, Number.MAX_SAFE_INTEGER);
          return { kind: "busy", name, position };
        }
        if (claim.queue && !fits(front, claim)) {
          const waiting = this.#waiting(front, name);
          if (waiting >= MOST_WAITERS) return { kind: "full", name, waiting };
        }
      }
      fronts.push(front);
      own.push(mine);
    }
    // Nothing was claimed so far: all names or none.
    const grants: Grant[] = [];
    for (let i = 0; i < claim.names.length; i++) {
      const name = claim.names[i]!;
      const front = fronts[i]!;
      let mine = own[i];
      if (mine === undefined) {
        mine = this.#create(claim, name, front, nowMs);
        if (fits(front, claim)) this.grant(mine, front.holders, nowMs);
        this.claims.add(mine);
      } else this.extend(mine, claim, nowMs);
      if (mine.token === 0n) return this.#queued(front, mine);
      grants.push(toGrant(mine, false));
    }
    return { kind: "granted", grants };
  }

  renew(renewal: Renewal): RenewAnswer {
    const nowMs = this.clock.nowMs();
    const front = this.advance(renewal.name, nowMs);
    const mine = this.#find(front, renewal.name, renewal.grantId);
    if (mine === undefined || mine.expiresAtMs <= nowMs) {
      return this.#lost(front, renewal.grantId);
    }
    this.extend(mine, renewal, nowMs);
    if (mine.token > 0n) return { kind: "granted", grant: toGrant(mine, false) };
    return this.#queued(front, mine);
  }

  release(release: Release): ReleaseAnswer {
    const nowMs = this.clock.nowMs();
    const front = this.advance(release.name, nowMs);
    const mine = this.#find(front, release.name, release.grantId);
    if (mine === undefined) return this.#lost(front, release.grantId);
    if (mine.token > 0n && !release.unused && this.#closedForMs(mine, nowMs) > 0) {
      mine.ended = "released";
      mine.expiresAtMs = nowMs;
      this.claims.save(mine);
    } else this.claims.remove(mine);
    if (front.waiting !== undefined) this.advance(release.name, nowMs);
    return "released";
  }

  revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    const nowMs = this.clock.nowMs();
    const told = this.handedOver.length;
    const all = this.advance(name, nowMs).holders;
    // It is taken from those who held it, not from who comes after them by this very step.
    const next = this.handedOver.slice(told).map(({ record }) => record);
    const holders = all.filter((one) => one.ended !== "revoked" && !next.includes(one));
    const infos = holders.map((one) => this.#holderInfo(one, nowMs));
    for (const one of holders) {
      // Stays beyond its lease, so that its renewal learns why it is gone, and people see it.
      one.ttlMs = Math.max(one.expiresAtMs - nowMs, REVOKED_KEPT.ms);
      one.expiresAtMs = nowMs + one.ttlMs;
      one.ended = "revoked";
      one.endedBy = by.holder;
      one.endedWhy = by.why;
      one.sinceMs = nowMs;
      one.closedUntilMs = 0;
      this.claims.save(one);
    }
    const revoked = all
      .filter((one) => one.ended === "revoked")
      .sort((a, b) => a.sinceMs - b.sinceMs || a.place - b.place);
    // Not one of this step: its holder has yet to learn of it.
    for (const old of revoked.slice(0, -REVOKED_KEPT.many)) {
      if (old.sinceMs < nowMs) this.claims.remove(old);
    }
    this.advance(name, nowMs);
    return infos;
  }

  resize(name: string, limit: number): number | null {
    const nowMs = this.clock.nowMs();
    const before = limitOf(this.advance(name, nowMs));
    if (before === null || before === LOCK_LIMIT || before === limit) return before;
    for (const one of [...this.claims.inOrder(name)]) {
      one.limit = limit;
      if (one.token === 0n && one.permits > limit) this.claims.remove(one);
      else this.claims.save(one);
    }
    this.advance(name, nowMs);
    return before;
  }

  /** Changes nothing. */
  inspect(name: string): NameInfo | null {
    const nowMs = this.clock.nowMs();
    const all = [...this.claims.inOrder(name)].filter((one) => !this.isOver(one, nowMs));
    if (all[0] === undefined) return null;
    const living = all.filter((one) => one.ended !== "revoked");
    const waiters = living.filter((one) => one.token === 0n);
    return {
      name,
      limit: (living[0] ?? all[0]).limit,
      holders: living.filter((one) => one.token > 0n).map((one) => this.#holderInfo(one, nowMs)),
      waiting: waiters.length,
      waiters: waiters.slice(0, WAITERS_SHOWN).map((one) => ({
        holder: one.holder,
        mode: modeOf(one),
        permits: one.permits,
        waitingMs: nowMs - one.sinceMs,
        expiresInMs: one.expiresAtMs - nowMs,
      })),
      revoked: all
        .filter((one) => one.ended === "revoked")
        .sort((a, b) => a.sinceMs - b.sinceMs || a.place - b.place)
        .map((one) => ({
          holder: one.holder,
          token: one.token,
          by: one.endedBy,
          why: one.endedWhy,
          agoMs: nowMs - one.sinceMs,
        })),
    };
  }

  list(names: Iterable<string>, limit: number): readonly NameInfo[] {
    const infos: NameInfo[] = [];
    for (const name of names) {
      const info = this.inspect(name);
      if (info !== null && info.holders.length + info.waiters.length > 0) infos.push(info);
      if (infos.length === limit) break;
    }
    return infos;
  }

  /** Drops what has run out, and grants from the front of the queue while it fits. */
  protected advance(name: string, nowMs: number): Front {
    let over: ClaimRecord[] | undefined;
    const holders: ClaimRecord[] = [];
    let inUse = 0;
    const waiting: ClaimRecord[] = [];
    let handedOverForMs = Number.POSITIVE_INFINITY;
    for (const one of this.claims.inOrder(name)) {
      if (this.isOver(one, nowMs)) {
        over ??= [];
        over.push(one);
        continue;
      }
      if (one.closedUntilMs > 0 && one.sinceMs > nowMs) {
        // The machine has restarted, and its clock with it.
        one.sinceMs = nowMs;
        this.claims.save(one);
      }
      if (one.token === 0n) {
        if (waiting.length > 0 || inUse + one.permits > one.limit) {
          waiting.push(one);
          if (handedOverForMs < Number.POSITIVE_INFINITY && waiting.length < WAITERS_AT_EXPIRY) {
            continue;
          }
          break;
        }
        this.grant(one, holders, nowMs);
        this.claims.save(one);
        this.handedOver.push({ record: one, grant: toGrant(one, true) });
        handedOverForMs = Math.min(handedOverForMs, this.#endsInMs(one, nowMs));
      }
      holders.push(one);
      if (one.ended !== "revoked") inUse += one.permits;
    }
    for (const one of over ?? []) this.claims.remove(one);
    this.lookIfEndsSooner(waiting, handedOverForMs);
    return { holders, inUse, waiting: waiting[0] };
  }

  /**
   * The first waiters ask when the holder's lease ends, as the last answer told them. They learn of a
   * new holder when they renew their tickets, which is too late if its lease ends before that.
   */
  protected lookIfEndsSooner(waiting: readonly ClaimRecord[], endsInMs: number): void {
    for (const one of waiting) {
      if (one.ttlMs / RENEWALS_PER_TTL > endsInMs) this.toLook.set(one.grantId, one);
    }
  }

  /** The grant keeps its ticket's expiry: it rests on the ask that the store last heard of. */
  protected grant(record: ClaimRecord, holders: readonly ClaimRecord[], nowMs: number): void {
    record.token = this.drawToken();
    record.floor = record.token;
    for (const one of holders) {
      if (one.ended === "no" && one.expiresAtMs > nowMs && one.token < record.floor) {
        record.floor = one.token;
      }
    }
    record.sinceMs = nowMs;
    if (record.atLeastMs > 0) record.closedUntilMs = this.clock.wallMs() + record.atLeastMs;
  }

  /** Above all earlier ones; and, by the clock, above what an emptied or restored store gave before. */
  protected drawToken(): bigint {
    return this.claims.drawToken(BigInt(Math.floor(this.clock.wallMs() * 1_000)));
  }

  /** Unless it was overtaken on the way by a later ask, which may have asked for less. */
  protected extend(record: ClaimRecord, by: { seq: number; ttlMs: number }, nowMs: number): void {
    if (by.seq < record.seq) return;
    record.seq = by.seq;
    record.ttlMs = by.ttlMs;
    record.expiresAtMs = nowMs + by.ttlMs;
    this.claims.save(record);
  }

  /** Its lease has run out, and `atLeast` no longer closes the name. */
  protected isOver(record: ClaimRecord, nowMs: number): boolean {
    return record.expiresAtMs <= nowMs && this.#closedForMs(record, nowMs) <= 0;
  }

  /**
   * Until `atLeast` opens the name: by the wall clock, which outlives a restart of the machine; but
   * no longer than what was asked, for that clock may have been ahead when it was granted.
   */
  #closedForMs(record: ClaimRecord, nowMs: number): number {
    if (record.closedUntilMs === 0) return 0;
    const sinceGrantMs = Math.max(0, nowMs - record.sinceMs);
    return Math.min(record.closedUntilMs - this.clock.wallMs(), record.atLeastMs - sinceGrantMs);
  }

  #create(claim: Claim, name: string, front: Front, nowMs: number): ClaimRecord {
    // With nobody waiting, all claims on the name have been seen.
    const lastPlace =
      front.waiting === undefined
        ? (front.holders.at(-1)?.place ?? 0)
        : this.claims.lastPlace(name);
    return {
      name,
      grantId: claim.grantId,
      place: lastPlace + 1,
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
      endedBy: "",
      endedWhy: "",
    };
  }

  #find(front: Front, name: string, grantId: string): ClaimRecord | undefined {
    // Not what has ended: that is neither a grant nor a ticket.
    return (
      front.holders.find((one) => one.grantId === grantId && one.ended === "no") ??
      (front.waiting === undefined ? undefined : this.claims.find(name, grantId))
    );
  }

  #lost(front: Front, grantId: string): LostAnswer {
    const ended = front.holders.find((one) => one.grantId === grantId);
    if (ended?.ended === "revoked") {
      return { kind: "lost", reason: "revoked", why: `by ${ended.endedBy}: ${ended.endedWhy}` };
    }
    const taken = front.holders.some((one) => one.ended === "no" && one !== ended);
    return { kind: "lost", reason: taken ? "superseded" : "expired" };
  }

  #queued(front: Front, mine: ClaimRecord): { kind: "queued"; position: Position } {
    // The answer tells what it would learn by looking.
    this.toLook.delete(mine.grantId);
    return { kind: "queued", position: this.#position(front, mine.name, mine.place) };
  }

  #position(front: Front, name: string, place: number): Position {
    const nowMs = this.clock.nowMs();
    let freeInMs = Number.POSITIVE_INFINITY;
    let holder: string | null = null;
    for (const one of front.holders) {
      if (one.ended === "revoked") continue;
      holder ??= one.holder;
      freeInMs = Math.min(freeInMs, this.#endsInMs(one, nowMs));
    }
    const ahead = front.waiting === undefined ? 0 : this.claims.ticketsBefore(name, place);
    return { ahead, freeInMs, holder };
  }

  #waiting(front: Front, name: string): number {
    return front.waiting === undefined
      ? 0
      : this.claims.ticketsBefore(name, Number.MAX_SAFE_INTEGER);
  }

  #endsInMs(record: ClaimRecord, nowMs: number): number {
    const leaseMs = record.expiresAtMs - nowMs;
    return record.closedUntilMs === 0
      ? leaseMs
      : Math.max(leaseMs, this.#closedForMs(record, nowMs));
  }

  #holderInfo(record: ClaimRecord, nowMs: number): HolderInfo {
    const closed = record.ended === "released" || record.expiresAtMs <= nowMs;
    return {
      holder: record.holder,
      mode: modeOf(record),
      token: record.token,
      permits: record.permits,
      heldMs: nowMs - record.sinceMs,
      expiresInMs: closed ? this.#endsInMs(record, nowMs) : record.expiresAtMs - nowMs,
      closed,
    };
  }
}

export function toGrant(record: ClaimRecord, handedOver: boolean): Grant {
  return {
    token: record.token,
    floor: record.floor,
    ttlMs: record.ttlMs,
    seq: record.seq,
    handedOver,
  };
}

/** What the name is in use with. */
function limitOf({ holders, waiting }: Front): number | null {
  const first = holders.find((one) => one.ended !== "revoked") ?? waiting;
  return first === undefined ? null : first.limit;
}

const fits = (front: Front, claim: Claim): boolean =>
  front.waiting === undefined && front.inUse + claim.permits <= claim.limit;
