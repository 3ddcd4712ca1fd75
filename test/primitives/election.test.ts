import { subscribe, unsubscribe } from "node:diagnostics_channel";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { StaleTokenError } from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import type { LocksOptions } from "../../src/core/options.js";
import { LAST_REPLY_MS } from "../../src/core/reply-timeout.js";
import { standardSeams } from "../../src/core/runtime.js";
import type { Store } from "../../src/core/store.js";
import { createLocksOn, type Locks } from "../../src/locks.js";
import type { Election, ElectionOptions, Leader } from "../../src/primitives/election.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { FaultyStore, seededRandom, VirtualClock } from "../../src/testing.js";
import { Deferred, refusal, rejection, watch } from "../core/helpers.js";
import { runs } from "../support/chance.js";

interface Candidate {
  locks: Locks;
  link: FaultyStore;
  election: Election;
}

/** Candidates for one leadership, each with a link of its own to one store. */
function candidates(count: number, options: LocksOptions = {}, office: ElectionOptions = {}) {
  const clock = new VirtualClock();
  const store = memoryStore({ clock: clock.forStore() });
  const all = Array.from({ length: count }, (_, i): Candidate => {
    const link = new FaultyStore(store, clock);
    const runtime = { clock, random: seededRandom(i + 1), seams: standardSeams };
    const locks = createLocksOn(runtime, link, { ttl: "10s", holder: `c${i + 1}`, ...options });
    return { locks, link, election: locks.election("boss", office) };
  });
  return { clock, store, all };
}

/** Work that stops when its signal aborts, and records what happens to it. */
function work(log: string[], who: string) {
  return (lease: Lease, stop: AbortSignal): Promise<string> => {
    log.push(`${who} begins`);
    return new Promise((resolve) => {
      const end = (): void => {
        log.push(`${who} ends: ${stop.reason.reason ?? stop.reason.message}`);
        resolve(`${who} ${lease.name}`);
      };
      if (stop.aborted) end();
      else stop.addEventListener("abort", end);
    });
  };
}

/** Rejects with the signal's reason, as most functions do that take a signal. */
const untilStopped = (_: Lease, stop: AbortSignal): Promise<never> =>
  new Promise((_resolve, reject) => {
    stop.addEventListener("abort", () => reject(stop.reason));
  });

describe("campaign", () => {
  it("gives leadership as a lease, to one candidate at a time", async () => {
    const { clock, all } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const first = await a.election.campaign();
    expect(first).toMatchObject({ name: "boss", state: "held", mode: "exclusive" });
    expect(first.holder).toBe("c1 (candidate for boss)");
    const waiting = watch(b.election.campaign());
    await clock.advance(600_000);
    expect(waiting.outcome).toBe("pending");
    expect(await a.election.resign()).toBe("released");
    await clock.advance(0);
    const second = waiting.value as Lease;
    expect(second.token).toBeGreaterThan(first.token);
    expect(await b.election.resign()).toBe("released");
    await Promise.all([a.locks.close(), b.locks.close()]);
    expect(clock.timers).toBe(0);
  });

  it("called again joins the same candidacy, and later returns the same leadership", async () => {
    const { clock, all } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    await a.election.campaign();
    const both = [b.election.campaign(), b.election.campaign()];
    await clock.advance(0);
    expect(b.link.sent.claim).toBe(1);
    await a.election.resign();
    const [one, two] = await Promise.all(both);
    expect(two).toBe(one);
    expect(await b.election.campaign()).toBe(one);
  });

  it("after a loss starts a new candidacy", async () => {
    const { clock, all } = candidates(1);
    const [a] = all as [Candidate];
    const first = await a.election.campaign();
    a.link.faults.renew = "hang";
    await clock.advance(20_000);
    expect(first.state).toBe("lost");
    a.link.faults.renew = "none";
    const second = await a.election.campaign();
    expect(second.token).toBeGreaterThan(first.token);
  });

  it("ends when its signal aborts, and leaves no ticket", async () => {
    const { clock, all, store } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    await a.election.campaign();
    const giveUp = new AbortController();
    const campaigning = watch(b.election.campaign({ signal: giveUp.signal }));
    await clock.advance(100);
    const reason = new Error("enough");
    giveUp.abort(reason);
    await clock.advance(0);
    expect(campaigning).toEqual({ outcome: "rejected", value: reason });
    expect(store.inspect("default:boss")!.waiters).toEqual([]);
    expect(await rejection(b.election.campaign({ signal: giveUp.signal }))).toBe(reason);
    expect(await b.election.resign()).toBeNull();
  });

  it.each(["campaign", "runAsLeader"] as const)(
    "%s ends when a subscriber of `asked` aborts its signal",
    async (how) => {
      const { clock, all } = candidates(2);
      const [a, b] = all as [Candidate, Candidate];
      await a.election.campaign();
      const giveUp = new AbortController();
      const reason = new Error("at once");
      const onEvent = (): void => giveUp.abort(reason);
      const options = { signal: giveUp.signal };
      subscribe("holdfast:asked", onEvent);
      const campaigning = watch(
        how === "campaign"
          ? b.election.campaign(options)
          : b.election.runAsLeader(() => {}, options),
      );
      unsubscribe("holdfast:asked", onEvent);
      await clock.advance(60_000);
      expect(campaigning).toEqual({ outcome: "rejected", value: reason });
      expect((await a.locks.inspect("boss"))!.waiters).toEqual([]);
    },
  );

  it("goes on for other callers when one caller's signal aborts", async () => {
    const { clock, all } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    await a.election.campaign();
    const giveUp = new AbortController();
    const patient = watch(b.election.campaign());
    const impatient = watch(b.election.campaign({ signal: giveUp.signal }));
    giveUp.abort(new Error("enough"));
    await clock.advance(0);
    expect([patient.outcome, impatient.outcome]).toEqual(["pending", "rejected"]);
    await a.election.resign();
    await clock.advance(0);
    expect(patient.outcome).toBe("resolved");
  });

  it("refuses bad arguments", async () => {
    const { all } = candidates(1);
    const [{ locks, election }] = all as [Candidate];
    expect(refusal(() => locks.election("")).code).toBe("INVALID_ARGUMENT");
    for (const options of [{ wait: 1 }, { mode: "shared" }, { renew: false }, { ttl: 0 }]) {
      expect(refusal(() => locks.election("x", options as never)).code).toBe("INVALID_ARGUMENT");
    }
    const bad = [
      election.campaign({ signal: 1 as never }),
      election.campaign({ wait: 1 } as never),
      election.runAsLeader(1 as never),
      election.runAsLeader(() => {}, { wait: 1 } as never),
      election.runAsLeader(() => {}, { signal: null as never }),
      election.observe({ every: 0 }).next(),
      election.observe({ often: 1 } as never).next(),
    ];
    for (const one of bad) expect((await rejection(one)).code).toBe("INVALID_ARGUMENT");
    await locks.close();
    expect((await rejection(election.campaign())).code).toBe("CLOSED");
    expect(refusal(() => locks.election("x")).code).toBe("CLOSED");
  });
});

describe("resign", () => {
  it("by a client that is neither candidate nor leader does nothing", async () => {
    const { all } = candidates(1);
    expect(await all[0]!.election.resign()).toBeNull();
    await all[0]!.election.campaign();
    expect(await all[0]!.election.resign()).toBe("released");
    expect(await all[0]!.election.resign()).toBeNull();
  });

  it("by a candidate ends the candidacy, and leaves no ticket", async () => {
    const { clock, all, store } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    await a.election.campaign();
    const campaigning = watch(b.election.campaign());
    await clock.advance(0);
    expect(await b.election.resign()).toBeNull();
    expect(campaigning).toMatchObject({ outcome: "rejected", value: { name: "AbortError" } });
    expect(store.inspect("default:boss")!.waiters).toEqual([]);
    // The candidate may campaign again.
    const again = watch(b.election.campaign());
    await a.election.resign();
    await clock.advance(0);
    expect(again.outcome).toBe("resolved");
  });

  it("in the moment of the election gives the leadership back", async () => {
    const { clock, all, store } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const first = await a.election.campaign();
    const campaigning = watch(b.election.campaign());
    await clock.advance(0);
    // The store has handed over to b before this returns.
    first.release();
    await b.election.resign();
    await clock.advance(0);
    // Either the leader or the candidate has resigned, as it happens.
    expect(campaigning.outcome).not.toBe("pending");
    if (campaigning.outcome === "resolved")
      expect((campaigning.value as Lease).state).toBe("released");
    expect(store.inspect("default:boss")).toBeNull();
  });

  it("while work runs stops the work first, and gives leadership back after the work has ended", async () => {
    const { clock, all, store } = candidates(1);
    const [{ election }] = all as [Candidate];
    const stopped = new Deferred<void>();
    const ended = new Deferred<void>();
    const run = watch(
      election.runAsLeader(async (lease, stop) => {
        stop.addEventListener("abort", () => stopped.resolve());
        await ended.promise;
        expect(lease.state).toBe("held");
        return "tidy";
      }),
    );
    await clock.advance(0);
    const resigned = watch(election.resign());
    await stopped.promise;
    await clock.advance(60_000);
    expect(resigned.outcome).toBe("pending");
    expect(store.inspect("default:boss")!.holders).toHaveLength(1);
    ended.resolve();
    await clock.advance(0);
    expect(run).toEqual({ outcome: "resolved", value: "tidy" });
    expect(resigned).toEqual({ outcome: "resolved", value: "released" });
    expect(store.inspect("default:boss")).toBeNull();
  });

  it("in the moment of the election never leaves work running without leadership", async () => {
    const { clock, all } = candidates(3);
    const [a, b, c] = all as [Candidate, Candidate, Candidate];
    const log: string[] = [];
    const first = await a.election.campaign();
    const run = watch(b.election.runAsLeader(work(log, "b")));
    await clock.advance(0);
    const third = watch(c.election.campaign());
    await clock.advance(0);
    // The store has handed over to b before this returns, and b's work has not begun yet.
    first.release();
    const resigned = watch(b.election.resign());
    await clock.advance(60_000);
    expect(third.outcome).toBe("resolved");
    expect(resigned.outcome).toBe("resolved");
    expect(run.outcome).not.toBe("pending");
    expect(log.filter((line) => line.includes("begins")).length).toBe(
      log.filter((line) => line.includes("ends")).length,
    );
  });

  it.each([
    ["before", 0],
    ["after", 1],
  ])(
    "%s the loss of leadership, while the work still stops, ends runAsLeader",
    async (_, order) => {
      const { clock, all, store } = candidates(1, { commandTimeout: "1s" });
      const [a] = all as [Candidate];
      const ended = new Deferred<void>();
      let begun = 0;
      const run = watch(
        a.election.runAsLeader(() => {
          begun++;
          return ended.promise;
        }),
      );
      await clock.advance(0);
      let resigned = { outcome: "", value: undefined as unknown };
      const steps = [
        async () => {
          resigned = watch(a.election.resign());
        },
        async () => {
          a.link.all = "hang";
          await clock.advance(20_000);
          a.link.all = "none";
        },
      ];
      for (const step of order === 0 ? steps : steps.toReversed()) await step();
      ended.resolve();
      await clock.advance(60_000);
      expect(resigned.value).toBe("lost");
      expect(begun).toBe(1);
      expect(run.outcome).not.toBe("pending");
      expect(store.inspect("default:boss")).toBeNull();
    },
  );
});

describe("runAsLeader", () => {
  it("resolves with what fn returns, after it has resigned", async () => {
    const { all, store } = candidates(1);
    const [{ election }] = all as [Candidate];
    const value = await election.runAsLeader((lease, stop) => {
      lease.assertHeld();
      return { aborted: stop.aborted, held: store.inspect("default:boss")!.holders.length };
    });
    expect(value).toEqual({ aborted: false, held: 1 });
    expect(store.inspect("default:boss")).toBeNull();
    expect(await election.resign()).toBeNull();
  });

  it("rejects with what fn throws, after it has resigned", async () => {
    const { all, store } = candidates(1);
    const mine = new Error("mine");
    const failing = (): never => {
      throw mine;
    };
    expect(await rejection(all[0]!.election.runAsLeader(failing))).toBe(mine);
    expect(store.inspect("default:boss")).toBeNull();
    // An abort that is not ours is an error like any other.
    const abort = new DOMException("mine", "AbortError");
    expect(await rejection(all[0]!.election.runAsLeader(() => Promise.reject(abort)))).toBe(abort);
  });

  it("stops a leader that is cut off at its own deadline, before another can be elected", async () => {
    const { clock, all } = candidates(2, { commandTimeout: "1s" });
    const [a, b] = all as [Candidate, Candidate];
    const log: string[] = [];
    a.election.runAsLeader(work(log, "a"));
    await clock.advance(0);
    b.election.runAsLeader(work(log, "b"));
    await clock.advance(0);
    const cutAtMs = clock.elapsedMs();
    a.link.all = "hang";
    // A tenth of the ttl, and the drift, before the end.
    await clock.advance(9_000);
    expect(log).toEqual(["a begins", "a ends: expired"]);
    await clock.advance(cutAtMs + 10_000 + 100 - clock.elapsedMs());
    expect(log).toEqual(["a begins", "a ends: expired", "b begins"]);
  });

  it.each([
    ["returns", work([], "a")],
    ["rejects with the loss", untilStopped],
    [
      "finds out by assertHeld",
      async (lease: Lease, stop: AbortSignal) => {
        await untilStopped(lease, stop).catch(() => {});
        lease.assertHeld();
      },
    ],
  ])("after a loss, when fn %s, campaigns again and runs fn in the next term", async (_, fn) => {
    const { clock, all } = candidates(1, { commandTimeout: "1s" });
    const [a] = all as [Candidate];
    const tokens: bigint[] = [];
    const run = watch(
      a.election.runAsLeader<unknown>((lease, stop) => {
        tokens.push(lease.token);
        return tokens.length < 3 ? fn(lease, stop) : "done";
      }),
    );
    for (let term = 1; term < 3; term++) {
      await clock.advance(1_000);
      expect(tokens).toHaveLength(term);
      a.link.all = "hang";
      await clock.advance(20_000);
      a.link.all = "none";
    }
    await clock.advance(1_000);
    expect(run).toEqual({ outcome: "resolved", value: "done" });
    expect(tokens).toEqual(tokens.toSorted((x, y) => (x < y ? -1 : 1)));
    expect(new Set(tokens).size).toBe(3);
  });

  it.each<[string, () => unknown]>([
    ["returns", () => "too late"],
    [
      "is refused by a fence",
      () => {
        throw new Error("not saved", { cause: new StaleTokenError("file", 1n, 2n) });
      },
    ],
  ])("leads again when the process was stopped past its lease and fn then %s", async (_, fn) => {
    const { clock, all } = candidates(1);
    const [a] = all as [Candidate];
    let terms = 0;
    const run = watch(
      a.election.runAsLeader<unknown>(() => {
        if (++terms === 2) return "done";
        // No timer has run: the signal has not aborted yet.
        clock.stall(15_000);
        return fn();
      }),
    );
    await clock.advance(1_000);
    expect(run).toEqual({ outcome: "resolved", value: "done" });
    expect(terms).toBe(2);
  });

  it.each<[string, () => unknown]>([
    ["returns", () => "too late"],
    [
      "is refused by a fence",
      () => {
        throw new StaleTokenError("file", 1n, 2n);
      },
    ],
  ])("leads again when the leader was deposed without notice and fn %s", async (_, fn) => {
    const { clock, all } = candidates(2);
    const [a, operator] = all as [Candidate, Candidate];
    let terms = 0;
    const run = watch(
      a.election.runAsLeader<unknown>(async () => {
        if (++terms === 2) return "done";
        await operator.locks.forceRelease("boss", { why: "test" });
        return fn();
      }),
    );
    await clock.advance(1_000);
    expect(run).toEqual({ outcome: "resolved", value: "done" });
  });

  it("rejects with a fence's refusal while it leads: a refusal is no loss", async () => {
    const { all } = candidates(1);
    const refused = new StaleTokenError("file", 1n, 2n);
    const run = (all[0] as Candidate).election.runAsLeader(() => Promise.reject(refused));
    expect(await rejection(run)).toBe(refused);
  });

  it("leaves the leadership free where fn never ran, whatever atLeast says", async () => {
    const { all } = candidates(2, {}, { atLeast: "1h" });
    const [a, b] = all as [Candidate, Candidate];
    const enough = new AbortController();
    let ran = false;
    const run = a.election.runAsLeader(
      () => {
        ran = true;
      },
      { signal: enough.signal },
    );
    // The leader is elected in this very turn.
    enough.abort(new Error("enough"));
    expect((await rejection(run)).message).toBe("enough");
    expect([ran, await b.locks.inspect("boss")]).toEqual([false, null]);
  });

  it("leads again when only assertHeld noticed that the lease is in doubt", async () => {
    const { clock, all } = candidates(1);
    const [a] = all as [Candidate];
    const tokens: bigint[] = [];
    const run = watch(
      a.election.runAsLeader((lease) => {
        tokens.push(lease.token);
        // The machine may have been frozen: the lease is in doubt until a renewal gets its reply.
        if (tokens.length === 1) clock.jumpWall(60_000);
        lease.assertHeld();
        return "done";
      }),
    );
    await clock.advance(1_000);
    expect(run).toEqual({ outcome: "resolved", value: "done" });
    expect(tokens).toHaveLength(2);
    expect(tokens[1]).toBeGreaterThan(tokens[0]!);
  });

  it("does not run fn again before the first run has ended, however long it takes", async () => {
    const { clock, all } = candidates(1, { commandTimeout: "1s" });
    const [a] = all as [Candidate];
    const ends: Deferred<string>[] = [];
    const run = watch(
      a.election.runAsLeader(() => {
        const end = new Deferred<string>();
        ends.push(end);
        return end.promise;
      }),
    );
    await clock.advance(0);
    a.link.all = "hang";
    await clock.advance(20_000);
    a.link.all = "none";
    await clock.advance(3_600_000);
    expect(ends).toHaveLength(1);
    ends[0]!.resolve("late");
    await clock.advance(0);
    expect(ends).toHaveLength(2);
    ends[1]!.resolve("in time");
    await clock.advance(0);
    expect(run).toEqual({ outcome: "resolved", value: "in time" });
  });

  it("keeps the result of a campaign() that is called while the work of a lost term still stops", async () => {
    const { clock, all, store } = candidates(1, { commandTimeout: "1s" });
    const [a] = all as [Candidate];
    const ended = new Deferred<void>();
    const stop = new AbortController();
    a.election.runAsLeader(() => ended.promise, { signal: stop.signal }).catch(() => {});
    await clock.advance(0);
    a.link.all = "hang";
    await clock.advance(20_000);
    a.link.all = "none";
    const next = await a.election.campaign();
    stop.abort();
    ended.resolve();
    await clock.advance(0);
    expect(next.state).toBe("held");
    expect(await a.election.resign()).toBe("released");
    expect(store.inspect("default:boss")).toBeNull();
  });

  it("refuses a second call while it is at work, and the first goes on", async () => {
    const { clock, all, store } = candidates(1, { commandTimeout: "1s" });
    const [a] = all as [Candidate];
    const log: string[] = [];
    const ended = new Deferred<void>();
    const run = watch(
      a.election.runAsLeader(async (lease, stop) => {
        await work(log, `a${log.length}`)(lease, stop);
        await ended.promise;
      }),
    );
    await clock.advance(0);
    expect((await rejection(a.election.runAsLeader(() => {}))).code).toBe("INVALID_ARGUMENT");
    expect(log).toEqual(["a0 begins"]);
    a.link.all = "hang";
    await clock.advance(20_000);
    a.link.all = "none";
    // The work of the lost term has not ended yet.
    const second = watch(a.election.runAsLeader(() => {}));
    await clock.advance(1_000);
    expect(second).toMatchObject({ outcome: "rejected", value: { code: "INVALID_ARGUMENT" } });
    ended.resolve();
    await clock.advance(1_000);
    expect(log).toEqual(["a0 begins", "a0 ends: expired", "a2 begins"]);
    await a.election.resign();
    expect(run.outcome).toBe("resolved");
    expect(store.inspect("default:boss")).toBeNull();
  });

  it("ends when its signal aborts: as a candidate, at work, before it has begun", async () => {
    const { clock, all, store } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const reason = new Error("enough");
    const log: string[] = [];
    const first = new AbortController();
    const leading = watch(a.election.runAsLeader(work(log, "a"), { signal: first.signal }));
    await clock.advance(0);
    const second = new AbortController();
    const standing = watch(b.election.runAsLeader(work(log, "b"), { signal: second.signal }));
    await clock.advance(0);
    second.abort(reason);
    await clock.advance(0);
    expect(standing).toEqual({ outcome: "rejected", value: reason });
    first.abort(reason);
    await clock.advance(0);
    expect(leading).toEqual({ outcome: "resolved", value: "a boss" });
    expect(log).toEqual(["a begins", "a ends: enough"]);
    const never = a.election.runAsLeader(work(log, "a"), { signal: first.signal });
    expect(await rejection(never)).toBe(reason);
    expect(store.inspect("default:boss")).toBeNull();
    expect(log).toHaveLength(2);
  });

  it("does not run fn when its signal aborts in the moment of the election", async () => {
    const { clock, all, store } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const log: string[] = [];
    const enough = new AbortController();
    const first = await a.election.campaign();
    const run = watch(b.election.runAsLeader(work(log, "b"), { signal: enough.signal }));
    await clock.advance(0);
    first.release();
    enough.abort(new Error("enough"));
    await clock.advance(0);
    expect(run).toMatchObject({ outcome: "rejected", value: { message: "enough" } });
    expect(log).toEqual([]);
    expect(store.inspect("default:boss")).toBeNull();
  });

  it("leaves no listener on the caller's signal", async () => {
    const { clock, all } = candidates(1, { commandTimeout: "1s" });
    const [a] = all as [Candidate];
    const { signal } = new AbortController();
    let listeners = 0;
    const { addEventListener: add, removeEventListener: remove } = signal;
    signal.addEventListener = (...args: Parameters<typeof add>) => {
      listeners++;
      add.apply(signal, args);
    };
    signal.removeEventListener = (...args: Parameters<typeof remove>) => {
      listeners--;
      remove.apply(signal, args);
    };
    const run = a.election.runAsLeader(work([], "a"), { signal });
    await clock.advance(0);
    a.link.all = "hang";
    await clock.advance(20_000);
    a.link.all = "none";
    await clock.advance(1_000);
    await a.election.resign();
    await run;
    expect(listeners).toBe(0);
  });
});

describe("close", () => {
  it("ends a candidacy, a leadership and work that runs or stops, and leaves nothing behind", async () => {
    for (const grace of [0, 5_000]) {
      const { clock, all, store } = candidates(4, { commandTimeout: "1s" });
      const [standing, leading, working, stopping] = all as Candidate[];
      const log: string[] = [];
      const seen = {
        work: watch(working!.election.runAsLeader(work(log, "w"))),
        wait: watch(standing!.election.runAsLeader(work(log, "s"))),
      };
      const other = leading!.locks.election("other");
      const lease = await other.campaign();
      const slow = stopping!.locks.election("slow");
      const ended = new Deferred<void>();
      const late = watch(slow.runAsLeader(() => ended.promise));
      await clock.advance(0);
      stopping!.link.all = "hang";
      await clock.advance(20_000);
      stopping!.link.all = "none";
      const closing = all.map((one) => one.locks.close({ grace }));
      await clock.advance(grace);
      await Promise.all(closing);
      ended.resolve();
      await clock.advance(0);
      expect(seen.wait).toMatchObject({ outcome: "rejected", value: { code: "CLOSED" } });
      expect(seen.work).toMatchObject({ outcome: "rejected", value: { code: "CLOSED" } });
      expect(late).toMatchObject({ outcome: "rejected", value: { code: "CLOSED" } });
      expect(log).toEqual(["w begins", "w ends: closed"]);
      expect([lease.state, lease.signal.reason.reason]).toEqual(["lost", "closed"]);
      expect(await other.resign()).toBe("lost");
      expect(store.list("", 10)).toEqual([]);
      expect(clock.timers).toBe(0);
    }
  });
});

describe("observe", () => {
  const next = (observing: AsyncIterator<Leader | null>) => watch(observing.next());

  it("yields the leader, each change, and null when nobody leads", async () => {
    const { clock, all } = candidates(3);
    const [a, b, watcher] = all as [Candidate, Candidate, Candidate];
    const first = await a.election.campaign();
    const observing = watcher.election.observe();
    expect(await observing.next()).toEqual({
      done: false,
      value: { holder: "c1 (candidate for boss)", token: first.token },
    });
    const second = next(observing);
    await clock.advance(60_000);
    expect(second.outcome).toBe("pending");
    await a.election.resign();
    await clock.advance(1_000);
    expect(second.value).toEqual({ done: false, value: null });
    const third = next(observing);
    const lease = await b.election.campaign();
    await clock.advance(1_000);
    expect(third.value).toEqual({
      done: false,
      value: { holder: "c2 (candidate for boss)", token: lease.token },
    });
    // A new term of the same leader is a change: the token says so.
    const fourth = next(observing);
    await b.election.resign();
    const again = await b.election.campaign();
    await clock.advance(1_000);
    expect(fourth.value).toMatchObject({ value: { token: again.token } });
    await observing.return!();
    expect(await observing.next()).toEqual({ done: true, value: undefined });
  });

  it("yields null first when nobody leads, also while atLeast keeps the name closed", async () => {
    const { clock, all } = candidates(2, {}, { atLeast: "1m" });
    const [a, b] = all as [Candidate, Candidate];
    const observing = b.election.observe();
    expect((await observing.next()).value).toBeNull();
    const elected = next(observing);
    await a.election.campaign();
    await clock.advance(1_000);
    expect(elected.value).toMatchObject({ value: { holder: "c1 (candidate for boss)" } });
    const resigned = next(observing);
    await a.election.resign();
    await clock.advance(1_000);
    expect(resigned.value).toMatchObject({ value: null });
  });

  it("reads the store as often as the option every says", async () => {
    const { clock, all } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const observing = b.election.observe({ every: "1m" });
    expect((await observing.next()).value).toBeNull();
    const elected = next(observing);
    await clock.advance(1);
    await a.election.campaign();
    await clock.advance(59_998);
    expect(elected.outcome).toBe("pending");
    await clock.advance(1);
    expect(elected.outcome).toBe("resolved");
  });

  it("ends when the locks close: while it waits, and while its caller is at work", async () => {
    const { clock, all } = candidates(2);
    const [a, b] = all as [Candidate, Candidate];
    const waiting = a.election.observe({ every: "1h" });
    await waiting.next();
    const pending = next(waiting);
    await clock.advance(0);
    await a.locks.close();
    await clock.advance(0);
    expect(pending.value).toEqual({ done: true, value: undefined });

    const busy = b.election.observe({ every: "1h" });
    await busy.next();
    await b.locks.close();
    const ended = next(busy);
    await clock.advance(0);
    expect(ended.value).toEqual({ done: true, value: undefined });
    expect(clock.timers).toBe(0);
    expect((await b.election.observe().next()).done).toBe(true);
  });

  it("ends when its signal aborts: before it starts, while it waits, and while its caller is at work", async () => {
    const { clock, all } = candidates(1);
    const [{ election }] = all as [Candidate];
    const reason = new Error("enough");
    expect(await rejection(election.observe({ signal: AbortSignal.abort(reason) }).next())).toBe(
      reason,
    );
    for (const when of ["waiting", "busy"]) {
      const enough = new AbortController();
      const observing = election.observe({ every: "1h", signal: enough.signal });
      await observing.next();
      if (when === "busy") enough.abort(reason);
      const pending = next(observing);
      await clock.advance(0);
      if (when === "waiting") enough.abort(reason);
      await clock.advance(0);
      expect(pending, when).toEqual({ outcome: "rejected", value: reason });
      expect(clock.timers, when).toBe(0);
    }
  });

  it("outlasts an outage shorter than a lease, and throws after a longer one", async () => {
    const { clock, all, store } = candidates(1);
    const [a] = all as [Candidate];
    await a.election.campaign();
    let down = false;
    const view: Store = {
      ...delegate(store),
      inspect: (name) =>
        down ? Promise.reject(new Error("connection refused")) : store.inspect(name),
    };
    const runtime = { clock, random: seededRandom(9), seams: standardSeams };
    // The ttl of this election's leases counts, not that of the other locks.
    const watcher = createLocksOn(runtime, view, { ttl: "1m" });
    const observing = watcher.election("boss", { ttl: "10s" }).observe();
    await observing.next();
    const change = next(observing);
    await clock.advance(0);
    down = true;
    await clock.advance(9_000);
    expect(change.outcome).toBe("pending");
    down = false;
    await clock.advance(1_000);
    await a.election.resign();
    await clock.advance(1_000);
    expect(change.value).toMatchObject({ value: null });
    const failing = next(observing);
    await clock.advance(0);
    down = true;
    await clock.advance(12_500);
    expect(failing).toMatchObject({ outcome: "rejected", value: { code: "STORE_UNAVAILABLE" } });
    expect((await observing.next()).done).toBe(true);
  });

  it.each([
    ["its caller's own time", 1_000, 60_000],
    ["the pause between two reads", 60_000, 0],
  ])("does not count %s as an outage", async (_, every, busyMs) => {
    const { clock, all, store } = candidates(1);
    const [a] = all as [Candidate];
    await a.election.campaign();
    let failures = 0;
    const view: Store = {
      ...delegate(store),
      inspect: (name) =>
        failures-- > 0 ? Promise.reject(new Error("connection refused")) : store.inspect(name),
    };
    const runtime = { clock, random: seededRandom(9), seams: standardSeams };
    const watcher = createLocksOn(runtime, view).election("boss", { ttl: "30s" });
    const observing = watcher.observe({ every });
    await observing.next();
    await clock.advance(busyMs);
    failures = 1;
    const change = next(observing);
    await clock.advance(every * 2);
    expect(change.outcome).toBe("pending");
    await a.election.resign();
    await clock.advance(every);
    expect(change.value).toMatchObject({ value: null });
  });
});

describe("two candidates", () => {
  /** The next step, and how much time passes after it. */
  const step = fc.record({
    who: fc.nat(1),
    what: fc.constantFrom("cut off", "heal", "lose replies", "resign", "stall", "wait"),
    thenMs: fc.nat(15_000),
  });

  it("never work at the same time, whatever requests or replies are lost, and tokens rise", async () => {
    let terms = 0;
    let losses = 0;
    const property = fc.asyncProperty(
      fc.array(step, { minLength: 3, maxLength: 25 }),
      fc.array(fc.nat(900), { minLength: 1, maxLength: 5 }),
      async (steps, stopMs) => {
        const { clock, all } = candidates(2, { commandTimeout: "1s" });
        const tokens: bigint[] = [];
        let atWork = 0;
        const over = new AbortController();
        const ends = all.map(async (one) => {
          while (!over.signal.aborted) {
            const run = one.election.runAsLeader(
              async (lease, stop) => {
                terms++;
                expect(++atWork, `token ${lease.token}`).toBe(1);
                expect(tokens.every((token) => token < lease.token)).toBe(true);
                tokens.push(lease.token);
                await new Promise<void>((resolve) => {
                  if (stop.aborted) resolve();
                  else stop.addEventListener("abort", () => resolve());
                });
                // For less time than abortBefore leaves.
                const ms = stopMs[tokens.length % stopMs.length]!;
                await new Promise<void>((resolve) => clock.after(ms, resolve));
                atWork--;
                if (lease.state === "lost") losses++;
              },
              { signal: over.signal },
            );
            const error = await run.then(
              () => null,
              (thrown) => thrown,
            );
            // The candidate resigned or the run is over; anything else was expected above.
            if (error !== null && error.name !== "AbortError") throw error;
          }
        });
        const failed = watch(Promise.all(ends));
        for (const { who, what, thenMs } of steps) {
          const { link, election } = all[who]!;
          if (what === "cut off") link.all = "hang";
          else if (what === "lose replies") link.all = "lose-reply";
          else if (what === "heal") link.all = "none";
          else if (what === "resign") election.resign();
          // The process stops for less time than abortBefore leaves.
          else if (what === "stall") clock.stall(50);
          await clock.advance(thenMs);
          if (failed.outcome === "rejected") throw failed.value;
        }
        for (const { link } of all) link.all = "none";
        over.abort();
        await clock.advance(60_000);
        expect(failed).toMatchObject({ outcome: "resolved" });
        const closed = Promise.all(all.map(({ locks }) => locks.close()));
        // For claims that have never got a reply.
        await clock.advance(LAST_REPLY_MS);
        await closed;
        expect(clock.timers).toBe(0);
      },
    );
    await fc.assert(property, runs(100));
    expect(terms).toBeGreaterThan(200);
    expect(losses).toBeGreaterThan(50);
  });
});
