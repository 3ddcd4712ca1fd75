import { Client, credentials } from "@grpc/grpc-js";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { connect, type Locks } from "../../../src/index.js";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import type { EtcdServer } from "../../../src/verify/lab/etcd.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { grantLease, keysOf, leases } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";

const LONG_S = 60;
const DELIMITED = 2;
const VARINT = 0;

describeWith(["etcd"], "a waiter whose session is gone", () => {
  let lab: Lab;
  let server: EtcdServer;
  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.etcd()).servers[0]!;
  });
  afterAll(() => lab?.close());

  test("is told by etcd's own lock RPC, without any of our code, that it holds, and so is another", async (context) => {
    const rpc = new Client(`${server.address}:${server.port}`, credentials.createInsecure());
    onTestFinished(() => rpc.close());
    const keys = () => keysOf(server, "name/");
    const wait = async (): Promise<{ lease: string; granted: Promise<string> }> => {
      const before = (await keys()).length;
      const lease = await grantLease(server, LONG_S);
      const granted = lock(rpc, "name", lease);
      granted.catch(() => {});
      await until("it stands in the queue", async () => (await keys()).length > before);
      return { lease, granted };
    };
    const holder = await wait();
    const held = await holder.granted;
    const waiter = await wait();
    const another = await wait();
    await server.ctl("lease", "revoke", waiter.lease);
    expect(await keys()).toEqual([held, `name/${another.lease}`]);

    await server.ctl("del", held);
    expect(await another.granted).toBe(`name/${another.lease}`);
    const answer = await waiter.granted.catch(({ details }) => String(details));
    if (/session.*expired/.test(answer)) context.skip(`this etcd is mended: ${answer}`);
    expect(answer).toBe(`name/${waiter.lease}`);
    expect(await keys()).toEqual([await another.granted]);
  });

  test.each([
    ["when its watch misses nothing", false],
    ["also when its watch catches up after another one holds", true],
  ])("is not granted the name by Holdfast, but claims it again, %s", async (_what, isCut) => {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const open = async (url: string): Promise<Locks> => {
      const locks = await connect(url, { ttl: LONG_S * 1_000, wait: "20s" });
      onTestFinished(() => locks.close());
      return locks;
    };
    const [holder, waiter, another] = [
      await open(server.url),
      await open(proxy.url),
      await open(server.url),
    ];
    const seen = async () => {
      const info = await holder.inspect("name");
      return {
        holders: info?.holders.map(({ token }) => token),
        waiters: info?.waiters.length,
      };
    };
    const held = await holder.acquire("name");
    const before = await leases(server);
    const waiting = waiter.acquire("name");
    await until("it waits", async () => (await seen()).waiters === 1);
    const session = (await leases(server)).find((id) => !before.includes(id))!;
    const next = another.acquire("name");
    await until("another waits", async () => (await seen()).waiters === 2);

    const cut = proxy.cut();
    if (isCut) await cut.inject();
    await server.ctl("lease", "revoke", session);
    expect(await held.release()).toBe("released");
    const granted = await next;
    await cut.heal();
    await until("it waits again", async () => (await seen()).waiters === 1);
    expect((await seen()).holders).toEqual([granted.token]);
    granted.assertHeld();
    expect(await granted.release()).toBe("released");
    expect((await waiting).token).toBeGreaterThan(granted.token);
  });
});

/** `v3lockpb.Lock/Lock`, encoded here: resolves with the key by which etcd says that the caller holds. */
function lock(rpc: Client, name: string, lease: string): Promise<string> {
  const request = Buffer.concat([
    Buffer.from([(1 << 3) | DELIMITED, name.length]),
    Buffer.from(name),
    Buffer.from([(2 << 3) | VARINT]),
    varint(BigInt(`0x${lease}`)),
  ]);
  return new Promise((resolve, reject) => {
    rpc.makeUnaryRequest(
      "/v3lockpb.Lock/Lock",
      (bytes: Buffer) => bytes,
      (bytes: Buffer) => bytes,
      request,
      (error, answer) => (error === null ? resolve(keyIn(answer!)) : reject(error)),
    );
  });
}

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}

/** Decodes a reply: a header of less than 128 bytes, and a key likewise. */
function keyIn(answer: Buffer): string {
  const at = 2 + answer[1]!;
  expect([answer[0], answer[at]]).toEqual([(1 << 3) | DELIMITED, (2 << 3) | DELIMITED]);
  return answer.toString("utf8", at + 2, at + 2 + answer[at + 1]!);
}
