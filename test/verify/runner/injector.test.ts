import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Member } from "../../../src/verify/runner/crew.js";
import { Injector } from "../../../src/verify/runner/injector.js";
import type { FaultKind } from "../../../src/verify/runner/kinds.js";
import { hasStruck } from "../../../src/verify/runner/result.js";
import { TimeLine } from "../../../src/verify/traffic/time-line.js";
import { idleMember, kindOf, plannedFault } from "./fakes.js";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** A kind whose faults record their calls. */
function recorded(name: string, done: string[], more: Partial<FaultKind> = {}): FaultKind {
  return kindOf(name, {
    make: () => ({
      name,
      inject: async () => void done.push(`${name} injected`),
      heal: async () => void done.push(`${name} healed`),
    }),
    ...more,
  });
}

function injectorOf(
  kinds: readonly FaultKind[],
  members: readonly Member[] = [idleMember("w1"), idleMember("w2")],
): { injector: Injector; timeLine: TimeLine } {
  const timeLine = new TimeLine();
  return { injector: new Injector(kinds, members, timeLine), timeLine };
}

const withoutTimes = ({ events }: TimeLine): readonly object[] =>
  events.map(({ atMs: _, ...event }) => event);

const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

test("faults may overlap: each is injected and healed at its own time", async () => {
  const done: string[] = [];
  const { injector } = injectorOf([recorded("a", done), recorded("b", done)]);
  injector.start([
    plannedFault("a", { atMs: 100, forMs: 300 }),
    plannedFault("b", { atMs: 200, forMs: 100 }),
  ]);
  await pass(99);
  expect(injector.active).toEqual([]);
  await pass(151);
  expect(injector.active).toEqual(["a", "b"]);
  expect(injector.isStoreStruck).toBe(true);
  await pass(250);
  expect(done).toEqual(["a injected", "b injected", "b healed", "a healed"]);
  expect(injector.isStoreStruck).toBe(false);
  const spans = injector.records.map(({ name, fromMs, untilMs }) => [name, untilMs - fromMs]);
  expect(spans).toEqual([
    ["b", 100],
    ["a", 300],
  ]);
  expect(injector.troubles).toEqual([]);
});

test("at the end, faults are healed for which another one waits that is still being injected", async () => {
  const done: string[] = [];
  let isUp = (): void => {};
  const up = new Promise<void>((resolve) => {
    isUp = resolve;
  });
  const down = kindOf("server down", {
    make: () => ({
      name: "server down",
      inject: async () => void done.push("server down"),
      heal: async () => {
        done.push("server up");
        isUp();
      },
    }),
  });
  const moved = kindOf("slot moved", {
    make: () => ({
      name: "slot moved",
      inject: async () => {
        await up;
        done.push("slot moved");
      },
      heal: async () => void done.push("healed"),
    }),
  });
  const { injector } = injectorOf([down, moved]);
  injector.start([plannedFault("server down"), plannedFault("slot moved", { atMs: 10 })]);
  await pass(50);
  await injector.end();
  expect(done).toEqual(["server down", "server up", "slot moved", "healed"]);
  expect(injector.active).toEqual([]);
});

test("a fault that is injected while another of its name is being healed is distinguished from it", async () => {
  let isUp = (): void => {};
  const up = new Promise<void>((resolve) => {
    isUp = resolve;
  });
  const heals = [() => up, async () => {}];
  const slow = kindOf("slow", {
    make: () => ({ name: "slow", inject: async () => {}, heal: heals.shift()! }),
  });
  const { injector, timeLine } = injectorOf([slow]);
  injector.start([plannedFault("slow", { forMs: 10 }), plannedFault("slow", { atMs: 50 })]);
  await pass(60);
  isUp();
  await injector.end();
  expect(withoutTimes(timeLine)).toEqual([
    { kind: "injected", fault: "slow" },
    { kind: "injected", fault: "slow (2)" },
    { kind: "healed", fault: "slow" },
    { kind: "healed", fault: "slow (2)" },
  ]);
});

test("two faults of one name at the same time are distinguished", async () => {
  const { injector, timeLine } = injectorOf([kindOf("cut")]);
  injector.start([plannedFault("cut"), plannedFault("cut", { atMs: 50 })]);
  await pass(60);
  expect(injector.active).toEqual(["cut", "cut (2)"]);
  await injector.end();
  expect(withoutTimes(timeLine)).toEqual([
    { kind: "injected", fault: "cut" },
    { kind: "injected", fault: "cut (2)" },
    { kind: "healed", fault: "cut (2)" },
    { kind: "healed", fault: "cut" },
  ]);
});

test("a fault that can't be injected is healed all the same, and reported", async () => {
  const done: string[] = [];
  const broken = recorded("broken", done, {
    make: () => ({
      name: "broken",
      inject: () => Promise.reject(new Error("no such server")),
      heal: async () => void done.push("broken healed"),
    }),
  });
  const { injector, timeLine } = injectorOf([broken, recorded("fine", done)]);
  injector.start([plannedFault("broken"), plannedFault("fine", { atMs: 10 })]);
  await pass(200);
  expect(injector.troubles).toEqual(["broken: no such server"]);
  expect(done).toEqual(["fine injected", "broken healed", "fine healed"]);
  expect(injector.records.map(({ kind, failed }) => [kind, failed])).toEqual([
    ["broken", "no such server"],
    ["fine", undefined],
  ]);
  // It may have been injected halfway, so it is in the history.
  expect(withoutTimes(timeLine)).toContainEqual({ kind: "injected", fault: "broken" });
  expect(withoutTimes(timeLine)).toContainEqual({ kind: "healed", fault: "broken" });
});

test("a fault that waited for messages and met none did not strike; its time is excused all the same", async () => {
  const counts = [0, 2];
  const lossy = kindOf("reply lost", {
    breaks: ["L4"],
    make: () => ({
      name: "reply lost",
      inject: async () => {},
      heal: async () => {},
      struck: counts.shift()!,
    }),
  });
  const { injector } = injectorOf([lossy]);
  injector.start([plannedFault("reply lost"), plannedFault("reply lost", { atMs: 500 })]);
  await pass(1_000);
  expect(injector.records.map(hasStruck)).toEqual([false, true]);
  expect(injector.records[0]!.failed).toContain("nothing that it could strike");
  expect(injector.excuses(100)).toHaveLength(2);
  expect(injector.troubles).toEqual([]);
});

test("a fault that can't be healed is reported, and the others are healed", async () => {
  const done: string[] = [];
  const stuck = recorded("stuck", done, {
    make: () => ({
      name: "stuck",
      inject: async () => {},
      heal: () => Promise.reject(new Error("still down")),
    }),
  });
  const { injector, timeLine } = injectorOf([recorded("first", done), stuck]);
  injector.start([plannedFault("first"), plannedFault("stuck", { atMs: 10 })]);
  await pass(20);
  await injector.end();
  expect(injector.troubles).toEqual(["stuck, healing: still down"]);
  expect(done).toEqual(["first injected", "first healed"]);
  expect(injector.active).toEqual([]);
  // Nobody can be blamed for what does not work from now on.
  expect(injector.hasUnhealed).toBe(true);
  expect(withoutTimes(timeLine)).not.toContainEqual({ kind: "healed", fault: "stuck" });
});

test("the end of a run heals everything in the opposite order, and nothing is injected afterwards", async () => {
  const done: string[] = [];
  const { injector } = injectorOf([recorded("a", done), recorded("b", done), recorded("c", done)]);
  injector.start([
    plannedFault("a"),
    plannedFault("b", { atMs: 10 }),
    plannedFault("c", { atMs: 50 }),
  ]);
  await pass(20);
  await injector.end();
  await injector.end();
  await pass(1_000);
  expect(done).toEqual(["a injected", "b injected", "b healed", "a healed"]);
  expect(injector.records.map(({ kind }) => kind)).toEqual(["b", "a"]);
});

test("the end of a run waits for a fault that is being injected, and heals it", async () => {
  const done: string[] = [];
  const slow = kindOf("slow", {
    make: () => ({
      name: "slow",
      inject: async () => {
        await new Promise((resolve) => setTimeout(resolve, 500));
        done.push("injected");
      },
      heal: async () => void done.push("healed"),
    }),
  });
  const { injector } = injectorOf([slow]);
  injector.start([plannedFault("slow")]);
  await pass(10);
  const ended = injector.end().then(() => done.push("ended"));
  await pass(600);
  await ended;
  expect(done).toEqual(["injected", "healed", "ended"]);
});

describe("the history of a run", () => {
  test("says of a fault whether it spares the store", async () => {
    const { injector, timeLine } = injectorOf([
      kindOf("cut", { hits: "connection", sparesStore: true }),
      kindOf("paused"),
    ]);
    injector.start([plannedFault("cut", { worker: 1 }), plannedFault("paused", { atMs: 10 })]);
    await pass(50);
    await injector.end();
    expect(withoutTimes(timeLine).slice(0, 2)).toEqual([
      { kind: "injected", fault: "cut", sparesStore: true },
      { kind: "injected", fault: "paused" },
    ]);
    const clients = injector.records.map(({ kind, client }) => [kind, client]);
    expect(clients).toEqual([
      ["paused", undefined],
      ["cut", "w2"],
    ]);
  });

  test("counts the store as hit unless the fault is of a worker or a connection", async () => {
    const { injector } = injectorOf([kindOf("cut", { hits: "connection" })]);
    injector.start([plannedFault("cut")]);
    await pass(10);
    expect([injector.active, injector.isStoreStruck]).toEqual([["cut"], false]);
    await injector.end();
  });

  test("has a clock that jumps as set, and set back", async () => {
    const jump = kindOf("jump", {
      make: () => ({
        name: "jump",
        clockByMs: 5_000,
        inject: async () => {},
        heal: async () => {},
      }),
    });
    const { injector, timeLine } = injectorOf([jump]);
    injector.start([plannedFault("jump")]);
    await pass(500);
    expect(withoutTimes(timeLine)).toEqual([
      { kind: "injected", fault: "jump" },
      { kind: "clock-set", byMs: 5_000 },
      { kind: "clock-set", byMs: -5_000 },
      { kind: "healed", fault: "jump" },
    ]);
  });

  test("has no event for a fault of a worker, which its worker reports; the record has it", async () => {
    const running = { client: "w1", isRunning: true } as Member;
    const { injector, timeLine } = injectorOf([kindOf("killed", { hits: "worker" })], [running]);
    injector.start([plannedFault("killed")]);
    await pass(500);
    expect(timeLine.events).toEqual([]);
    expect(injector.records).toMatchObject([{ kind: "killed", hits: "worker", client: "w1" }]);
  });
});

test("a fault is left out if its worker is gone, its kind is unknown, or it can't be made now", async () => {
  const done: string[] = [];
  const { injector, timeLine } = injectorOf([
    recorded("killed", done, { hits: "worker" }),
    kindOf("impossible", { make: () => null }),
    recorded("cut", done, { hits: "connection" }),
  ]);
  injector.start([
    plannedFault("killed"),
    plannedFault("unheard of"),
    plannedFault("impossible"),
    plannedFault("cut", { worker: 7 }),
  ]);
  await pass(500);
  expect([done, injector.records, timeLine.events]).toEqual([[], [], []]);
});

test("the seed of a fault decides everything that is random about it", async () => {
  const drawn: number[] = [];
  const lucky = kindOf("lucky", {
    make: (_member, random) => {
      drawn.push(random.unit());
      return null;
    },
  });
  const { injector } = injectorOf([lucky]);
  injector.start([1, 2, 1].map((seed, i) => plannedFault("lucky", { seed, atMs: i })));
  await pass(10);
  expect(drawn[0]).toBe(drawn[2]);
  expect(drawn[0]).not.toBe(drawn[1]);
});

test("an excuse lasts from the fault to a few ttls after it; for the order of the queue, to the end", async () => {
  const { injector } = injectorOf([
    kindOf("lossy", { breaks: ["S1", "L4"], because: "it forgets" }),
    kindOf("harmless"),
  ]);
  injector.start([plannedFault("lossy", { forMs: 300 }), plannedFault("harmless")]);
  await pass(1_000);
  const { fromMs, untilMs } = injector.records.find(({ kind }) => kind === "lossy")!;
  expect(injector.excuses(1_000)).toEqual([
    { rules: ["S1"], fromMs, toMs: untilMs + 4_500 },
    { rules: ["L4"], fromMs, toMs: untilMs + 2_000 },
  ]);
});

test("an excuse of a worker's connection is for that worker, unless all workers share the connection", async () => {
  const breaks = ["L4"] as const;
  const { injector } = injectorOf([
    kindOf("cut", { hits: "connection", breaks }),
    kindOf("proxy cut", { hits: "connection", hitsRunner: true, breaks }),
    kindOf("paused", { breaks }),
  ]);
  const all = ["cut", "proxy cut", "paused"].map((kind) => plannedFault(kind, { worker: 1 }));
  injector.start(all);
  await pass(1_000);
  expect(injector.excuses(1_000).map(({ client }) => client)).toEqual(["w2", undefined, undefined]);
});
