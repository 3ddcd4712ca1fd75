import assert from "node:assert/strict";
import { AcquireTimeoutError, LeaseLostError } from "../core/errors.js";
import type { Locks } from "../locks.js";
import { type Case, ignore } from "./subject.js";

/** Several names at once, and elections. */
export const primitiveCases: readonly Case[] = [
  {
    name: "acquireAll takes all names or none, in one order for every client, with a token for each",
    async run(bench) {
      const [one, two] = [await bench.locks(), await bench.locks()];
      const all = await one.acquireAll(["c", "a", "b", "a"]);
      assert.deepEqual(all.names, ["a", "b", "c"]);
      assert.deepEqual([...all.tokens.keys()], ["a", "b", "c"]);
      await assert.rejects(two.acquireAll(["b", "z"], { wait: 0 }), AcquireTimeoutError);
      assert.equal(await two.inspect("z"), null, "the failed acquireAll leaves nothing");
      const waiting = two.acquireAll(["z", "b", "y"]);
      await bench.waitersAre(one, "b", 1);
      assert.equal(await all.release(), "released");
      const next = await bench.settled(waiting);
      assert(next.tokens.get("b")! > all.tokens.get("b")!);
      await next.release();
      assert.deepEqual(await one.list(), []);
    },
  },
  {
    name: "acquireAll gives back everything when one name times out or is lost",
    async run(bench) {
      const [one, two] = [await bench.client(), await bench.locks()];
      const held = await two.acquire("b");
      await assert.rejects(
        bench.settled(one.locks.acquireAll(["c", "b", "a"], { wait: bench.ttlMs })),
        (error) => error instanceof AcquireTimeoutError && error.lockName === "b",
      );
      for (const name of ["a", "c"]) assert.equal(await two.inspect(name), null);
      await held.release();
      const all = await one.locks.acquireAll(["a", "b"]);
      const lost = new Promise<LeaseLostError>((resolve) => {
        all.signal.addEventListener("abort", () => resolve(all.signal.reason as LeaseLostError));
      });
      one.store.all = "hang";
      const error = await bench.settled(lost, bench.ttlMs * 2);
      assert(error instanceof LeaseLostError);
      assert.equal(all.state, "lost");
      assert.throws(() => all.assertHeld(), LeaseLostError);
    },
  },
  {
    name: "in opposite orders acquireAll never deadlocks; acquire does, and deadlocks() shows it",
    needsQueue: true,
    async run(bench) {
      const clients = [await bench.locks({ holder: "one" }), await bench.locks({ holder: "two" })];
      const rounds = bench.subject.virtual ? 200 : 20;
      const work = clients.map(async (locks, i) => {
        const names = i === 0 ? ["a", "b"] : ["b", "a"];
        for (let round = 0; round < rounds; round++) {
          const all = await locks.acquireAll(names, { wait: Number.POSITIVE_INFINITY });
          assert.equal(all.state, "held");
          await all.release();
        }
      });
      await bench.settled(Promise.all(work), bench.ttlMs * 20);

      const [one, two] = clients as [Locks, Locks];
      const [a, b] = [await one.acquire("a"), await two.acquire("b")];
      assert.deepEqual(await one.deadlocks(), []);
      const crossed = [
        one.acquire("b", { wait: bench.ttlMs * 4 }),
        two.acquire("a", { wait: bench.ttlMs * 4 }),
      ];
      for (const waiting of crossed) waiting.catch(ignore);
      await bench.waitersAre(one, "a", 1);
      await bench.waitersAre(one, "b", 1);
      const [deadlock, ...others] = await two.deadlocks();
      assert.deepEqual(others, []);
      assert.deepEqual(
        deadlock?.map(({ holder, holds, waitsFor, blockedBy }) => ({
          holder,
          holds,
          waitsFor,
          blockedBy,
        })),
        [
          { holder: "one", holds: ["a"], waitsFor: "b", blockedBy: "two" },
          { holder: "two", holds: ["b"], waitsFor: "a", blockedBy: "one" },
        ],
      );
      await a.release();
      await (await bench.settled(crossed[1]!)).release();
      await b.release();
      await (await bench.settled(crossed[0]!)).release();
      assert.deepEqual(await one.deadlocks(), []);
    },
  },
  {
    name: "a leader that is cut off is notified before the next is elected, whose token is higher",
    async run(bench) {
      const [one, two] = [await bench.client({ holder: "one" }), await bench.locks()];
      const first = await one.locks.election("name").campaign();
      let elected = false;
      const candidate = two.election("name");
      const next = candidate.campaign().then((lease) => {
        elected = true;
        return lease;
      });
      await bench.waitersAre(two, "name", 1);
      let knewFirst = false;
      first.on("lost", () => {
        knewFirst = !elected;
      });
      one.store.all = "hang";
      const second = await bench.settled(next, bench.ttlMs * 2);
      assert(knewFirst, "the old leader is notified first");
      assert(second.token > first.token);
      const leaders: (bigint | null)[] = [];
      const observed = (async () => {
        for await (const leader of candidate.observe({ every: bench.ttlMs / 10 })) {
          leaders.push(leader?.token ?? null);
          if (leader === null) break;
        }
      })();
      await bench.until("the observer is notified", () => leaders.length === 1);
      assert.equal(await candidate.resign(), "released");
      await bench.settled(observed);
      assert.deepEqual(leaders, [second.token, null]);
    },
  },
];
