import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Clock } from "../../../src/core/clock.js";
import type { Claim, ClaimAnswer, Push } from "../../../src/core/store.js";
import { LOST } from "../../../src/stores/shared/lost.js";
import { type SessionClaim, SessionClaims } from "../../../src/stores/shared/sessions/claims.js";
import {
  type PendingClaim,
  PendingClaims,
} from "../../../src/stores/shared/sessions/pending-claims.js";
import { reconcile } from "../../../src/stores/shared/sessions/reconcile.js";
import {
  Session,
  SessionExpired,
  type SessionKey,
  type SessionPort,
  type SessionProof,
} from "../../../src/stores/shared/sessions/session.js";
import { Sessions } from "../../../src/stores/shared/sessions/sessions.js";
import { Deferred } from "../../core/helpers.js";
import { claimOf } from "../../support/redis.js";

const TTL_MS = 6_000;

type FakeSession = Session<number, SessionProof>;

const clock = { elapsedMs: () => performance.now() } as Clock;

/** A store with sessions, in memory. */
class FakePort implements SessionPort<number, SessionProof> {
  begun = 0;
  proofs: number[] = [];
  readonly ended: number[] = [];
  readonly gone = new Set<number>();
  /** The session of each key. */
  readonly keys = new Map<string, number>();
  /** The list of keys that the store returns, if it is to be outdated. */
  listed: string[] | null = null;
  /** Called before the store replies to a proof. */
  beforeProof: () => Promise<void> = async () => {};
  longestTtlMs = Number.POSITIVE_INFINITY;
  beforeBegin: () => Promise<void> = async () => {};

  async begin(ttlMs: number) {
    const provedAtMs = performance.now();
    await this.beforeBegin();
    return { id: ++this.begun, ttlMs: Math.min(ttlMs, this.longestTtlMs), provedAtMs };
  }

  async prove({ id }: { id: number }) {
    const provedAtMs = performance.now();
    this.proofs.push(provedAtMs);
    await this.beforeProof();
    return this.gone.has(id) ? null : { provedAtMs };
  }

  async end(id: number) {
    this.ended.push(id);
  }

  async listKeys(id: number): Promise<Iterable<SessionKey>> {
    const keys = this.listed ?? [...this.keys.keys()].filter((key) => this.keys.get(key) === id);
    return keys.map((key) => {
      const [name = "", grantId = ""] = key.split("/");
      return { key, name, grantId, isClaim: true };
    });
  }

  claimKey = (name: string, grantId: string): string => `${name}/${grantId}`;

  async missingOf(id: number, keys: readonly string[]) {
    return keys.filter((key) => this.keys.get(key) !== id);
  }

  deleteKeys = async (keys: readonly string[]): Promise<void> => {
    for (const key of keys) this.keys.delete(key);
  };
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

const requestNow = (seq = 1, push: (push: Push) => void = () => {}) => ({
  seq,
  requestedAtMs: performance.now(),
  push,
});

function fresh() {
  const port = new FakePort();
  const stopped: SessionClaim<FakeSession>[] = [];
  const claims = new SessionClaims<FakeSession>(clock, port, (claim) => stopped.push(claim));
  const sessions = new Sessions(port, clock, claims, 1_000);
  /** A claim that holds its name, with its key. */
  const hold = async (name: string, grantId = "grant"): Promise<SessionClaim<FakeSession>> => {
    const session = await sessions.use(TTL_MS);
    const claim = claims.add(name, grantId, session, requestNow());
    port.keys.set(port.claimKey(name, grantId), session.id);
    claims.markHeld(claim, 1n, 1n);
    return claim;
  };
  return { port, claims, sessions, stopped, hold };
}

describe("proofs of a session", () => {
  test("those requested while one is in flight share the next, which is sent after it", async () => {
    const port = new FakePort();
    const session = await Session.begin(port, clock, TTL_MS);
    const answered = new Deferred<void>();
    port.beforeProof = () => answered.promise;
    const first = session.prove();
    await vi.advanceTimersByTimeAsync(10);
    const [second, third] = [session.prove(), session.prove()];
    expect(second).toBe(third);
    expect(port.proofs).toHaveLength(1);
    answered.resolve();
    await vi.advanceTimersByTimeAsync(1_000);
    const [{ provedAtMs: early }, { provedAtMs: late }] = [await first, await second];
    expect(port.proofs).toEqual([early, late]);
    // At least a sixtieth of the ttl apart.
    expect(late - early).toBeGreaterThanOrEqual(TTL_MS / 60);
    expect(session.deadlineMs).toBe(late + TTL_MS);
  });

  test("a session that is gone is replaced, and its deadline stays", async () => {
    const { port, sessions } = fresh();
    const session = await sessions.use(TTL_MS);
    const { deadlineMs } = session;
    port.gone.add(session.id);
    await vi.advanceTimersByTimeAsync(10);
    await expect(session.prove()).rejects.toThrow(SessionExpired);
    expect(session.deadlineMs).toBe(deadlineMs);
    expect((await sessions.use(TTL_MS)).id).toBe(2);
  });
});

describe("a session that is given up", () => {
  test("its holders and waiters are notified, nothing more is granted, and a proof in flight counts no longer", async () => {
    const { port, claims, sessions } = fresh();
    const session = await sessions.use(TTL_MS);
    const pushes: string[] = [];
    const claim = (grantId: string) =>
      claims.add(
        "name",
        grantId,
        session,
        requestNow(1, ({ kind }) => pushes.push(`${grantId} ${kind}`)),
      );
    const [held, queued] = [claim("held"), claim("queued"), claim("requested")];
    claims.markHeld(held, 1n, 1n);
    claims.markQueued(queued, 2n);
    const answered = new Deferred<void>();
    port.beforeProof = () => answered.promise;
    await vi.advanceTimersByTimeAsync(10);
    const proof = session.prove();
    sessions.giveUp(session.id);
    answered.resolve();
    await expect(proof).rejects.toThrow(SessionExpired);
    expect(pushes.sort()).toEqual(["held lost", "queued look"]);
    expect(claims.grantOf(held, false).ttlMs).toBe(0);
    expect((await sessions.use(TTL_MS)).id).toBe(2);
  });
});

describe("upkeep of sessions", () => {
  test("a session that nothing needs is ended after a minute; a session with a claim is proved", async () => {
    const { port, claims, sessions, hold } = fresh();
    const idle = await sessions.use(1_000);
    const claim = await hold("name");
    for (let s = 0; s < 70; s++) {
      await vi.advanceTimersByTimeAsync(1_000);
      claims.renew(claim, s + 2, performance.now());
    }
    expect(port.ended).toEqual([idle.id]);
    expect(claim.session.deadlineMs).toBeGreaterThan(performance.now());
    await sessions.close(true);
  });

  test("a session that begins while sessions are closed is ended, and its claim gets another", async () => {
    const { port, sessions } = fresh();
    const begins = new Deferred<void>();
    port.beforeBegin = () => begins.promise;
    const using = sessions.use(TTL_MS);
    await sessions.close(false);
    begins.resolve();
    expect((await using).id).toBe(2);
    expect(port.ended).toEqual([1]);
    await sessions.close(true);
  });
});

describe("comparing a session's keys with our claims", () => {
  test("a key without a claim is deleted, unless its release is in flight", async () => {
    const { port, claims, hold } = fresh();
    const { session } = await hold("name");
    port.keys.set("name/stranger", session.id);
    port.keys.set("name/releasing", session.id);
    const released = new Deferred<void>();
    const releasing = claims.whileReleasing(["name/releasing"], released.promise);
    await reconcile(session, port, claims);
    expect([...port.keys.keys()]).toEqual(["name/grant", "name/releasing"]);
    released.resolve();
    await releasing;
    await reconcile(session, port, claims);
    expect([...port.keys.keys()]).toEqual(["name/grant"]);
  });

  test("a key is not deleted if its id is claimed again while others are read, and is not claimed again if it is deleted", async () => {
    const { port, claims, hold } = fresh();
    const { session } = await hold("name");
    const keyOf = (grantId: string) => ({ key: `name/${grantId}`, name: "name", grantId });
    for (const id of ["again", "stranger"]) port.keys.set(`name/${id}`, session.id);
    port.listKeys = async () =>
      (function* () {
        yield { ...keyOf("again"), isClaim: true };
        yield { ...keyOf("stranger"), isClaim: true };
        claims.add("name", "again", session, requestNow(2));
      })();
    await reconcile(session, port, claims);
    expect([...port.keys.keys()]).toEqual(["name/grant", "name/again"]);
    expect([claims.wasSwept("name", "again"), claims.wasSwept("name", "stranger")]).toEqual([
      false,
      true,
    ]);
  });

  test("a claim without its key is dropped, but not because of an outdated list", async () => {
    const { port, claims, hold, stopped } = fresh();
    const [lost, kept] = [await hold("lost"), await hold("kept", "other")];
    port.keys.delete("lost/grant");
    port.listed = [];
    stopped.length = 0;
    await reconcile(kept.session, port, claims);
    expect([claims.has(lost), claims.has(kept)]).toEqual([false, true]);
    expect(stopped).toEqual([lost]);
  });

  test("a claim that moves to another session, or has no reply yet, is neither missing nor an orphan", async () => {
    const { port, claims, sessions, hold } = fresh();
    const moving = await hold("moving");
    claims.startMove(moving);
    port.keys.delete("moving/grant");
    const requested = claims.add("name", "new", moving.session, requestNow());
    await reconcile(moving.session, port, claims);
    expect([claims.has(moving), claims.has(requested)]).toEqual([true, true]);
    const other = await sessions.use(2 * TTL_MS);
    claims.settle(moving, other);
    expect(moving).toMatchObject({ session: other, isMoving: false });
  });
});

describe("a claim that is not renewed", () => {
  test("is given up after a ttl: its key is deleted, and its id can't be claimed again", async () => {
    const { port, claims, hold } = fresh();
    const claim = await hold("name");
    await vi.advanceTimersByTimeAsync(TTL_MS - 1);
    expect(claims.has(claim)).toBe(true);
    await vi.advanceTimersByTimeAsync(2);
    expect(claims.has(claim)).toBe(false);
    expect(port.keys.size).toBe(0);
    expect(claims.wasSwept("name", "grant")).toBe(true);
  });

  test("is given up although it was requested again: only the reply extends a held claim", async () => {
    const { claims, hold } = fresh();
    const claim = await hold("name");
    await vi.advanceTimersByTimeAsync(TTL_MS - 100);
    expect(claims.add("name", "grant", claim.session, requestNow(2))).toBe(claim);
    await vi.advanceTimersByTimeAsync(101);
    expect(claims.has(claim)).toBe(false);
  });

  test("is kept for as long as it waits for its turn in this process, and for a ttl from then on", async () => {
    const { claims, sessions } = fresh();
    const claim = claims.add("name", "grant", await sessions.use(TTL_MS), requestNow());
    const turn = new Deferred<void>();
    const inLine = claims.waitInLine([claim], turn.promise);
    await vi.advanceTimersByTimeAsync(3 * TTL_MS);
    expect(claims.has(claim)).toBe(true);
    turn.resolve();
    await inLine;
    await vi.advanceTimersByTimeAsync(TTL_MS - 1);
    expect(claims.has(claim)).toBe(true);
    await vi.advanceTimersByTimeAsync(21);
    expect(claims.has(claim)).toBe(false);
  });

  test("keeps its ticket for the ttl that was requested, if the store gave a shorter one", async () => {
    const { port, claims, sessions } = fresh();
    port.longestTtlMs = TTL_MS / 2;
    const claim = claims.add("name", "grant", await sessions.use(TTL_MS), requestNow());
    port.keys.set("name/grant", claim.session.id);
    claims.markQueued(claim, 1n);
    await vi.advanceTimersByTimeAsync(TTL_MS - 1);
    expect(claims.has(claim)).toBe(true);
    await vi.advanceTimersByTimeAsync(21);
    expect(claims.has(claim)).toBe(false);
  });

  test("has a grant that is good for no longer than until then", async () => {
    const { claims, hold } = fresh();
    const claim = await hold("name");
    await vi.advanceTimersByTimeAsync(1_000);
    await claim.session.prove();
    expect(claims.grantOf(claim, false).ttlMs).toBe(TTL_MS);
  });
});

describe("claiming", () => {
  /** Replies of the store, one for each attempt. */
  function claiming(...attempts: ((pending: PendingClaim) => Promise<ClaimAnswer>)[]) {
    const { port, claims, sessions, hold } = fresh();
    const sessionsOf: number[] = [];
    const claiming = new PendingClaims(clock, sessions, claims, {
      attempt: (pending, own) => {
        sessionsOf.push(own[0]!.session.id);
        return attempts.shift()!(pending);
      },
      mayBeExpired: (error) => (error as Error).message === "lease not found",
    });
    const claim = (more: Partial<Claim> = {}) =>
      claiming.claim(claimOf("name", { ttlMs: TTL_MS, ...more }), () => {});
    return { port, claims, sessions, hold, sessionsOf, claim };
  }

  const busy: ClaimAnswer = { kind: "full", name: "name", waiting: 0 };

  test("a request that is repeated meanwhile is not sent again, and counts", async () => {
    const answered = new Deferred<ClaimAnswer>();
    const seqs: number[] = [];
    const { claim } = claiming(async (pending) => {
      const answer = await answered.promise;
      seqs.push(pending.request.seq);
      return answer;
    });
    const first = claim({ grantId: "one" });
    await vi.advanceTimersByTimeAsync(1);
    const second = claim({ grantId: "one", seq: 2 });
    answered.resolve(busy);
    expect([await first, await second, seqs]).toEqual([busy, busy, [2]]);
  });

  test("a session that dies while the claim is in flight is replaced once", async () => {
    const dies = () => Promise.reject(new Error("lease not found"));
    const { port, sessionsOf, claim } = claiming(dies, dies);
    port.gone.add(1).add(2);
    await expect(claim()).rejects.toThrow("lease not found");
    expect(sessionsOf).toEqual([1, 2]);
  });

  test("an error of another kind fails the claim, and the session stays", async () => {
    const dies = () => Promise.reject(new Error("lease not found"));
    const { port, sessionsOf, claim } = claiming(dies, async () => busy);
    // The session lives: the lease that was not found is another one.
    await expect(claim()).rejects.toThrow("lease not found");
    expect(await claim()).toBe(busy);
    expect([sessionsOf, port.begun]).toEqual([[1, 1], 1]);
  });

  test("a claim that may wait learns when the earlier ones on its name are answered", async () => {
    const first = new Deferred<ClaimAnswer>();
    let isTurn = false;
    const { claim } = claiming(
      () => first.promise,
      async ({ earlier }) => {
        await earlier;
        isTurn = true;
        return busy;
      },
    );
    const both = [claim({ queue: true, grantId: "one" }), claim({ queue: true, grantId: "two" })];
    await vi.advanceTimersByTimeAsync(1);
    expect(isTurn).toBe(false);
    first.resolve(busy);
    expect(await Promise.all(both)).toEqual([busy, busy]);
    expect(isTurn).toBe(true);
  });

  test("an id whose deletion may still be in flight is refused", async () => {
    const { claim, hold } = claiming();
    await hold("name");
    await vi.advanceTimersByTimeAsync(TTL_MS + 1);
    expect(await claim({ grantId: "grant" })).toBe(LOST);
  });
});
