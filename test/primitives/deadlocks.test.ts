import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { LOCK_LIMIT, modeOf, type NameInfo } from "../../src/core/store.js";
import { createLocks, createLocksOn, type Locks } from "../../src/locks.js";
import { type Deadlock, findDeadlocks } from "../../src/primitives/deadlocks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { fixedRandom, watch } from "../core/helpers.js";
import { runs } from "../support/chance.js";

interface Part {
  readonly label: string;
  readonly permits: number;
  readonly closed?: boolean;
}

/** One name, as a test writes it down. */
interface Drawn {
  readonly name: string;
  readonly limit: number;
  readonly holders: readonly Part[];
  readonly queue: readonly Part[];
}

const parts = (all: string, permits: number): Part[] =>
  all
    .split(" ")
    .filter((one) => one !== "")
    .map((one) => {
      const [label, some] = one.split(":");
      return { label: label!, permits: some === undefined ? permits : Number(some) };
    });

const lock = (name: string, holders: string, queue: string): Drawn => ({
  name,
  limit: LOCK_LIMIT,
  holders: parts(holders, LOCK_LIMIT),
  queue: parts(queue, LOCK_LIMIT),
});

/** A semaphore; each client holds or waits for one permit, or for `label:permits`. */
const semaphore = (name: string, limit: number, holders: string, queue: string): Drawn => ({
  name,
  limit,
  holders: parts(holders, 1),
  queue: parts(queue, 1),
});

/** A lock that readers hold; those who wait want to write, or to read if written `label:1`. */
const readers = (name: string, holders: string, queue: string): Drawn => ({
  ...lock(name, "", queue),
  holders: parts(holders, 1),
});

function infoOf({ name, limit, holders, queue }: Drawn): NameInfo {
  return {
    name,
    limit,
    waiting: queue.length,
    holders: holders.map(({ label, permits, closed = false }, i) => ({
      holder: label,
      mode: modeOf({ permits, limit }),
      token: BigInt(i + 1),
      permits,
      heldMs: 1_000,
      expiresInMs: 1_000,
      closed,
    })),
    waiters: queue.map(({ label, permits }, i) => ({
      holder: label,
      mode: modeOf({ permits, limit }),
      permits,
      waitingMs: 1_000 - i,
      expiresInMs: 1_000,
    })),
    revoked: [],
  };
}

const find = (...all: Drawn[]): Promise<readonly Deadlock[]> => findDeadlocks(all.map(infoOf));

/** `["A waits for b of B", …]` */
const describeCircles = (found: readonly Deadlock[]): string[][] =>
  found.map((circle) =>
    circle.map((one) => `${one.holder} waits for ${one.waitsFor} of ${one.blockedBy}`),
  );

describe("findDeadlocks", () => {
  it("finds two clients that each hold what the other waits for, and lists what each of them holds", async () => {
    const found = await find(lock("x", "A", "B"), lock("y", "B", "A"), lock("z", "A", ""));
    expect(found).toEqual([
      [
        { holder: "A", waitsFor: "y", waitingMs: 1_000, blockedBy: "B", holds: ["x", "z"] },
        { holder: "B", waitsFor: "x", waitingMs: 1_000, blockedBy: "A", holds: ["y"] },
      ],
    ]);
  });

  it("finds nothing where somebody can go on", async () => {
    expect(await find()).toEqual([]);
    expect(await find(lock("x", "A", ""))).toEqual([]);
    expect(await find(lock("x", "A", "B C"))).toEqual([]);
    expect(await find(lock("x", "A", "B"), lock("y", "B", "C"), lock("z", "C", "D"))).toEqual([]);
  });

  it("reports three clients in a circle as one deadlock, in whatever order the names are listed", async () => {
    const circle = [lock("x", "A", "C"), lock("y", "B", "A"), lock("z", "C", "B")];
    for (const order of [circle, circle.toReversed()]) {
      expect(describeCircles(await find(...order))).toEqual([
        ["A waits for y of B", "B waits for z of C", "C waits for x of A"],
      ]);
    }
  });

  it("reports two circles as two deadlocks", async () => {
    const found = await find(
      lock("x", "A", "B"),
      lock("y", "B", "A"),
      lock("v", "C", "D"),
      lock("w", "D", "C"),
    );
    expect(found.map((circle) => circle.map(({ holder }) => holder))).toEqual([
      ["A", "B"],
      ["C", "D"],
    ]);
  });

  it("leaves out a client that is stuck behind a circle but not part of it", async () => {
    const found = await find(
      lock("x", "A", "B victim"),
      lock("y", "B", "A"),
      lock("z", "victim", "behind"),
    );
    expect(describeCircles(found)).toEqual([["A waits for y of B", "B waits for x of A"]]);
  });

  it("finds two readers that both want to write; one alone is no deadlock", async () => {
    expect(describeCircles(await find(readers("x", "A B", "A B")))).toEqual([
      ["A waits for x of B", "B waits for x of A"],
    ]);
    expect(await find(readers("x", "A", "A"))).toEqual([]);
    expect(await find(readers("x", "A B", "A"))).toEqual([]);
  });

  it("finds a reader that holds up a writer and waits for it by another name", async () => {
    // B has read x, and wants y; A holds y, and wants to write x. C reads x and will end.
    expect(describeCircles(await find(readers("x", "B C", "A"), lock("y", "A", "B")))).toEqual([
      ["A waits for x of B", "B waits for y of A"],
    ]);
    // B wants to read x too, but stands behind the writer.
    expect(describeCircles(await find(readers("x", "D", "A B:1"), lock("y", "B", "D")))).toEqual([
      ["A waits for x of D", "D waits for y of B", "B waits for x of A"],
    ]);
  });

  it("finds no deadlock among permits when others will come free", async () => {
    // A and B wait for each other, but C will release one permit, which B can have.
    expect(await find(semaphore("s", 2, "A C", "B"), lock("y", "B", "A"))).toEqual([]);
    expect(await find(semaphore("s", 3, "A C", "B:2"), lock("y", "B", "A"))).toEqual([]);
    expect(
      describeCircles(await find(semaphore("s", 3, "A C", "B:3"), lock("y", "B", "A"))),
    ).toEqual([["A waits for y of B", "B waits for s of A"]]);
    // It is a deadlock if C waits too.
    expect(
      describeCircles(await find(semaphore("s", 2, "A C", "B"), lock("y", "B", "A C"))),
    ).toEqual([
      ["A waits for y of B", "B waits for s of A"],
      ["C waits for y of B", "B waits for s of C"],
    ]);
  });

  it("counts a waiter as blocked by the ticket in front of it, even if its own permits would fit", async () => {
    // One permit is free, but B:2 is first in line and waits for A, who waits for C behind B.
    const found = await find(semaphore("s", 3, "A:2", "B:2 C"), lock("y", "C", "A"));
    expect(describeCircles(found)).toEqual([
      ["A waits for y of C", "C waits for s of B", "B waits for s of A"],
    ]);
    const without = await find(semaphore("s", 3, "A:2", "C"), lock("y", "C", "A"));
    expect(without).toEqual([]);
  });

  it("takes one label for one client: it does not block itself, and goes on only when all its waits end", async () => {
    expect(await find(lock("x", "A", "A A"))).toEqual([]);
    expect(await find(lock("x", "A", "A B"), lock("y", "A", "B"))).toEqual([]);
    // A's ticket on z is granted when C ends; the one on y is not.
    expect(
      describeCircles(await find(lock("x", "A", "B"), lock("y", "B", "A"), lock("z", "C", "A"))),
    ).toEqual([["A waits for y of B", "B waits for x of A"]]);
    // A waits twice, in two different circles.
    const twice = await find(lock("w", "A", "B C"), lock("x", "B", "A"), lock("y", "C", "A"));
    expect(twice.flat().map(({ holder }) => holder)).toEqual(
      expect.arrayContaining(["A", "B", "C"]),
    );
  });

  it("knows that a name that atLeast keeps closed opens by itself", async () => {
    const closed = {
      ...lock("x", "", "B"),
      holders: [{ label: "A", permits: LOCK_LIMIT, closed: true }],
    };
    expect(await find(closed, lock("y", "B", "A"))).toEqual([]);
    const [[a]] = (await find(closed, lock("y", "B", "A"), lock("v", "A", "B"))) as [Deadlock];
    expect(a!.holds).toEqual(["v"]);
  });

  it("takes labels that are words of JavaScript, such as __proto__", async () => {
    expect(
      describeCircles(
        await find(lock("x", "__proto__", "constructor"), lock("y", "constructor", "__proto__")),
      ),
    ).toEqual([["__proto__ waits for y of constructor", "constructor waits for x of __proto__"]]);
  });

  it("searches 16,000 names in many turns of the event loop, in time that grows linearly", async () => {
    const count = 8_000;
    // Each client waits for the one before: the last of the list goes on first.
    const chain = Array.from({ length: count }, (_, i) => lock(`n${i}`, `w${i + 1}`, `w${i}`));
    const circle = Array.from({ length: count }, (_, i) =>
      lock(`c${i}`, `v${i}`, `v${(i + 1) % count}`),
    );
    let turns = 0;
    let done = false;
    const countTurn = (): void => {
      turns++;
      if (!done) setImmediate(countTurn);
    };
    setImmediate(countTurn);
    expect(await find(...chain)).toEqual([]);
    expect(turns).toBeGreaterThan(10);
    const [one, ...others] = await find(...chain, ...circle);
    done = true;
    expect([one?.length, others]).toEqual([count, []]);
    expect(turns).toBeGreaterThan(20);
  }, 60_000);

  it("agrees with a search of all orders in which clients can end", async () => {
    let stuckStates = 0;
    await fc.assert(
      fc.asyncProperty(states, async (state) => {
        const stuck = neverFinish(state);
        if (stuck.size > 0) stuckStates++;
        const before = structuredClone(state);
        const found = await find(...state);
        expect(state).toEqual(before);
        expect(found.length > 0).toBe(stuck.size > 0);
        const inCircles = new Set(found.flat().map(({ holder }) => holder));
        for (const label of inCircles) expect(stuck).toContain(label);
        const next = blockersOf(state, stuck);
        for (const circle of found) checkCircle(state, next, circle);
        // Every client that is in a circle is reported.
        for (const label of stuck) expect(inCircles.has(label)).toBe(comesBack(next, label));
      }),
      runs(1_000),
    );
    expect(stuckStates).toBeGreaterThan(50);
  });
});

// A small state, and the truth about it, found by trying everything.

const label = fc.constantFrom("A", "B", "C", "D");
const states: fc.Arbitrary<Drawn[]> = fc
  .array(
    fc.record({
      limit: fc.constantFrom(1, 2, 3),
      claims: fc.array(fc.record({ label, permits: fc.integer({ min: 1, max: 3 }) }), {
        maxLength: 5,
      }),
    }),
    { minLength: 1, maxLength: 4 },
  )
  .map((all) =>
    all.map(({ limit, claims }, i) => {
      const holders: Part[] = [];
      const queue: Part[] = [];
      for (const claim of claims) {
        const part = { ...claim, permits: Math.min(claim.permits, limit) };
        const inUse = holders.reduce((sum, { permits }) => sum + permits, 0);
        if (queue.length === 0 && inUse + part.permits <= limit) holders.push(part);
        else queue.push(part);
      }
      return { name: `n${i}`, limit, holders, queue };
    }),
  );

/** Tries every order in which clients that wait for nothing can release something. */
function neverFinish(state: readonly Drawn[]): Set<string> {
  const stuck = new Set(state.flatMap(({ queue }) => queue.map((one) => one.label)));
  const seen = new Set<string>();
  const explore = (now: readonly Drawn[]): void => {
    const key = JSON.stringify(now);
    if (seen.has(key)) return;
    seen.add(key);
    const waiting = new Set(now.flatMap(({ queue }) => queue.map((one) => one.label)));
    for (const one of [...stuck]) if (!waiting.has(one)) stuck.delete(one);
    now.forEach((place, i) => {
      const [first, ...behind] = place.queue;
      if (first !== undefined) {
        const others = place.holders.filter((one) => one.label !== first.label);
        const inUse = others.reduce((sum, { permits }) => sum + permits, 0);
        if (inUse + first.permits <= place.limit) {
          explore(now.with(i, { ...place, holders: [...place.holders, first], queue: behind }));
        }
      }
      place.holders.forEach((holder, j) => {
        if (waiting.has(holder.label)) return;
        explore(now.with(i, { ...place, holders: place.holders.toSpliced(j, 1) }));
      });
    });
  };
  explore(state);
  return stuck;
}

/** For each stuck client, the stuck clients that block it: those in front of it, or with what it needs. */
function blockersOf(state: readonly Drawn[], stuck: ReadonlySet<string>): Map<string, Set<string>> {
  const next = new Map([...stuck].map((one) => [one, new Set<string>()]));
  for (const { limit, holders, queue } of remains(state, stuck)) {
    queue.forEach((one, i) => {
      const others = holders.filter((other) => other.label !== one.label);
      const needed = others.reduce((sum, { permits }) => sum + permits, one.permits);
      const inTheWay = [...(needed > limit ? others : []), ...queue.slice(0, i)];
      for (const other of inTheWay) {
        if (other.label !== one.label) next.get(one.label)!.add(other.label);
      }
    });
  }
  return next;
}

/** The clients that are left when everybody who can go on has ended. */
function remains(state: readonly Drawn[], stuck: ReadonlySet<string>): readonly Drawn[] {
  const now = state.map((place) => ({
    ...place,
    queue: [...place.queue],
    holders: [...place.holders],
  }));
  for (let moved = true; moved; ) {
    moved = false;
    for (const place of now) {
      const staying = place.holders.filter((one) => stuck.has(one.label));
      moved ||= staying.length < place.holders.length;
      place.holders = staying;
      const first = place.queue[0];
      if (first === undefined) continue;
      const others = place.holders.filter((one) => one.label !== first.label);
      if (others.reduce((sum, { permits }) => sum + permits, first.permits) > place.limit) continue;
      place.holders.push(place.queue.shift()!);
      moved = true;
    }
  }
  return now;
}

function comesBack(next: Map<string, Set<string>>, from: string): boolean {
  const reached = new Set<string>();
  const go = (at: string): void => {
    for (const one of next.get(at) ?? []) {
      if (reached.has(one)) continue;
      reached.add(one);
      go(one);
    }
  };
  go(from);
  return reached.has(from);
}

/** Each link of the circle is in the state, and the last leads to the first. */
function checkCircle(
  state: readonly Drawn[],
  next: Map<string, Set<string>>,
  circle: Deadlock,
): void {
  expect(new Set(circle.map(({ holder }) => holder)).size).toBe(circle.length);
  circle.forEach((one, i) => {
    expect(one.blockedBy).toBe(circle[(i + 1) % circle.length]!.holder);
    expect(next.get(one.holder)).toContain(one.blockedBy);
    const place = state.find(({ name }) => name === one.waitsFor)!;
    const at = place.queue.findLastIndex((ticket) => ticket.label === one.holder);
    expect(at).not.toBe(-1);
    const before = [...place.holders, ...place.queue.slice(0, at)];
    expect(before.map((other) => other.label)).toContain(one.blockedBy);
    const held = state.filter(({ holders }) => holders.some((other) => other.label === one.holder));
    expect(one.holds).toEqual(held.map(({ name }) => name));
  });
}

describe("locks.deadlocks", () => {
  interface Scene {
    readonly clock: VirtualClock;
    readonly a: Locks;
    readonly b: Locks;
    readonly watcher: Locks;
    /** Runs before the store's n-th list. */
    beforeList: (n: number) => void | Promise<void>;
    lists: number;
  }

  function scene(): Scene {
    const clock = new VirtualClock();
    const store = memoryStore({ clock: clock.forStore() });
    const locksOf = (holder: string, on = delegate(store)): Locks =>
      createLocksOn({ clock, random: fixedRandom(0.5, holder) }, on, { holder, wait: "1h" });
    const made: Scene = {
      clock,
      a: locksOf("A"),
      b: locksOf("B"),
      watcher: locksOf("watcher", {
        ...delegate(store),
        list: async (prefix, limit) => {
          made.lists++;
          await made.beforeList(made.lists);
          return store.list(prefix, limit);
        },
      }),
      beforeList: () => {},
      lists: 0,
    };
    return made;
  }

  /** Each holds one name and waits for the other's. */
  async function stuck(on: Scene) {
    const x = await on.a.acquire("x");
    const y = await on.b.acquire("y");
    const abort = new AbortController();
    const forY = on.a.acquire("y", { signal: abort.signal });
    await on.clock.advance(50);
    const forX = on.b.acquire("x");
    for (const one of [forX, forY]) one.catch(() => {});
    await on.clock.advance(100);
    return { x, y, forX, forY, abort };
  }

  it("reports a circle with the names that users know, and reads the store twice only if it finds one", async () => {
    const on = scene();
    expect(await on.watcher.deadlocks()).toEqual([]);
    expect(on.lists).toBe(1);
    const { x, forX } = await stuck(on);
    expect(await on.watcher.deadlocks()).toEqual([
      [
        { holder: "A", waitsFor: "y", waitingMs: 150, blockedBy: "B", holds: ["x"] },
        { holder: "B", waitsFor: "x", waitingMs: 100, blockedBy: "A", holds: ["y"] },
      ],
    ]);
    expect(on.lists).toBe(3);
    const forXs = watch(forX);
    await x.release();
    await on.clock.advance(0);
    expect(forXs.outcome).toBe("resolved");
    expect(await on.watcher.deadlocks()).toEqual([]);
  });

  it("refuses a store that does not know who waits: its reply would always be that there is none", async () => {
    const store = delegate(memoryStore());
    const locks = createLocks({
      ...store,
      traits: { ...store.traits, store: "poor", fair: false },
    });
    await expect(locks.deadlocks()).rejects.toMatchObject({
      code: "UNSUPPORTED",
      message: expect.stringMatching(/on poor: .* nobody sees who waits; .* acquireAll/),
    });
    await locks.close();
  });

  it("does not report a deadlock that a release or an abort has ended between the two reads", async () => {
    const release = scene();
    const { x } = await stuck(release);
    release.beforeList = async (n) => {
      if (n === 2) await x.release();
    };
    expect(await release.watcher.deadlocks()).toEqual([]);

    const aborted = scene();
    const { abort } = await stuck(aborted);
    aborted.beforeList = (n) => {
      if (n === 2) abort.abort();
    };
    expect(await aborted.watcher.deadlocks()).toEqual([]);
    expect(aborted.lists).toBe(2);
  });

  it("does not report a deadlock if a name was granted anew between the two reads", async () => {
    const on = scene();
    const x = await on.a.acquire("x");
    // A waits for x once more, in front of B: it holds x all the time, but under two grants.
    on.a.acquire("x").catch(() => {});
    await on.b.acquire("y");
    on.b.acquire("x").catch(() => {});
    on.a.acquire("y").catch(() => {});
    await on.clock.advance(100);
    on.beforeList = async (n) => {
      if (n === 2) await x.release();
    };
    expect(await on.watcher.deadlocks()).toEqual([]);
    expect(await on.watcher.deadlocks()).toHaveLength(1);
  });

  it("does not report a deadlock if a waiter has a new ticket at the second read", async () => {
    const on = scene();
    const { abort } = await stuck(on);
    on.beforeList = async (n) => {
      if (n !== 2) return;
      // A gave up and waits again: it has not waited all the time between the reads.
      abort.abort();
      await on.clock.advance(1_000);
      on.a.acquire("y").catch(() => {});
      await on.clock.advance(100);
    };
    expect(await on.watcher.deadlocks()).toEqual([]);
    // If nothing changes between the reads, the next call reports the deadlock.
    expect(await on.watcher.deadlocks()).toHaveLength(1);
  });
});
