import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type ClockSources, systemClock } from "../../src/core/clock.js";
import { runs } from "../support/chance.js";
import { build, runNode } from "./helpers.js";

/** A machine whose three clocks are set by the test. */
class Machine implements ClockSources {
  hr = 5_000;
  /** In whole steps of `grain`, as the system gives it. */
  up = 1_000_000;
  wall = Date.UTC(2030, 0, 1);
  grain = 10;
  uptimeReads = 0;

  hrtimeMs = (): number => this.hr;
  wallMs = (): number => this.wall;
  uptimeMs = (): number => {
    this.uptimeReads++;
    return Math.floor(this.up / this.grain) * this.grain;
  };

  run(ms: number): void {
    this.hr += ms;
    this.up += ms;
    this.wall += ms;
  }
  /** Linux: only hrtime stands still. */
  suspend(ms: number): void {
    this.up += ms;
    this.wall += ms;
  }
  /** A VM that is stopped from outside: only the wall clock learns of it. */
  freeze(ms: number): void {
    this.wall += ms;
  }
}

describe("elapsed time", () => {
  it("counts a short sleep of the machine at once, not at the next check", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.run(10);
    expect(clock.elapsedMs()).toBe(10);
    machine.suspend(150);
    expect(clock.elapsedMs()).toBeCloseTo(160, 6);
    expect(clock.unexplainedMs()).toBe(0);
  });

  it("counts a stop of the process between two readings once", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.run(4_000);
    let stopMs = 5_000;
    const wallMs = machine.wallMs;
    machine.wallMs = () => {
      machine.run(stopMs);
      stopMs = 0;
      return wallMs();
    };
    expect(clock.elapsedMs()).toBe(9_000);
    machine.run(100);
    expect(clock.elapsedMs()).toBe(9_100);
    expect(clock.unexplainedMs()).toBe(0);
  });

  it("checks once after a step of the wall clock, not at every call", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    for (const ms of [100, 20]) {
      machine.freeze(ms);
      clock.elapsedMs();
      const reads = machine.uptimeReads;
      for (let i = 0; i < 50; i++) clock.elapsedMs();
      expect(machine.uptimeReads).toBe(reads);
      expect(clock.unexplainedMs()).toBe(100);
    }
  });

  it("starts at 0 and runs with hrtime", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    expect(clock.elapsedMs()).toBe(0);
    machine.run(1_234.5);
    expect(clock.elapsedMs()).toBe(1_234.5);
    expect(clock.unexplainedMs()).toBe(0);
  });

  it.each([30, 250, 5_000, 86_400_000])("counts a suspend of %d ms", (ms) => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.run(10_000);
    clock.elapsedMs();
    machine.suspend(ms);
    // A suspend too short to be seen at once is found at the next check, a second later.
    if (ms <= 200) machine.run(1_001);
    const expected = 10_000 + ms + (ms <= 200 ? 1_001 : 0);
    expect(Math.abs(clock.elapsedMs() - expected)).toBeLessThanOrEqual(machine.grain);
    expect(clock.unexplainedMs()).toBe(0);
  });

  it("counts several suspends, each once", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    for (let i = 1; i <= 20; i++) {
      machine.suspend(1_000);
      machine.run(100);
      expect(Math.abs(clock.elapsedMs() - i * 1_100)).toBeLessThanOrEqual(machine.grain);
    }
    expect(clock.unexplainedMs()).toBe(0);
  });

  it("counts a suspend after which the wall clock was set back", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.suspend(60_000);
    machine.wall -= 60_000;
    machine.run(1_001);
    expect(Math.abs(clock.elapsedMs() - 61_001)).toBeLessThanOrEqual(machine.grain);
  });

  it("does not count the coarse steps of uptime as time", () => {
    for (const grain of [1, 10, 15.625]) {
      const machine = new Machine();
      machine.grain = grain;
      machine.up += 0.9 * grain;
      const clock = systemClock(machine);
      for (let i = 0; i < 1_000; i++) {
        machine.run(1_003);
        clock.elapsedMs();
      }
      expect(clock.elapsedMs()).toBeCloseTo(1_003_000, 3);
    }
  });

  it("reads uptime about once a second, not at every call", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    for (let i = 0; i < 10_000; i++) {
      machine.run(1);
      clock.elapsedMs();
    }
    expect(machine.uptimeReads).toBeLessThanOrEqual(11);
    expect(machine.uptimeReads).toBeGreaterThanOrEqual(9);
  });

  it("never goes back, and never falls behind hrtime, whatever the clocks do", () => {
    const step = fc.record({
      kind: fc.constantFrom("run", "suspend", "freeze", "set wall", "uptime falls back"),
      ms: fc.double({ min: 0, max: 100_000, noNaN: true }),
      sign: fc.constantFrom(1, -1),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40, size: "max" }), (steps) => {
        const machine = new Machine();
        const clock = systemClock(machine);
        const start = machine.hr;
        let before = clock.elapsedMs();
        let unexplainedMs = 0;
        let suspendedMs = 0;
        for (const { kind, ms, sign } of steps) {
          if (kind === "run") machine.run(ms);
          else if (kind === "suspend") {
            machine.suspend(ms);
            suspendedMs += ms;
          } else if (kind === "freeze") machine.freeze(ms);
          else if (kind === "set wall") machine.wall += sign * ms;
          else machine.up -= ms;
          const now = clock.elapsedMs();
          expect(now).toBeGreaterThanOrEqual(before);
          expect(now).toBeGreaterThanOrEqual(machine.hr - start - 1e-6);
          expect(now).toBeLessThanOrEqual(machine.hr - start + suspendedMs + machine.grain);
          expect(clock.unexplainedMs()).toBeGreaterThanOrEqual(unexplainedMs);
          before = now;
          unexplainedMs = clock.unexplainedMs();
        }
      }),
      runs(500),
    );
  });
});

describe("a wall clock that runs ahead of the other clocks", () => {
  it("shows how long the machine was frozen, and elapsed time does not move", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.run(100);
    machine.freeze(30_000);
    expect(clock.elapsedMs()).toBe(100);
    expect(clock.unexplainedMs()).toBe(30_000);
    machine.run(5_000);
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(30_000);
    machine.freeze(150);
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(30_150);
  });

  it("shows only the freeze, not a suspend before it", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.suspend(10_000);
    machine.freeze(10_000);
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(10_000);
  });

  it("counts as a freeze too when it was set forward; setting it back counts for nothing", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.wall += 3_600_000;
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(3_600_000);
    machine.wall -= 7_200_000;
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(3_600_000);
    // From there, a step forward counts again.
    machine.freeze(1_000);
    clock.elapsedMs();
    expect(clock.unexplainedMs()).toBe(3_601_000);
  });

  it("shows no freeze when NTP corrects it slowly, in either direction, for a day", () => {
    for (const ppm of [500, -500]) {
      const machine = new Machine();
      const clock = systemClock(machine);
      for (let s = 0; s < 86_400; s += 10) {
        machine.run(10_000);
        machine.wall += (10_000 * ppm) / 1e6;
        clock.elapsedMs();
      }
      expect(clock.unexplainedMs()).toBe(0);
      expect(clock.elapsedMs()).toBe(86_400_000);
    }
  });

  it("shows a freeze also when the clock was not read for an hour", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    machine.run(3_600_000);
    machine.freeze(500);
    expect(clock.elapsedMs()).toBe(3_600_000);
    expect(clock.unexplainedMs()).toBe(500);
  });

  it("is noticed when steps that are too small to be noticed alone add up", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    for (let i = 0; i < 10; i++) {
      machine.freeze(20);
      machine.run(1_001);
      clock.elapsedMs();
    }
    expect(clock.unexplainedMs()).toBeGreaterThan(150);
  });
});

describe("a suspend that uptime counts", () => {
  it("is no freeze, even when many short suspends add up", () => {
    const machine = new Machine();
    const clock = systemClock(machine);
    for (let i = 0; i < 50; i++) {
      machine.suspend(100);
      machine.run(1_001);
      clock.elapsedMs();
    }
    expect(Math.abs(clock.elapsedMs() - 50 * 1_101)).toBeLessThanOrEqual(2 * machine.grain);
    expect(clock.unexplainedMs()).toBe(0);
  });
});

describe("the real clock", () => {
  it("agrees with the system's clocks", () => {
    const clock = systemClock();
    const before = performance.now();
    const first = clock.elapsedMs();
    for (let i = 0; i < 10_000; i++) clock.elapsedMs();
    const passed = clock.elapsedMs() - first;
    expect(passed).toBeLessThanOrEqual(performance.now() - before + 1);
    expect(passed).toBeGreaterThanOrEqual(0);
    expect(Math.abs(clock.wallMs() - Date.now())).toBeLessThan(1_000);
  });

  it("a cancelled timer does not run; timers with negative and fractional times do", async () => {
    const clock = systemClock();
    const ran: string[] = [];
    clock.after(1, () => ran.push("cancelled")).cancel();
    clock.after(-5, () => ran.push("negative"));
    await new Promise<void>((resolve) => {
      const timer = clock.after(1.2, () => {
        ran.push("fractional");
        resolve();
      });
      timer.keepAlive(true);
    });
    expect(ran).toEqual(["negative", "fractional"]);
  });

  it("the longest timer does not overflow and fire at once", async () => {
    const clock = systemClock();
    let ran = 0;
    const timers = [2 ** 31, 2 ** 40, Number.POSITIVE_INFINITY].map((ms) =>
      clock.after(ms, () => ran++),
    );
    const turns = async (): Promise<void> => {
      for (let i = 0; i < 5; i++) await new Promise((resolve) => setTimeout(resolve, 1));
    };
    await turns();
    expect(ran).toBe(0);
    for (const timer of timers) timer.cancel();
  });
});

describe("timers and the life of a process", () => {
  let built: ReturnType<typeof build>;
  beforeAll(() => {
    built = build();
  });
  afterAll(() => built.remove());

  const script = (body: string): string => `
    import { systemClock } from ${JSON.stringify(built.file("core/clock.js"))};
    const clock = systemClock();
    process.on("exit", () => console.log("exit", performance.now() > 5000));
    ${body}`;

  it("a timer does not keep a process alive", async () => {
    const { code, out } = await runNode(
      script("clock.after(60_000, () => console.log('fired')); clock.after(2 ** 40, () => {});"),
    );
    expect([code, out]).toEqual([0, "exit false"]);
  });

  it("a timer with keepAlive(true) keeps it alive, until keepAlive(false)", async () => {
    const kept = await runNode(
      script("clock.after(50, () => console.log('fired')).keepAlive(true);"),
    );
    expect(kept.out).toBe("fired\nexit false");
    const freed = await runNode(
      script(
        "const t = clock.after(60_000, () => console.log('fired')); t.keepAlive(true); t.keepAlive(false);",
      ),
    );
    expect([freed.code, freed.out]).toEqual([0, "exit false"]);
  });
});
