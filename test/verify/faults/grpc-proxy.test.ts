import { setTimeout as pause } from "node:timers/promises";
import { describe, expect, onTestFinished, test } from "vitest";
import { connect, type Locks, type LocksOptions } from "../../../src/index.js";
import type { Fault } from "../../../src/verify/fault.js";
import type { GrpcKind, GrpcProxy } from "../../../src/verify/faults/grpc-proxy.js";
import { rejection } from "../../core/helpers.js";
import { callsOf, OneEtcd, waitersAre } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import {
  clientOf,
  type Ending,
  openProxy,
  put,
  Recorder,
  SILENCE_MS,
  succeeds,
  watch,
} from "./etcd-clients.js";

/** How long a reply may take on a busy machine. */
const REPLY_MS = 10_000;

describeWith(["etcd"], "a gRPC proxy", () => {
  const etcd = OneEtcd.forAll();

  async function locksAt(url: string, options: LocksOptions): Promise<Locks> {
    const locks = await connect(url, options);
    onTestFinished(() => locks.close().catch(() => {}));
    return locks;
  }

  describe("with locks through it", () => {
    test("lets names be granted, waited for, handed over and renewed", async () => {
      const proxy = await openProxy(etcd.server);
      const ttlMs = 2_000;
      const [locks, others] = [
        await locksAt(proxy.url, { ttl: ttlMs }),
        await locksAt(proxy.url, { ttl: ttlMs }),
      ];
      const held = await locks.acquire("name");
      const waiting = others.acquire("name");
      await waitersAre(locks, "name", 1);
      await pause(1.5 * ttlMs);
      held.assertHeld();
      expect(proxy.openStreams("keepalive")).toBe(2);
      expect(proxy.openStreams("watch")).toBeGreaterThan(0);
      await held.release();
      const next = await waiting;
      expect(next.token).toBeGreaterThan(held.token);
      await next.release();
      await locks.close();
      await others.close();
      await until("every connection is closed", () => proxy.openConnections === 0);
      for (const kind of ["watch", "keepalive", "calls"] as const) {
        await until(`no ${kind} stream is left`, () => proxy.openStreams(kind) === 0);
      }
    });

    test("with watches swallowed, a holder keeps its lease, and a waiter learns of its turn after healing", async () => {
      const proxy = await openProxy(etcd.server);
      const holders = await locksAt(proxy.url, { ttl: 2_000, namespace: "deaf" });
      const waiters = await locksAt(proxy.url, { ttl: "60s", namespace: "deaf" });
      const held = await holders.acquire("name");
      const waiting = waiters.acquire("name");
      await waitersAre(holders, "name", 1);
      const deaf = proxy.swallow("to-client", { only: "watch" });
      await deaf.inject();
      await pause(3_000);
      held.assertHeld();
      await held.release();
      expect(await Promise.race([waiting, pause(SILENCE_MS, "no turn")])).toBe("no turn");
      await (await waiters.acquire("another")).release();
      await deaf.heal();
      (await waiting).assertHeld();
    });

    test("with keepalives cut, the lease is lost in time, and calls still work", async () => {
      const proxy = await openProxy(etcd.server);
      const locks = await locksAt(proxy.url, { ttl: 2_000, namespace: "dying" });
      const held = await locks.acquire("name");
      const cut = proxy.cut({ only: "keepalive" });
      await cut.inject();
      expect(await locks.inspect("name")).not.toBeNull();
      await until("the lease is lost", () => held.signal.aborted);
      await cut.heal();
      const again = await locks.acquire("name", { wait: "10s" });
      await pause(3_000);
      again.assertHeld();
    });
  });

  describe("with a fault of one kind of call", () => {
    const KINDS: readonly GrpcKind[] = ["calls", "keepalive", "watch"];
    const times = Number.POSITIVE_INFINITY;
    const FAULTS: Record<string, (proxy: GrpcProxy, only: GrpcKind) => Fault> = {
      cut: (proxy, only) => proxy.cut({ only }),
      "a long delay": (proxy, only) => proxy.delay(60_000, undefined, { only }),
      "swallow to-server": (proxy, only) => proxy.swallow("to-server", { only }),
      "swallow to-client": (proxy, only) => proxy.swallow("to-client", { only }),
      stall: (proxy, only) => proxy.stall(undefined, { only }),
      "truncate to-server": (proxy, only) => proxy.truncate("to-server", { only, times }),
      "truncate to-client": (proxy, only) => proxy.truncate("to-client", { only, times }),
      "reset in mid-command": (proxy, only) => proxy.resetMidCommand({ only, times }),
      "a lost reply": (proxy, only) => proxy.loseReply({ only, times }),
      "a lost reply in silence": (proxy, only) => proxy.loseReply({ only, times, silent: true }),
    };
    const cases = Object.keys(FAULTS).flatMap((name) => KINDS.map((kind) => [name, kind] as const));
    let keys = 0;

    /** Tries each kind of call once: true if it works within the time. */
    type Probes = Record<GrpcKind, (withinMs: number) => Promise<boolean>>;

    async function probes(proxy: GrpcProxy, context: Ending): Promise<Probes> {
      const key = `probe-${++keys}`;
      const { id } = await etcd.raw.leaseGrant(60);
      // Each kind has its own client: a client that gets no reply gives up its connection.
      const [calls, keepalive, watches] = [
        await clientOf(proxy, context),
        await clientOf(proxy, context),
        await clientOf(proxy, context),
      ];
      let writes = 0;
      return {
        calls: (timeoutMs) => succeeds(calls.range({ key }, { timeoutMs })),
        keepalive: (timeoutMs) => succeeds(keepalive.leaseKeepAlive(id, { timeoutMs })),
        watch: async (withinMs) => {
          const value = String(++writes);
          const recorder = new Recorder();
          const watching = watches.watch({ key }, recorder);
          const isCreated = await succeeds(
            until("created", () => recorder.timesCreated > 0, withinMs),
          );
          await etcd.raw.txn(put(key, value));
          const received = () => recorder.received.includes(value);
          const receives = isCreated && (await succeeds(until("received", received, withinMs)));
          watching.cancel();
          return receives;
        },
      };
    }

    describe.concurrent("hits only this kind, until healed", () => {
      test.for(cases)("%s of %s", async ([name, kind], context) => {
        const proxy = await openProxy(etcd.server, context);
        const works = await probes(proxy, context);
        for (const one of KINDS) expect(await works[one](REPLY_MS), one).toBe(true);
        const fault = FAULTS[name]!(proxy, kind);
        await fault.inject();
        const found = KINDS.map(async (one) => {
          return [one, await works[one](one === kind ? SILENCE_MS : REPLY_MS)] as const;
        });
        expect(Object.fromEntries(await Promise.all(found))).toEqual(
          Object.fromEntries(KINDS.map((one) => [one, one !== kind])),
        );
        await fault.heal();
        for (const one of KINDS) {
          await until(`${one} works again`, () => works[one](SILENCE_MS));
        }
      });
    });

    test("cuts an open stream, and lets no new one reach the server", async () => {
      const proxy = await openProxy(etcd.server);
      const client = await clientOf(proxy);
      const received = await watch(client, "cut");
      await proxy.cut({ only: "watch" }).inject();
      expect(proxy.openStreams("watch")).toBe(0);
      await client.range({ key: "cut" });
      expect(proxy.connections).toBe(1);

      const cut = proxy.cut({ only: "calls" });
      await cut.inject();
      const before = await callsOf(etcd.server, "Txn");
      const error = await rejection(client.txn(put("cut", "1"), { timeoutMs: SILENCE_MS }));
      expect(error).toMatchObject({ executed: "no" });
      expect(await callsOf(etcd.server, "Txn")).toBe(before);
      await cut.heal();
      await client.txn(put("cut", "2"));
      expect(received).toEqual([]);
      expect(proxy.connections).toBe(1);
    });
  });

  test("keeps the order of a stream when it delays", async () => {
    const proxy = await openProxy(etcd.server);
    const client = await clientOf(proxy);
    const received = await watch(client, "order");
    const late = proxy.delay(200, "to-client", { only: "watch" });
    await late.inject();
    const values = Array.from({ length: 50 }, (_, i) => String(i));
    const startMs = performance.now();
    for (const value of values) {
      await client.txn(put("order", value));
      if (value === "25") await late.heal();
      if (value === "30") await late.inject();
    }
    await until("all has arrived", () => received.length >= values.length);
    expect(received).toEqual(values);
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(199);
  });

  test("lets a stalled request take effect when healed", async () => {
    const proxy = await openProxy(etcd.server);
    const client = await clientOf(proxy);
    await client.range({ key: "late" });
    const stall = proxy.stall("to-server", { only: "calls" });
    await stall.inject();
    const writing = client.txn(put("late", "1"), { timeoutMs: 20_000 });
    await pause(SILENCE_MS / 2);
    expect((await etcd.raw.range({ key: "late" })).kvs).toEqual([]);
    await stall.heal();
    await writing;
    expect((await etcd.raw.range({ key: "late" })).kvs[0]).toMatchObject({ version: 1n });
  });

  test("loses a reply after the effect, and the connection lives on", async () => {
    const proxy = await openProxy(etcd.server);
    const client = await clientOf(proxy);
    const received = await watch(client, "lost");
    const lose = proxy.loseReply({ when: "lost" });
    await lose.inject();
    await client.range({ key: "another" });
    expect(lose.struck).toBe(0);
    expect(await rejection(client.txn(put("lost", "1")))).toMatchObject({ executed: "unknown" });
    expect(lose.struck).toBe(1);
    expect((await etcd.raw.range({ key: "lost" })).kvs[0]).toMatchObject({ version: 1n });
    await client.txn(put("lost", "2"));
    await until("both have arrived", () => received.length === 2);
    expect(proxy.connections).toBe(1);
  });

  test("cuts connections of every kind, and refuses new ones on the same port", async () => {
    const proxy = await openProxy(etcd.server);
    const { port } = proxy;
    const client = await clientOf(proxy);
    await client.range({ key: "any" });
    const cut = proxy.cut();
    await cut.inject();
    expect(proxy.openConnections).toBe(0);
    const error = await rejection(client.range({ key: "any" }, { timeoutMs: SILENCE_MS }));
    expect(error.message).toContain("can't connect");
    await cut.heal();
    expect(proxy.port).toBe(port);
    await client.range({ key: "any" });
  });
});
