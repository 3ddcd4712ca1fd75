import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { type Runtime, systemRuntime } from "../../core/runtime.js";
import {
  type Claim,
  type ClaimAnswer,
  type HolderInfo,
  type LostAnswer,
  MOST_WAITERS,
  type NameInfo,
  type Position,
  type Push,
  type Release,
  type ReleaseAnswer,
  type RenewAnswer,
  type Renewal,
  type Store,
  type Traits,
} from "../../core/store.js";
import { LOST } from "../shared/lost.js";
import { refuseUnsupported } from "../shared/unsupported.js";
import { Ballot, type BallotOutcome, NO_RIVAL } from "./ballot.js";
import { unavailable } from "./errors.js";
import { Grants, limitsOf, toGrant } from "./grants.js";
import { Inspection } from "./inspection.js";
import type { LocalQueue } from "./local-queue.js";
import { Member, type PendingRequests } from "./member.js";
import { Membership } from "./membership.js";
import type { NodeClaim, QuorumNode } from "./node.js";
import { QUORUM_TRAITS } from "./options.js";
import { Pauses } from "./pauses.js";
import { ProposedNumbers } from "./proposed-numbers.js";
import { type BallotRelease, Releases } from "./releases.js";
import { Waiters } from "./waiters.js";

/** The most ballots of one claim while nobody is known to have a majority; then the core claims again. */
const MOST_BALLOTS = 6;
/** No ballot of a claim begins later than this after the first: the core waits 2 s for the reply, or longer. */
const LONGEST_COMPETITION_MS = 1_000;

const UNKNOWN = { holder: null, freeInMs: 0 };
const NO_ANSWER = new Promise<never>(() => {});

/** A claim that has no answer yet. */
interface OwnClaim {
  isGivenUp: boolean;
  /** Ends the pause between two ballots, or the present ballot. */
  endWait: () => void;
  answer: Promise<ClaimAnswer>;
}

/**
 * Locks on a majority of independent nodes. The nodes know nothing of each other: each keeps records of
 * ballots, and a ballot whose number a majority has recorded is a grant, with the number as its token. The
 * waiters of a process queue here, and the first of them claims.
 */
export class QuorumStore implements Store {
  readonly traits: Traits;
  readonly #members: readonly Member[];
  readonly #runtime: Runtime;
  readonly #membership: Membership;
  readonly #releases: Releases;
  readonly #numbers: ProposedNumbers;
  readonly #grants: Grants;
  readonly #inspection: Inspection;
  /** By grantId. */
  readonly #claiming = new Map<string, OwnClaim>();
  /** Calls of `inspect`, `list` and `revoke` that have no answer yet. */
  readonly #inspecting = new Set<Promise<unknown>>();
  readonly #waiters: Waiters;
  readonly #pauses: Pauses;
  readonly #pending: PendingRequests = { ends: new Set(), isClosed: false };
  readonly #closesNodes: boolean;

  constructor(
    nodes: readonly QuorumNode[],
    {
      maxTtlMs,
      runtime = systemRuntime(),
      closesNodes = false,
    }: { maxTtlMs: number; runtime?: Runtime; closesNodes?: boolean },
  ) {
    const { clock } = runtime;
    this.#closesNodes = closesNodes;
    this.#runtime = runtime;
    this.traits = { ...QUORUM_TRAITS, maxTtlMs };
    this.#members = nodes.map((node) => new Member(node, clock, this.#pending));
    this.#membership = new Membership(this.#members, clock);
    this.#releases = new Releases(this.#members, clock);
    this.#numbers = new ProposedNumbers(this.#members, clock, maxTtlMs);
    this.#grants = new Grants(this.#members, clock, this.#releases);
    this.#inspection = new Inspection(this.#members, this.#membership);
    this.#waiters = new Waiters(this.#members, clock);
    this.#pauses = new Pauses(this.#members, runtime);
  }

  /** Joins the nodes; claims do so first. Rejects if fewer than a majority answer. */
  setUp(): Promise<void> {
    this.#pending.isClosed = false;
    return this.#membership.join();
  }

  claim(claim: Claim, push: (push: Push) => void): Promise<ClaimAnswer> {
    const there = this.#claiming.get(claim.grantId);
    if (there !== undefined) return there.answer;
    this.#pending.isClosed = false;
    const own: OwnClaim = { isGivenUp: false, endWait: () => {}, answer: NO_ANSWER };
    this.#claiming.set(claim.grantId, own);
    own.answer = this.#claimOnce(claim, push, own);
    return own.answer;
  }

  async renew(renewals: readonly Renewal[]): Promise<readonly RenewAnswer[]> {
    this.#pending.isClosed = false;
    // Without this, a process that only renews would never get back nodes that were down when it started.
    this.#membership.join().catch(() => {});
    const ofTickets = renewals.map((renewal) => this.#renewTicket(renewal));
    const ofGrants = await this.#grants.renew(renewals.filter((_, i) => ofTickets[i] === null));
    let next = 0;
    return ofTickets.map((answer) => answer ?? ofGrants[next++]!);
  }

  async release(releases: readonly Release[]): Promise<readonly ReleaseAnswer[]> {
    // By far the most usual case.
    if (releases.length === 1) return [await this.#release(releases[0]!)];
    return Promise.all(releases.map((release) => this.#release(release)));
  }

  revoke(name: string, by: { holder: string; why: string }): Promise<readonly HolderInfo[]> {
    return this.#inspect((inspection) => inspection.revoke(name, by));
  }

  resize(): never {
    throw new UnsupportedError(`a quorum has no semaphores: ${this.traits.cannot.permits}`);
  }

  inspect(name: string): Promise<NameInfo | null> {
    return this.#inspect((inspection) => inspection.inspect(name));
  }

  list(prefix: string, limit: number): Promise<readonly NameInfo[]> {
    return this.#inspect((inspection) => inspection.list(prefix, limit));
  }

  async close(): Promise<void> {
    // A record that is left on a minority would cost the next claim a ballot.
    await this.#releases.flush();
    // Other Locks may share the store: their requests go on, and later waiters subscribe again.
    const isClaiming = [...this.#claiming.values()].some(({ isGivenUp }) => !isGivenUp);
    if (!this.#closesNodes && (isClaiming || this.#waiters.count > 0)) return;
    this.#waiters.close();
    // Requests of other Locks end by themselves.
    const isInUse = this.#grants.areInUse || this.#inspecting.size > 0;
    if (this.#closesNodes || !isInUse) await this.#endRequests();
    this.#releases.close();
    await Promise.all(this.#members.map(({ node }) => node.close()));
  }

  #inspect<T>(inspect: (inspection: Inspection) => Promise<T>): Promise<T> {
    this.#pending.isClosed = false;
    const inspecting = inspect(this.#inspection);
    const answered = (): void => void this.#inspecting.delete(inspecting);
    this.#inspecting.add(inspecting);
    inspecting.then(answered, answered);
    return inspecting;
  }

  /** Claims end with their requests, and take back their records. Nothing is waited for until the next call. */
  async #endRequests(): Promise<void> {
    const claims = [...this.#claiming.values()];
    this.#pending.isClosed = true;
    for (const own of claims) {
      own.isGivenUp = true;
      own.endWait();
    }
    for (const end of this.#pending.ends) end();
    await Promise.allSettled([...claims.map(({ answer }) => answer), ...this.#inspecting]);
  }

  async #claimOnce(claim: Claim, push: (push: Push) => void, own: OwnClaim): Promise<ClaimAnswer> {
    try {
      this.#refuse(claim);
      await this.#membership.join();
      return await this.#claim(claim, push, own);
    } finally {
      this.#claiming.delete(claim.grantId);
    }
  }

  async #claim(claim: Claim, push: (push: Push) => void, own: OwnClaim): Promise<ClaimAnswer> {
    const name = claim.names[0]!;
    if (this.#grants.has(name, claim.grantId)) {
      return this.#grants.hasExpired(claim.grantId) ? LOST : this.#claimAgain(name, claim);
    }
    const revoked = this.#grants.whyRevoked(claim.grantId);
    if (revoked !== undefined) return revoked;
    if (!claim.queue) return this.#toClaimAnswer(claim, await this.#compete(claim, own));
    const queue = this.#waiters.queueOf(name);
    if (queue.size >= MOST_WAITERS && queue.find(claim.grantId) === undefined) {
      return { kind: "full", name, waiting: queue.size };
    }
    queue.join(claim, push);
    if (queue.aheadOf(claim.grantId) > 0) {
      if (queue.failure === null) return this.#queued(queue, claim.grantId);
      if (queue.hasFailedLately) throw queue.failure;
    }
    const outcome = await this.#compete(claim, own);
    queue.noteFailure(null);
    try {
      return this.#toClaimAnswer(claim, outcome, queue);
    } catch (error) {
      queue.noteFailure(error);
      throw error;
    }
  }

  /**
   * Ballots, until one is decided, or another ballot is known to have a majority, or too many have found none. Two
   * clients may each have the vote that the other needs, while a silent node hides that neither has a majority.
   */
  async #compete(claim: Claim, own: OwnClaim): Promise<BallotOutcome> {
    // The lease counts from the claim: what is decided much later is of little use.
    const untilMs = this.#nowMs() + Math.min(claim.ttlMs / 3, LONGEST_COMPETITION_MS);
    const seen = new Set<string>();
    let outcome = NO_RIVAL;
    const pauseMs = this.#pauses.beforeClaimMs(claim.names[0]!, claim.ttlMs);
    if (pauseMs > 0) await this.#pause(pauseMs, own);
    for (let ballots = 1; !own.isGivenUp; ballots++) {
      outcome = await this.#ballot(claim, seen, own);
      const isLast = own.isGivenUp || ballots >= MOST_BALLOTS || this.#nowMs() >= untilMs;
      if (outcome.kind !== "split" || isLast) break;
      for (const id of outcome.rival?.seen ?? []) seen.add(id);
      await this.#pause(this.#pauses.afterSplitMs(outcome, ballots, claim.ttlMs), own);
    }
    return outcome;
  }

  /** One ballot under a new id; if it is not decided, its records are released. */
  async #ballot(
    claim: Claim,
    seenBefore: ReadonlySet<string>,
    own: OwnClaim,
  ): Promise<BallotOutcome> {
    const { grantId, ttlMs, seq, atLeastMs, holder } = claim;
    const name = claim.names[0]!;
    const id = this.#runtime.random.grantId();
    const number = this.#numbers.next();
    // If others of this process wait too, the nodes note that, even if this claim gets the name.
    const hasMoreWaiters = (this.#waiters.find(name)?.size ?? 0) > 1;
    const register = hasMoreWaiters ? "always" : claim.queue ? "if-busy" : "never";
    const request: NodeClaim = { name, id, number, ttlMs, seq, atLeastMs, register, holder };
    const closedUntilMs = atLeastMs > 0 ? this.#nowMs() + atLeastMs : 0;
    const ballot = new Ballot(this.#members, request, limitsOf(ttlMs), seenBefore);
    own.endWait = () => ballot.giveUp();
    const outcome = await ballot.run();
    if (outcome.kind === "decided") {
      this.#grants.add({
        name,
        grantId,
        id,
        token: outcome.number,
        holder,
        closedUntilMs,
        ttlMs,
        ballot,
      });
    } else {
      const wakes = outcome.kind !== "busy";
      await this.#takeBack({ name, id, number: -1, unused: true, wakes, ballot }, ttlMs);
    }
    return outcome;
  }

  /** Resolves when the nodes that have recorded the ballot, and answer, have dropped it. */
  #takeBack(release: BallotRelease & { ballot: Ballot }, ttlMs: number): Promise<void> {
    const { ballot } = release;
    const waitedFor = new Set(
      this.#members.flatMap(({ isSilent }, i) => (ballot.isRecordedBy(i) && !isSilent ? [i] : [])),
    );
    return new Promise((resolve) => {
      const answered = (_answer: unknown, i: number): void => {
        waitedFor.delete(i);
        if (waitedFor.size === 0) resolve();
      };
      const limits = { limits: limitsOf(ttlMs), keptMs: ttlMs };
      this.#releases.send(release, limits, answered, resolve);
      if (waitedFor.size === 0) resolve();
    });
  }

  /** The answer to a claim has not arrived: a renewal finds the grant, and extends it. */
  async #claimAgain(name: string, { grantId, seq, ttlMs }: Claim): Promise<ClaimAnswer> {
    const [answer] = await this.#grants.renew([{ name, grantId, seq, ttlMs }]);
    if (answer!.kind === "granted") return { kind: "granted", grants: [answer!.grant] };
    if (answer!.kind === "unknown") throw answer!.cause;
    return answer as LostAnswer;
  }

  /**
   * Extends a ticket. Its waiter claims again if it is the first, and is pushed its grant: a ballot must not
   * hold up the renewals of leases in the same batch. Null: it is no ticket.
   */
  #renewTicket({ name, grantId, seq, ttlMs }: Renewal): RenewAnswer | null {
    const queue = this.#waiters.find(name);
    const ticket = queue?.find(grantId);
    if (queue === undefined || ticket === undefined || this.#grants.has(name, grantId)) return null;
    const claim = { ...ticket.claim, seq, ttlMs };
    queue.join(claim, ticket.push);
    if (queue.aheadOf(grantId) === 0) {
      this.claim(claim, ticket.push).then(
        (answer) => {
          if (answer.kind === "granted") ticket.push({ kind: "granted", grant: answer.grants[0]! });
        },
        () => {},
      );
    }
    if (queue.failure !== null) return { kind: "unknown", cause: queue.failure };
    return this.#queued(queue, grantId);
  }

  async #release({ name, grantId, unused = false }: Release): Promise<ReleaseAnswer> {
    const failure = this.#waiters.leave(name, grantId);
    const claiming = this.#claiming.get(grantId);
    if (claiming !== undefined) {
      claiming.isGivenUp = true;
      claiming.endWait();
      await claiming.answer.catch(() => {});
      this.#waiters.leave(name, grantId);
    }
    if (!this.#grants.has(name, grantId)) {
      if (failure !== null) throw failure;
      return this.#grants.whyRevoked(grantId) ?? LOST;
    }
    const { answer, isAwaited } = await this.#grants.release(grantId, unused);
    if (isAwaited) this.#pauses.leaveToOthers(name);
    return answer;
  }

  #toClaimAnswer(claim: Claim, outcome: BallotOutcome, queue?: LocalQueue): ClaimAnswer {
    const { grantId, seq, ttlMs } = claim;
    if (outcome.kind === "decided") {
      if (queue !== undefined) this.#waiters.granted(queue, grantId);
      return { kind: "granted", grants: [toGrant(outcome.number, seq, ttlMs)] };
    }
    if (outcome.kind === "unavailable") {
      throw unavailable(this.#members.length, outcome.failures);
    }
    const { holder, freeInMs } = (outcome.kind === "busy" ? outcome : outcome.rival) ?? UNKNOWN;
    if (queue === undefined) {
      return { kind: "busy", name: claim.names[0]!, position: { ahead: 0, freeInMs, holder } };
    }
    queue.holder = holder;
    return this.#queued(queue, grantId);
  }

  #queued(queue: LocalQueue, grantId: string): { kind: "queued"; position: Position } {
    this.#waiters.listen();
    const ahead = Math.max(0, queue.aheadOf(grantId));
    return { kind: "queued", position: { ahead, freeInMs: 0, holder: queue.holder } };
  }

  #refuse(claim: Claim): void {
    refuseUnsupported(this.traits, claim);
    const { ttlMs } = claim;
    const { maxTtlMs } = this.traits;
    if (ttlMs > maxTtlMs!) {
      throw new InvalidArgumentError(`a ttl of ${ttlMs} ms is above the maxTtl of ${maxTtlMs} ms`);
    }
  }

  #pause(ms: number, own: OwnClaim): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#runtime.clock.after(ms, resolve);
      own.endWait = () => {
        timer.cancel();
        resolve();
      };
    });
  }

  #nowMs(): number {
    return this.#runtime.clock.elapsedMs();
  }
}
