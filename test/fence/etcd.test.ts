import { subscribe, unsubscribe } from "node:diagnostics_channel";
import fc from "fast-check";
import { afterAll, beforeAll, expect, onTestFinished, type TestContext, test } from "vitest";
import { fenceCases } from "../../src/conformance/fences.js";
import { StaleTokenError, StoreUnavailableError } from "../../src/core/errors.js";
import { type EtcdFence, type EtcdTx, etcdFence } from "../../src/fence/etcd.js";
import type { Fenced } from "../../src/fence/fence.js";
import { createLocks } from "../../src/locks.js";
import { type EtcdClient, openEtcdClient } from "../../src/stores/etcd/rpc/client.js";
import { Code, EtcdError } from "../../src/stores/etcd/rpc/errors.js";
import type { KeyValue } from "../../src/stores/etcd/rpc/messages.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { type FencedCell, runCase } from "../../src/testing.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { realSubject } from "../conformance/subjects.js";
import { rejection } from "../core/helpers.js";
import { runs } from "../support/chance.js";
import { describeWith } from "../support/needs.js";

type Client = Pick<EtcdClient, "txn" | "range">;

const exclusive = (token: bigint): Fenced => ({ token, floor: token });
const empty = (): EtcdTx => ({ compare: [], success: [] });

describeWith(["etcd"], "the fence in etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  let client: EtcdClient;
  let names = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.etcd()).servers[0]!;
    client = await openEtcdClient({ endpoints: [`${server.address}:${server.port}`] });
  });
  afterAll(async () => {
    await client?.close();
    await lab?.close();
  });

  const get = async (key: string): Promise<KeyValue | undefined> =>
    (await client.range({ key })).kvs[0];
  const put = (key: string, value: string): Promise<unknown> =>
    client.txn({ success: [{ put: { key, value } }] });

  /** A resource, the key of its fence, and a key of the user's. */
  function fresh(): { fence: EtcdFence; resource: string; key: string; data: string } {
    const resource = `resource-${++names}`;
    const key = `holdfast/fence/${resource}`;
    return { fence: etcdFence(client), resource, key, data: `data-${names}` };
  }

  async function proxied({
    onTestFinished,
  }: TestContext): Promise<{ proxy: TcpProxy; through: EtcdClient }> {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const through = await openEtcdClient({
      endpoints: [`${proxy.address}:${proxy.port}`],
      callTimeoutMs: 2_000,
    });
    onTestFinished(() => through.close());
    return { proxy, through };
  }

  /** The requests that it sends to etcd. */
  function counted(): { asked: string[]; counting: Client } {
    const asked: string[] = [];
    const counting: Client = {
      txn: (...args) => {
        asked.push("txn");
        return client.txn(...args);
      },
      range: (...args) => {
        asked.push("range");
        return client.range(...args);
      },
    };
    return { asked, counting };
  }

  async function cell(): Promise<FencedCell> {
    const space = `cell-${++names}/`;
    const fence = etcdFence(client, { prefix: `${space}fence/` });
    const key = `${space}value`;
    return {
      fence: fence as FencedCell["fence"],
      transaction: async (fn) => {
        const tx = empty();
        const result = await fn(tx);
        if (tx.success.length > 0) await fence.commit(tx);
        return result;
      },
      read: async () => Number((await get(key))?.value ?? 0),
      write: async (tx, value) => {
        (tx as EtcdTx).success.push({ put: { key, value: String(value) } });
      },
    };
  }

  for (const one of fenceCases) {
    test.concurrent(`conformance: ${one.name}`, async () => {
      const store = memoryStore();
      const subject = { ...realSubject(async () => store), fence: cell };
      expect(await runCase(one, subject)).toBe("passed");
    });
  }

  test("keeps one key for a resource, without a lease, whose value is a number of fixed width", async () => {
    const { fence, resource, key } = fresh();
    await fence.enter(undefined, resource, exclusive(42n));
    expect(await get(key)).toMatchObject({ value: "1:00000000000000000042", lease: 0n });
    const most = 2n ** 63n - 1n;
    await fence.enter(undefined, resource, exclusive(most));
    expect(await get(key)).toMatchObject({ value: `1:0${most}`, version: 2n });
    const tx = empty();
    await fence.guard(tx, resource, exclusive(most), { strict: true });
    expect(await fence.commit(tx)).toMatchObject({ succeeded: true });
  });

  test("refuses a stale holder's transaction that was built before the next holder entered", async () => {
    type Add = (fence: EtcdFence, tx: EtcdTx, resource: string, lease: Fenced) => Promise<void>;
    const ways: Add[] = [
      (fence, ...more) => fence.enter(...more),
      (fence, ...more) => fence.guard(...more),
      (fence, ...more) => fence.guard(...more, { strict: true }),
    ];
    for (const add of ways) {
      const { fence, resource, data } = fresh();
      await fence.enter(undefined, resource, exclusive(5n));
      const tx = { ...empty(), failure: [{ range: { key: data } }] };
      await add(fence, tx, resource, exclusive(5n));
      tx.success.push({ put: { key: data, value: "stale" } });
      await etcdFence(client).enter(undefined, resource, exclusive(10n));
      const events: unknown[] = [];
      const onEvent = (event: unknown): unknown => events.push(event);
      subscribe("holdfast:stale-token", onEvent);
      const error = await rejection(fence.commit(tx));
      unsubscribe("holdfast:stale-token", onEvent);
      expect(error).toBeInstanceOf(StaleTokenError);
      expect(error).toMatchObject({ resource, token: 5n, highest: 10n });
      expect(events).toMatchObject([{ resource, token: 5n, highest: 10n }]);
      expect(await get(data)).toBeUndefined();
      // A transaction that is committed by other means is refused as well, also with other comparisons.
      expect(await client.txn(tx)).toMatchObject({ succeeded: false });
      tx.compare = [];
      expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
      expect(await get(data)).toBeUndefined();
    }
  });

  test("guards several resources in one transaction, and one refusal is enough", async () => {
    const [one, two] = [fresh(), fresh()];
    const tx: EtcdTx = { compare: [], success: [{ put: { key: one.data, value: "" } }] };
    await one.fence.guard(tx, one.resource, exclusive(5n));
    await two.fence.guard(tx, two.resource, exclusive(7n));
    await two.fence.enter(undefined, two.resource, exclusive(8n));
    expect(await rejection(one.fence.commit(tx))).toMatchObject({
      resource: two.resource,
      highest: 8n,
    });
    expect(await get(one.data)).toBeUndefined();
  });

  test("reports no refusal when a comparison of the user's own fails; the replies are the user's", async () => {
    const { fence, resource, data } = fresh();
    await put(data, "there");
    const tx: EtcdTx = {
      compare: [{ key: data, target: "CREATE", result: "EQUAL", createRevision: 0n }],
      success: [{ put: { key: data, value: "mine" } }],
      failure: [{ range: { key: data } }],
    };
    await fence.guard(tx, resource, exclusive(5n));
    const lost = await fence.commit(tx);
    expect(lost.succeeded).toBe(false);
    expect(lost.responses.map((one) => one.range?.kvs[0]?.value)).toEqual(["there"]);
    tx.compare.shift();
    expect(await fence.commit(tx)).toMatchObject({ succeeded: true, responses: [{ put: {} }] });
  });

  test("refuses with strict a holder that has not entered; without strict, guard enters first", async () => {
    const { fence, resource, data } = fresh();
    const write = async (lease: Fenced, strict: boolean): Promise<unknown> => {
      const tx: EtcdTx = { compare: [], success: [{ put: { key: data, value: "" } }] };
      await fence.guard(tx, resource, lease, { strict });
      return fence.commit(tx);
    };
    expect((await rejection(write(exclusive(5n), true))).message).toMatch(/has not entered/);
    expect(await get(data)).toBeUndefined();
    await write(exclusive(5n), false);
    expect(await fence.highest(undefined, resource)).toBe(5n);
    expect((await rejection(write(exclusive(6n), true))).message).toMatch(/has not entered/);
    await write(exclusive(6n), false);
    expect(await rejection(write(exclusive(5n), false))).toBeInstanceOf(StaleTokenError);
    // Several holders share one floor, and the first of them has entered for all.
    await write({ token: 9n, floor: 6n }, true);
    await fence.enter(undefined, resource, { token: 12n, floor: 8n });
    await write({ token: 9n, floor: 6n }, true);
    expect(await fence.highest(undefined, resource)).toBe(8n);
    const none = fresh();
    await none.fence.enter(undefined, none.resource, { token: 3n, floor: 0n });
    const tx = empty();
    await none.fence.guard(tx, none.resource, { token: 3n, floor: 0n }, { strict: true });
    expect(await none.fence.commit(tx)).toMatchObject({ succeeded: true });
  });

  test("sends one request to enter, none for a strict guard, one read for another guard", async () => {
    const { resource, data } = fresh();
    const { asked, counting } = counted();
    const fence = etcdFence(counting);
    const requestsOf = async (step: () => Promise<unknown>): Promise<string> => {
      asked.length = 0;
      await step();
      return asked.join(" ");
    };
    const lease = exclusive(5n);
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("txn txn");
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("txn");
    expect(await requestsOf(() => fence.enter(undefined, resource, exclusive(6n)))).toBe("txn");
    const tx: EtcdTx = { compare: [], success: [{ put: { key: data, value: "" } }] };
    expect(await requestsOf(() => fence.guard(tx, resource, exclusive(6n), { strict: true }))).toBe(
      "",
    );
    expect(await requestsOf(() => fence.guard(tx, resource, exclusive(6n)))).toBe("range");
    expect(await requestsOf(() => fence.enter(tx, resource, exclusive(6n)))).toBe("txn");
    expect(await requestsOf(() => fence.commit(tx))).toBe("txn");
    expect(await get(`holdfast/fence/${resource}`)).toMatchObject({ version: 2n });
  });

  test.concurrent("says unavailable when etcd can't be reached, and never stale", async (context) => {
    const { resource } = fresh();
    const { proxy, through } = await proxied(context);
    const fence = etcdFence(through);
    await proxy.cut().inject();
    const down = await rejection(fence.enter(undefined, resource, exclusive(1n)));
    expect(down).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    await through.close();
    const closed = await rejection(fence.highest(undefined, resource));
    expect(closed).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(closed.message).toBe("the fence can't read: etcd: the client is closed");
  });

  test.concurrent("keeps the highest floor when many enter at the same time", {
    timeout: 60_000,
  }, async () => {
    const lease = fc
      .tuple(fc.bigInt(0n, 30n), fc.bigInt(0n, 30n))
      .map(([a, b]) => ({ token: a > b ? a : b, floor: a > b ? b : a }));
    await fc.assert(
      fc.asyncProperty(
        fc.array(lease, { minLength: 2, maxLength: 8 }),
        fc.scheduler(),
        async (leases, scheduler) => {
          const { resource } = fresh();
          const fence = etcdFence(interleaved(scheduler));
          const all = Promise.allSettled(
            leases.map((one) => fence.enter(undefined, resource, one)),
          );
          const outcomes = await scheduler.waitFor(all);
          const highest = leases.reduce((most, { floor }) => (floor > most ? floor : most), 0n);
          expect(await etcdFence(client).highest(undefined, resource)).toBe(highest);
          outcomes.forEach((outcome, i) => {
            if (outcome.status === "fulfilled") return;
            expect(outcome.reason).toBeInstanceOf(StaleTokenError);
            expect(leases[i]!.token).toBeLessThan(highest);
          });
        },
      ),
      runs(60),
    );
  });

  test.concurrent("loses no update of holders that overlap in every way", {
    timeout: 60_000,
  }, async () => {
    let refused = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.bigInt(1n, 99n), { minLength: 2, maxLength: 5 }),
        fc.boolean(),
        fc.scheduler(),
        async (tokens, strict, scheduler) => {
          const { resource, data } = fresh();
          const scheduled = interleaved(scheduler);
          const fence = etcdFence(scheduled);
          const work = async (token: bigint): Promise<bigint> => {
            await fence.enter(undefined, resource, exclusive(token));
            const before = (await scheduled.range({ key: data })).kvs[0]?.value ?? "0";
            const tx = empty();
            await fence.guard(tx, resource, exclusive(token), { strict });
            tx.success.push({ put: { key: data, value: String(Number(before) + 1) } });
            return (await fence.commit(tx)).revision;
          };
          const all = Promise.allSettled(tokens.map(work));
          const outcomes = await scheduler.waitFor(all);
          const wrote = outcomes
            .map((outcome, i) => ({ outcome, token: tokens[i]! }))
            .flatMap(({ outcome, token }) =>
              outcome.status === "fulfilled" ? [{ token, revision: outcome.value }] : [],
            )
            .sort((a, b) => Number(a.revision - b.revision));
          refused += tokens.length - wrote.length;
          expect(Number((await get(data))?.value ?? 0)).toBe(wrote.length);
          expect(wrote.map(({ token }) => token)).toEqual(
            wrote.map(({ token }) => token).sort((a, b) => Number(a - b)),
          );
          for (const outcome of outcomes) {
            if (outcome.status === "rejected") {
              expect(outcome.reason).toBeInstanceOf(StaleTokenError);
            }
          }
        },
      ),
      runs(60),
    );
    expect(refused).toBeGreaterThan(0);
  });

  /** Requests and replies arrive in a random order. */
  const interleaved = (scheduler: fc.Scheduler): Client => ({
    txn: async (...args) => {
      await scheduler.schedule(Promise.resolve());
      return scheduler.schedule(client.txn(...args));
    },
    range: async (...args) => {
      await scheduler.schedule(Promise.resolve());
      return scheduler.schedule(client.range(...args));
    },
  });

  test("keeps resources apart, whatever is in their names", async () => {
    const some = ["a", "a/", "a/b", "/", "..", "ä", "🎩 hat", " ", "%2F", '"', "x".repeat(255)];
    const fence = etcdFence(client, { prefix: `names-${++names}/` });
    for (const [i, resource] of some.entries()) {
      await fence.enter(undefined, resource, exclusive(BigInt(i) + 1n));
    }
    for (const [i, resource] of some.entries()) {
      expect(await fence.highest(undefined, resource), resource).toBe(BigInt(i) + 1n);
    }
    for (const bad of ["", "x".repeat(256), "a\u0000", "\ud800", 7, undefined]) {
      for (const step of [
        fence.enter(undefined, bad as string, exclusive(1n)),
        fence.guard(empty(), bad as string, exclusive(1n), { strict: true }),
        fence.highest(undefined, bad as string),
        fence.reset(undefined, bad as string, 1n),
      ]) {
        expect(await rejection(step)).toMatchObject({ code: "INVALID_ARGUMENT" });
      }
    }
  });

  test("refuses a value of another format, or of somebody else, and leaves it alone", async () => {
    const later = ["2:00000000000000000001", "2:x", "10:00000000000000000001", "0:"];
    const strange = ["", "hello", "1:", "1:5", "1:5000000000000000000x", "00000000000000000001"];
    for (const value of [...later, ...strange]) {
      const { fence, resource, key, data } = fresh();
      await put(key, value);
      const lease = exclusive(3n);
      const tx: EtcdTx = { compare: [], success: [{ put: { key: data, value: "" } }] };
      await fence.guard(tx, resource, lease, { strict: true });
      for (const step of [
        () => fence.commit(tx),
        () => fence.enter(undefined, resource, lease),
        () => fence.guard(empty(), resource, lease),
        () => fence.highest(undefined, resource),
        () => fence.reset(undefined, resource, 1n),
        () => fence.reset(empty(), resource, 1n),
      ]) {
        const error = await rejection(step());
        expect(error, value).toMatchObject({ code: "UNSUPPORTED" });
        expect(error.message).toContain(later.includes(value) ? "has format" : "is no fence");
      }
      expect(await get(key)).toMatchObject({ value, version: 1n });
      expect(await get(data)).toBeUndefined();
    }
  });

  test("enters once, even if a reply is lost", async (context) => {
    const { key, resource } = fresh();
    const { proxy, through } = await proxied(context);
    const fence = etcdFence(through);
    for (const [i, token] of [5n, 6n].entries()) {
      await through.range({ key });
      const lose = proxy.loseReply({ when: "1:0000" });
      await lose.inject();
      await fence.enter(undefined, resource, exclusive(token));
      expect(lose.struck).toBe(1);
      await lose.heal();
      expect(await get(key)).toMatchObject({ version: BigInt(i) + 1n });
      expect(await fence.highest(undefined, resource)).toBe(token);
    }
    expect(await rejection(fence.enter(undefined, resource, exclusive(5n)))).toBeInstanceOf(
      StaleTokenError,
    );
  });

  test("reports a lost reply to commit or reset as such, and sends nothing again", async () => {
    const { fence, key, resource, data } = fresh();
    await fence.enter(undefined, resource, exclusive(5n));
    // Behind the client, so that the request is known to be executed when its reply is lost.
    const losing = etcdFence({
      range: (...args) => client.range(...args),
      txn: async (txn, options) => {
        expect(options?.again).toBeUndefined();
        await client.txn(txn, options);
        const lost = { grpcCode: Code.UNAVAILABLE, executed: "unknown", endpoint: null } as const;
        throw new EtcdError("lost", { ...lost, retryable: true });
      },
    });
    const tx: EtcdTx = { compare: [], success: [{ put: { key: data, value: "" } }] };
    await losing.guard(tx, resource, exclusive(5n));
    const error = await rejection(losing.commit(tx));
    expect(error).toBeInstanceOf(StoreUnavailableError);
    expect(error).toMatchObject({ retryable: true, cause: expect.any(EtcdError) });
    expect(error.message).toBe("the fence can't commit: etcd: lost; the outcome is unknown");
    expect(await get(data)).toMatchObject({ version: 1n });
    expect((await rejection(losing.reset(undefined, resource, 2n))).message).toMatch(
      /can't reset: .*outcome is unknown/,
    );
    expect(await get(key)).toMatchObject({ value: "1:00000000000000000002", version: 2n });
  });

  test("resets by itself over any value, and in a transaction only if nobody enters meanwhile", async () => {
    const { fence, resource, data } = fresh();
    await fence.reset(undefined, resource, 50n);
    await fence.reset(undefined, resource, 40n);
    expect(await fence.highest(undefined, resource)).toBe(40n);
    const step = async (): Promise<EtcdTx> => {
      const tx: EtcdTx = { compare: [], success: [{ put: { key: data, value: "moved" } }] };
      await fence.reset(tx, resource, 3n);
      return tx;
    };
    const late = await step();
    await fence.enter(undefined, resource, exclusive(60n));
    expect(await fence.commit(late)).toMatchObject({ succeeded: false });
    expect(await fence.highest(undefined, resource)).toBe(60n);
    expect(await fence.commit(await step())).toMatchObject({ succeeded: true });
    expect(await fence.highest(undefined, resource)).toBe(3n);
    expect(await get(data)).toMatchObject({ value: "moved" });
  });

  test("is entered by withLock", async () => {
    const { fence, resource } = fresh();
    const locks = createLocks(memoryStore());
    onTestFinished(() => locks.close());
    await locks.withLock("name", { fence, resource }, async (lease) => {
      expect(await fence.highest(undefined, resource)).toBe(lease.token);
      await fence.guard(empty(), resource, lease, { strict: true });
    });
  });

  test("refuses bad transactions and options", async () => {
    const { fence, resource, data } = fresh();
    const write = { put: { key: data, value: "" } };
    const refused = async (step: Promise<unknown>, words: RegExp): Promise<void> => {
      const error = await rejection(step);
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toMatch(words);
    };
    for (const bad of [null, {}, { compare: [] }, { compare: {}, success: [] }, "tx"]) {
      await refused(fence.guard(bad as never, resource, exclusive(1n)), /the transaction is/);
      await refused(fence.reset(bad as never, resource, 1n), /the transaction is/);
    }
    await refused(fence.commit(undefined as never), /the transaction is/);
    await refused(fence.commit(empty()), /is not guarded/);
    const tx = empty();
    await fence.guard(tx, resource, exclusive(1n));
    // A copy is not recognised, but carries the comparisons.
    await refused(fence.commit({ ...tx }), /is not guarded/);
    for (const op of [write, { delete: { key: data } }, { range: { key: data }, ...write }, {}]) {
      tx.failure = [op as never];
      await refused(fence.commit(tx), /failure may only contain reads/);
    }
    expect(await get(data)).toBeUndefined();
    expect(() => etcdFence(client, { prefix: "" })).toThrow(/prefix/);
    expect(() => etcdFence(client, { perfix: "x" } as never)).toThrow(/no option "perfix"/);
    expect(await fence.highest(undefined, `${resource}-other`)).toBe(0n);
  });
});
