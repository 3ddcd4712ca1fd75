import { expect, onTestFinished, test } from "vitest";
import type { Locks } from "../../src/index.js";
import { idempotent } from "../../src/lockfree/index.js";
import { createLocksOn } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { delegate } from "../../src/testing/delegate.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { Deferred, rejection, watch } from "../core/helpers.js";
import { describeOnStores } from "./stores.js";

const KEEP = { keep: "1h" } as const;

describeOnStores((start) => {
  test("the same key gives the same result, and the work is done once", async () => {
    const open = start();
    const [one, other] = [await open(), await open()];
    let runs = 0;
    const result = { id: 7, list: [1, "two", null, { deep: true }], text: "é\u2028" };
    const work = async () => {
      runs++;
      return result;
    };
    expect(await idempotent(one, "charge:1", KEEP, work)).toEqual(result);
    expect(await idempotent(one, "charge:1", KEEP, work)).toEqual(result);
    expect(await idempotent(other, "charge:1", KEEP, work)).toEqual(result);
    expect(runs).toBe(1);
    await idempotent(other, "charge:2", KEEP, work);
    expect(runs).toBe(2);
  });

  test("concurrent callers wait for the first, and without a wait are told that it is in progress", async () => {
    const open = start();
    const [one, other] = [await open(), await open()];
    const begun = new Deferred<void>();
    const end = new Deferred<string>();
    const first = idempotent(one, "k", KEEP, () => {
      begun.resolve();
      return end.promise;
    });
    await begun.promise;
    const never = () => {
      throw new Error("the work was done twice");
    };
    const waiting = [one, other, other].map((locks) => idempotent(locks, "k", KEEP, never));
    const error = await rejection(idempotent(other, "k", { ...KEEP, wait: 0 }, never));
    expect(error).toMatchObject({ code: "IN_PROGRESS", key: "k", retryable: true });
    end.resolve("result");
    expect(await Promise.all([first, ...waiting])).toEqual([
      "result",
      "result",
      "result",
      "result",
    ]);
  });

  test("another fingerprint under the same key is an error, while the work runs and after it", async () => {
    const locks = await start()();
    const by = (fingerprint: string) => ({ ...KEEP, fingerprint });
    await idempotent(locks, "k", by("a"), async () => {
      const during = await rejection(idempotent(locks, "k", by("b"), () => 0));
      expect(during).toMatchObject({ code: "OTHER_REQUEST", key: "k", retryable: false });
      return 1;
    });
    expect(await idempotent(locks, "k", by("a"), () => 2)).toBe(1);
    expect(await rejection(idempotent(locks, "k", by("b"), () => 2))).toMatchObject({
      code: "OTHER_REQUEST",
    });
    expect(await idempotent(locks, "k", KEEP, () => 2)).toBe(1);
  });

  test("a failure is kept by choice; otherwise the next caller does the work again", async () => {
    const locks = await start()();
    const fail = (message: string) => async () => {
      throw Object.assign(new TypeError(message), { code: "E_CARD" });
    };
    expect((await rejection(idempotent(locks, "k", KEEP, fail("first")))).message).toBe("first");
    const keeping = { ...KEEP, keepFailures: (error: unknown) => error instanceof TypeError };
    expect((await rejection(idempotent(locks, "k", keeping, fail("second")))).message).toBe(
      "second",
    );
    expect(await rejection(idempotent(locks, "k", KEEP, () => "never"))).toMatchObject({
      code: "STORED_FAILURE",
      failure: { name: "TypeError", message: "second", code: "E_CARD" },
    });
  });

  test("after a failure that is not kept, the key is free for another request", async () => {
    const locks = await start()();
    const by = (fingerprint: string) => ({ ...KEEP, fingerprint });
    const fail = () => Promise.reject(new Error("declined"));
    expect((await rejection(idempotent(locks, "k", by("a"), fail))).message).toBe("declined");
    expect(await idempotent(locks, "k", by("b"), () => "b")).toBe("b");
  });

  test("a result that can't be kept is an error, and nobody does the work again", async () => {
    const locks = await start()();
    const error = await rejection(idempotent(locks, "k", KEEP, () => ({ at: [new Date()] })));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(error.message).toMatch(/is done, but .*the result\.at\[0\] is a Date.*codec/);
    expect((await rejection(idempotent(locks, "k", KEEP, () => "again"))).message).toBe(
      error.message,
    );
    const big = await rejection(idempotent(locks, "big", KEEP, () => "é".repeat(500_000)));
    expect(big.message).toMatch(/1000\d\d\d? bytes|bytes as text/);
    const codec = {
      encode: (at: Date) => at.toISOString(),
      decode: (text: string) => new Date(text),
    };
    const at = new Date(5);
    expect(await idempotent(locks, "date", { ...KEEP, codec }, () => at)).toEqual(at);
    expect(await idempotent(locks, "date", { ...KEEP, codec }, () => new Date())).toEqual(at);
  });
});

test.each([
  ["a nested undefined", { a: undefined }],
  ["a bigint", 1n],
  ["a Map", new Map()],
  ["NaN", [Number.NaN]],
  ["a hole", Array(2)],
  ["a class", new (class Own {})()],
  ["toJSON", { toJSON: () => 1 }],
  ["a symbol as key", { [Symbol("a")]: 1 }],
  [
    "a circle",
    (() => {
      const a: unknown[] = [];
      a.push(a);
      return a;
    })(),
  ],
])("JSON would change %s, so it is refused", async (_, value) => {
  const locks = createLocksOn({}, memoryStore());
  onTestFinished(() => locks.close());
  const error = await rejection(idempotent<unknown>(locks, "k", KEEP, () => value));
  expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
});

test.each([[undefined], [null], [0], [""], [{}], [Object.create(null)], [[["__proto__"]]]])(
  "%j comes back as it was",
  async (value) => {
    const locks = createLocksOn({}, memoryStore());
    onTestFinished(() => locks.close());
    await idempotent<unknown>(locks, "k", KEEP, () => value);
    expect(await idempotent<unknown>(locks, "k", KEEP, () => "other")).toEqual(value);
  },
);

/** Two processes on one store and a virtual clock; the requests of the first can fail. */
function twoProcesses() {
  const clock = new VirtualClock();
  const store = memoryStore({ clock: clock.forStore() });
  const faulty = new FaultyStore(store, clock);
  const options = { ttl: "10s", wait: "1h" } as const;
  const first = createLocksOn({ clock }, faulty, options);
  const second = createLocksOn({ clock }, store, options);
  onTestFinished(async () => {
    faulty.all = "none";
    await Promise.all([first.close(), second.close()]);
  });
  return { clock, store, faulty, first, second };
}

test("work that ends within the grace of close() is recorded, and not done again", async () => {
  const { clock, first, second } = twoProcesses();
  const end = new Deferred<string>();
  const work = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  const closed = first.close({ grace: "5s" });
  await clock.advance(1_000);
  end.resolve("of the first");
  await clock.advance(1_000);
  await closed;
  expect(work).toEqual({ outcome: "resolved", value: "of the first" });
  expect(await idempotent(second, "k", KEEP, () => "done again")).toBe("of the first");
});

test("a failure is kept although its message is no text", async () => {
  const { second } = twoProcesses();
  const failure = Object.assign(new Error(), { message: { text: "declined" } });
  let runs = 0;
  const fail = () =>
    idempotent(second, "k", { ...KEEP, keepFailures: true }, () => {
      runs++;
      throw failure;
    });
  expect(await rejection(fail())).toBe(failure);
  expect(await rejection(fail())).toMatchObject({ failure: { message: "an object" } });
  expect(runs).toBe(1);
});

/** The first begins its work, and loses its lease; the second takes over. */
async function takenOver(fn: (locks: Locks) => Promise<string>) {
  const stage = twoProcesses();
  const end = { first: new Deferred<string>(), second: new Deferred<string>() };
  const first = watch(idempotent(stage.first, "k", KEEP, () => end.first.promise));
  await stage.clock.advance(0);
  stage.faulty.faults = { ...stage.faulty.faults, renew: "refuse", release: "refuse" };
  const second = watch(fn(stage.second));
  await stage.clock.advance(15_000);
  return { ...stage, end, first, second };
}

test("after a crash, the next caller takes over, and a late first one gets the result of the second", async () => {
  const { clock, end, first, second } = await takenOver((locks) =>
    idempotent(locks, "k", KEEP, () => "of the second"),
  );
  expect(second).toEqual({ outcome: "resolved", value: "of the second" });
  end.first.resolve("of the first");
  await clock.advance(1_000);
  expect(first).toEqual({ outcome: "resolved", value: "of the second" });
});

test("a late first one does not give its own result while the second still works", async () => {
  const end = new Deferred<string>();
  const stage = await takenOver((locks) => idempotent(locks, "k", KEEP, () => end.promise));
  stage.end.first.resolve("of the first");
  await stage.clock.advance(1_000);
  expect([stage.first.outcome, stage.second.outcome]).toEqual(["pending", "pending"]);
  end.resolve("of the second");
  await stage.clock.advance(1_000);
  expect([stage.first.value, stage.second.value]).toEqual(["of the second", "of the second"]);
});

test("if the second fails, the late first one is told that its lease was lost", async () => {
  const end = new Deferred<string>();
  const stage = await takenOver((locks) => idempotent(locks, "k", KEEP, () => end.promise));
  stage.end.first.resolve("of the first");
  await stage.clock.advance(1_000);
  end.reject(new Error("declined"));
  await stage.clock.advance(1_000);
  expect(stage.first.value).toMatchObject({ code: "LEASE_LOST", reason: "superseded" });
  expect(stage.second.value).toMatchObject({ message: "declined" });
});

test("a result that was recorded after the loss counts, if nobody has taken over by then", async () => {
  const { clock, faulty, first, second } = twoProcesses();
  const end = new Deferred<string>();
  const late = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  faulty.faults = { ...faulty.faults, renew: "refuse", release: "refuse" };
  await clock.advance(15_000);
  end.resolve("late");
  await clock.advance(1_000);
  expect(late.value).toBe("late");
  expect(await idempotent(second, "k", KEEP, () => "another")).toBe("late");
});

test("a late first result never replaces one that the second has seen as missing", async () => {
  // The second reads "in progress", then the first records its result, then the second begins.
  const { clock, store, first } = twoProcesses();
  const end = new Deferred<string>();
  const early = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  await first.forceRelease("idempotent:k", { why: "test" });
  const { records } = store;
  let reads = 0;
  const read = async (key: string) => {
    const found = records.read(key);
    // The second read of the second caller is the one under its lease.
    if (++reads === 2) {
      end.resolve("of the first");
      await clock.advance(0);
    }
    return found;
  };
  // Records of its own: the memory store's `write` calls its own `read`.
  const slow = { read, write: records.write.bind(records), take: records.take.bind(records) };
  const second = createLocksOn({ clock }, { ...delegate(store), records: slow });
  onTestFinished(() => second.close());
  const later = watch(idempotent(second, "k", KEEP, () => "of the second"));
  await clock.advance(1_000);
  expect(reads).toBe(3);
  expect([early.value, later.value]).toEqual(["of the first", "of the first"]);
});

test("a caller whose read comes after its successor has begun does no work, and gets the successor's result", async () => {
  const { clock, store, second } = twoProcesses();
  const { records } = store;
  const readOn = new Deferred<void>();
  let reads = 0;
  const read = async (key: string) => {
    // The second read of the first caller is the one under its lease.
    if (++reads === 2) await readOn.promise;
    return records.read(key);
  };
  const slow = { read, write: records.write.bind(records), take: records.take.bind(records) };
  const first = createLocksOn({ clock }, { ...delegate(store), records: slow }, { ttl: "10s" });
  onTestFinished(() => first.close());
  let runs = 0;
  const late = watch(idempotent(first, "k", KEEP, () => `late ${++runs}`));
  await clock.advance(0);
  expect(reads).toBe(2);
  // The first does not know yet that it has lost its lease.
  await second.forceRelease("idempotent:k", { why: "test" });
  const end = new Deferred<string>();
  const later = watch(idempotent(second, "k", KEEP, () => end.promise));
  await clock.advance(0);
  readOn.resolve();
  await clock.advance(0);
  expect([late.outcome, later.outcome, runs]).toEqual(["pending", "pending", 0]);
  end.resolve("of the second");
  await clock.advance(1_000);
  expect([late.value, later.value, runs]).toEqual(["of the second", "of the second", 0]);
});

test("a write without a reply is repeated, and executed once", async () => {
  const { clock, faulty, first, second } = twoProcesses();
  const end = new Deferred<string>();
  const result = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  faulty.faults = { ...faulty.faults, records: "fail-reply" };
  end.resolve("done");
  await clock.advance(0);
  expect(result.outcome).toBe("pending");
  faulty.faults = { ...faulty.faults, records: "none" };
  await clock.advance(1_000);
  expect(result).toEqual({ outcome: "resolved", value: "done" });
  expect(await idempotent(second, "k", KEEP, () => "another")).toBe("done");
});

test("an outage after the work ends in an error that says so, after a bounded number of attempts", async () => {
  const { clock, faulty, first } = twoProcesses();
  const end = new Deferred<string>();
  const result = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  faulty.faults = { ...faulty.faults, records: "refuse" };
  const before = faulty.sent.records;
  end.resolve("done");
  await clock.advance(60_000);
  expect(result.value).toMatchObject({ code: "STORE_UNAVAILABLE" });
  expect((result.value as Error).message).toMatch(/is done, but its result may not be recorded/);
  expect(faulty.sent.records - before).toBe(5);
});

test("a store that refuses every write ends in an error, before the work is begun", async () => {
  const { clock, store } = twoProcesses();
  const { records } = store;
  let writes = 0;
  const refusing = {
    read: records.read.bind(records),
    write: () => {
      writes++;
      return { kind: "refused", record: null } as const;
    },
    take: records.take.bind(records),
  };
  const locks = createLocksOn({ clock }, { ...delegate(store), records: refusing });
  onTestFinished(() => locks.close());
  let runs = 0;
  const result = watch(idempotent(locks, "k", KEEP, () => ++runs));
  await clock.advance(60_000);
  expect(result.value).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
  expect((result.value as Error).message).toMatch(/refused .* 5 times.* was not begun/);
  expect([writes, runs]).toEqual([5, 0]);
});

test("an outage after a failure does not hide the failure", async () => {
  const { clock, faulty, first, second } = twoProcesses();
  const end = new Deferred<string>();
  const result = watch(idempotent(first, "k", KEEP, () => end.promise));
  await clock.advance(0);
  faulty.faults = { ...faulty.faults, records: "refuse" };
  end.reject(new Error("declined"));
  await clock.advance(60_000);
  expect(result).toMatchObject({ outcome: "rejected", value: { message: "declined" } });
  expect(await idempotent(second, "k", KEEP, () => "again")).toBe("again");
});

test("a failure leaves the record of a caller that has taken over alone", async () => {
  const { clock, first, second } = twoProcesses();
  const end = { first: new Deferred<string>(), second: new Deferred<string>() };
  const by = (fingerprint: string) => ({ ...KEEP, fingerprint });
  const early = watch(idempotent(first, "k", by("a"), () => end.first.promise));
  await clock.advance(0);
  // The first does not know yet that it has lost its lease.
  await second.forceRelease("idempotent:k", { why: "test" });
  const later = watch(idempotent(second, "k", by("a"), () => end.second.promise));
  await clock.advance(0);
  end.first.reject(new Error("declined"));
  await clock.advance(10);
  expect(early).toMatchObject({ outcome: "rejected", value: { message: "declined" } });
  expect(await rejection(idempotent(first, "k", by("b"), () => "other"))).toMatchObject({
    code: "OTHER_REQUEST",
  });
  end.second.resolve("of the second");
  await clock.advance(0);
  expect(later.value).toBe("of the second");
});

test("the result is kept for as long as asked, also if the work takes longer than that", async () => {
  const { clock, first } = twoProcesses();
  const end = new Deferred<string>();
  const keep = { keep: 5_000 };
  const slow = watch(idempotent(first, "k", keep, () => end.promise));
  await clock.advance(6_000);
  end.resolve("slow");
  await clock.advance(0);
  expect(slow.value).toBe("slow");
  await clock.advance(4_999);
  expect(await idempotent(first, "k", keep, () => "new")).toBe("slow");
  await clock.advance(1);
  expect(await idempotent(first, "k", keep, () => "new")).toBe("new");
});

test("a store without records, and bad arguments, are refused before anything is done", async () => {
  const locks = createLocksOn({}, memoryStore());
  onTestFinished(() => locks.close());
  const call = (key: string, options: object, fn: unknown = () => 1) =>
    rejection(idempotent(locks, key, options as never, fn as never));
  expect(await call("", KEEP)).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect(await call("x".repeat(250), KEEP)).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect((await call("k", {})).message).toMatch(/keep is undefined/);
  expect((await call("k", { ...KEEP, mode: "shared" })).message).toMatch(/no option "mode"/);
  expect((await call("k", KEEP, null)).message).toMatch(/fn is null/);
  const { records: _, ...none } = delegate(memoryStore());
  const without = createLocksOn({}, none);
  onTestFinished(() => without.close());
  expect(await rejection(idempotent(without, "k", KEEP, () => 1))).toMatchObject({
    code: "UNSUPPORTED",
  });
  expect((await rejection(idempotent({} as Locks, "k", KEEP, () => 1))).message).toMatch(
    /pass the object that connect/,
  );
});
