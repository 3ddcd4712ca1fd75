import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, onTestFinished, test } from "vitest";
import { createLocks, type Lease, type Locks } from "../../src/index.js";
import { type KeyedQueue, keyedQueue } from "../../src/lockfree/index.js";
import { LaneQueue } from "../../src/lockfree/keyed-queue.js";
import { createLocksOn } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { Deferred, refusal, rejection, stage, travel, watch } from "../core/helpers.js";
import { describeOnStores } from "./stores.js";

const PATIENT = { timeout: 10_000 };
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Tasks that note when they begin and end. */
function journal(queue: KeyedQueue<never>) {
  const notes: string[] = [];
  let running = 0;
  let most = 0;
  const run = (key: string, name: string) =>
    queue.run(key, async () => {
      most = Math.max(most, ++running);
      notes.push(name);
      await turn();
      running--;
      return name;
    });
  return { notes, run, most: () => most };
}

function queueTests(make: () => Promise<KeyedQueue<never>>): void {
  test("tasks of a key run in order, one at a time; other keys run side by side", async () => {
    const queue = await make();
    const { notes, run, most } = journal(queue);
    const names = Array.from({ length: 20 }, (_, i) => `t${i}`);
    expect(await Promise.all(names.map((name) => run("a", name)))).toEqual(names);
    expect(notes).toEqual(names);
    expect(most()).toBe(1);
    const end = new Deferred<void>();
    const blocked = queue.run("a", () => end.promise);
    await run("b", "beside");
    end.resolve();
    await blocked;
  });

  test("an error of one task does not stop the others", async () => {
    const queue = await make();
    const { run } = journal(queue);
    const failed = rejection(queue.run("a", () => Promise.reject(new Error("own"))));
    const thrown = rejection(
      queue.run("a", () => {
        throw new Error("at once");
      }),
    );
    expect(await run("a", "next")).toBe("next");
    expect([(await failed).message, (await thrown).message]).toEqual(["own", "at once"]);
  });

  test("a task that waits can be aborted, and a long queue is refused", async () => {
    const queue = await make();
    const [begun, end] = [new Deferred<void>(), new Deferred<void>()];
    const first = queue.run("a", () => {
      begun.resolve();
      return end.promise;
    });
    await begun.promise;
    const controller = new AbortController();
    const aborted = rejection(queue.run("a", { signal: controller.signal }, () => "never"));
    const timedOut = rejection(queue.run("a", { wait: 1 }, () => "never"));
    controller.abort(new Error("enough"));
    expect((await aborted).message).toBe("enough");
    expect(await timedOut).toMatchObject({ code: "ACQUIRE_TIMEOUT", lockName: "a", waitMs: 1 });
    const waiting = Array.from({ length: 1_000 }, (_, i) => queue.run("a", () => i));
    await turn();
    const full = await rejection(queue.run("a", () => "never"));
    expect(full).toMatchObject({ code: "QUEUE_FULL" });
    expect(full.message).toMatch(/the queue of this process takes no more/);
    end.resolve();
    await Promise.all([first, ...waiting]);
    expect(queue.waiting()).toBe(0);
  });

  test("close runs what is queued, and takes no more", async () => {
    const queue = await make();
    const { notes, run } = journal(queue);
    const tasks = [run("a", "1"), run("a", "2"), run("b", "3")];
    const closing = queue.close();
    expect(await rejection(run("a", "late"))).toMatchObject({ code: "CLOSED" });
    await closing;
    expect(notes.sort()).toEqual(["1", "2", "3"]);
    await Promise.all(tasks);
  });
}

describe("without a store", () => queueTests(async () => keyedQueue() as KeyedQueue<never>));

describeOnStores((start) => {
  queueTests(async () => keyedQueue(await start()()) as KeyedQueue<never>);

  async function held() {
    const open = start();
    const [locks, other] = [await open(), await open()];
    const lease = await other.acquire("a");
    const waiting = async () => (await other.inspect("a"))?.waiting ?? 0;
    return { queue: keyedQueue(locks), lease, waiting };
  }

  test("tasks that are aborted leave no place in the queue of the store, and the others keep it", async () => {
    const { queue, lease, waiting } = await held();
    const [first, second] = [new AbortController(), new AbortController()];
    const tasks = [first, second].map(({ signal }) =>
      rejection(queue.run("a", { signal }, () => {})),
    );
    await expect.poll(waiting, PATIENT).toBe(1);
    first.abort(new Error("first"));
    expect((await tasks[0]!).message).toBe("first");
    expect(await waiting()).toBe(1);
    second.abort(new Error("second"));
    expect((await tasks[1]!).message).toBe("second");
    await expect.poll(waiting, PATIENT).toBe(0);
    const next = queue.run("a", () => "next");
    await lease.release();
    expect(await next).toBe("next");
  });

  test("close runs what waits, as soon as it can", async () => {
    const { queue, lease, waiting } = await held();
    const { notes, run } = journal(queue as KeyedQueue<never>);
    const tasks = [run("a", "1"), run("a", "2")];
    await expect.poll(waiting, PATIENT).toBe(1);
    const closing = watch(queue.close());
    await turn();
    expect([closing.outcome, notes]).toEqual(["pending", []]);
    await lease.release();
    await Promise.all(tasks);
    await expect.poll(() => closing.outcome, PATIENT).toBe("resolved");
    expect(notes).toEqual(["1", "2"]);
    expect(await waiting()).toBe(0);
  });

  test("close with grace gives up what waits, and its place", async () => {
    const { queue, waiting } = await held();
    const task = rejection(queue.run("a", () => "never"));
    await expect.poll(waiting, PATIENT).toBe(1);
    await queue.close({ grace: 10 });
    expect(await task).toMatchObject({ code: "CLOSED" });
    await expect.poll(waiting, PATIENT).toBe(0);
  });
});

/** Bytes of the heap that are in use after a collection. */
function heapBytes(): number {
  setFlagsFromString("--expose-gc");
  runInNewContext("gc")();
  return process.memoryUsage().heapUsed;
}

test("`most` limits the tasks of each key that wait, beside the one that runs", async () => {
  const locks = createLocks(memoryStore());
  onTestFinished(() => locks.close());
  const queues = [keyedQueue(undefined, { most: 2 }), keyedQueue(locks, { most: 2 })];
  for (const queue of queues as KeyedQueue<never>[]) {
    const end = new Deferred<void>();
    const [first, begun] = [new Deferred<void>(), [] as Promise<unknown>[]];
    const work = () => {
      first.resolve();
      return end.promise;
    };
    begun.push(queue.run("a", work));
    await first.promise;
    for (let i = 0; i < 2; i++) begun.push(queue.run("a", async () => {}));
    expect(await rejection(queue.run("a", async () => {}))).toMatchObject({ code: "QUEUE_FULL" });
    begun.push(queue.run("b", async () => {}));
    end.resolve();
    await Promise.all(begun);
  }
});

test.each([
  { what: "without a store", make: () => keyedQueue() as KeyedQueue<never> },
  {
    what: "with locks",
    make: () => {
      const locks = createLocks(memoryStore());
      onTestFinished(() => locks.close());
      return keyedQueue(locks) as KeyedQueue<never>;
    },
  },
])("keys whose tasks have ended leave nothing behind, $what", async ({ make }) => {
  const queue = make();
  const wave = async (name: string): Promise<void> => {
    const keys = Array.from({ length: 4_000 }, (_, i) => `${name}:${i}`);
    const ended = keys.map((key, i) =>
      queue.run(key, () => {
        if (i % 2 === 1) throw new Error("own");
      }),
    );
    await Promise.allSettled(ended);
    expect(queue.waiting()).toBe(0);
    // A key stays for one turn of the event loop, in case that another task is added.
    await turn();
    await turn();
  };
  await wave("warm up");
  const before = heapBytes();
  for (let i = 0; i < 5; i++) await wave(`wave ${i}`);
  // A key that is kept takes more than 300 bytes: 20,000 of them would be 6 MB.
  expect(heapBytes() - before).toBeLessThan(2_000_000);
});

test("close with grace drops what has not begun by then", async () => {
  const clock = new VirtualClock();
  const { runtime } = stage({}, { clock });
  const queue = new LaneQueue(null, {}, runtime);
  const end = new Deferred<string>();
  const running = watch(queue.run("a", () => end.promise));
  const waiting = watch(queue.run("a", () => "never"));
  const closing = watch(queue.close({ grace: 100 }));
  await clock.advance(99);
  expect(waiting.outcome).toBe("pending");
  await clock.advance(1);
  expect(waiting.value).toMatchObject({ code: "CLOSED" });
  expect(closing.outcome).toBe("pending");
  end.resolve("done");
  await clock.advance(0);
  expect([running.value, closing.outcome]).toEqual(["done", "resolved"]);
  expect(clock.timers).toBe(0);
});

test("further tasks of a process run under one lease, also if each is added after the last has ended", async () => {
  const { locks, store } = stage();
  onTestFinished(() => locks.close());
  const queue = keyedQueue(locks);
  await Promise.all(Array.from({ length: 10 }, () => queue.run("a", () => {})));
  for (let i = 0; i < 10; i++) await queue.run("a", () => {});
  await queue.close();
  expect(store.claims.length).toBeLessThanOrEqual(2);
});

test("another process gets its turn after a number of tasks, or some time", async () => {
  const clock = new VirtualClock();
  const store = memoryStore({ clock: clock.forStore() });
  const open = (): Locks => {
    const locks = createLocksOn({ clock }, store, { ttl: "10s" });
    onTestFinished(() => locks.close());
    return locks;
  };
  const notes: string[] = [];
  const task = (name: string, ms: number) => async () => {
    notes.push(name);
    await new Promise<void>((resolve) => void clock.after(ms, resolve));
  };
  const queue = keyedQueue(open(), { turnTasks: 3, turnTime: "10s" });
  for (let i = 0; i < 5; i++) void queue.run("a", task("own", 1));
  const slow = keyedQueue(open(), { turnTime: "1s" });
  for (let i = 0; i < 4; i++) void slow.run("a", task("slow", 600));
  await clock.advance(10_000);
  // Three by number; then two of the other by time (none begins after a second); and so on.
  expect(notes.join(" ")).toBe("own own own slow slow own own slow slow");
});

test("with wait: 0, a task runs if its key is free, also right after another task, and fails at once if not", async () => {
  const { locks, store, clock } = stage({ holder: "this process" });
  onTestFinished(() => locks.close());
  store.onClaim = (apply) => travel(clock, { thereMs: 10, backMs: 10, lost: "no" }, apply);
  const queue = keyedQueue(locks);
  const end = new Deferred<void>();
  const now = (work: () => unknown = () => "ran") => watch(queue.run("a", { wait: 0 }, work));
  const [free, second] = [now(), now()];
  await clock.advance(0);
  expect([free.outcome, second.value]).toMatchObject(["pending", { code: "ACQUIRE_TIMEOUT" }]);
  await clock.advance(20);
  expect(free.value).toBe("ran");
  const next = queue
    .run("a", () => "before")
    .then(() => queue.run("a", { wait: 0 }, () => "right after"));
  const after = watch(next);
  await clock.advance(40);
  expect(after.value).toBe("right after");
  const running = now(() => end.promise);
  await clock.advance(40);
  const behind = now();
  await clock.advance(0);
  expect(running.outcome).toBe("pending");
  expect(behind.value).toMatchObject({
    code: "ACQUIRE_TIMEOUT",
    waitMs: 0,
    holder: "this process",
  });
  end.resolve();
  await clock.advance(40);
  expect(running.outcome).toBe("resolved");
  const foreign = await createLocksOn({ clock }, store.inner, { holder: "the other" }).acquire("a");
  const [held, patient] = [now(), watch(queue.run("a", () => "patient"))];
  await clock.advance(20);
  expect(held.value).toMatchObject({ code: "ACQUIRE_TIMEOUT", waitMs: 0, holder: "the other" });
  await clock.advance(100);
  expect(patient.outcome).toBe("pending");
  await foreign.release();
  await clock.advance(1_000);
  expect(patient.value).toBe("patient");
});

test("a lost lease fails the running task, and the next one acquires anew", async () => {
  const { locks, store, clock } = stage({ ttl: "10s" });
  onTestFinished(() => locks.close());
  const queue = keyedQueue(locks);
  const end = new Deferred<string>();
  let tokens: bigint[] = [];
  const first = watch(
    queue.run("a", (lease) => {
      tokens = [...tokens, lease.token];
      return end.promise;
    }),
  );
  const second = watch(
    queue.run("a", (lease) => {
      tokens = [...tokens, lease.token];
      return "second";
    }),
  );
  await clock.advance(0);
  await locks.forceRelease("a", { why: "test" });
  await clock.advance(5_000);
  // One at a time: the next does not begin before the first has ended.
  expect([first.outcome, second.outcome]).toEqual(["pending", "pending"]);
  end.resolve("first");
  await clock.advance(0);
  expect(first.value).toMatchObject({ code: "LEASE_LOST", reason: "revoked", value: "first" });
  expect(second.value).toBe("second");
  expect(tokens[1]).toBeGreaterThan(tokens[0]!);
  expect(store.claims.length).toBe(2);
});

test.each([
  {
    what: "the machine may have been frozen",
    end: (_lease: Lease, clock: VirtualClock) => clock.jumpWall(60_000),
    first: { outcome: "resolved" },
  },
  {
    what: "the process was stopped for longer than the ttl",
    end: (_lease: Lease, clock: VirtualClock) => clock.stall(60_000),
    first: { outcome: "rejected", value: { code: "LEASE_LOST", reason: "expired" } },
  },
  {
    what: "a task has released the lease itself",
    end: (lease: Lease) => lease.release(),
    first: { outcome: "resolved" },
  },
])("$what: a task that has not begun gets another lease, and no error", async ({ end, first }) => {
  const { locks, store, clock } = stage({ ttl: "10s" });
  onTestFinished(() => locks.close());
  const queue = keyedQueue(locks);
  const tokens: bigint[] = [];
  const ran = watch(
    queue.run("a", async (lease) => {
      tokens.push(lease.token);
      await end(lease, clock);
    }),
  );
  const next = watch(queue.run("a", (lease) => tokens.push(lease.token)));
  await clock.advance(1_000);
  expect(ran).toMatchObject(first);
  expect(next).toEqual({ outcome: "resolved", value: 2 });
  expect(tokens[1]).toBeGreaterThan(tokens[0]!);
  expect(store.claims.length).toBe(2);
});

test("close waits for a task whose wait is over until it has its error", async () => {
  const clock = new VirtualClock();
  const faulty = new FaultyStore(memoryStore({ clock: clock.forStore() }), clock);
  const locks = createLocksOn({ clock }, faulty, { commandTimeout: "1s" });
  onTestFinished(() => locks.close());
  faulty.all = "refuse";
  faulty.inspect = () => new Promise(() => {});
  const queue = keyedQueue(locks);
  const task = watch(queue.run("a", { wait: 2_000 }, () => "never"));
  await clock.advance(2_000);
  const outcomes: string[] = [];
  void queue.close().then(() => outcomes.push(task.outcome));
  await clock.advance(249);
  expect([task.outcome, outcomes]).toEqual(["pending", []]);
  await clock.advance(1);
  expect(task.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
  expect(outcomes).toEqual(["rejected"]);
});

test("a task that waits for another of its own key waits for itself, and its error names this process", async () => {
  const { locks, clock } = stage({ holder: "this process" });
  onTestFinished(() => locks.close());
  const queue = keyedQueue(locks);
  let added: Promise<string> | undefined;
  const inner = watch(
    queue.run("a", async () => {
      added = queue.run("a", () => "added inside");
      await queue.run("a", { wait: 1_000 }, () => "never");
    }),
  );
  await clock.advance(999);
  expect(inner.outcome).toBe("pending");
  await clock.advance(1);
  expect(inner.value).toMatchObject({ code: "ACQUIRE_TIMEOUT", holder: "this process" });
  // Added and not awaited inside: it runs when its turn has come.
  expect(await added).toBe("added inside");
});

test("a wait that ends in an outage is StoreUnavailableError, and one for a holder names it", async () => {
  const clock = new VirtualClock();
  const inner = memoryStore({ clock: clock.forStore() });
  const faulty = new FaultyStore(inner, clock);
  const locks = createLocksOn({ clock }, faulty, { commandTimeout: "1s" });
  const other = createLocksOn({ clock }, inner, { holder: "the other" });
  onTestFinished(async () => {
    faulty.all = "none";
    await Promise.all([locks.close(), other.close()]);
  });
  const queue = keyedQueue(locks);
  const lease = await other.acquire("held");
  const busy = watch(queue.run("held", { wait: 2_000 }, () => "never"));
  await clock.advance(3_000);
  expect(busy.value).toMatchObject({ code: "ACQUIRE_TIMEOUT", holder: "the other", waitMs: 2_000 });
  await lease.release();
  faulty.all = "refuse";
  faulty.inspect = () => Promise.reject(new Error("connection refused"));
  const down = watch(queue.run("free", { wait: 2_000 }, () => "never"));
  await clock.advance(3_000);
  expect(down.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
  faulty.inspect = () => new Promise(() => {});
  const silent = watch(queue.run("free", { wait: 2_000 }, () => "never"));
  await clock.advance(2_300);
  expect(silent.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
  // The process is stopped, and reads the reply after its timers.
  const reply = new Deferred<null>();
  faulty.inspect = () => reply.promise;
  const stopped = watch(queue.run("free", { wait: 2_000 }, () => "never"));
  await clock.advance(2_000);
  clock.stall(5_000);
  await clock.advance(0);
  reply.resolve(null);
  await clock.advance(0);
  expect(stopped.value).toMatchObject({ code: "ACQUIRE_TIMEOUT" });
});

test.each([
  [{ most: 0 }, /most is 0/],
  [{ most: -1 }, /most is -1/],
  [{ most: 1.5 }, /most is 1.5/],
  [{ most: Number.NaN }, /most is NaN/],
  [{ most: "9" }, /most is "9"/],
  [{ turnTasks: 0 }, /turnTasks is 0/],
  [{ turnTasks: Number.POSITIVE_INFINITY }, /turnTasks is Infinity/],
  [{ turnTime: -1 }, /turnTime is -1/],
  [{ turnTime: Number.NaN }, /turnTime is NaN/],
  [{ turnTime: "1 s" }, /turnTime is "1 s"/],
  [{ ttl: 0 }, /ttl is 0/],
  [{ ttl: "soon" }, /ttl is "soon"/],
  [{ renew: "no" }, /renew is "no"/],
  [{ maxHold: -1 }, /maxHold is -1/],
  [{ maxHold: Number.NaN }, /maxHold is NaN/],
  [{ abortBefore: "60s" }, /abortBefore of 60000 ms/],
  [{ note: 5 }, /note is 5/],
  [{ wait: 5 }, /no option "wait"/],
  [null, /options of keyedQueue are null/],
])("the options %j are refused when the queue is made", (options, message) => {
  const { locks } = stage();
  onTestFinished(() => locks.close());
  expect(refusal(() => keyedQueue(locks, options as never)).message).toMatch(message);
});

test("bad arguments of calls are refused, and queue nothing", async () => {
  const { locks, store } = stage();
  onTestFinished(() => locks.close());
  const queue = keyedQueue(locks);
  const bad = [
    { wait: -1 },
    { wait: Number.NaN },
    { wait: "later" },
    { wait: null },
    { signal: {} },
  ];
  for (const options of [...bad, { wiat: 5 }, null]) {
    const error = await rejection(queue.run("a", options as never, () => {}));
    expect(error, JSON.stringify(options)).toMatchObject({ code: "INVALID_ARGUMENT" });
  }
  for (const key of ["", "x".repeat(256), 7, undefined]) {
    expect(await rejection(queue.run(key as string, () => {}))).toMatchObject({
      code: "INVALID_ARGUMENT",
    });
  }
  expect(await rejection(queue.run("a", undefined as never))).toMatchObject({
    code: "INVALID_ARGUMENT",
  });
  for (const grace of [-1, Number.NaN, "x"]) {
    const error = await rejection(queue.close({ grace: grace as number }));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
  }
  expect([queue.waiting(), store.claims.length, await queue.run("a", () => 1)]).toEqual([0, 0, 1]);
  expect(refusal(() => keyedQueue(null as never)).message).toMatch(/null/);
});
