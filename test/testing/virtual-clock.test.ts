import { expect, it } from "vitest";
import { VirtualClock } from "../../src/testing.js";

/** Both clocks, read at each timer and at the end: neither may ever go back. */
function watched(): {
  clock: VirtualClock;
  look: () => void;
  seen: { elapsed: number[]; wall: number[] };
} {
  const clock = new VirtualClock();
  const seen = { elapsed: [] as number[], wall: [] as number[] };
  const look = (): void => {
    seen.elapsed.push(clock.elapsedMs());
    seen.wall.push(clock.wallMs());
  };
  look();
  return { clock, look, seen };
}

const rising = (all: readonly number[]): readonly number[] => all.toSorted((a, b) => a - b);

it("the virtual clock does not go back when a timer stalls beyond the end of advance", async () => {
  const { clock, look, seen } = watched();
  clock.after(10, () => {
    clock.stall(500);
    look();
  });
  clock.after(20, look);
  await clock.advance(100);
  look();
  expect(seen.elapsed.map((ms) => ms - 1_000)).toEqual([0, 510, 510, 510]);
  expect(seen.wall).toEqual(rising(seen.wall));
  expect(seen.wall.at(-1)! - seen.wall[0]!).toBe(510);
});

it("the virtual clock does not go back when two advances overlap: each ends when its time has passed", async () => {
  const { clock, look, seen } = watched();
  clock.after(90, look);
  let over = false;
  const both = Promise.all([clock.advance(150), clock.advance(50)]).then(() => {
    over = true;
  });
  while (!over) {
    await new Promise(setImmediate);
    look();
  }
  await both;
  expect(seen.elapsed).toEqual(rising(seen.elapsed));
  expect(seen.wall).toEqual(rising(seen.wall));
  expect(clock.elapsedMs()).toBe(1_150);
});

it("the virtual clock refuses to go back by a negative time", async () => {
  const clock = new VirtualClock();
  expect(() => clock.stall(-1)).toThrow("elapsed time never goes back");
  await expect(clock.advance(-1)).rejects.toThrow("never goes back");
  expect(clock.elapsedMs()).toBe(1_000);
});
