import { describe, expect, it } from "vitest";
import { type ClockSources, systemClock } from "../../src/core/clock.js";
import { createLocksOn } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { FaultyStore } from "../../src/testing/faulty-store.js";
import { VirtualClock } from "../../src/testing/virtual-clock.js";

const HELD_FOR = [500, 1_000, 1_500, 5_000];
const STEP_MS = 5;

/** A machine that the world outside can freeze: afterwards only its wall clock has caught up. */
class FreezableMachine implements ClockSources {
  ranMs = 0;
  frozenMs = 0;
  readonly hrtimeMs = (): number => this.ranMs;
  readonly uptimeMs = (): number => this.ranMs;
  readonly wallMs = (): number => this.ranMs + this.frozenMs;
}

function frozenAndOther(ttl: number) {
  const machine = new FreezableMachine();
  const world = new VirtualClock();
  const store = memoryStore({ clock: world.forStore() });
  const clock = { ...systemClock(machine), after: world.after.bind(world) };
  return {
    frozen: createLocksOn({ clock }, store, { ttl }),
    other: createLocksOn({ clock: world }, store, { ttl }),
    async run(ms: number): Promise<void> {
      machine.ranMs += ms;
      await world.advance(ms);
    },
    async freeze(ms: number): Promise<void> {
      await world.advance(0);
      machine.frozenMs += ms;
      world.stall(ms);
    },
  };
}

const passes = (lease: { assertHeld(): void }): boolean => {
  try {
    lease.assertHeld();
    return true;
  } catch {
    return false;
  }
};

describe.each(HELD_FOR)("a lease of %d ms on a machine that freezes", (ttl) => {
  it("never passes assertHeld while another holds the name", async () => {
    for (const freezes of [[60], [110], [160], [199], [400], [90, 90], [24, 24, 24, 24, 24, 24]]) {
      const { frozen, other, run, freeze } = frozenAndOther(ttl);
      const lease = await frozen.acquire("a", { renew: false });
      for (const ms of freezes) {
        await run(ttl / 10);
        passes(lease);
        await freeze(ms);
      }
      let taken = null;
      while (taken === null) {
        await run(STEP_MS);
        taken = await other.tryAcquire("a");
        if (taken !== null) expect(passes(lease), `frozen for ${freezes}`).toBe(false);
      }
    }
  });

  it("still passes assertHeld after a freeze that is short compared with abortBefore", async () => {
    const { frozen, run, freeze } = frozenAndOther(ttl);
    const lease = await frozen.acquire("a", { renew: false });
    await run(ttl / 10);
    await freeze(20);
    expect(passes(lease)).toBe(true);
  });
});

it("a lease stays unproved after a freeze, though renew() requests a longer ttl, until the store has replied", async () => {
  const machine = new FreezableMachine();
  const world = new VirtualClock();
  const clock = { ...systemClock(machine), after: world.after.bind(world) };
  const store = new FaultyStore(memoryStore({ clock: world.forStore() }), world);
  const lease = await createLocksOn({ clock }, store, { ttl: 500 }).acquire("a", { renew: false });
  machine.ranMs += 50;
  machine.frozenMs += 69;
  expect(passes(lease)).toBe(false);
  store.all = "hang";
  const renewed = lease.renew(1_000).catch(() => {});
  await world.advance(0);
  expect(passes(lease)).toBe(false);
  machine.ranMs += 500;
  await world.advance(10_000);
  await renewed;
});

describe("a jump of the wall clock", () => {
  it("is ignored while abortBefore covers it; a jump of more than 200 ms puts every lease in doubt", async () => {
    for (const [ttl, ms, held] of [
      [2_000, 150, true],
      [1_000, 150, false],
      [30_000, 200, true],
      [30_000, 201, false],
    ] as const) {
      const clock = new VirtualClock();
      const locks = createLocksOn({ clock }, memoryStore({ clock: clock.forStore() }), { ttl });
      const lease = await locks.acquire("a");
      clock.jumpWall(ms);
      expect([ttl, ms, passes(lease)]).toEqual([ttl, ms, held]);
      // The next renewal, which is sent at once, proves the lease again.
      await clock.advance(0);
      lease.assertHeld();
      await locks.close();
    }
  });
});
