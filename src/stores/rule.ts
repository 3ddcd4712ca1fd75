import type { StoreClock } from "../core/clock.js";
import {
  type Claim,
  type ClaimAnswer,
  type Grant,
  type HolderInfo,
  LOCK_LIMIT,
  type LostAnswer,
  MOST_WAITERS,
  type Position,
  type Push,
  RENEWALS_PER_TTL,
  REVOKED_KEPT,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  WAITERS_AT_EXPIRY,
} from "../core/store.js";
import {
  type ClaimRecord,
  type Claims,
  closedForMs,
  endsInMs,
  isOver,
  toGrant,
} from "./shared/claim-record.js";
import { revokedInOrder, toHolderInfo } from "./shared/name-info.js";

/** A push to the waiter of a ticket. A later step may change the record, but not the grant in the push. */
export interface DuePush {
  readonly record: ClaimRecord;
  readonly push: Push;
}

/** The front of a name's queue, after `advance`. */
export interface NameState {
  /** All grants: those in force, those that only keep the name closed, and the revoked ones that are still kept. */
  readonly holders: readonly ClaimRecord[];
  /** The permits of all holders that are not revoked. */
  readonly inUse: number;
  /** Time until the first of these holders ends; Infinity if there is none. */
  readonly freeInMs: number;
  /** The first ticket; undefined: nobody waits. */
  readonly firstTicket: ClaimRecord | undefined;
}

/**
 * The specification of a store: which claim is granted, which waits, and what a renewal or a release
 * may change. Stores that keep their records themselves run this code; stores on a server answer the
 * same in the server's language.
 *
 * Every method is one atomic step. Nothing happens between steps: each step first advances the names
 * that it is about, so whichever comes first after an expiry does what the expiry requires. After the
 * step, the store sends what `takePushes` returns.
 */
export class Rule {
  protected readonly claims: Claims;
  protected readonly clock: StoreClock;
  /** The pushes of grants to tickets. */
  protected handovers: DuePush[] = [];
  /** The pushes `look`, by the grantId of the ticket. */
  #looks = new Map<string, DuePush>();

  constructor(claims: Claims, clock: StoreClock) {
    this.claims = claims;
    this.clock = clock;
  }

  /** The pushes of the steps since the last call. If the steps were rolled back, nobody gets them. */
  takePushes(): readonly DuePush[] {
    if (this.handovers.length === 0 && this.#looks.size === 0) return NO_PUSHES;
    const pushes = this.handovers;
    this.handovers = [];
    if (this.#looks.size > 0) {
      pushes.push(...this.#looks.values());
      this.#looks.clear();
    }
    return pushes;
  }

  claim(claim: Claim): ClaimAnswer {
    const nowMs = this.clock.nowMs();
    const states: NameState[] = [];
    const own: (ClaimRecord | undefined)[] = [];
    // Claims all names or none: no record is changed before every name was checked.
    for (const name of claim.names) {
      const state = this.advance(name, nowMs);
      const mine = this.#find(state, name, claim.grantId, nowMs);
      const refusal = this.#refusal(claim, name, state, mine, nowMs);
      if (refusal !== null) return refusal;
      states.push(state);
      own.push(mine);
    }
    const grants: Grant[] = [];
    for (const [i, name] of claim.names.entries()) {
      const state = states[i]!;
      let mine = own[i];
      if (mine === undefined) {
        mine = this.#create(claim, name, state, nowMs);
        if (fits(state, claim)) this.grant(mine, state.holders, nowMs);
        this.claims.add(mine);
      } else this.#extendAndNotify(state, mine, claim, nowMs);
      if (mine.token === 0n) return this.#queued(state, mine);
      grants.push(toGrant(mine, false));
    }
    return { kind: "granted", grants };
  }

  renew(renewal: Renewal): RenewAnswer {
    const nowMs = this.clock.nowMs();
    const state = this.advance(renewal.name, nowMs);
    const mine = this.#find(state, renewal.name, renewal.grantId, nowMs);
    // A lease that has expired, and only keeps the name closed, can't be revived.
    if (mine === undefined || mine.expiresAtMs <= nowMs) return lost(state, renewal.grantId);
    this.#extendAndNotify(state, mine, renewal, nowMs);
    if (mine.token > 0n) return { kind: "granted", grant: toGrant(mine, false) };
    return this.#queued(state, mine);
  }

  release(release: Release): ReleaseAnswer {
    const nowMs = this.clock.nowMs();
    const state = this.advance(release.name, nowMs);
    const mine = this.#find(state, release.name, release.grantId, nowMs);
    if (mine === undefined) return lost(state, release.grantId);
    if (mine.token > 0n && !release.unused && closedForMs(mine, nowMs, this.clock) > 0) {
      mine.ended = "released";
      mine.expiresAtMs = nowMs;
      this.claims.save(mine);
    } else this.claims.remove(mine);
    if (state.firstTicket !== undefined) this.advance(release.name, nowMs, state.freeInMs);
    return "released";
  }

  revoke(name: string, by: { holder: string; why: string }): readonly HolderInfo[] {
    const nowMs = this.clock.nowMs();
    const earlier = this.handovers.length;
    const all = this.advance(name, nowMs).holders;
    // Waiters that this very step has granted keep the name: the caller meant the holders before them.
    const granted = this.handovers.slice(earlier).map(({ record }) => record);
    const holders = all.filter((one) => one.ended !== "revoked" && !granted.includes(one));
    const infos = holders.map((one) => toHolderInfo(one, nowMs, this.clock));
    for (const one of holders) {
      // Kept beyond its lease: its holder's renewal learns the reason, and `inspect` shows it.
      one.ttlMs = Math.max(one.expiresAtMs - nowMs, REVOKED_KEPT.ms);
      one.expiresAtMs = nowMs + one.ttlMs;
      one.ended = "revoked";
      one.endedBy = by.holder;
      one.endedWhy = by.why;
      one.sinceMs = nowMs;
      one.closedUntilMs = 0;
      this.claims.save(one);
    }
    for (const old of revokedInOrder(all).slice(0, -REVOKED_KEPT.many)) {
      // The holders of this step have yet to learn that they were revoked.
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

  /**
   * Removes claims that are over, and grants tickets from the front of the queue while they fit. The first
   * waiters get the push `look` if a grant was made, or if the first holder now ends sooner than
   * `freeInMsBefore`, and they would learn that too late.
   */
  protected advance(name: string, nowMs: number, freeInMsBefore = 0): NameState {
    let over: ClaimRecord[] | null = null;
    const holders: ClaimRecord[] = [];
    const tickets: ClaimRecord[] = [];
    let inUse = 0;
    let freeInMs = Number.POSITIVE_INFINITY;
    /** The earliest end of a holder that no reply has reported to the waiters. */
    let unknownEndInMs = Number.POSITIVE_INFINITY;
    for (const one of this.claims.inOrder(name)) {
      if (isOver(one, nowMs, this.clock)) {
        over ??= [];
        over.push(one);
        continue;
      }
      if (one.closedUntilMs > 0 && one.sinceMs > nowMs) {
        // The claim was granted before the machine restarted, and with it the monotonic clock.
        one.sinceMs = nowMs;
        this.claims.save(one);
      }
      const isTicket = one.token === 0n;
      if (isTicket && (tickets.length > 0 || inUse + one.permits > one.limit)) {
        tickets.push(one);
        if (freeInMs < freeInMsBefore) unknownEndInMs = freeInMs;
        // As a rule, the first ticket is the last record that has to be read.
        const areMoreToLook = unknownEndInMs < Number.POSITIVE_INFINITY;
        if (areMoreToLook && tickets.length < WAITERS_AT_EXPIRY) continue;
        break;
      }
      if (isTicket) this.handOver(one, holders, nowMs);
      holders.push(one);
      if (one.ended === "revoked") continue;
      inUse += one.permits;
      const endInMs = endsInMs(one, nowMs, this.clock);
      freeInMs = Math.min(freeInMs, endInMs);
      if (isTicket) unknownEndInMs = Math.min(unknownEndInMs, endInMs);
    }
    if (over !== null) for (const one of over) this.claims.remove(one);
    if (unknownEndInMs < Number.POSITIVE_INFINITY) this.lookIfEndsSooner(tickets, unknownEndInMs);
    return { holders, inUse, freeInMs, firstTicket: tickets[0] };
  }

  /**
   * The first waiters claim again when the first holder ends, as their last reply said. They learn of an
   * earlier end when they renew their tickets; those that renew only after that end get the push `look`.
   */
  protected lookIfEndsSooner(tickets: readonly ClaimRecord[], endInMs: number): void {
    for (const one of tickets) {
      if (one.ttlMs / RENEWALS_PER_TTL > endInMs) {
        this.#looks.set(one.grantId, { record: one, push: { kind: "look" } });
      }
    }
  }

  protected handOver(ticket: ClaimRecord, holders: readonly ClaimRecord[], nowMs: number): void {
    this.grant(ticket, holders, nowMs);
    this.claims.save(ticket);
    const push: Push = { kind: "granted", grant: toGrant(ticket, true) };
    this.handovers.push({ record: ticket, push });
  }

  /** A ticket that is granted keeps its expiry, which counts from the last request that the store received. */
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

  /** Higher than all earlier tokens; by the clock, also higher than those of a store that was emptied or restored. */
  protected drawToken(): bigint {
    return this.claims.drawToken(BigInt(Math.floor(this.clock.wallMs() * 1_000)));
  }

  /** Ignores a request that a later one has overtaken: the later one may have set a shorter ttl. */
  protected extend(record: ClaimRecord, by: { seq: number; ttlMs: number }, nowMs: number): void {
    if (by.seq < record.seq) return;
    record.seq = by.seq;
    record.ttlMs = by.ttlMs;
    record.expiresAtMs = nowMs + by.ttlMs;
    this.claims.save(record);
  }

  /** If this makes a grant end sooner, the first waiters may need the push `look`. */
  #extendAndNotify(
    state: NameState,
    record: ClaimRecord,
    by: { seq: number; ttlMs: number },
    nowMs: number,
  ): void {
    const beforeMs = record.expiresAtMs;
    this.extend(record, by, nowMs);
    const endsSooner = record.token > 0n && record.expiresAtMs < beforeMs;
    if (endsSooner && state.firstTicket !== undefined) {
      this.advance(record.name, nowMs, state.freeInMs);
    }
  }

  /** Why this name can be neither granted, extended nor waited for; null if it can. */
  #refusal(
    claim: Claim,
    name: string,
    state: NameState,
    mine: ClaimRecord | undefined,
    nowMs: number,
  ): ClaimAnswer | null {
    // A claim that was under way when its grant ended must neither make another grant nor revive one
    // that only keeps the name closed: others may have been granted the name in between.
    const known = state.holders.some((one) => one.grantId === claim.grantId);
    if (known && (mine === undefined || mine.expiresAtMs <= nowMs)) {
      return lost(state, claim.grantId);
    }
    if (mine !== undefined) return null;
    const limit = limitOf(state);
    if (limit !== null && limit !== claim.limit) return { kind: "mismatch", name, limit };
    if (fits(state, claim)) return null;
    if (!claim.queue) {
      return { kind: "busy", name, position: this.#position(state, name, LAST_PLACE) };
    }
    const waiting = this.#ticketsBefore(state, name, LAST_PLACE);
    return waiting >= MOST_WAITERS ? { kind: "full", name, waiting } : null;
  }

  #create(claim: Claim, name: string, state: NameState, nowMs: number): ClaimRecord {
    const lastPlace =
      state.firstTicket === undefined
        ? (state.holders.at(-1)?.place ?? 0)
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

  /**
   * The grant or the ticket of this grantId; undefined if it has ended. `advance` stops at the first
   * living ticket, so this removes one that has expired behind it: otherwise the reply would depend
   * on how far some earlier step has read the queue.
   */
  #find(state: NameState, name: string, grantId: string, nowMs: number): ClaimRecord | undefined {
    const grant = state.holders.find((one) => one.grantId === grantId && one.ended === "no");
    if (grant !== undefined || state.firstTicket === undefined) return grant;
    const ticket = this.claims.find(name, grantId);
    if (ticket === undefined || ticket.expiresAtMs > nowMs) return ticket;
    this.claims.remove(ticket);
    return undefined;
  }

  #queued(state: NameState, mine: ClaimRecord): { kind: "queued"; position: Position } {
    // The reply itself tells the waiter what a look would, so no push is needed.
    this.#looks.delete(mine.grantId);
    return { kind: "queued", position: this.#position(state, mine.name, mine.place) };
  }

  #position(state: NameState, name: string, place: number): Position {
    const first = state.holders.find((one) => one.ended !== "revoked");
    return {
      ahead: this.#ticketsBefore(state, name, place),
      freeInMs: state.freeInMs,
      holder: first?.holder ?? null,
    };
  }

  /** The number of waiters in front. Where nobody waits, nothing is counted. */
  #ticketsBefore(state: NameState, name: string, place: number): number {
    return state.firstTicket === undefined ? 0 : this.claims.ticketsBefore(name, place);
  }
}

const NO_PUSHES: readonly DuePush[] = [];
/** Behind every ticket. */
const LAST_PLACE = Number.MAX_SAFE_INTEGER;

function lost(state: NameState, grantId: string): LostAnswer {
  const mine = state.holders.find((one) => one.grantId === grantId);
  if (mine?.ended === "revoked") {
    return { kind: "lost", reason: "revoked", why: `by ${mine.endedBy}: ${mine.endedWhy}` };
  }
  const isTaken = state.holders.some((one) => one.ended === "no" && one !== mine);
  return { kind: "lost", reason: isTaken ? "superseded" : "expired" };
}

/** The limit that the name is in use with; null if nobody uses it. */
function limitOf({ holders, firstTicket }: NameState): number | null {
  const first = holders.find((one) => one.ended !== "revoked") ?? firstTicket;
  return first?.limit ?? null;
}

const fits = (state: NameState, claim: Claim): boolean =>
  state.firstTicket === undefined && state.inUse + claim.permits <= claim.limit;
