import type { Agenda } from "./agenda.js";
import { reasonOf, safeCause } from "./cause.js";
import { ClosedError, HoldfastError, StoreUnavailableError } from "./errors.js";
import { type Command, hasSubscribers } from "./events.js";
import { OwedRelease } from "./owed-release.js";
import { LAST_REPLY_MS, startReplyTimeout } from "./reply-timeout.js";
import type { Runtime } from "./runtime.js";
import type { Settings } from "./settings.js";
import type {
  Awaitable,
  Claim,
  ClaimAnswer,
  Push,
  Release,
  ReleaseAnswer,
  RenewAnswer,
  Renewal,
  Store,
} from "./store.js";
import { TimedRequest } from "./timed-request.js";

/** The reply to a release; an error says that its outcome is unknown, or that the store refused it. */
export type ReleaseOutcome = ReleaseAnswer | HoldfastError;

/** A claim gets at least this long for its reply, even with `wait: 0`, unless `commandTimeout` is shorter. */
const SHORTEST_CLAIM_TIMEOUT_MS = 2_000;
/** A renewal without a reply is repeated after this share of the ttl, so that several fit into it. */
const RENEW_TIMEOUT_SHARE = 1 / 6;
/** A release gets at least this long for its reply, however little of the lease is left. */
const SHORTEST_RELEASE_TIMEOUT_MS = 250;

/**
 * Sends the requests of one `Locks` to its store, limits how long each waits for its reply, and
 * classifies the replies. A server that is stopped accepts requests and never replies.
 *
 * - A release, and everything that `run` sends, has a timer. A reply after the timeout is dropped.
 * - A claim or a renewal has no timer: the waiter or the lease that sent it is on the agenda and
 *   calls `noReplyError` after `claimTimeoutMs` or `renewTimeoutMs`. A late reply is handed on: it may
 *   be a grant, or prove one.
 */
export class Requests {
  readonly #store: Store;
  readonly #settings: Settings;
  readonly #runtime: Runtime;
  readonly #agenda: Agenda;
  readonly #releases = new Set<Promise<ReleaseOutcome>>();
  #claimsInFlight = 0;
  #lastClaimReplied = (): void => {};
  /**
   * The owed releases, one for each grant however often its release fails: every late reply to a claim that was
   * given up sends the same release again, and a store that is back after an outage must not get each of them.
   */
  readonly #owed = new Map<string, OwedRelease>();
  /** Ends the wait for a reply. */
  readonly #pending = new Set<(error: HoldfastError) => void>();
  /** Those that have no reply and no timeout yet. */
  readonly #timedRequests = new Set<TimedRequest>();
  #closed = false;

  constructor(store: Store, settings: Settings, runtime: Runtime, agenda: Agenda) {
    this.#store = store;
    this.#settings = settings;
    this.#runtime = runtime;
    this.#agenda = agenda;
  }

  /**
   * The store's name for a user's name. A namespace has no colon, so no two pairs collide. A join
   * makes one flat string; a template makes a rope, which some stores keep for as long as the lease.
   */
  toStoreName(name: string): string {
    return [this.#settings.namespace, name].join(":");
  }

  toUserName(storeName: string): string {
    return storeName.slice(this.#settings.namespace.length + 1);
  }

  /** A caller with a short `wait` does not wait for a hanging store until `commandTimeout`. */
  claimTimeoutMs(waitMs: number): number {
    return Math.min(this.#settings.commandTimeoutMs, Math.max(SHORTEST_CLAIM_TIMEOUT_MS, waitMs));
  }

  renewTimeoutMs(ttlMs: number): number {
    return Math.min(this.#settings.commandTimeoutMs, ttlMs * RENEW_TIMEOUT_SHARE);
  }

  /** Once the lease is over, nobody waits for the reply: a server that hangs would hold up the work. */
  releaseTimeoutMs(remainingMs: number): number {
    const wantedMs = Math.max(SHORTEST_RELEASE_TIMEOUT_MS, remainingMs);
    return Math.min(this.#settings.commandTimeoutMs, wantedMs);
  }

  /** The pause before a request is repeated whose outcome is unknown. */
  retryPauseMs(): number {
    return jittered(this.#settings.retry, this.#runtime.random.unit());
  }

  /** The pause before a poll: twice as long as the one before, up to `poll.max`. */
  pollPauseMs(polls: number): number {
    const { minMs, maxMs, jitter } = this.#settings.poll;
    const pauseMs = Math.min(maxMs, minMs * 2 ** Math.min(polls, 20));
    return Math.max(minMs, jittered({ pauseMs, jitter }, this.#runtime.random.unit()));
  }

  /** Calls `replied` once, before it returns if the store is in this process. `timeoutMs`: of the waiter. */
  claim(
    claim: Claim,
    timeoutMs: number,
    push: (push: Push) => void,
    replied: (reply: ClaimAnswer | HoldfastError) => void,
  ): void {
    try {
      const reply = this.#timed("claim", timeoutMs, () => this.#store.claim(claim, push));
      if (isPromise(reply)) {
        this.#claimsInFlight++;
        const ended = (outcome: ClaimAnswer | HoldfastError): void => {
          replied(outcome);
          if (--this.#claimsInFlight === 0) this.#lastClaimReplied();
        };
        reply.then(ended, (error) => ended(this.toStoreError("claim", error)));
      } else replied(reply);
    } catch (error) {
      replied(this.toStoreError("claim", error));
    }
  }

  /** Calls `replied` once for each renewal, in order; those without a reply are `unknown`. */
  renew(renewals: readonly Renewal[], replied: (reply: RenewAnswer, index: number) => void): void {
    const failed = (cause: unknown): void => {
      for (const i of renewals.keys()) replied({ kind: "unknown", cause }, i);
    };
    const pair = (replies: readonly RenewAnswer[]): void => {
      for (const i of renewals.keys()) {
        replied(replyAt(replies, i) ?? { kind: "unknown", cause: new MissingReply() }, i);
      }
    };
    try {
      const timeoutMs = this.renewTimeoutMs(Math.min(...renewals.map((one) => one.ttlMs)));
      const replies = this.#timed("renew", timeoutMs, () => this.#store.renew(renewals));
      if (isPromise(replies)) replies.then(pair, failed);
      else pair(replies);
    } catch (cause) {
      failed(cause);
    }
  }

  /**
   * Gives a grant or a ticket back. A failure is returned, not thrown; the release is then owed, and
   * repeated for `owedMs`: after that, the store has dropped the grant or the ticket by itself.
   */
  release(
    release: Release,
    owedMs: number,
    timeoutMs = this.#settings.commandTimeoutMs,
  ): Awaitable<ReleaseOutcome> {
    const failed = (error: unknown): HoldfastError => {
      const failure = this.toStoreError("release", error);
      // A release that is refused for good would be repeated without end.
      if (failure.retryable) this.#owe(release, owedMs);
      return failure;
    };
    const outcomeOf = (replies: readonly ReleaseAnswer[]): ReleaseOutcome =>
      replyAt(replies, 0) ?? failed(new MissingReply());
    try {
      const replies = this.#timed("release", timeoutMs, () => this.#store.release([release]));
      if (!isPromise(replies)) return outcomeOf(replies);
      // After the end, the release is sent once and not waited for, because a store that hangs must hold up nobody.
      if (this.#closed) {
        replies.catch(() => {});
        return new ClosedError();
      }
      const outcome = new Promise<ReleaseOutcome>((resolve) => {
        const end = (result: ReleaseOutcome): void => {
          this.#releases.delete(outcome);
          resolve(result);
        };
        this.#withTimeout("release", replies, timeoutMs, {
          replied: (all) => end(outcomeOf(all)),
          failed: (error) => end(failed(error)),
        });
      });
      this.#releases.add(outcome);
      return outcome;
    } catch (error) {
      return failed(error);
    }
  }

  /**
   * Sends any other request. Rejects with `StoreUnavailableError` when its outcome is unknown, after
   * `commandTimeout` at the latest. `what`: the request in the words of an error.
   */
  async run<T>(
    command: Command,
    send: (store: Store) => Awaitable<T>,
    timeoutMs = Number.POSITIVE_INFINITY,
    what: string = command,
  ): Promise<T> {
    const limitMs = Math.min(timeoutMs, this.#settings.commandTimeoutMs);
    try {
      const reply = this.#timed(command, limitMs, () => send(this.#store));
      if (!isPromise(reply)) return reply;
      return await new Promise<T>((replied, failed) => {
        this.#withTimeout(what, reply, limitMs, { replied, failed });
      });
    } catch (error) {
      throw this.toStoreError(what, error);
    }
  }

  /** An error of ours as it is; every other failure as a `StoreUnavailableError` without secrets. */
  toStoreError(what: string, failure: unknown): HoldfastError {
    const cause = safeCause(failure);
    if (HoldfastError.is(cause)) return cause;
    return new StoreUnavailableError(
      `the store (${this.#store.traits.store}) failed to ${what}: ${reasonOf(cause)}`,
      { cause },
    );
  }

  noReplyError(what: string, afterMs: number): StoreUnavailableError {
    return new StoreUnavailableError(
      `the store (${this.#store.traits.store}) gave no reply to the request to ${what} within ${Math.round(afterMs)} ms`,
    );
  }

  /** The `Locks` has closed, and its grace is over: nothing more may be sent. */
  get isClosed(): boolean {
    return this.#closed;
  }

  /** Waits for all releases in flight. A release that is still owed after that is left to its ttl. */
  async close(): Promise<void> {
    await this.#allReleased();
    // On several connections, the release of a claim may overtake it, and find nothing. The reply to the claim then
    // brings another release.
    await this.#allClaimsReplied();
    await this.#allReleased();
    this.#closed = true;
    // An owed release may hang: its timer would outlive us.
    for (const giveUp of [...this.#pending]) giveUp(new ClosedError());
    for (const request of this.#timedRequests) request.end("failed");
    this.#agenda.clear();
  }

  async #allReleased(): Promise<void> {
    while (this.#releases.size > 0) await Promise.all(this.#releases);
  }

  /** Waits for the replies to the claims in flight, but not for long: the store has had time for its releases. */
  #allClaimsReplied(): Awaitable<void> {
    if (this.#claimsInFlight === 0) return;
    return new Promise((resolve) => {
      const stopTimeout = startReplyTimeout(this.#runtime.clock, LAST_REPLY_MS, resolve);
      this.#lastClaimReplied = () => {
        stopTimeout();
        resolve();
      };
    });
  }

  #owe(release: Release, owedMs: number): void {
    if (this.#closed) return;
    const nowMs = this.#runtime.clock.elapsedMs();
    // A session outlives its claims, so nothing but a release ends one.
    const isSession = this.#store.traits.liveness === "session";
    const untilMs = isSession ? Number.POSITIVE_INFINITY : nowMs + owedMs;
    const { name, grantId, unused = false } = release;
    // No name has a line break.
    const key = [grantId, name, unused].join("\n");
    const there = this.#owed.get(key);
    if (there !== undefined) {
      there.oweAgain(untilMs);
      return;
    }
    const owed = new OwedRelease(this.#agenda, untilMs, {
      pauseMs: () => this.retryPauseMs(),
      send: async () => {
        const replies = await this.run("release", (store) => store.release([release]));
        if (replyAt(replies, 0) === undefined) throw new MissingReply();
      },
      ended: () => {
        if (this.#owed.get(key) === owed) this.#owed.delete(key);
      },
    });
    this.#owed.set(key, owed);
    owed.schedule(nowMs);
  }

  /** Sends a request, and publishes how long its reply took; reads no clock if nobody listens. */
  #timed<T>(command: Command, timeoutMs: number, send: () => Awaitable<T>): Awaitable<T> {
    if (!hasSubscribers("request")) return send();
    const { store } = this.#store.traits;
    const about = { store, command };
    const request = new TimedRequest(this.#agenda, this.#runtime.clock, about, (ended) =>
      this.#timedRequests.delete(ended),
    );
    try {
      const reply = send();
      if (isPromise(reply)) {
        // After the end, nothing would take it off the agenda.
        if (!this.#closed) {
          this.#timedRequests.add(request);
          request.limit(timeoutMs);
        }
        reply.then(
          () => request.end("replied"),
          () => request.end("failed"),
        );
      } else request.end("replied");
      return reply;
    } catch (error) {
      request.end("failed");
      throw error;
    }
  }

  /** Calls `replied` or `failed`, once, within the timeout. */
  #withTimeout<T>(
    what: string,
    reply: Promise<T>,
    timeoutMs: number,
    { replied, failed }: { replied(value: T): void; failed(error: unknown): void },
  ): void {
    let isPending = true;
    const giveUp = (error: unknown): void => {
      if (end()) failed(error);
    };
    const stopTimeout = startReplyTimeout(this.#runtime.clock, timeoutMs, () =>
      giveUp(this.noReplyError(what, timeoutMs)),
    );
    this.#pending.add(giveUp);
    const end = (): boolean => {
      if (!isPending) return false;
      isPending = false;
      stopTimeout();
      this.#pending.delete(giveUp);
      return true;
    };
    reply.then((value) => {
      if (end()) replied(value);
    }, giveUp);
  }
}

/** The reply to a batch lacks this request, so its outcome is unknown. */
class MissingReply extends Error {
  constructor() {
    super("its reply has fewer answers than the batch had requests");
  }
}

/** The reply to one request of a batch; undefined if the list is too short, or no list at all. */
function replyAt<T>(replies: readonly T[], index: number): T | undefined {
  return Array.isArray(replies) ? replies[index] : undefined;
}

export function isPromise<T>(value: Awaitable<T>): value is Promise<T> {
  return typeof (value as Promise<T> | undefined)?.then === "function";
}

/** A pause, shortened by a random share of at most `jitter`. */
function jittered(rule: { pauseMs: number; jitter: number }, unit: number): number {
  return rule.pauseMs * (1 - rule.jitter * unit);
}
