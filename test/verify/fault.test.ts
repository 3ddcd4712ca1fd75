import { describe, expect, test } from "vitest";
import { seededRandom } from "../../src/testing/seeded-random.js";
import {
  carryOut,
  type Fault,
  fault,
  planFaults,
  type Step,
  together,
} from "../../src/verify/fault.js";

/** A fault that records its calls. */
function noted(name: string, notes: string[], fails: Partial<Fault> = {}): Fault {
  return fault(
    name,
    async () => {
      notes.push(`+${name}`);
      await fails.inject?.();
    },
    async () => {
      notes.push(`-${name}`);
      await fails.heal?.();
    },
  );
}
const failing = (message: string) => () => Promise.reject(new Error(message));

describe("a fault", () => {
  test("is injected once and healed once, and healing one that was not injected does nothing", async () => {
    const notes: string[] = [];
    const one = noted("a", notes);
    await one.heal();
    await one.inject();
    await one.inject();
    await one.heal();
    await one.heal();
    await one.inject();
    expect(notes).toEqual(["+a", "-a", "+a"]);
  });

  test("that is injected halfway is healed or injected again, and a heal that failed is retried", async () => {
    const notes: string[] = [];
    let heals = 0;
    const one = noted("a", notes, {
      inject: failing("half"),
      heal: () => (++heals === 1 ? Promise.reject(new Error("not yet")) : Promise.resolve()),
    });
    await expect(one.inject()).rejects.toThrow("half");
    await expect(one.inject()).rejects.toThrow("half");
    await expect(one.heal()).rejects.toThrow("not yet");
    await one.heal();
    await one.heal();
    expect(notes).toEqual(["+a", "+a", "-a", "-a"]);
  });

  test("is healed only after its injection is done", async () => {
    const notes: string[] = [];
    let go = (): void => {};
    const slow = new Promise<void>((resolve) => {
      go = resolve;
    });
    const one = fault(
      "a",
      async () => {
        await slow;
        notes.push("injected");
      },
      () => notes.push("healed"),
    );
    const both = Promise.all([one.inject(), one.heal()]);
    go();
    await both;
    expect(notes).toEqual(["injected", "healed"]);
  });
});

describe("faults that are injected together", () => {
  test("are injected in order, and healed in the opposite order", async () => {
    const notes: string[] = [];
    const all = together(noted("a", notes), noted("b", notes));
    expect(all.name).toBe("a and b");
    await all.inject();
    await all.heal();
    expect(notes).toEqual(["+a", "+b", "-b", "-a"]);
  });

  test("are all injected, or none", async () => {
    const notes: string[] = [];
    const all = together(noted("a", notes), noted("b", notes, { inject: failing("no") }));
    await expect(all.inject()).rejects.toThrow("no");
    expect(notes).toEqual(["+a", "+b", "-b", "-a"]);
  });

  test("are all healed even if one fails, and the error names it", async () => {
    const notes: string[] = [];
    const all = together(noted("a", notes), noted("b", notes, { heal: failing("no") }));
    await all.inject();
    await expect(all.heal()).rejects.toThrow("could not heal: b");
    expect(notes.at(-1)).toBe("-a");
  });
});

describe("a random plan of faults", () => {
  const spans = {
    forMs: 10_000,
    pause: { minMs: 50, maxMs: 500 },
    last: { minMs: 10, maxMs: 900 },
  };
  const plan = (seed: number, faults = ["a", "b", "c"]): readonly Step[] =>
    planFaults(
      faults.map((name) => noted(name, [])),
      seededRandom(seed),
      spans,
    );
  const text = (steps: readonly Step[]): string[] =>
    steps.map(({ atMs, does, fault }) => `${atMs} ${does} ${fault.name}`);

  test("is the same for the same seed, and another for another", () => {
    expect(text(plan(7))).toEqual(text(plan(7)));
    expect(text(plan(7))).not.toEqual(text(plan(8)));
  });

  test("heals each fault before the next comes, and all by the end", () => {
    for (let seed = 0; seed < 50; seed++) {
      const steps = plan(seed);
      expect(steps.length).toBeGreaterThan(4);
      let atMs = 0;
      for (const [i, step] of steps.entries()) {
        expect(step.does).toBe(i % 2 === 0 ? "inject" : "heal");
        if (i % 2 === 1) expect(step.fault).toBe(steps[i - 1]!.fault);
        expect(step.atMs).toBeGreaterThanOrEqual(atMs);
        atMs = step.atMs;
      }
      expect(atMs).toBeLessThanOrEqual(spans.forMs);
    }
  });

  test("ends, also if there is no fault to draw or no time passes", () => {
    expect(plan(1, [])).toEqual([]);
    const none = { minMs: 0, maxMs: 0 };
    const one = noted("a", []);
    expect(planFaults([one], seededRandom(1), { forMs: 10, pause: none, last: none })).toEqual([]);
  });
});

describe("a plan that is carried out", () => {
  const steps = (a: Fault, b: Fault, healAtMs = 30): Step[] => [
    { atMs: 0, does: "inject", fault: a },
    { atMs: 10, does: "inject", fault: b },
    { atMs: healAtMs, does: "heal", fault: a },
    { atMs: healAtMs + 10, does: "heal", fault: b },
  ];

  test("keeps its times and its order, and reports each step", async () => {
    const notes: string[] = [];
    const reported: string[] = [];
    const startMs = performance.now();
    await carryOut(steps(noted("a", notes), noted("b", notes)), {
      onStep: ({ does, fault }) => reported.push(`${does} ${fault.name}`),
    });
    expect(notes).toEqual(["+a", "+b", "-a", "-b"]);
    expect(reported).toEqual(["inject a", "inject b", "heal a", "heal b"]);
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(39);
  });

  test("heals what is injected when it is aborted, the newest first", async () => {
    const notes: string[] = [];
    const stop = new AbortController();
    const running = carryOut(steps(noted("a", notes), noted("b", notes), 60_000), {
      signal: stop.signal,
      onStep: ({ fault }) => fault.name === "b" && stop.abort(new Error("enough")),
    });
    await expect(running).rejects.toThrow("enough");
    expect(notes).toEqual(["+a", "+b", "-b", "-a"]);
  });

  test("injects nothing when it was aborted before", async () => {
    const notes: string[] = [];
    const signal = AbortSignal.abort(new Error("enough"));
    const running = carryOut(steps(noted("a", notes), noted("b", notes)), { signal });
    await expect(running).rejects.toThrow("enough");
    expect(notes).toEqual([]);
  });

  test.each([
    ["an inject", { inject: failing("broken") }],
    ["a heal", { heal: failing("broken") }],
  ])("heals all faults when %s throws, and rejects with the error", async (_, fails) => {
    const notes: string[] = [];
    const running = carryOut(steps(noted("a", notes, fails), noted("b", notes)));
    await expect(running).rejects.toThrow(/broken|the plan failed/);
    const healed = notes.filter((note) => note.startsWith("-"));
    const injected = notes.filter((note) => note.startsWith("+"));
    expect(new Set(healed.map((note) => note.slice(1)))).toEqual(
      new Set(injected.map((note) => note.slice(1))),
    );
  });

  test("leaves no listener on the signal", async () => {
    const stop = new AbortController();
    let listeners = 0;
    const { addEventListener, removeEventListener } = stop.signal;
    stop.signal.addEventListener = function (...args: never[]) {
      listeners++;
      return Reflect.apply(addEventListener, this, args);
    };
    stop.signal.removeEventListener = function (...args: never[]) {
      listeners--;
      return Reflect.apply(removeEventListener, this, args);
    };
    await carryOut(steps(noted("a", []), noted("b", [])), { signal: stop.signal });
    expect(listeners).toBe(0);
  });
});
