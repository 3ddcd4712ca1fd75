import { describe, expect, it } from "vitest";
import { hideGrantIds, type RandomSources, systemRandom } from "../../src/core/random.js";
import { seededRandom } from "../../src/testing/seeded-random.js";

/** A machine at the moment of a snapshot: every clone of it goes on from the same bytes. */
function cloneOf(snapshot: number, clocks: { elapsedNs: number; wallMs: number }) {
  const { unit } = seededRandom(snapshot);
  const sources: RandomSources = {
    fill: (pool) => void pool.set(Uint8Array.from(pool, () => Math.floor(unit() * 256))),
    elapsedMs: () => clocks.elapsedNs++ / 1e6,
    wallMs: () => clocks.wallMs,
  };
  return systemRandom(sources);
}

describe("the grantIds of two clones of one machine", () => {
  const now = { elapsedNs: 5_000_000_000, wallMs: Date.UTC(2030, 0, 1) };

  it.each([
    ["nanosecond", { ...now, elapsedNs: now.elapsedNs + 1 }],
    ["millisecond of the wall clock", { ...now, wallMs: now.wallMs + 1 }],
  ])("differ when the clones' clocks differ by a %s", (_by, other) => {
    const [one, two] = [cloneOf(7, { ...now }), cloneOf(7, other)];
    const ids = Array.from({ length: 1_000 }, () => [one.grantId(), two.grantId()]).flat();
    expect(new Set(ids).size).toBe(2_000);
  });
});

describe("a grantId", () => {
  const { grantId } = systemRandom();
  const ids = Array.from({ length: 5_000 }, grantId);

  it("is gid- and 24 random characters, and never the same twice", () => {
    for (const id of ids) expect(id).toMatch(/^gid-[\w-]{24}$/);
    expect(new Set(ids).size).toBe(ids.length);
    for (let i = 4; i < 28; i++) expect(new Set(ids.map((id) => id[i])).size).toBe(64);
  });

  it("is found and hidden in any text, also where it touches other words", () => {
    for (const id of ids) {
      for (const text of [id, `key g${id}`, `(${id})`, `"\\n${id}"`, `${id}:${id}`, `x-${id}_y`]) {
        expect(hideGrantIds(text)).not.toContain(id.slice(4));
      }
    }
    expect(hideGrantIds("no id, no change")).toBe("no id, no change");
  });
});
