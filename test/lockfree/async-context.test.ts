import { AsyncLocalStorage } from "node:async_hooks";
import { expect, onTestFinished, test } from "vitest";
import { createLocks, type Lease, LeaseLostError, type Locks } from "../../src/index.js";
import { idempotent, keyedQueue, rateLimiter } from "../../src/lockfree/index.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { Deferred, stage } from "../core/helpers.js";

/** The request that the code works for, as in a service. */
const request = new AsyncLocalStorage<string>();
const REENTRANT = { reentrant: true } as const;

function openLocks(): Locks {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  return locks;
}

type Run = (fn: () => Promise<unknown>) => Promise<unknown>;
const QUEUES: readonly (readonly [what: string, open: () => Run])[] = [
  [
    "without locks",
    () => {
      const queue = keyedQueue();
      return (fn) => queue.run("k", fn);
    },
  ],
  [
    "with locks",
    () => {
      const queue = keyedQueue(openLocks());
      return (fn) => queue.run("k", fn);
    },
  ],
];

test.each(QUEUES)("a task runs in the context of its caller, %s", async (_, open) => {
  const run = open();
  const seen: unknown[] = [];
  const one = (name: string) =>
    request.run(name, async () => {
      const value = await run(async () => {
        seen.push(request.getStore());
        await new Promise(setImmediate);
        seen.push(request.getStore());
        return name;
      });
      seen.push([value, request.getStore()]);
    });
  await Promise.all([one("ann"), one("bob")]);
  expect(seen).toEqual(["ann", "ann", ["ann", "ann"], "bob", "bob", ["bob", "bob"]]);
});

test.each(QUEUES)("a task joins no lease of the caller before it, %s", async (_, open) => {
  const locks = openLocks();
  const run = open();
  const [begun, end] = [new Deferred<void>(), new Deferred<void>()];
  const tokens: bigint[] = [];
  const outer = locks.withLock("order:7", REENTRANT, async (lease) => {
    tokens.push(lease.token);
    await run(async () => {
      begun.resolve();
      await end.promise;
    });
    // The queue is free again, and the order is still held here.
    await expect
      .poll(async () => (await locks.inspect("order:7"))?.waiting, { timeout: 10_000 })
      .toBe(1);
    expect(tokens.length).toBe(1);
  });
  await begun.promise;
  const other = run(() =>
    locks.withLock("order:7", REENTRANT, async (lease) => tokens.push(lease.token)),
  );
  end.resolve();
  await Promise.all([outer, other]);
  expect(tokens[1]).toBeGreaterThan(tokens[0]!);
});

test("a task's listeners join no lease of a caller whose task ran under the same lease", async () => {
  const locks = openLocks();
  const queue = keyedQueue(locks);
  const [annRuns, bobIsQueued] = [new Deferred<void>(), new Deferred<void>()];
  const tried = new Deferred<Lease | null>();
  const seen: unknown[] = [];
  const tokens: bigint[] = [];
  const ann = request.run("ann", () =>
    locks.withLock("order:7", REENTRANT, async (own) => {
      await queue.run("k", async (lease) => {
        tokens.push(lease.token);
        annRuns.resolve();
        await bobIsQueued.promise;
      });
      expect(await tried.promise).toBeNull();
      own.assertHeld();
    }),
  );
  await annRuns.promise;
  const bob = request.run("bob", () =>
    queue.run("k", async (lease) => {
      tokens.push(lease.token);
      lease.on("lost", () => seen.push(["lost", request.getStore()]));
      lease.signal.addEventListener("abort", () => {
        seen.push(["abort", request.getStore()]);
        locks.tryAcquire("order:7", REENTRANT).then(tried.resolve, tried.reject);
      });
      await locks.forceRelease("k", { why: "test" });
      await expect(lease.renew()).rejects.toThrow(LeaseLostError);
    }),
  );
  bobIsQueued.resolve();
  await expect(bob).rejects.toThrow(LeaseLostError);
  await ann;
  expect(tokens[1]).toBe(tokens[0]);
  expect(seen.sort()).toEqual([
    ["abort", "bob"],
    ["lost", "bob"],
  ]);
});

test("a task that has ended is not notified of a loss that comes later", async () => {
  const locks = openLocks();
  const queue = keyedQueue(locks);
  const seen: string[] = [];
  const first = queue.run("k", async (lease) => {
    lease.on("lost", () => seen.push("lost"));
    lease.signal.addEventListener("abort", () => seen.push("abort"));
    return lease.token;
  });
  const second = queue.run("k", async (lease) => {
    expect(lease.token).toBe(await first);
    await locks.forceRelease("k", { why: "test" });
    await expect(lease.renew()).rejects.toThrow(LeaseLostError);
    expect(lease.signal.reason).toMatchObject({ reason: "revoked" });
  });
  await expect(second).rejects.toThrow(LeaseLostError);
  expect(seen).toEqual([]);
});

/** How the lease of outer work is lost, or ends before a lease that has joined it. */
const ENDS: Record<string, (locks: Locks, outer: Lease) => Promise<unknown>> = {
  "the outer work ends": async () => {},
  "the outer lease is released": (_, outer) => outer.release(),
  "the outer lease is lost": async (locks, outer) => {
    await locks.forceRelease("a", { why: "test" });
    await expect(outer.renew()).rejects.toThrow(LeaseLostError);
  },
};

test.each(Object.entries(ENDS))(
  "listeners of a lease that has joined run in the context in which they were added, when %s",
  async (_, end) => {
    const locks = openLocks();
    const seen: string[] = [];
    const note = (what: string) => () => seen.push(`${what}: ${request.getStore()}`);
    const joined = (name: string) =>
      request.run(name, async () => {
        const inner = await locks.acquire("a", REENTRANT);
        inner.on("lost", note(`lost ${name}`));
        inner.signal.addEventListener("abort", note(`abort ${name}`));
      });
    await request.run("outer", () =>
      locks.withLock("a", { ...REENTRANT, onLost: "return" }, async (outer) => {
        await joined("ann");
        await joined("bob");
        outer.signal.addEventListener("abort", note("abort outer"));
        await end(locks, outer);
      }),
    );
    const ofOuter = end === ENDS["the outer lease is lost"] ? ["abort outer: outer"] : [];
    expect(seen.sort()).toEqual([
      "abort ann: ann",
      "abort bob: bob",
      ...ofOuter,
      "lost ann: ann",
      "lost bob: bob",
    ]);
  },
);

test("listeners of a lease run in the context in which they were added, those of its signal where it was first read", async () => {
  const { locks, store, clock } = stage({ ttl: "10s" });
  onTestFinished(() => locks.close());
  const seen: string[] = [];
  const hold = (name: string) =>
    request.run(name, async () => {
      const lease = await locks.acquire(name);
      const note = (what: string) => () => seen.push(`${what} ${name}: ${request.getStore()}`);
      lease.on("jeopardy", note("jeopardy"));
      lease.on("recovered", note("recovered"));
      lease.on("lost", note("lost"));
      const { signal } = lease;
      request.run("a later reader", () => signal.addEventListener("abort", note("abort")));
    });
  await hold("ann");
  await hold("bob");
  const apply = store.onRenew;
  store.onRenew = () => Promise.reject(new Error("no connection"));
  await clock.advance(5_000);
  store.onRenew = apply;
  await clock.advance(5_000);
  store.onRenew = () => Promise.reject(new Error("no connection"));
  await request.run("another request", () => clock.advance(20_000));
  expect(seen.sort()).toEqual(
    ["abort", "jeopardy", "jeopardy", "lost", "recovered"]
      .flatMap((what) => ["ann", "bob"].map((name) => `${what} ${name}: ${name}`))
      .sort(),
  );
});

test("a listener joins no lease of the flow from which it is called", async () => {
  const { locks, clock } = stage({ ttl: "10s" });
  onTestFinished(() => locks.close());
  const lease = await locks.acquire("own");
  const joined = new Deferred<Lease | null>();
  lease.on("lost", () => locks.tryAcquire("order:7", REENTRANT).then(joined.resolve));
  await locks.withLock("order:7", REENTRANT, async () => {
    await locks.forceRelease("own", { why: "test" });
    await clock.advance(10_000);
    expect(await joined.promise).toBeNull();
  });
});

/** Tools whose work runs in the caller's own flow, for two callers of which one waits for the other. */
const TOOLS: Record<string, (locks: Locks) => (work: () => Promise<void>) => Promise<unknown>> = {
  withLock: (locks) => (work) => locks.withLock("a", work),
  semaphore: (locks) => (work) => locks.semaphore("a", { permits: 1 }).withPermits(work),
  once: (locks) => (work) => locks.once("a", { every: "1h" }, work).then(work),
  "runAsLeader of two candidates": (locks) => (work) => locks.election("a").runAsLeader(work),
  "campaign of one candidate": (locks) => {
    const election = locks.election("a");
    return (work) => election.campaign().then(work);
  },
  idempotent: (locks) => async (work) => {
    await idempotent(locks, "a", { keep: "1h" }, async () => {
      await work();
    });
    await work();
  },
  rateLimiter: (locks) => {
    const limiter = rateLimiter(locks, "a", { limit: 1, per: 10, burst: 1 });
    return (work) => limiter.waitFor().then(work);
  },
};

test.each(Object.entries(TOOLS))("%s keeps the context of each caller", async (_, open) => {
  const run = open(openLocks());
  const seen: Record<string, unknown[]> = {};
  const one = (name: string) =>
    request.run(name, async () => {
      const all: unknown[] = [];
      seen[name] = all;
      await run(async () => {
        all.push(request.getStore());
        await new Promise(setImmediate);
        all.push(request.getStore());
      });
      all.push(request.getStore());
    });
  await Promise.all([one("ann"), one("bob")]);
  for (const [name, all] of Object.entries(seen)) expect(new Set(all)).toEqual(new Set([name]));
});
