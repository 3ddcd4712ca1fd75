import { afterAll, beforeAll, describe, expect, type TestContext, test } from "vitest";
import { fenceCases } from "../../src/conformance/fences.js";
import { StaleTokenError, StoreUnavailableError } from "../../src/core/errors.js";
import { type EtcdFence, type EtcdTx, etcdFence } from "../../src/fence/etcd.js";
import { listFences } from "../../src/fences.js";
import { type EtcdClient, openEtcdClient } from "../../src/stores/etcd/rpc/client.js";
import { Code, EtcdError } from "../../src/stores/etcd/rpc/errors.js";
import type { KeyValue } from "../../src/stores/etcd/rpc/messages.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { runCase } from "../../src/testing.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import type { EtcdServer } from "../../src/verify/lab/etcd.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { realSubject } from "../conformance/subjects.js";
import { rejection } from "../core/helpers.js";
import { describeWith } from "../support/needs.js";
import {
  type Backend,
  cellOf,
  closedAfterTest,
  committedTests,
  exclusive,
  interleaved,
  subjectOf,
} from "./committed.js";
import { suiteOf } from "./suite.js";

type Client = Pick<EtcdClient, "txn" | "range">;

const empty = (): EtcdTx => ({ compare: [], success: [] });

describeWith(["etcd"], "the fence in etcd", () => {
  let lab: Lab;
  let server: EtcdServer;
  let client: EtcdClient;
  let names = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.etcd()).servers[0]!;
    client = await openEtcdClient({ endpoints: endpoints() });
  });
  afterAll(async () => {
    await client?.close();
    await lab?.close();
  });

  const endpoints = (): string[] => [`${server.address}:${server.port}`];
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

  const backend: Backend<Client, EtcdTx> = {
    fence: (by, place) => etcdFence(by, place === undefined ? {} : { prefix: `${place}/` }),
    client: () => client,
    connect: async () => closedAfterTest(await openEtcdClient({ endpoints: endpoints() })),
    interleave: (scheduler) => interleaved(client, scheduler),
    create: async (key) => void (await put(key, "0")),
    read: async (by, key) => (await by.range({ key })).kvs[0]?.value ?? null,
    remove: async (key) => void (await client.txn({ success: [{ delete: { key } }] })),
    newTx: empty,
    put: (tx, key, value) => void tx.success.push({ put: { key, value } }),
    clear: (tx) => void Object.assign(tx, empty()),
    send: async (tx) => (await client.txn(tx)).succeeded,
    orderOf: (reply) => (reply as { revision: bigint }).revision,
    keyOf: (resource, place = "holdfast/fence") => `${place}/${resource}`,
    strange: {
      later: ["2:00000000000000000001", "2:x", "10:00000000000000000001", "0:"],
      foreign: ["", "hello", "1:", "1:5", "1:5000000000000000000x", "00000000000000000001"],
    },
    tellsTime: false,
    names: ['"', "ä"],
  };

  describe("as every fence", () => suiteOf(async () => subjectOf(backend)));
  committedTests(backend);

  for (const one of fenceCases) {
    test.concurrent(`conformance: ${one.name}`, async () => {
      const store = memoryStore();
      const subject = { ...realSubject(async () => store), fence: () => cellOf(backend) };
      expect(await runCase(one, subject)).toBe("passed");
    });
  }

  test("is listed by the URL of the server", async () => {
    const { fence, resource } = fresh();
    await fence.enter(undefined, resource, exclusive(7n));
    const listed = await listFences(`etcd://${endpoints()[0]}`, { prefix: resource });
    expect(listed).toContainEqual({ resource, highest: 7n, enteredAtMs: null });
  });

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
    expect(error).toMatchObject({ retryable: false, cause: expect.any(EtcdError) });
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

  test("failure may only contain reads, because it also runs for a holder that is refused", async () => {
    const { fence, resource, data } = fresh();
    const write = { put: { key: data, value: "" } };
    const tx = empty();
    await fence.guard(tx, resource, exclusive(1n));
    for (const op of [write, { delete: { key: data } }, { range: { key: data }, ...write }, {}]) {
      tx.failure = [op as never];
      const error = await rejection(fence.commit(tx));
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toMatch(/failure may only contain reads/);
    }
    expect(await get(data)).toBeUndefined();
  });

  test("refuses bad options", () => {
    expect(() => etcdFence(client, { prefix: "" })).toThrow(/prefix/);
    expect(() => etcdFence(client, { perfix: "x" } as never)).toThrow(/no option "perfix"/);
  });
});
