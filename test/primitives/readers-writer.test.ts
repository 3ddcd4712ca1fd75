import { describe, expect, it } from "vitest";
import {
  InvalidArgumentError,
  type LeaseLostError,
  StaleTokenError,
  UnsupportedError,
} from "../../src/core/errors.js";
import type { Lease } from "../../src/core/lease.js";
import { memoryFence } from "../../src/fence/memory.js";
import { rejection, stage, watch } from "../core/helpers.js";
import { type Clients, clients, crash } from "./clients.js";

type Watched = ReturnType<typeof watch>;

const read = ({ on }: Clients, who: string): Promise<Lease> =>
  on(who).locks.acquire("a", { mode: "shared" });
const write = ({ on }: Clients, who: string): Promise<Lease> => on(who).locks.acquire("a");
const leaseOf = (one: Watched): Lease => one.value as Lease;
const granted = (all: readonly Watched[]): boolean[] =>
  all.map(({ outcome }) => outcome === "resolved");

describe("readers and a writer", () => {
  it("readers hold the name together, a writer holds it alone", async () => {
    const many = clients({ wait: "1h" });
    const readers = [await read(many, "R1"), await read(many, "R2")];
    expect(readers.map(({ mode, permits }) => [mode, permits])).toEqual([
      ["shared", 1],
      ["shared", 1],
    ]);
    const { locks } = many.on("W");
    expect(await locks.tryAcquire("a")).toBeNull();
    const third = await many.on("R3").locks.tryAcquire("a", { mode: "shared" });
    expect(third?.mode).toBe("shared");
    for (const reader of [...readers, third!]) {
      expect(await locks.tryAcquire("a")).toBeNull();
      await reader.release();
    }
    const writer = await locks.tryAcquire("a");
    expect(writer?.mode).toBe("exclusive");
    expect(await many.on("R3").locks.tryAcquire("a", { mode: "shared" })).toBeNull();
    expect(await many.on("W2").locks.tryAcquire("a")).toBeNull();
  });

  it("a writer is not starved by readers that keep coming", async () => {
    const many = clients({ wait: "1h" });
    let last = await read(many, "R0");
    const writer = watch(write(many, "W"));
    const later: Watched[] = [];
    for (let i = 1; i <= 30; i++) {
      later.push(watch(read(many, `R${i}`)));
      expect(await many.on("T").locks.tryAcquire("a", { mode: "shared" })).toBeNull();
      await many.clock.advance(100);
    }
    expect(granted([writer, ...later])).not.toContain(true);
    await last.release();
    await many.clock.advance(0);
    expect(granted([writer])).toEqual([true]);
    expect(granted(later)).not.toContain(true);
    await leaseOf(writer).release();
    await many.clock.advance(0);
    // All readers at once, in the order in which they came.
    expect(granted(later)).not.toContain(false);
    const tokens = later.map((one) => leaseOf(one).token);
    expect(tokens).toEqual(tokens.toSorted());
    last = leaseOf(later[0]!);
    expect(last.token).toBeGreaterThan(leaseOf(writer).token);
  });

  it("readers are not starved by writers: first come, first served", async () => {
    const many = clients({ wait: "1h" });
    const first = await write(many, "W0");
    const order = ["R1", "R2", "W3", "R4", "W5", "W6", "R7", "R8", "R9"];
    const all = order.map((who) => watch(who.startsWith("W") ? write(many, who) : read(many, who)));
    expect((await many.on("T").locks.inspect("a"))?.waiters.map(({ holder }) => holder)).toEqual(
      order,
    );
    const rounds: string[][] = [];
    let holders = [first];
    while (holders.length > 0) {
      const before = granted(all);
      await Promise.all(holders.map((one) => one.release()));
      await many.clock.advance(0);
      const now = all.filter((one, i) => one.outcome === "resolved" && !before[i]);
      holders = now.map(leaseOf);
      if (holders.length > 0) rounds.push(holders.map(({ holder }) => holder));
    }
    expect(rounds).toEqual([["R1", "R2"], ["W3"], ["R4"], ["W5"], ["W6"], ["R7", "R8", "R9"]]);
    const tokens = all.map((one) => leaseOf(one).token);
    expect(tokens).toEqual(tokens.toSorted());
  });

  it("a writer that gives up lets the readers behind it in at once", async () => {
    const many = clients({ wait: "1h" });
    await read(many, "R0");
    const writer = watch(many.on("W").locks.acquire("a", { wait: "5s" }));
    const behind = [watch(read(many, "R1")), watch(read(many, "R2"))];
    await many.clock.advance(4_999);
    expect(granted(behind)).toEqual([false, false]);
    await many.clock.advance(1);
    expect(writer.value).toMatchObject({ code: "ACQUIRE_TIMEOUT", waitMs: 5_000, holder: "R0" });
    expect(granted(behind)).toEqual([true, true]);
  });

  it("shared mode is refused where the store can't do it, and an unknown mode always", async () => {
    const on = stage({}, { traits: { cannot: { shared: "one owner per key" } } });
    const refused = await rejection(on.locks.acquire("a", { mode: "shared" }));
    expect(refused).toBeInstanceOf(UnsupportedError);
    expect(refused.message).toBe('the store (memory) can\'t do mode "shared": one owner per key');
    expect((await on.locks.acquire("a")).mode).toBe("exclusive");
    const bad = await rejection(stage().locks.acquire("a", { mode: "read" as "shared" }));
    expect(bad).toBeInstanceOf(InvalidArgumentError);
    expect(bad.message).toBe('mode is "read"; it must be one of "exclusive", "shared"');
  });
});

describe("each reader has a lease of its own", () => {
  it("a crashed reader holds up a writer until its own expiry, whatever the others do", async () => {
    const many = clients({ wait: "1h" });
    const { clock, on } = many;
    await on("dead").locks.acquire("a", { mode: "shared", ttl: "10s" });
    const alive = await on("alive").locks.acquire("a", { mode: "shared", ttl: "3s" });
    crash(on("dead"));
    const writer = watch(write(many, "W"));
    await clock.advance(9_999);
    const holders = async (): Promise<string[]> =>
      (await on("T").locks.inspect("a"))!.holders.map(({ holder }) => holder);
    expect(await holders()).toEqual(["dead", "alive"]);
    await clock.advance(1);
    expect(await holders()).toEqual(["alive"]);
    await clock.advance(50_000);
    expect([alive.state, writer.outcome]).toEqual(["held", "pending"]);
    await alive.release();
    await clock.advance(0);
    expect(writer.outcome).toBe("resolved");
  });

  it("a writer gets the name when the crashed reader expires, if the others are gone by then", async () => {
    const many = clients({ wait: "1h" });
    const { clock, on } = many;
    await on("dead").locks.acquire("a", { mode: "shared", ttl: "10s" });
    const alive = await on("alive").locks.acquire("a", { mode: "shared", ttl: "3s" });
    crash(on("dead"));
    const writer = watch(write(many, "W"));
    await clock.advance(5_000);
    await alive.release();
    await clock.advance(4_999);
    expect(writer.outcome).toBe("pending");
    await clock.advance(1);
    expect(writer.outcome).toBe("resolved");
  });

  it("a crashed writer in the queue holds up the readers behind it until its ticket expires", async () => {
    const many = clients({ wait: "1h" });
    const { clock, on } = many;
    const reader = await on("R0").locks.acquire("a", { mode: "shared", ttl: "3s" });
    on("dead")
      .locks.acquire("a", { ttl: "6s" })
      .catch(() => {});
    crash(on("dead"));
    const behind = watch(on("R1").locks.acquire("a", { mode: "shared", ttl: "3s" }));
    await clock.advance(5_999);
    expect(behind.outcome).toBe("pending");
    // The expiry is noticed at the next renewal by anybody: after a third of the ttl at the latest.
    await clock.advance(1_001);
    expect([behind.outcome, reader.state]).toEqual(["resolved", "held"]);
  });

  it("a reader that is lost does not affect the others", async () => {
    const many = clients({ ttl: "6s" });
    const [one, other] = [await read(many, "R1"), await read(many, "R2")];
    many.on("R1").store.onRenew = () => Promise.reject(new Error("down"));
    await many.clock.advance(10_000);
    expect([one.state, other.state]).toEqual(["lost", "held"]);
    expect(await one.release()).toBe("lost");
    expect(other.state).toBe("held");
  });

  it("a release by force ends all readers together, and the writer comes next with a higher token", async () => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const readers = [await read(many, "R1"), await read(many, "R2")];
    const writer = watch(write(many, "W"));
    const revoked = await many.on("op").locks.forceRelease("a", { why: "stuck" });
    expect(revoked.map(({ token }) => token)).toEqual(readers.map(({ token }) => token));
    await many.clock.advance(0);
    expect(leaseOf(writer).token).toBeGreaterThan(readers[1]!.token);
    expect(leaseOf(writer).floor).toBe(leaseOf(writer).token);
    await many.clock.advance(2_000);
    for (const reader of readers) {
      const { reason, message } = reader.signal.reason as LeaseLostError;
      expect(reason).toBe("revoked");
      expect(message).toMatch(/by op: stuck$/);
    }
    const info = (await many.on("op").locks.inspect("a"))!;
    expect(info.revoked).toMatchObject([
      { holder: "R1", by: "op", why: "stuck", token: readers[0]!.token },
      { holder: "R2", by: "op", why: "stuck", token: readers[1]!.token },
    ]);
  });
});

describe("tokens and floors", () => {
  it("tokens rise in the order of grants; a floor is the lowest token that still holds", async () => {
    const many = clients({ wait: "1h" });
    const r1 = await read(many, "R1");
    const r2 = await read(many, "R2");
    expect([r1.floor, r2.floor]).toEqual([r1.token, r1.token]);
    await r1.release();
    const r3 = await read(many, "R3");
    expect(r3.floor).toBe(r2.token);
    // The floor of a grant is fixed when the grant is made.
    await r2.release();
    expect(r3.floor).toBe(r2.token);
    const writing = watch(write(many, "W"));
    const after = [watch(read(many, "R4")), watch(read(many, "R5"))];
    await r3.release();
    await many.clock.advance(0);
    const writer = leaseOf(writing);
    expect(writer.floor).toBe(writer.token);
    await writer.release();
    await many.clock.advance(0);
    const [r4, r5] = after.map(leaseOf);
    expect([r4!.floor, r5!.floor]).toEqual([r4!.token, r4!.token]);
    const all = [r1, r2, r3, writer, r4!, r5!].map(({ token }) => token);
    expect(all).toEqual(all.toSorted());
    expect(new Set(all).size).toBe(6);
  });

  it("a crashed reader counts for the floor until its expiry, and not after", async () => {
    const many = clients();
    const dead = await many.on("dead").locks.acquire("a", { mode: "shared", ttl: "10s" });
    const alive = await read(many, "alive");
    crash(many.on("dead"));
    await many.clock.advance(9_999);
    expect((await read(many, "R1")).floor).toBe(dead.token);
    await many.clock.advance(1);
    expect((await read(many, "R2")).floor).toBe(alive.token);
  });

  it("a reader that has released, but is kept closed by atLeast, does not count for the floor", async () => {
    const many = clients();
    const { locks } = many.on("A");
    const closed = await locks.acquire("a", { mode: "shared", atLeast: "1h" });
    const reader = await read(many, "R1");
    await closed.release();
    expect((await locks.inspect("a"))?.holders.map((one) => one.closed)).toEqual([true, false]);
    expect((await read(many, "R2")).floor).toBe(reader.token);
  });
});

describe("a fence for leases that are held together", () => {
  const accepted = (fence: ReturnType<typeof memoryFence>, lease: Lease): Promise<boolean> =>
    fence.guard(undefined, "r", lease).then(
      () => true,
      (error) => {
        expect(error).toBeInstanceOf(StaleTokenError);
        return false;
      },
    );

  /** Five leases at the same time: readers, or permits. */
  const together = {
    readers: (many: Clients, who: string) => read(many, who),
    permits: ({ on }: Clients, who: string) =>
      on(who).locks.semaphore("s", { permits: 5 }).acquire({ wait: "1h" }),
  };

  it.each(Object.entries(together))(
    "lets in all %s that are held together, in any order",
    async (_, acquire) => {
      const many = clients();
      const fence = memoryFence();
      const all: Lease[] = [];
      for (let i = 0; i < 5; i++) all.push(await acquire(many, `H${i}`));
      for (const lease of [3, 0, 4, 1, 2].map((i) => all[i]!)) {
        await fence.enter(undefined, "r", lease);
        await fence.guard(undefined, "r", lease, { strict: true });
      }
      for (const lease of all) expect(await accepted(fence, lease)).toBe(true);
      // Some are released and others granted, while at least one of the first is held.
      await all[1]!.release();
      await all[0]!.release();
      const next = await acquire(many, "H5");
      await fence.enter(undefined, "r", next);
      for (const lease of [all[2]!, all[3]!, all[4]!, next]) {
        expect(await accepted(fence, lease)).toBe(true);
      }
      // Leases that were released before the new grant are refused.
      expect(await accepted(fence, all[0]!)).toBe(false);
      expect(await accepted(fence, all[1]!)).toBe(false);
    },
  );

  it.each(Object.entries(together))("refuses %s of an earlier time", async (_, acquire) => {
    const many = clients({ ttl: "6s", wait: "1h" });
    const fence = memoryFence();
    const zombie = await acquire(many, "Z");
    const alive = await acquire(many, "H1");
    await fence.enter(undefined, "r", zombie);
    await fence.enter(undefined, "r", alive);
    crash(many.on("Z"));
    await many.clock.advance(6_000);
    expect(zombie.state).toBe("lost");
    // Nothing was granted since: this write can do no harm that it could not do before.
    expect(await accepted(fence, zombie)).toBe(true);
    const next = await acquire(many, "H2");
    await fence.enter(undefined, "r", next);
    expect(await accepted(fence, zombie)).toBe(false);
    expect([await accepted(fence, alive), await accepted(fence, next)]).toEqual([true, true]);
    expect(await fence.highest(undefined, "r")).toBe(alive.token);
  });

  it("refuses all readers before a writer, and the writer once a later reader has entered", async () => {
    const many = clients({ wait: "1h" });
    const fence = memoryFence();
    const before = [await read(many, "R1"), await read(many, "R2")];
    for (const lease of before) await fence.enter(undefined, "r", lease);
    const waiting = watch(write(many, "W"));
    for (const lease of before) await lease.release();
    await many.clock.advance(0);
    const writer = leaseOf(waiting);
    // Until the writer has entered, the resource does not know of it.
    for (const lease of before) expect(await accepted(fence, lease)).toBe(true);
    await fence.enter(undefined, "r", writer);
    for (const lease of before) expect(await accepted(fence, lease)).toBe(false);
    await writer.release();
    const after = [await read(many, "R3"), await read(many, "R4")];
    expect(await accepted(fence, writer)).toBe(true);
    await fence.enter(undefined, "r", after[1]!);
    expect(await accepted(fence, writer)).toBe(false);
    for (const lease of after) expect(await accepted(fence, lease)).toBe(true);
  });

  it("is entered by withLock, for readers too", async () => {
    const many = clients();
    const fence = memoryFence();
    const shared = { mode: "shared", fence, resource: "r" } as const;
    await many.on("R1").locks.withLock("a", shared, async (one) => {
      await many.on("R2").locks.withLock("a", shared, async (other) => {
        expect(other.floor).toBe(one.token);
        await fence.guard(undefined, "r", one, { strict: true });
        await fence.guard(undefined, "r", other, { strict: true });
        expect(await fence.highest(undefined, "r")).toBe(one.token);
      });
    });
  });
});
