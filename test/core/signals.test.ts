import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { onAbort } from "../../src/core/abort.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { stage, watch } from "./helpers.js";

const MANY = 12;
const each = <T>(make: (i: number) => T): T[] => Array.from({ length: MANY }, (_, i) => make(i));
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe("more than ten listeners", () => {
  const warnings: string[] = [];
  const collect = (warning: Error): void => void warnings.push(warning.message);
  beforeEach(() => void process.on("warning", collect));
  afterEach(() => void process.removeListener("warning", collect));

  async function warned(run: (signal: AbortSignal) => Promise<unknown>): Promise<string[]> {
    warnings.length = 0;
    const user = new AbortController();
    await run(user.signal);
    await turn();
    user.abort();
    await turn();
    return warnings;
  }

  it("on our signals and on one of the user's print no warning", async () => {
    const locks = createLocks(memoryStore(), { wait: "1m" });
    const reentrant = { reentrant: true } as const;
    const inner = warned(() =>
      locks.withLock("a", reentrant, () =>
        Promise.all(each(async () => (await locks.acquire("a", reentrant)).signal)),
      ),
    );
    expect(await inner).toEqual([]);

    const held = await locks.acquire("b");
    const leases = warned(async () => each(() => held.signal.addEventListener("abort", () => {})));
    expect(await leases).toEqual([]);

    const waits: Promise<unknown>[] = [];
    const waiting = warned(async (signal) => {
      waits.push(...each(() => locks.acquire("b", { signal })));
      waits.push(...each(() => locks.acquireAll(["b", "c"], { signal })));
      waits.push(...each((i) => locks.election(`e${i % 2}`).campaign({ signal })));
      for (const wait of waits) wait.catch(() => {});
    });
    expect(await waiting).toEqual([]);

    const observed = warned(async (signal) => {
      for (const options of [{}, { signal }]) {
        for (const leaders of each(() => locks.election("b").observe(options))) {
          await leaders.next();
          leaders.next().catch(() => {});
        }
      }
    });
    expect(await observed).toEqual([]);
    await locks.close();
    await Promise.allSettled(waits);
  });
});

describe("the one listener that all waits share on a signal", () => {
  it("is installed while any of them waits, and calls each that still waits", () => {
    const user = new AbortController();
    const { signal } = user;
    let listeners = 0;
    const { addEventListener, removeEventListener } = signal;
    signal.addEventListener = (...args: unknown[]) => {
      listeners++;
      Reflect.apply(addEventListener, signal, args);
    };
    signal.removeEventListener = (...args: unknown[]) => {
      listeners--;
      Reflect.apply(removeEventListener, signal, args);
    };
    const called: string[] = [];
    const undo = ["one", "two"].map((name) => onAbort(signal, () => called.push(name)));
    expect(listeners).toBe(1);
    for (const each of [...undo, ...undo]) each();
    expect(listeners).toBe(0);
    const forget = onAbort(signal, () => called.push("three"));
    // This listener removes the next one before its turn has come.
    onAbort(signal, () => forgetLast());
    const forgetLast = onAbort(signal, () => called.push("five"));
    expect(listeners).toBe(1);
    user.abort();
    forget();
    expect(called).toEqual(["three"]);
  });
});

describe("a listener of a lease", () => {
  it("that is added after the loss is called once, and not inside the call that adds it", async () => {
    const on = stage({ ttl: "1s" });
    const lease = await on.locks.acquire("a", { renew: false });
    const received: unknown[] = [];
    const twice = (): void => void received.push("taken off again");
    on.clock.stall(5_000);
    expect(lease.state).toBe("lost");
    lease.on("lost", (error) => received.push(error.reason));
    lease.on("lost", twice).off("lost", twice);
    lease.on("jeopardy", () => received.push("jeopardy"));
    expect(received).toEqual([]);
    await on.clock.advance(0);
    expect(received).toEqual(["expired"]);
    await lease.release();
    await on.clock.advance(10_000);
    expect(received).toEqual(["expired"]);
  });

  it("is never called when the lease was released", async () => {
    const on = stage();
    const lease = await on.locks.acquire("a");
    await lease.release();
    const lost = watch(new Promise((resolve) => lease.on("lost", resolve)));
    await on.clock.advance(60_000);
    expect(lost.outcome).toBe("pending");
  });

  it("is refused if it is no function, or if there is no such event", async () => {
    const lease = await stage().locks.acquire("a");
    for (const [event, listener, words] of [
      ["lost", null, "the listener is null"],
      ["lost", undefined, "the listener is undefined"],
      ["gone", () => {}, '"jeopardy", "recovered", "lost"'],
    ] as const) {
      expect(() => lease.on(event as never, listener as never)).toThrow(words);
    }
  });
});
