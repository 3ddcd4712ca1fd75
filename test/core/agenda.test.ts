import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Agenda, AgendaEntry } from "../../src/core/agenda.js";
import type { Clock, Timer } from "../../src/core/clock.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";
import { runs } from "../support/chance.js";

class Sleeper extends AgendaEntry {
  readonly id: number;
  readonly woken: number[] = [];
  onWake: (nowMs: number) => void = () => {};

  constructor(id = 0) {
    super();
    this.id = id;
  }

  wake(nowMs: number): void {
    this.woken.push(nowMs);
    this.onWake(nowMs);
  }
}

function agendaOn(clock: Clock = new VirtualClock()): { agenda: Agenda; turns: () => number } {
  let turns = 0;
  return { agenda: new Agenda(clock, () => turns++), turns: () => turns };
}

/** The heap is in order: every entry knows its place, and none is later than its children. */
function expectHeap(agenda: Agenda): void {
  const heap = agenda.entries();
  heap.forEach((entry, i) => {
    expect(entry.heapIndex).toBe(i);
    if (i > 0) expect(heap[(i - 1) >> 1]!.wakeAt).toBeLessThanOrEqual(entry.wakeAt);
  });
}

describe("the agenda", () => {
  it("wakes each entry once, at its time", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const start = clock.elapsedMs();
    const sleepers = [300, 100, 200, 100].map((ms, i) => {
      const one = new Sleeper(i);
      agenda.set(one, start + ms);
      return one;
    });
    await clock.advance(99);
    expect(sleepers.map((one) => one.woken)).toEqual([[], [], [], []]);
    await clock.advance(1);
    expect(sleepers.map((one) => one.woken.length)).toEqual([0, 1, 0, 1]);
    await clock.advance(10_000);
    expect(sleepers.map((one) => one.woken)).toEqual(
      [300, 100, 200, 100].map((ms) => [start + ms]),
    );
    expect(sleepers.every((one) => one.heapIndex === -1)).toBe(true);
    expect(clock.timers).toBe(0);
  });

  it("uses one timer for all entries, and none when it is empty or no entry has a time", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const all = Array.from({ length: 100 }, (_, i) => new Sleeper(i));
    for (const one of all) agenda.set(one, clock.elapsedMs() + 1_000 - one.id);
    expect(clock.timers).toBe(1);
    for (const one of all) agenda.remove(one);
    expect(clock.timers).toBe(0);
    agenda.set(all[0]!, Number.POSITIVE_INFINITY);
    expect(clock.timers).toBe(0);
    agenda.remove(all[0]!);
    agenda.remove(all[0]!);
    expect(agenda.entries()).toEqual([]);
  });

  it("an entry that was moved later is not woken at its old time", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const one = new Sleeper();
    agenda.set(one, clock.elapsedMs() + 100);
    agenda.set(one, clock.elapsedMs() + 500);
    await clock.advance(499);
    expect(one.woken).toEqual([]);
    await clock.advance(1);
    expect(one.woken).toHaveLength(1);
  });

  it("an entry that was moved to never is never woken", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const one = new Sleeper();
    agenda.set(one, clock.elapsedMs() + 100);
    agenda.set(one, Number.POSITIVE_INFINITY);
    await clock.advance(1_000_000);
    expect(one.woken).toEqual([]);
    expect(clock.timers).toBe(0);
  });

  it("an entry that is past due is woken in the next turn of the event loop, not inside set", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const one = new Sleeper();
    agenda.set(one, clock.elapsedMs() - 500);
    expect(one.woken).toEqual([]);
    await clock.advance(0);
    expect(one.woken).toEqual([clock.elapsedMs()]);
  });

  it("wakes more than 500 entries that are due at once in several turns, all at their time", async () => {
    const clock = new VirtualClock();
    const { agenda, turns } = agendaOn(clock);
    const dueAt = clock.elapsedMs() + 50;
    const all = Array.from({ length: 1_777 }, (_, i) => new Sleeper(i));
    for (const one of all) agenda.set(one, dueAt);
    await clock.advance(50);
    expect(all.every((one) => one.woken.length === 1 && one.woken[0] === dueAt)).toBe(true);
    expect(turns()).toBeGreaterThanOrEqual(4);
    expect(clock.timers).toBe(0);
  });

  it("an entry that throws when it is woken does not stop the others", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const dueAt = clock.elapsedMs() + 10;
    const all = Array.from({ length: 9 }, (_, i) => new Sleeper(i));
    for (const one of all) {
      agenda.set(one, dueAt);
      if (one.id % 3 === 0) {
        one.onWake = () => {
          throw new Error("on purpose");
        };
      }
    }
    let thrown = 0;
    for (let i = 0; i < 10; i++) await clock.advance(i === 0 ? 10 : 0).catch(() => thrown++);
    expect(thrown).toBe(3);
    expect(all.map((one) => one.woken.length)).toEqual(all.map(() => 1));
    expect(clock.timers).toBe(0);
    // The agenda still runs afterwards.
    agenda.set(all[1]!, clock.elapsedMs() + 5);
    await clock.advance(5);
    expect(all[1]!.woken).toHaveLength(2);
  });

  it("a woken entry may schedule itself, schedule others and remove others", async () => {
    const clock = new VirtualClock();
    const { agenda } = agendaOn(clock);
    const [again, other, victim] = [new Sleeper(1), new Sleeper(2), new Sleeper(3)] as const;
    const start = clock.elapsedMs();
    again.onWake = (nowMs) => {
      if (again.woken.length < 3) agenda.set(again, nowMs + 10);
      agenda.set(other, nowMs + 5);
      agenda.remove(victim);
    };
    agenda.set(again, start + 10);
    agenda.set(victim, start + 10.5);
    await clock.advance(100);
    expect(again.woken).toEqual([start + 10, start + 20, start + 30]);
    expect(other.woken).toEqual([start + 15, start + 25, start + 35]);
    expect(victim.woken).toEqual([]);
    expect(clock.timers).toBe(0);
  });

  it("an entry that always wants to be woken now does not block the event loop", async () => {
    const clock = new VirtualClock();
    const { agenda, turns } = agendaOn(clock);
    const greedy = new Sleeper();
    greedy.onWake = (nowMs) => {
      if (greedy.woken.length < 5_000) agenda.set(greedy, nowMs);
    };
    agenda.set(greedy, clock.elapsedMs());
    await clock.advance(0);
    expect(greedy.woken).toHaveLength(5_000);
    expect(turns()).toBeGreaterThanOrEqual(10);
  });

  it("a timer that fires early is set again", async () => {
    const clock = new VirtualClock();
    const early: Clock = {
      elapsedMs: () => clock.elapsedMs(),
      wallMs: () => clock.wallMs(),
      unexplainedMs: () => 0,
      after: (ms, run) => clock.after(Math.min(ms, 1_000), run),
    };
    const { agenda } = agendaOn(early);
    const one = new Sleeper();
    const dueAt = clock.elapsedMs() + 5_500;
    agenda.set(one, dueAt);
    await clock.advance(10_000);
    expect(one.woken).toEqual([dueAt]);
    expect(clock.timers).toBe(0);
  });

  it("an entry that fell due while the machine slept is woken soon after, though timers slept too", async () => {
    const clock = new VirtualClock();
    let sleptMs = 0;
    const sleeping: Clock = {
      elapsedMs: () => clock.elapsedMs() + sleptMs,
      wallMs: () => clock.wallMs() + sleptMs,
      unexplainedMs: () => 0,
      // As in the system: a timer of 30 s still has its 30 s to go when the machine wakes up.
      after: (ms, run) => clock.after(ms, run),
    };
    const { agenda } = agendaOn(sleeping);
    const deadline = new Sleeper();
    agenda.set(deadline, sleeping.elapsedMs() + 30_000);
    await clock.advance(100);
    sleptMs = 3_600_000;
    await clock.advance(2_000);
    expect(deadline.woken).toHaveLength(1);
  });

  it("keeps the process alive exactly while a waiter is pending", async () => {
    const alive = new Set<object>();
    const clock = new VirtualClock();
    const counting: Clock = {
      elapsedMs: () => clock.elapsedMs(),
      wallMs: () => clock.wallMs(),
      unexplainedMs: () => 0,
      after: (ms, run): Timer => {
        const key = {};
        const timer = clock.after(ms, () => {
          alive.delete(key);
          run();
        });
        return {
          cancel: () => {
            alive.delete(key);
            timer.cancel();
          },
          keepAlive: (yes) => (yes ? alive.add(key) : alive.delete(key)),
        };
      },
    };
    const { agenda } = agendaOn(counting);
    const [lease, waiter] = [new Sleeper(1), new Sleeper(2)] as const;
    lease.onWake = (nowMs) => agenda.set(lease, nowMs + 10);
    agenda.set(lease, clock.elapsedMs() + 10);
    expect(alive.size).toBe(0);
    agenda.addPending(1);
    agenda.set(waiter, clock.elapsedMs() + 1_000);
    expect(alive.size).toBe(1);
    await clock.advance(55);
    expect(alive.size).toBe(1);
    agenda.addPending(1);
    agenda.addPending(-1);
    expect(alive.size).toBe(1);
    agenda.addPending(-1);
    expect(alive.size).toBe(0);
    await clock.advance(55);
    expect(alive.size).toBe(0);
    expect(clock.timers).toBe(1);
  });
});

describe("the agenda, compared with a simple model", () => {
  const id = fc.nat({ max: 11 });
  const step = fc.oneof(
    fc.record({
      kind: fc.constant("set" as const),
      id,
      inMs: fc.oneof(fc.integer({ min: -50, max: 300 }), fc.constant(Number.POSITIVE_INFINITY)),
    }),
    fc.record({ kind: fc.constant("remove" as const), id }),
    fc.record({ kind: fc.constant("turn" as const), ms: fc.nat({ max: 120 }) }),
    fc.record({ kind: fc.constant("stall" as const), ms: fc.nat({ max: 120 }) }),
  );

  it("wakes the entries that the model wakes, at the same times", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60, size: "max" }), async (steps) => {
        const clock = new VirtualClock();
        const { agenda } = agendaOn(clock);
        const sleepers = Array.from({ length: 12 }, (_, i) => new Sleeper(i));
        const wakeAt = new Map<number, number>();
        const expected: number[][] = sleepers.map(() => []);

        for (const one of steps) {
          if (one.kind === "set") {
            agenda.set(sleepers[one.id]!, clock.elapsedMs() + one.inMs);
            wakeAt.set(one.id, clock.elapsedMs() + one.inMs);
          } else if (one.kind === "remove") {
            agenda.remove(sleepers[one.id]!);
            wakeAt.delete(one.id);
          } else if (one.kind === "stall") clock.stall(one.ms);
          else {
            const from = clock.elapsedMs();
            await clock.advance(one.ms);
            for (const [which, at] of wakeAt) {
              if (at > clock.elapsedMs()) continue;
              expected[which]!.push(Math.max(at, from));
              wakeAt.delete(which);
            }
          }
          expectHeap(agenda);
          expect(agenda.entries()).toHaveLength(wakeAt.size);
          expect(clock.timers).toBeLessThanOrEqual(1);
          // A timer exists while an entry has a time. It may be too early, and outlive its entry.
          const next = Math.min(...wakeAt.values());
          if (next < Number.POSITIVE_INFINITY) expect(clock.timers).toBe(1);
          if (wakeAt.size === 0) expect(clock.timers).toBe(0);
        }
        expect(sleepers.map((one) => one.woken)).toEqual(expected);
      }),
      runs(300),
    );
  });
});
