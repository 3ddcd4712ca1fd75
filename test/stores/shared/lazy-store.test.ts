import { expect, test } from "vitest";
import { connect } from "../../../src/connect.js";
import { StoreUnavailableError } from "../../../src/core/errors.js";
import { LAST_REPLY_MS } from "../../../src/core/reply-timeout.js";
import type { Store } from "../../../src/core/store.js";
import { createLocksOn } from "../../../src/locks.js";
import { MEMORY_TRAITS, memoryStore } from "../../../src/stores/memory/index.js";
import { lazyStore } from "../../../src/stores/shared/lazy-store.js";
import { delegate } from "../../../src/testing/delegate.js";
import { VirtualClock } from "../../../src/testing/virtual-clock.js";
import { Deferred, rejection, watch } from "../../core/helpers.js";

function lazily() {
  const clock = new VirtualClock();
  const real = memoryStore({ clock: clock.forStore() });
  const server = { isUp: false, attempts: 0, closed: 0 };
  const store = lazyStore(MEMORY_TRAITS, async () => {
    server.attempts++;
    if (!server.isUp) throw new StoreUnavailableError("nothing listens there");
    return { ...delegate(real), close: () => void server.closed++ };
  });
  return { clock, real, server, store };
}

test("a lazy store opens at the first request, once", async () => {
  const { clock, server, store } = lazily();
  server.isUp = true;
  const locks = createLocksOn({ clock }, store, {});
  expect([locks.traits.store, server.attempts]).toEqual(["memory", 0]);
  const [a, b] = await Promise.all([locks.acquire("a"), locks.acquire("b")]);
  expect([a.state, b.state, server.attempts]).toEqual(["held", "held", 1]);
  await locks.close();
  expect(server.closed).toBe(1);
});

test("a server that is down is retried, and a wait that outlasts the outage is granted", async () => {
  const { clock, server, store } = lazily();
  const locks = createLocksOn({ clock }, store, { wait: "10s" });
  const acquiring = locks.acquire("a");
  await clock.advance(1_000);
  expect(server.attempts).toBeGreaterThan(1);
  server.isUp = true;
  await clock.advance(1_000);
  expect((await acquiring).state).toBe("held");
});

test('while the server is down, tryAcquire fails, onUnavailable "run" applies, and nothing is left to close', async () => {
  const { clock, server, store } = lazily();
  const locks = createLocksOn({ clock }, store, { onUnavailable: "run" });
  expect(await rejection(locks.tryAcquire("a"))).toBeInstanceOf(StoreUnavailableError);
  const state = await locks.withLock("a", { wait: 0 }, ({ state }) => state);
  expect(state).toBe("lost");
  await locks.close();
  expect(server.closed).toBe(0);
});

test("a store that is closed while it opens is closed as soon as it is open", async () => {
  const { clock, server, store } = lazily();
  server.isUp = true;
  const locks = createLocksOn({ clock }, store, {});
  const acquiring = rejection(locks.acquire("a"));
  await locks.close();
  expect((await acquiring).code).toBe("CLOSED");
  expect(server.closed).toBe(1);
});

test("close() does not wait without end for an attempt that hangs, and closes the store if it opens after all", async () => {
  const clock = new VirtualClock();
  const late = new Deferred<Store>();
  const store = lazyStore(MEMORY_TRAITS, () => late.promise);
  const locks = createLocksOn({ clock }, store, { commandTimeout: "1s" });
  const acquiring = rejection(locks.acquire("a"));
  const closing = watch(locks.close());
  // close() waits for the release of the claim, and a moment for the claim, as it does with any store that hangs.
  await clock.advance(1_000 + LAST_REPLY_MS);
  expect([closing.outcome, (await acquiring).code, clock.timers]).toEqual([
    "resolved",
    "CLOSED",
    0,
  ]);
  let closed = 0;
  late.resolve({ ...delegate(memoryStore()), close: () => void closed++ });
  await clock.advance(0);
  expect(closed).toBe(1);
});

test("a request that waits for a store which opens after close() does not reach it", async () => {
  const real = memoryStore();
  const late = new Deferred<Store>();
  const store = lazyStore(MEMORY_TRAITS, () => late.promise);
  const inspecting = rejection(Promise.resolve(store.inspect("default:a")));
  const closing = store.close();
  let reached = 0;
  const inspect = (): null => {
    reached++;
    return null;
  };
  late.resolve({ ...delegate(real), inspect });
  await closing;
  expect([(await inspecting).code, reached]).toEqual(["CLOSED", 0]);
});

test("connect(url, { lazy: true }) opens no connection, and refuses a bad URL at once", async () => {
  const locks = await connect("redis://127.0.0.1:1", { lazy: true, onUnavailable: "run" });
  expect(await locks.withLock("a", { wait: 0 }, ({ state }) => state)).toBe("lost");
  await locks.close();
  for (const [url, message] of [
    ["redis://127.0.0.1:1?nonsense", /no option "nonsense"/],
    [
      "redys://127.0.0.1:1",
      /unknown scheme "redys:"; known: memory: sqlite: redis: rediss: redlock: postgres: postgresql: etcd: zookeeper:$/,
    ],
  ] as const) {
    await expect(connect(url, { lazy: true })).rejects.toThrow(message);
  }
  await expect(connect("memory:", { lazy: 1 as never })).rejects.toThrow(/lazy is 1/);
  await expect(connect("memory:", new Map() as never)).rejects.toThrow(
    /the options of connect are/,
  );
});
