import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import fc from "fast-check";
import {
  afterAll,
  beforeAll,
  describe,
  expect,
  onTestFinished,
  type TestContext,
  test,
  vi,
} from "vitest";
import {
  type EtcdClient,
  type EtcdClientOptions,
  openEtcdClient,
} from "../../../src/stores/etcd/rpc/client.js";
import { Code, EtcdError } from "../../../src/stores/etcd/rpc/errors.js";
import {
  KEEP_ALIVE_REPLY,
  LEASE_GRANT,
  LEASE_ID,
  type Op,
  RANGE,
  RANGE_REPLY,
  TXN,
  WATCH_REPLY,
} from "../../../src/stores/etcd/rpc/messages.js";
import type { WatchListener } from "../../../src/stores/etcd/rpc/watches.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import type { ServerCluster } from "../../../src/verify/lab/cluster.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { freePort } from "../../../src/verify/lab/ports.js";
import { findFile } from "../../../src/verify/lab/requirements.js";
import { build, rejection, runNode } from "../../core/helpers.js";
import { runs } from "../../support/chance.js";
import { describeWith, skipUnless } from "../../support/needs.js";
import { until } from "../../support/worker.js";

describe("the protobuf codec", () => {
  const int64 = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
  const uint64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
  const text = fc.string({ unit: "binary" }).map((some) => some.toWellFormed());
  const keyValue = fc.record({
    key: text,
    createRevision: int64,
    modRevision: int64,
    version: int64,
    value: text,
    lease: int64,
  });
  const answer = fc.record({
    header: fc.option(fc.record({ member: uint64, revision: int64, term: uint64 }), {
      nil: undefined,
    }),
    kvs: fc.array(keyValue, { maxLength: 5 }),
    more: fc.boolean(),
    count: fc.maxSafeInteger(),
  });

  test("reads what it has written", () => {
    fc.assert(
      fc.property(answer, (value) => {
        expect(RANGE_REPLY.decode(RANGE_REPLY.encode(value))).toEqual(value);
      }),
      runs(),
    );
  });

  test("writes the bytes that protobuf prescribes", () => {
    const hex = (bytes: Buffer): string => bytes.toString("hex");
    expect(hex(RANGE.encode({ key: "a", rangeEnd: "ä", limit: 300, sortOrder: "DESCEND" }))).toBe(
      "0a01611202c3a418ac022802",
    );
    expect(hex(LEASE_GRANT.encode({ ttlS: -1 }))).toBe("08ffffffffffffffffff01");
    expect(hex(LEASE_ID.encode({ id: 2n ** 62n }))).toBe("08808080808080808040");
    const compare = { key: "k", result: "LESS", target: "MOD", modRevision: 0n } as const;
    expect(
      hex(
        TXN.encode({
          compare: [{ ...compare, rangeEnd: "l" }],
          success: [{ range: { key: "k" } }],
        }),
      ),
    ).toBe("0a0d080210021a016b3000820401" + "6c" + "12050a030a016b");
  });

  test("grows with the message, and shrinks again", () => {
    const value = "x".repeat(3_000_000);
    const success = Array.from({ length: 3 }, (_, i) => ({ put: { key: `${i}`, value } }));
    expect(TXN.decode(TXN.encode({ success })).success!.map((op) => op.put!.value)).toEqual(
      success.map(() => value),
    );
    expect(LEASE_ID.encode({ id: 1n }).toString("hex")).toBe("0801");
  });

  test("refuses a message that is cut off, at any byte", () => {
    const whole = RANGE_REPLY.encode({
      header: { member: 2n ** 63n, revision: 7n, term: 1n },
      kvs: [],
      more: true,
      count: 1,
    });
    const inner = RANGE_REPLY.encode({
      kvs: [
        { key: "key", createRevision: 1n, modRevision: 1n, version: 1n, value: "v", lease: -1n },
      ],
      more: false,
      count: 0,
    });
    // A message that ends after a whole field is complete.
    const ends = new Set([0, whole.length - 4, whole.length - 2, whole.length]);
    for (let size = 0; size <= whole.length; size++) {
      const cut = (): unknown => RANGE_REPLY.decode(whole.subarray(0, size));
      if (ends.has(size)) cut();
      else expect(cut, `${size}`).toThrow(RangeError);
    }
    for (let size = 1; size < inner.length - 4; size++) {
      expect(() => RANGE_REPLY.decode(inner.subarray(0, size)), `${size}`).toThrow(RangeError);
    }
  });

  test("refuses numbers of more than 64 bits, unknown wire types and lengths beyond the end", () => {
    for (const hex of [
      "10ffffffffffffffffff02",
      "10ffffffffffffffffffff01",
      "13",
      "0f",
      "00",
      "0a7f",
    ]) {
      expect(() => KEEP_ALIVE_REPLY.decode(Buffer.from(hex, "hex")), hex).toThrow(RangeError);
    }
    expect(() => RANGE.decode(Buffer.from("0a7f6161", "hex"))).toThrow(RangeError);
    // A text that ends beyond its own message, but within the outer one.
    expect(() => RANGE_REPLY.decode(Buffer.from("12030a056161616161", "hex"))).toThrow(RangeError);
    expect(() => LEASE_ID.encode({ id: 2n ** 64n })).toThrow(RangeError);
    expect(() => RANGE.encode({ key: "", sortOrder: "UP" as never })).toThrow(TypeError);
  });

  test("refuses or reads any bytes at all, and never does worse", () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
        try {
          WATCH_REPLY.decode(Buffer.from(bytes));
        } catch (error) {
          expect(error).toBeInstanceOf(RangeError);
        }
      }),
      runs(),
    );
  });

  test("skips fields that it does not know", () => {
    const known = KEEP_ALIVE_REPLY.encode({ id: 5n, ttlS: 9 }).toString("hex");
    const unknown = ["f80101", "f90100112233445566" + "77", "fa0103616263", "fd0100112233"];
    for (const field of unknown) {
      const bytes = Buffer.from(field + known + field, "hex");
      expect(KEEP_ALIVE_REPLY.decode(bytes)).toEqual({ header: undefined, id: 5n, ttlS: 9 });
    }
  });
});

/** Records the events of a watch. */
class Recorder implements WatchListener {
  readonly received: string[] = [];
  readonly revisions: bigint[] = [];
  readonly keys: string[] = [];
  createdAt: bigint[] = [];
  created(revision: bigint): void {
    this.received.push("created");
    this.createdAt.push(revision);
  }
  events(events: Parameters<WatchListener["events"]>[0], revision: bigint): void {
    this.received.push(events.map(({ type, kv }) => `${type} ${kv.key}=${kv.value}`).join(", "));
    this.keys.push(...events.map(({ kv }) => kv.key));
    this.revisions.push(revision);
  }
  gap(): void {
    this.received.push("gap");
  }
  failures: string[] = [];
  failed(error: EtcdError): void {
    this.failures.push(error.message);
  }
  async isCreated(times = 1): Promise<void> {
    await until("it is created", async () => this.createdAt.length >= times);
  }
}

const put = (key: string, value = ""): { success: Op[] } => ({
  success: [{ put: { key, value } }],
});
const addressOf = ({ address, port }: { address: string; port: number }): string =>
  `${address}:${port}`;

describeWith(["etcd"], "the etcd client", () => {
  let lab: Lab;
  let server: EtcdServer;
  let three: ServerCluster<EtcdServer>;
  let client: EtcdClient;
  let built: ReturnType<typeof build>;
  let names = 0;
  const name = (): string => `name-${++names}/`;

  beforeAll(async () => {
    // Built first: the build blocks this process, so nothing may run beside it.
    built = build();
    const modules = fileURLToPath(new URL("../../../node_modules", import.meta.url));
    symlinkSync(modules, built.file("node_modules"));
    lab = await Lab.open();
    const [one, cluster] = await Promise.all([lab.etcd(), lab.etcd({ nodes: 3 })]);
    server = one.servers[0]!;
    three = cluster;
    client = await openEtcdClient({ endpoints: [addressOf(server)] });
  });
  afterAll(async () => {
    await client?.close();
    built?.remove();
    await lab?.close();
  });

  async function open(
    options: EtcdClientOptions,
    context: Pick<TestContext, "onTestFinished"> = { onTestFinished },
  ): Promise<EtcdClient> {
    const opened = await openEtcdClient(options);
    context.onTestFinished(() => opened.close());
    return opened;
  }

  async function proxied(
    context: Pick<TestContext, "onTestFinished"> = { onTestFinished },
  ): Promise<{ proxy: TcpProxy; through: EtcdClient }> {
    const proxy = await TcpProxy.open(server);
    context.onTestFinished(() => proxy.close());
    return { proxy, through: await open({ endpoints: [addressOf(proxy)] }, context) };
  }

  test("runs a transaction: either branch, with the reply of each operation", async () => {
    const key = name();
    const absent = { key, result: "EQUAL", target: "CREATE", createRevision: 0n } as const;
    const create = {
      compare: [absent],
      success: [{ put: { key, value: "ä", prevKv: true } }, { range: { key } }],
      failure: [{ range: { key } }, { delete: { key, prevKv: true } }],
    };
    const first = await client.txn(create);
    expect(first).toMatchObject({ succeeded: true, term: expect.any(BigInt) });
    const kv = {
      key,
      value: "ä",
      createRevision: first.revision,
      modRevision: first.revision,
      version: 1n,
      lease: 0n,
    };
    expect(first.responses).toEqual([
      { put: { prevKv: undefined } },
      { range: { kvs: [kv], more: false, count: 1 } },
    ]);
    const second = await client.txn(create);
    expect(second.succeeded).toBe(false);
    expect(second.responses[1]).toEqual({ delete: { deleted: 1, prevKvs: [kv] } });
    expect(second.revision).toBe(first.revision + 1n);
    expect(second.member).toBe(first.member);
  });

  test("compares by each of the targets", async () => {
    const key = name();
    const { id } = await client.leaseGrant(60);
    const { revision } = await client.txn({ success: [{ put: { key, value: "v", lease: id } }] });
    const yes = [
      { target: "VERSION", result: "EQUAL", version: 1n },
      { target: "CREATE", result: "LESS", createRevision: revision + 1n },
      { target: "MOD", result: "GREATER", modRevision: revision - 1n },
      { target: "VALUE", result: "NOT_EQUAL", value: "w" },
      { target: "LEASE", result: "EQUAL", lease: id },
    ] as const;
    const no = [
      { target: "VERSION", result: "EQUAL", version: 2n },
      { target: "CREATE", result: "EQUAL", createRevision: 0n },
      { target: "MOD", result: "LESS", modRevision: revision },
      { target: "VALUE", result: "EQUAL", value: "w" },
      { target: "LEASE", result: "EQUAL", lease: id + 1n },
    ] as const;
    const compare = yes.map((one) => ({ key, ...one }));
    expect(await client.txn({ compare })).toMatchObject({ succeeded: true, responses: [] });
    for (const one of no) {
      expect((await client.txn({ compare: [{ key, ...one }] })).succeeded, one.target).toBe(false);
    }
    // A put that keeps the lease.
    await client.txn({ success: [{ put: { key, value: "w", ignoreLease: true } }] });
    expect((await client.range({ key })).kvs[0]!.lease).toBe(id);
  });

  test("compares a whole range: that nothing is in it", async () => {
    const key = name();
    const rangeEnd = key.replace("/", "0");
    const empty = { key, rangeEnd, result: "EQUAL", target: "CREATE", createRevision: 0n } as const;
    expect((await client.txn({ compare: [empty] })).succeeded).toBe(true);
    const some = { ...empty, result: "GREATER" } as const;
    expect((await client.txn({ compare: [some] })).succeeded).toBe(false);
    const { createRevision: _, ...any } = empty;
    const value = { ...any, target: "VALUE", value: "" } as const;
    expect((await client.txn({ compare: [value] })).succeeded).toBe(false);
    await client.txn(put(`${key}a`));
    expect((await client.txn({ compare: [empty] })).succeeded).toBe(false);
  });

  test("reads a range: in order, with a limit, only keys or their count, at an earlier revision", async () => {
    const key = name();
    const all = { key, rangeEnd: key.replace("/", "0") };
    for (const one of ["c", "a", "b"]) await client.txn(put(key + one, one));
    const { revision } = await client.range({ key });
    const byAge = await client.range({
      ...all,
      sortOrder: "DESCEND",
      sortTarget: "CREATE",
      limit: 2,
    });
    expect(byAge.kvs.map(({ value }) => value)).toEqual(["b", "a"]);
    expect(byAge).toMatchObject({ more: true, count: 3 });
    const oldest = await client.range({ ...all, maxCreateRevision: revision - 2n });
    expect(oldest.kvs.map(({ value }) => value)).toEqual(["c"]);
    expect((await client.range({ ...all, keysOnly: true })).kvs[0]).toMatchObject({ value: "" });
    expect(await client.range({ ...all, countOnly: true })).toMatchObject({ kvs: [], count: 3 });
    await client.txn({ success: [{ delete: all }] });
    expect((await client.range(all)).count).toBe(0);
    expect((await client.range({ ...all, revision })).count).toBe(3);
  });

  test("runs transactions inside one: each compares on its own, and all have one revision", async () => {
    const [there, absent] = [name(), name()];
    await client.txn({ success: [{ put: { key: there, value: "old" } }] });
    const putIfAbsent = (key: string): Op => ({
      txn: {
        compare: [{ target: "CREATE", result: "EQUAL", key, createRevision: 0n }],
        success: [{ put: { key, value: "new" } }],
        failure: [{ range: { key } }],
      },
    });
    const answer = await client.txn({ success: [putIfAbsent(there), putIfAbsent(absent)] });
    const [refused, done] = answer.responses.map(({ txn }) => txn!);
    expect(refused).toMatchObject({
      succeeded: false,
      responses: [{ range: { kvs: [{ value: "old" }] } }],
    });
    expect(done).toMatchObject({ succeeded: true });
    const { kvs } = await client.range({ key: absent });
    expect(kvs).toMatchObject([{ value: "new", createRevision: answer.revision }]);
  });

  test.for([
    ["http://127.0.0.1:2379", /"http:\/\/127.*must be host:port, without a scheme$/],
    ["https://a:2379", /for https give the option tls/],
    ["127.0.0.1", /must be host:port/],
    ["::1:2379", /must be host:port/],
    ["", /must be host:port/],
    [null as unknown as string, /is null; it must be host:port/],
  ] as const)("refuses a bad endpoint: %s", async ([endpoint, says]) => {
    const error = await rejection(openEtcdClient({ endpoints: [endpoint] }));
    expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(error.message).toMatch(says);
  });

  test("refuses an empty list of endpoints", async () => {
    for (const endpoints of [[], undefined as never, "127.0.0.1:2379" as never]) {
      const error = await rejection(openEtcdClient({ endpoints }));
      expect(error.message).toMatch(/must be a list like \["127.0.0.1:2379"\]/);
    }
  });

  test("grants, keeps alive, reads and revokes a lease; and reports one that is gone", async () => {
    const key = name();
    const { id, ttlS } = await client.leaseGrant(60);
    expect(ttlS).toBe(60);
    await client.txn({ success: [{ put: { key, value: "", lease: id } }] });
    const answers = await Promise.all([1, 2, 3].map(() => client.leaseKeepAlive(id)));
    expect(answers.map((one) => one.ttlS)).toEqual([60, 60, 60]);
    expect(answers[0]!.term).toBeGreaterThan(0n);
    expect(await client.leaseTimeToLive(id)).toMatchObject({ grantedTtlS: 60 });
    expect([...(await client.leaseKeys(id))]).toEqual([key]);
    await client.leaseRevoke(id);
    await client.leaseRevoke(id);
    expect((await client.range({ key })).count).toBe(0);
    expect(await client.leaseKeepAlive(id)).toMatchObject({ ttlS: 0 });
    expect(await client.leaseTimeToLive(id)).toMatchObject({ ttlS: -1 });
    expect([...(await client.leaseKeys(id))]).toEqual([]);
    const error = await rejection(
      client.txn({ success: [{ put: { key, value: "", lease: id } }] }),
    );
    expect(error).toMatchObject({ grpcCode: Code.NOT_FOUND, executed: "no" });
    expect(error.message).toBe(`etcd at ${addressOf(server)}: requested lease not found`);
  });

  test("reads the status of each endpoint, or why it does not reply", async () => {
    const nobody = `127.0.0.1:${await freePort()}`;
    const both = await open({ endpoints: [addressOf(server), nobody] });
    const [up, down] = await both.status();
    expect(up).toMatchObject({
      endpoint: addressOf(server),
      version: expect.stringMatching(/^3\./),
    });
    expect(up).toMatchObject({ leader: (up as { member: bigint }).member, errors: [] });
    expect((down as { error: EtcdError }).error.message).toMatch(
      /^etcd at .*: can't connect: .*ECONNREFUSED/,
    );
  });

  test("watches: every revision in order, each whole, and nothing of other keys", async () => {
    const key = name();
    const rangeEnd = key.replace("/", "0");
    const [recorder, single, gone] = [new Recorder(), new Recorder(), new Recorder()];
    const watches = await open({ endpoints: [addressOf(server)] });
    watches.watch({ key, rangeEnd, prevKv: true }, recorder);
    watches.watch({ key: `${key}b` }, single);
    watches.watch({ key, rangeEnd }, gone).cancel();
    await Promise.all([recorder.isCreated(), single.isCreated()]);
    const { revision } = await client.txn(put(`${key}a`, "1"));
    expect(recorder.createdAt[0]).toBeLessThan(revision);
    await client.txn({
      success: [
        { put: { key: `${key}b`, value: "2" } },
        { put: { key: `${key}c`, value: "2" } },
        { delete: { key: `${key}a` } },
      ],
    });
    await client.txn(put(`${name()}other`));
    await client.txn(put(`${key}b`, "3"));
    await until(
      "all has arrived",
      async () => recorder.received.length === 4 && single.received.length === 3,
    );
    expect(recorder.received).toEqual([
      "created",
      `PUT ${key}a=1`,
      `PUT ${key}b=2, PUT ${key}c=2, DELETE ${key}a=`,
      `PUT ${key}b=3`,
    ]);
    expect(recorder.revisions).toEqual([revision, revision + 1n, revision + 3n]);
    expect(single.received).toEqual(["created", `PUT ${key}b=2`, `PUT ${key}b=3`]);
    expect(gone.received).toEqual([]);
    const later = new Recorder();
    watches.watch({ key, rangeEnd, startRevision: revision + 1n }, later);
    await until("the past has arrived", async () => later.keys.length === 4);
    expect(later.keys).toEqual(recorder.keys.slice(1));
    expect(later.revisions.at(-1)).toBe(revision + 3n);
  });

  test("watches through connections that break: no event is missed or repeated", async () => {
    const key = name();
    const { proxy, through } = await proxied();
    const recorder = new Recorder();
    through.watch({ key, rangeEnd: key.replace("/", "0") }, recorder);
    await recorder.isCreated();
    const written: string[] = [];
    let writing = true;
    const cut = proxy.cut();
    // The first one before any event has arrived.
    await cut.inject();
    const writer = (async () => {
      while (writing) {
        const one = `${key}${written.length}`;
        await client.txn({
          success: [{ put: { key: one, value: "" } }, { put: { key: `${one}+`, value: "" } }],
        });
        written.push(one, `${one}+`);
      }
    })();
    for (let i = 0; i < 5; i++) {
      await pause(100);
      await cut.inject();
      await pause(100);
      await cut.heal();
      await recorder.isCreated(i + 2);
    }
    writing = false;
    await writer;
    await until("all has arrived", async () => recorder.keys.length >= written.length);
    expect(recorder.keys).toEqual(written);
    expect(recorder.received).not.toContain("gap");
    expect(recorder.failures.length).toBeGreaterThan(0);
  });

  test("reports that a watch fell behind the compaction, and starts it again", async () => {
    const key = name();
    const { proxy, through } = await proxied();
    const recorder = new Recorder();
    through.watch({ key }, recorder);
    await recorder.isCreated();
    const cut = proxy.cut();
    await cut.inject();
    await client.txn(put(key, "missed"));
    const { revision } = await client.txn(put(key, "known"));
    await server.ctl("compact", String(revision));
    await cut.heal();
    await until(
      "it begins anew",
      async () => recorder.received.includes("gap") && recorder.received.at(-1) === "created",
    );
    expect(recorder.createdAt.at(-1)).toBeGreaterThanOrEqual(revision);
    await client.txn(put(key, "new"));
    await until("it goes on", async () => recorder.received.at(-1) === `PUT ${key}=new`);
    expect(recorder.received.join()).not.toContain("missed");
  });

  test("does not send again after a lost reply unless it may; then the outcome is unknown", async () => {
    const key = name();
    const { proxy, through } = await proxied();
    await through.range({ key });
    const lose = proxy.loseReply({ when: key });
    await lose.inject();
    const error = await rejection(through.txn(put(key, "1")));
    expect(error).toBeInstanceOf(EtcdError);
    expect(error).toMatchObject({ executed: "unknown", grpcCode: Code.UNAVAILABLE });
    // The server may still be at work: any bytes of its connection count as the reply.
    const version = async (): Promise<bigint | undefined> =>
      (await client.range({ key })).kvs[0]?.version;
    await expect.poll(version).toBe(1n);
    await lose.heal();
    await lose.inject();
    expect(await through.txn(put(key, "2"), { again: true })).toMatchObject({ succeeded: true });
    await expect.poll(version).toBe(3n);
  });

  test.concurrent("remembers an attempt that may have been executed when a later one was not", async (context) => {
    const key = name();
    const { proxy, through } = await proxied(context);
    await through.range({ key });
    const lose = proxy.loseReply({ when: key, times: Number.POSITIVE_INFINITY });
    await lose.inject();
    const failing = rejection(through.txn(put(key), { again: true, timeoutMs: 1_000 }));
    await until("a reply is lost", async () => lose.struck > 0);
    await proxy.cut().inject();
    const error = await failing;
    expect(error.message).toContain("can't connect");
    expect(error).toMatchObject({ executed: "unknown" });
  });

  test.concurrent("replaces a connection that has gone silent, also where there is one endpoint", async (context) => {
    const key = name();
    const { proxy, through } = await proxied(context);
    const recorder = new Recorder();
    through.watch({ key }, recorder);
    await recorder.isCreated();
    await proxy.loseReply({ when: key, silent: true }).inject();
    const from = performance.now();
    await through.txn(put(key, "1"), { again: true });
    expect(performance.now() - from).toBeLessThan(3_000);
    expect(proxy.connections).toBe(2);
    await until("its watch has moved too", async () => recorder.keys.length === 2);
    expect(performance.now() - from).toBeLessThan(4_000);
  });

  test.concurrent('says "not executed" in time when nobody listens, and reconnects by itself', async (context) => {
    const { proxy, through } = await proxied(context);
    const cut = proxy.cut();
    await cut.inject();
    const from = performance.now();
    const error = await rejection(through.leaseGrant(60, { timeoutMs: 700 }));
    expect(performance.now() - from).toBeLessThan(1_500);
    expect(error).toMatchObject({ executed: "no", grpcCode: Code.UNAVAILABLE });
    const late = through.leaseGrant(60);
    await pause(300);
    await cut.heal();
    expect(await late).toMatchObject({ ttlS: 60 });
  });

  test("ends a call in time, though the wall clock is set back meanwhile", async () => {
    const { proxy, through } = await proxied();
    await through.range({ key: "a" });
    await proxy.swallow("to-client").inject();
    const ahead = Date.now() + 60_000;
    const clock = vi.spyOn(Date, "now").mockImplementationOnce(() => ahead);
    const from = performance.now();
    const failing = rejection(through.leaseGrant(60, { timeoutMs: 300 }));
    expect(clock).toHaveBeenCalled();
    clock.mockRestore();
    expect((await failing).message).toBe(`etcd at ${addressOf(proxy)}: request timed out`);
    expect(performance.now() - from).toBeLessThan(2_000);
  });

  test("rejects keepalives that get no reply in time, and opens another stream for the next", async () => {
    const { proxy, through } = await proxied();
    const { id } = await through.leaseGrant(60);
    await through.leaseKeepAlive(id);
    const silence = proxy.swallow("to-client");
    await silence.inject();
    const error = await rejection(through.leaseKeepAlive(id, { timeoutMs: 200 }));
    expect(error.message).toBe(`etcd at ${addressOf(proxy)}: request timed out`);
    await silence.heal();
    await until("it is kept again", async () =>
      through.leaseKeepAlive(id).then(
        ({ ttlS }) => ttlS === 60,
        () => false,
      ),
    );
  });

  test("rejects pending and later calls when it is closed", async () => {
    const { proxy, through } = await proxied();
    const { id } = await through.leaseGrant(60);
    await through.leaseKeepAlive(id);
    await proxy.stall().inject();
    const pending = [rejection(through.range({ key: "a" })), rejection(through.leaseKeepAlive(id))];
    await pause(20);
    await through.close();
    for (const error of await Promise.all(pending)) {
      expect(error).toMatchObject({ message: "etcd: the client is closed", executed: "unknown" });
    }
    expect(await rejection(through.range({ key: "a" }))).toMatchObject({ executed: "no" });
    expect(await rejection(through.leaseKeepAlive(id))).toMatchObject({ executed: "no" });
    expect(() => through.watch({ key: "a" }, new Recorder())).toThrow("closed");
  });

  describe("three members", () => {
    const first = (servers: readonly EtcdServer[], one: EtcdServer): string[] =>
      [one, ...servers.filter((other) => other !== one)].map(addressOf);

    test("moves calls, keepalives and watches to another member in time when one is paused", async () => {
      const paused = await three.leader();
      const mover = await open({ endpoints: first(three.servers, paused), random: () => 0 });
      const key = name();
      const recorder = new Recorder();
      mover.watch({ key }, recorder);
      await recorder.isCreated();
      const { id, member } = await mover.leaseGrant(60);
      await mover.leaseKeepAlive(id);
      await paused.pause();
      onTestFinished(() => (paused.state === "paused" ? paused.resume() : undefined));
      const from = performance.now();
      const calls = Array.from({ length: 5 }, () => mover.range({ key }));
      const answers = await Promise.all(calls);
      expect(performance.now() - from).toBeLessThan(3_000);
      // All of them moved to the same member, not each to another.
      expect(new Set(answers.map((one) => one.member)).size).toBe(1);
      expect(answers[0]!.member).not.toBe(member);
      expect(await mover.leaseKeepAlive(id)).toMatchObject({ member: answers[0]!.member });
      await recorder.isCreated(2);
      // Long before a ping could have noticed it.
      expect(performance.now() - from).toBeLessThan(4_000);
      await mover.txn(put(key, "after"), { again: true });
      await until("it has arrived", async () => recorder.received.at(-1) === `PUT ${key}=after`);
      await paused.resume();
    });

    test("loses and refuses no call when the leader is killed", async () => {
      const leader = await three.leader();
      const mover = await open({
        endpoints: first(three.servers, leader),
        random: () => 0,
        callTimeoutMs: 10_000,
      });
      const key = name();
      const recorder = new Recorder();
      mover.watch({ key, rangeEnd: key.replace("/", "0") }, recorder);
      await recorder.isCreated();
      const written: string[] = [];
      let writing = true;
      const writers = Array.from({ length: 4 }, async (_, w) => {
        for (let i = 0; writing; i++) {
          const one = `${key}${w}-${i}`;
          const absent = {
            key: one,
            result: "EQUAL",
            target: "CREATE",
            createRevision: 0n,
          } as const;
          await mover.txn({ compare: [absent], ...put(one) }, { again: true });
          written.push(one);
        }
      });
      await pause(200);
      await leader.kill();
      const before = written.length;
      await until("writing goes on", async () => written.length > before + 50);
      writing = false;
      await Promise.all(writers);
      const { kvs } = await mover.range({ key, rangeEnd: key.replace("/", "0") });
      expect(kvs.map((kv) => kv.key).sort()).toEqual(written.sort());
      await until("all has arrived", async () => recorder.keys.length >= written.length);
      expect(recorder.keys.sort()).toEqual(written);
      await leader.start();
    });

    test("learns at once from a member without a leader that it has none", async () => {
      const [one, two, last] = three.servers;
      await Promise.all([one!.pause(), two!.pause()]);
      onTestFinished(async () => {
        await Promise.all([one!, two!].map((s) => (s.state === "paused" ? s.resume() : undefined)));
      });
      const alone = await open({ endpoints: [addressOf(last!)] });
      await until("it has no leader", async () => {
        const error = await rejection(alone.txn(put(name()), { timeoutMs: 300 }));
        return /no leader/.test(error.message);
      });
      expect(await rejection(alone.leaseGrant(60, { timeoutMs: 300 }))).toMatchObject({
        executed: "no",
      });
      expect((await alone.status())[0]).toMatchObject({ leader: 0n });
      await Promise.all([one!.resume(), two!.resume()]);
      await alone.range({ key: "a" });
    });
  });

  // From here on concurrent: these tests mostly wait, for servers and processes of their own.
  describe.concurrent("with users", () => {
    let guarded: EtcdServer;
    const PASSWORD = "p@ss:w/o?r#d%";
    beforeAll(async () => {
      const { servers } = await lab.etcd({ flags: { "auth-token-ttl": "1", "bcrypt-cost": "4" } });
      guarded = servers[0]!;
      await guarded.ctl("user", "add", `root:${PASSWORD}`);
      await guarded.ctl("user", "add", `app:${PASSWORD}`);
      await guarded.ctl("role", "add", "app");
      await guarded.ctl("role", "grant-permission", "app", "readwrite", "app/", "app0");
      await guarded.ctl("user", "grant-role", "app", "app");
      await guarded.ctl("user", "grant-role", "root", "root");
    });

    test.sequential("works with a user before the server has users, and when its token runs out", async (context) => {
      const login = { user: "app", password: PASSWORD };
      const app = await open({ endpoints: [addressOf(guarded)], ...login }, context);
      await app.txn(put("app/a", "1"));
      await guarded.ctl("auth", "enable");
      const all = Array.from({ length: 5 }, () => app.range({ key: "app/a" }));
      for (const { count } of await Promise.all(all)) expect(count).toBe(1);
      const { id } = await app.leaseGrant(60);
      // The server removes expired tokens once a second.
      await pause(2_500);
      const recorder = new Recorder();
      app.watch({ key: "app/a" }, recorder);
      await recorder.isCreated();
      expect(await app.leaseKeepAlive(id)).toMatchObject({ ttlS: 60 });
      await app.txn({ success: [{ put: { key: "app/a", value: "2", lease: id } }] });
      await until("it has arrived", async () => recorder.received.at(-1) === "PUT app/a=2");
      const denied = await rejection(app.txn(put("else")));
      expect(denied).toMatchObject({ grpcCode: Code.PERMISSION_DENIED, executed: "no" });
      const never = new Recorder();
      app.watch({ key: "else" }, never);
      await until("it is refused", async () => never.failures.length > 0);
      expect(never.failures[0]).toContain("permission denied");
    });

    test.sequential("does not retry a wrong password", async (context) => {
      const login = { user: "app", password: "wrong-secret" };
      const wrong = await open({ endpoints: [addressOf(guarded)], ...login }, context);
      const error = await rejection(wrong.range({ key: "app/a" }));
      expect(error.message).toContain("invalid user ID or password");
      expect(error).toMatchObject({ executed: "no" });
      expect(JSON.stringify(error) + error.stack).not.toContain("wrong-secret");
    });
  });

  test.concurrent("works by TLS with the authority that signed the server, and a certificate of its own", async (context) => {
    skipUnless(context, findFile("openssl") !== null, "needs openssl");
    const folder = join(lab.folder, "certificates");
    mkdirSync(folder);
    const openssl = (...args: readonly string[]): void => {
      execFileSync("openssl", args, { cwd: folder, stdio: "ignore" });
    };
    const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    const files = (one: string): string[] => ["-keyout", `${one}.key`, "-out"];
    for (const one of ["ca", "stranger"]) {
      openssl(
        "req",
        "-x509",
        ...newKey,
        "-subj",
        `/CN=${one}`,
        "-days",
        "2",
        ...files(one),
        `${one}.pem`,
      );
    }
    for (const [one, names] of [
      ["server", "DNS:locks.test"],
      ["app", "DNS:app.test"],
    ] as const) {
      openssl("req", ...newKey, "-subj", `/CN=${one}`, ...files(one), `${one}.csr`);
      writeFileSync(join(folder, `${one}.ext`), `subjectAltName=${names}`);
      const signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
      openssl(
        "x509",
        "-req",
        "-in",
        `${one}.csr`,
        ...signed,
        "-extfile",
        `${one}.ext`,
        "-out",
        `${one}.pem`,
      );
    }
    const path = (file: string): string => join(folder, file);
    const read = (file: string): string => readFileSync(path(file), "utf8");
    const port = await freePort();
    await lab.etcd({
      tls: { port, cert: path("server.pem"), key: path("server.key"), clientCa: path("ca.pem") },
    });
    const endpoints = [`127.0.0.1:${port}`];
    const own = { cert: read("app.pem"), key: read("app.key") };
    const good = { ca: read("ca.pem"), servername: "locks.test", ...own };
    const right = await open({ endpoints, tls: good }, context);
    const recorder = new Recorder();
    right.watch({ key: "a" }, recorder);
    await recorder.isCreated();
    await right.txn(put("a", "1"));
    await until("it has arrived", async () => recorder.received.at(-1) === "PUT a=1");
    const unchecked = await open(
      { endpoints, tls: { ...own, rejectUnauthorized: false } },
      context,
    );
    expect((await unchecked.range({ key: "a" })).count).toBe(1);
    const bad = [
      { ...good, ca: read("stranger.pem") },
      { ...good, servername: undefined },
      { ca: good.ca, servername: "locks.test" },
    ];
    for (const tls of bad) {
      const wrong = await open({ endpoints, tls }, context);
      expect(await rejection(wrong.range({ key: "a" }, { timeoutMs: 400 }))).toMatchObject({
        executed: "no",
      });
    }
  });

  describe.concurrent("a process with an etcd client", () => {
    const script = (end: string): string => `
      import { openEtcdClient } from ${JSON.stringify(built.file("stores/etcd/rpc/client.js"))};
      const client = await openEtcdClient({ endpoints: [${JSON.stringify(addressOf(server))}] });
      const { id } = await client.leaseGrant(60);
      await client.leaseKeepAlive(id);
      const alive = setInterval(() => {}, 1_000);
      await new Promise((created) => client.watch({ key: "a" }, { created, events() {}, gap() {} }));
      clearInterval(alive);
      await client.txn({ success: [{ put: { key: "b", value: "" } }] });
      ${end}
      console.log("done");
    `;

    test.each([
      ["ends after close", "await client.close();"],
      ["ends by itself with streams open and nothing pending", ""],
    ])("%s", async (_, end) => {
      const { code, out, killed } = await runNode(script(end));
      expect({ code, out, killed }).toEqual({ code: 0, out: "done", killed: false });
    });

    // Node's HTTP/2 looped for ever here: the watch was cancelled while the reset was still handled.
    test("goes on when a stream is reset while a write is pending", async () => {
      const { out, err, killed } = await runNode(`
        import { Worker } from "node:worker_threads";
        import { openEtcdClient } from ${JSON.stringify(built.file("stores/etcd/rpc/client.js"))};
        const isReset = new Int32Array(new SharedArrayBuffer(4));
        const how = { eval: true, execArgv: [], workerData: isReset };
        const server = new Worker(${JSON.stringify(RESETTING_SERVER)}, how);
        const port = await new Promise((listening) => server.once("message", listening));
        const client = await openEtcdClient({ endpoints: ["127.0.0.1:" + port, "localhost:" + port] });
        client.watch({ key: "a" }, { created() {}, events() {}, gap() {} });
        // By then the connection has settled.
        await new Promise((soon) => setTimeout(soon, 300));
        const kept = client.leaseKeepAlive(1n, { timeoutMs: 5_000 }).catch((error) => error);
        const writeAndBlock = () => {
          client.range({ key: "b" }, { timeoutMs: 3_000 }).catch(() => {});
          if (Atomics.wait(isReset, 0, 0, 30) === "timed-out") return setTimeout(writeAndBlock);
          // So that the reset can be read before the write is sent.
          Atomics.wait(isReset, 0, 1, 50);
        };
        setTimeout(writeAndBlock);
        console.log((await kept).message);
        process.exit();
      `);
      expect({ err, killed }).toEqual({ err: "", killed: false });
      expect(out).toMatch(/RST_STREAM/);
    });

    test("is told what to install when the library is missing", async () => {
      const bare = join(lab.folder, "bare");
      const isOurs = (path: string): boolean => !path.endsWith("node_modules");
      cpSync(built.file("."), bare, { recursive: true, filter: isOurs });
      const { out } = await runNode(`
        import { openEtcdClient } from ${JSON.stringify(join(bare, "stores/etcd/rpc/client.js"))};
        const error = await openEtcdClient({ endpoints: ["127.0.0.1:1"] }).catch((one) => one);
        console.log(error.code, error.message);
      `);
      expect(out).toBe("UNSUPPORTED etcd: needs a client library: npm install @grpc/grpc-js");
    });

    test("lives while a call is pending, whether streams are open or not", async () => {
      const waits = `
        const nobody = await openEtcdClient({ endpoints: ["127.0.0.1:${await freePort()}"] });
        await nobody.range({ key: "a" }, { timeoutMs: 600 }).catch(() => {});
        await Promise.all([client.range({ key: "a" }), client.leaseKeepAlive(id)]);`;
      expect(await runNode(script(waits))).toMatchObject({ code: 0, out: "done" });
    });
  });
});

/** Accepts watches, and resets every keepalive stream at its first message. */
const RESETTING_SERVER = `
  const { createServer } = require("node:http2");
  const { parentPort, workerData: isReset } = require("node:worker_threads");
  const server = createServer();
  server.on("stream", (stream, { ":path": path }) => {
    stream.on("error", () => {});
    if (path.endsWith("/Watch")) {
      stream.respond({ ":status": 200, "content-type": "application/grpc" });
    }
    if (!path.endsWith("/LeaseKeepAlive")) return;
    stream.once("data", () => {
      stream.close(2);
      Atomics.store(isReset, 0, 1);
      Atomics.notify(isReset, 0);
    });
  });
  server.listen(0, "127.0.0.1", () => parentPort.postMessage(server.address().port));
`;
