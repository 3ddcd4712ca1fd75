import { subscribe, unsubscribe } from "node:diagnostics_channel";
import fc from "fast-check";
import { afterAll, beforeAll, expect, onTestFinished, type TestContext, test } from "vitest";
import { fenceCases } from "../../src/conformance/fences.js";
import { StaleTokenError, StoreUnavailableError } from "../../src/core/errors.js";
import type { Fenced } from "../../src/fence/fence.js";
import {
  type ZooKeeperFence,
  type ZooKeeperTx,
  zookeeperFence,
} from "../../src/fence/zookeeper.js";
import { createLocks } from "../../src/locks.js";
import { memoryStore } from "../../src/stores/memory/index.js";
import { type FencedCell, runCase } from "../../src/testing.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../src/verify/lab/zookeeper.js";
import {
  digestAcl,
  type MultiPart,
  ZooKeeperClient,
  ZooKeeperError,
} from "../../src/zookeeper/index.js";
import { realSubject } from "../conformance/subjects.js";
import { rejection } from "../core/helpers.js";
import { runs } from "../support/chance.js";
import { describeWith } from "../support/needs.js";

type Client = Pick<ZooKeeperClient, "create" | "getData" | "multi" | "sync">;

const exclusive = (token: bigint): Fenced => ({ token, floor: token });
const setTo = (path: string, data: string): MultiPart => ({ op: "setData", path, data });

describeWith(["zookeeper"], "the fence in ZooKeeper", () => {
  let lab: Lab;
  let server: ZooKeeperServer;
  let client: ZooKeeperClient;
  let names = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    server = (await lab.zookeeper()).servers[0]!;
    client = await ZooKeeperClient.open({ servers: [`${server.address}:${server.port}`] });
  });
  afterAll(async () => {
    await client?.close();
    await lab?.close();
  });

  /** The data and the version of a node; null if there is none. */
  const get = async (path: string): Promise<[data: string, version: number] | null> => {
    const { stat } = await client.exists(path);
    if (stat === null) return null;
    const found = await client.getData(path);
    return [found.data.toString(), found.stat.version];
  };

  /** A resource, the node of its fence, and a node of the user's with the data "0". */
  async function fresh(): Promise<{
    fence: ZooKeeperFence;
    resource: string;
    node: string;
    data: string;
  }> {
    const resource = `resource-${++names}`;
    const data = `/data-${names}`;
    await client.create(data, { data: "0" });
    return { fence: zookeeperFence(client), resource, node: `/holdfast-fence/${resource}`, data };
  }

  async function proxied({
    onTestFinished,
  }: TestContext): Promise<{ proxy: TcpProxy; through: ZooKeeperClient }> {
    const proxy = await TcpProxy.open(server);
    onTestFinished(() => proxy.close());
    const through = await ZooKeeperClient.open({
      servers: [`${proxy.address}:${proxy.port}`],
      requestTimeoutMs: 2_000,
    });
    onTestFinished(() => through.close());
    return { proxy, through };
  }

  async function cell(): Promise<FencedCell> {
    const { data, resource } = await fresh();
    const fence = zookeeperFence(client, { root: `/cells/${resource}` });
    return {
      fence: fence as FencedCell["fence"],
      transaction: async (fn) => {
        const tx: ZooKeeperTx = [];
        const result = await fn(tx);
        if (tx.some(({ op }) => op === "setData")) await fence.commit(tx);
        return result;
      },
      read: async () => Number((await get(data))![0]),
      write: async (tx, value) => {
        (tx as ZooKeeperTx).push(setTo(data, String(value)));
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

  test("keeps one persistent node for a resource", async () => {
    const { fence, resource, node } = await fresh();
    await fence.enter(undefined, resource, exclusive(42n));
    expect(await get(node)).toEqual(["1:42", 0]);
    expect((await client.exists(node)).stat).toMatchObject({ ephemeralOwner: 0n });
    const most = 2n ** 63n - 1n;
    await fence.enter(undefined, resource, exclusive(most));
    expect(await get(node)).toEqual([`1:${most}`, 1]);
    const tx: ZooKeeperTx = [];
    await fence.guard(tx, resource, exclusive(most), { strict: true });
    expect((await fence.commit(tx)).results).toEqual([{}]);
  });

  test("refuses a stale holder's transaction that was built before the next holder entered", async () => {
    type Add = (
      fence: ZooKeeperFence,
      tx: ZooKeeperTx,
      resource: string,
      lease: Fenced,
    ) => Promise<void>;
    const ways: Add[] = [
      (fence, ...more) => fence.enter(...more),
      (fence, ...more) => fence.guard(...more),
      (fence, ...more) => fence.guard(...more, { strict: true }),
    ];
    for (const add of ways) {
      const { fence, resource, data } = await fresh();
      await fence.enter(undefined, resource, exclusive(5n));
      const tx: ZooKeeperTx = [];
      await add(fence, tx, resource, exclusive(5n));
      tx.push(setTo(data, "stale"));
      await zookeeperFence(client).enter(undefined, resource, exclusive(10n));
      const events: unknown[] = [];
      const onEvent = (event: unknown): unknown => events.push(event);
      subscribe("holdfast:stale-token", onEvent);
      const error = await rejection(fence.commit(tx));
      unsubscribe("holdfast:stale-token", onEvent);
      expect(error).toBeInstanceOf(StaleTokenError);
      expect(error).toMatchObject({ resource, token: 5n, highest: 10n });
      expect(events).toMatchObject([{ resource, token: 5n, highest: 10n }]);
      // A transaction that is sent by other means is refused as well, also without the check.
      expect(await rejection(client.multi(tx))).toMatchObject({ code: "BAD_VERSION" });
      tx.splice(0, tx.length, setTo(data, "stale"));
      expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
      expect(await get(data)).toEqual(["0", 0]);
    }
  });

  test("guards several resources in one transaction, and one refusal is enough", async () => {
    const [one, two] = [await fresh(), await fresh()];
    const tx = [setTo(one.data, "1")];
    await one.fence.guard(tx, one.resource, exclusive(5n));
    await two.fence.guard(tx, two.resource, exclusive(7n));
    await two.fence.enter(undefined, two.resource, exclusive(8n));
    expect(await rejection(one.fence.commit(tx))).toMatchObject({
      resource: two.resource,
      highest: 8n,
    });
    expect(await get(one.data)).toEqual(["0", 0]);
  });

  test("a part of the user's own that fails is the user's error, unless the fence refuses too", async () => {
    const { fence, resource, data } = await fresh();
    const tx: ZooKeeperTx = [{ op: "setData", path: data, data: "mine", version: 7 }];
    await fence.guard(tx, resource, exclusive(5n));
    const own = await rejection(fence.commit(tx));
    expect(own).toBeInstanceOf(ZooKeeperError);
    expect(own).toMatchObject({ code: "BAD_VERSION", part: 0, path: data });
    await fence.enter(undefined, resource, exclusive(6n));
    expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
    tx.splice(0, tx.length, setTo(data, "mine"));
    const next: ZooKeeperTx = [setTo(data, "next")];
    await fence.guard(next, resource, exclusive(6n), { strict: true });
    const { results, reply } = await fence.commit(next);
    expect(results).toMatchObject([{ stat: { version: 1 } }, {}]);
    expect(reply.isWrite).toBe(true);
  });

  test("refuses with strict a holder that has not entered; without strict, guard enters first", async () => {
    const { fence, resource, data } = await fresh();
    const write = async (lease: Fenced, strict: boolean): Promise<unknown> => {
      const tx = [setTo(data, "")];
      await fence.guard(tx, resource, lease, { strict });
      return fence.commit(tx);
    };
    expect((await rejection(write(exclusive(5n), true))).message).toMatch(/has not entered/);
    expect(await get(data)).toEqual(["0", 0]);
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
    const none = await fresh();
    await none.fence.enter(undefined, none.resource, { token: 3n, floor: 0n });
    await none.fence.guard(undefined, none.resource, { token: 3n, floor: 0n }, { strict: true });
  });

  test("a transaction of a shared holder passes although another one has raised the floor meanwhile", async () => {
    const { fence, resource, data } = await fresh();
    const tx = [setTo(data, "shared")];
    await fence.guard(tx, resource, { token: 9n, floor: 5n });
    await fence.enter(undefined, resource, { token: 10n, floor: 7n });
    expect(await rejection(client.multi(tx))).toMatchObject({ code: "BAD_VERSION" });
    await fence.commit(tx);
    expect(await get(data)).toEqual(["shared", 1]);
    await fence.enter(undefined, resource, { token: 11n, floor: 10n });
    expect(await rejection(fence.commit(tx))).toBeInstanceOf(StaleTokenError);
  });

  test("a guard without a transaction, and an entry that is there already, are confirmed by a write", async () => {
    const { resource } = await fresh();
    const sent: string[] = [];
    const fence = zookeeperFence({
      create: (...args) => client.create(...args),
      sync: (...args) => client.sync(...args),
      getData: (...args) => {
        sent.push("read");
        return client.getData(...args);
      },
      multi: (parts) => {
        sent.push(...parts.map(({ op }) => op));
        return client.multi(parts);
      },
    });
    const requestsOf = async (step: () => Promise<unknown>): Promise<string> => {
      sent.length = 0;
      await step();
      return sent.join(" ");
    };
    const lease = exclusive(5n);
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("read create");
    expect(await requestsOf(() => fence.enter(undefined, resource, lease))).toBe("read check");
    expect(await requestsOf(() => fence.guard(undefined, resource, lease))).toBe("read check");
    const later = exclusive(6n);
    expect(await requestsOf(() => fence.enter(undefined, resource, later))).toBe("read setData");
    const tx: ZooKeeperTx = [];
    expect(await requestsOf(() => fence.guard(tx, resource, later))).toBe("read");
    expect(await requestsOf(() => fence.commit(tx))).toBe("check");
  });

  test.concurrent("says unavailable when ZooKeeper can't be reached, and never stale", async (context) => {
    const { resource } = await fresh();
    const { proxy, through } = await proxied(context);
    const fence = zookeeperFence(through);
    await proxy.cut().inject();
    const down = await rejection(fence.enter(undefined, resource, exclusive(1n)));
    expect(down).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: true });
    await through.close();
    const closed = await rejection(fence.highest(undefined, resource));
    expect(closed).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
    expect(closed.message).toMatch(/^the fence can't read: .*the client is closed/);
  });

  /** Requests and replies arrive in a random order. */
  const interleaved = (scheduler: fc.Scheduler): Client => {
    const at = async <T>(send: () => Promise<T>): Promise<T> => {
      await scheduler.schedule(Promise.resolve());
      // A rejection that the scheduler holds back would count as unhandled.
      const [outcome] = await scheduler.schedule(Promise.allSettled([send()]));
      if (outcome.status === "rejected") throw outcome.reason;
      return outcome.value;
    };
    return {
      create: (...args) => at(() => client.create(...args)),
      // Its reply says nothing that a single server does not know.
      sync: (...args) => client.sync(...args),
      getData: (...args) => at(() => client.getData(...args)),
      multi: (parts) => at(() => client.multi(parts)),
    };
  };

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
          const resource = `resource-${++names}`;
          const fence = zookeeperFence(interleaved(scheduler));
          const all = Promise.allSettled(
            leases.map((one) => fence.enter(undefined, resource, one)),
          );
          const outcomes = await scheduler.waitFor(all);
          const highest = leases.reduce((most, { floor }) => (floor > most ? floor : most), 0n);
          expect(await zookeeperFence(client).highest(undefined, resource)).toBe(highest);
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

  /** Enters, reads a number and writes it raised by one. Resolves with the transaction of the write. */
  async function increment(
    { fence, through }: { fence: ZooKeeperFence; through: Client },
    { resource, data }: { resource: string; data: string },
    token: bigint,
    strict: boolean,
  ): Promise<bigint> {
    await fence.enter(undefined, resource, exclusive(token));
    const before = Number((await through.getData(data)).data.toString());
    const tx: ZooKeeperTx = [];
    await fence.guard(tx, resource, exclusive(token), { strict });
    tx.push(setTo(data, String(before + 1)));
    return (await fence.commit(tx)).reply.zxid;
  }

  /** The writes that were accepted are all in the number, and their tokens rose. */
  async function expectNoneLost(
    data: string,
    tokens: readonly bigint[],
    outcomes: readonly PromiseSettledResult<bigint>[],
  ): Promise<number> {
    const wrote = outcomes
      .flatMap((outcome, i) =>
        outcome.status === "fulfilled" ? [{ token: tokens[i]!, zxid: outcome.value }] : [],
      )
      .sort((a, b) => Number(a.zxid - b.zxid))
      .map(({ token }) => token);
    expect(Number((await get(data))![0])).toBe(wrote.length);
    expect(wrote).toEqual([...wrote].sort((a, b) => Number(a - b)));
    for (const outcome of outcomes) {
      if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(StaleTokenError);
    }
    return wrote.length;
  }

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
          const place = await fresh();
          const through = interleaved(scheduler);
          const by = { fence: zookeeperFence(through), through };
          const all = Promise.allSettled(
            tokens.map((token) => increment(by, place, token, strict)),
          );
          const outcomes = await scheduler.waitFor(all);
          refused += tokens.length - (await expectNoneLost(place.data, tokens, outcomes));
        },
      ),
      runs(60),
    );
    expect(refused).toBeGreaterThan(0);
  });

  test("64 writers with tokens out of order, on clients of their own, lose no update", async () => {
    const place = await fresh();
    const clients = await Promise.all(
      Array.from({ length: 8 }, () =>
        ZooKeeperClient.open({ servers: [`${server.address}:${server.port}`] }),
      ),
    );
    onTestFinished(() => Promise.all(clients.map((one) => one.close())).then(() => {}));
    // 37 and 64 have no common divisor, so these are 64 tokens in another order.
    const tokens = Array.from({ length: 64 }, (_, i) => BigInt(1 + ((i * 37) % 64)));
    const outcomes = await Promise.allSettled(
      tokens.map((token, i) => {
        const through = clients[i % clients.length]!;
        return increment({ fence: zookeeperFence(through), through }, place, token, false);
      }),
    );
    const wrote = await expectNoneLost(place.data, tokens, outcomes);
    expect(wrote).toBeGreaterThan(0);
    expect(wrote).toBeLessThan(64);
    expect(await place.fence.highest(undefined, place.resource)).toBe(64n);
  });

  test("keeps resources apart, whatever is in their names", async () => {
    const some = [
      "a",
      "a/",
      "a/b",
      "/",
      "..",
      ".",
      "ä",
      "🎩 hat",
      " ",
      "%2F",
      '"',
      "x".repeat(255),
    ];
    const fence = zookeeperFence(client, { root: "/names/of" });
    for (const [i, resource] of some.entries()) {
      await fence.enter(undefined, resource, exclusive(BigInt(i) + 1n));
    }
    for (const [i, resource] of some.entries()) {
      expect(await fence.highest(undefined, resource), resource).toBe(BigInt(i) + 1n);
    }
    const atTop = zookeeperFence(client, { root: "/" });
    await atTop.enter(undefined, "at the top", exclusive(3n));
    expect(await get("/at%20the%20top")).toEqual(["1:3", 0]);
    for (const bad of ["", "x".repeat(256), "a\u0000", "\ud800", 7, undefined]) {
      for (const step of [
        fence.enter(undefined, bad as string, exclusive(1n)),
        fence.guard([], bad as string, exclusive(1n), { strict: true }),
        fence.highest(undefined, bad as string),
        fence.reset(undefined, bad as string, 1n),
      ]) {
        expect(await rejection(step)).toMatchObject({ code: "INVALID_ARGUMENT" });
      }
    }
  });

  test("refuses a value of another format, or of somebody else, and leaves it alone", async () => {
    const later = ["2:1", "2:x", "10:1", "0:"];
    const strange = ["", "hello", "1:", "1:5x", "1:-5", "00000000000000000001"];
    const { fence, resource, node, data } = await fresh();
    const lease = exclusive(3n);
    const tx = [setTo(data, "")];
    await fence.guard(tx, resource, lease);
    for (const value of [...later, ...strange]) {
      const { stat } = await client.setData(node, value);
      for (const step of [
        () => fence.commit(tx),
        () => fence.enter(undefined, resource, lease),
        () => fence.guard([], resource, lease),
        () => fence.highest(undefined, resource),
        () => fence.reset(undefined, resource, 1n),
        () => fence.reset([], resource, 1n),
      ]) {
        const error = await rejection(step());
        expect(error, value).toMatchObject({ code: "UNSUPPORTED" });
        expect(error.message).toContain(later.includes(value) ? "has format" : "is no fence");
      }
      expect(await get(node)).toEqual([value, stat.version]);
    }
    expect(await get(data)).toEqual(["0", 0]);
  });

  test("refuses a node whose version has wrapped around: ZooKeeper takes -1 for any version", async () => {
    const { resource } = await fresh();
    await zookeeperFence(client).enter(undefined, resource, exclusive(1n));
    const wrapped = zookeeperFence({
      create: (...args) => client.create(...args),
      sync: (...args) => client.sync(...args),
      multi: (parts) => client.multi(parts),
      getData: async (path) => {
        const { stat, ...rest } = await client.getData(path);
        return { ...rest, stat: { ...stat, version: -1 } };
      },
    });
    const tx: ZooKeeperTx = [];
    expect(await rejection(wrapped.guard(tx, resource, exclusive(1n)))).toMatchObject({
      code: "UNSUPPORTED",
    });
    expect(tx).toEqual([]);
  });

  test("enters once, even if a reply is lost", async (context) => {
    const { node, resource } = await fresh();
    const { proxy, through } = await proxied(context);
    const fence = zookeeperFence(through);
    for (const [i, token] of [500n, 501n].entries()) {
      const lose = proxy.loseReply({ when: `1:${token}` });
      await lose.inject();
      await fence.enter(undefined, resource, exclusive(token));
      expect(lose.struck).toBe(1);
      await lose.heal();
      expect(await get(node)).toEqual([`1:${token}`, i]);
    }
    expect(await rejection(fence.enter(undefined, resource, exclusive(500n)))).toBeInstanceOf(
      StaleTokenError,
    );
  });

  test("reports a lost reply to commit or reset as such, and sends nothing again", async (context) => {
    const { fence, node, resource, data } = await fresh();
    await fence.enter(undefined, resource, exclusive(500n));
    const { proxy, through } = await proxied(context);
    const losing = zookeeperFence(through);
    const tx: ZooKeeperTx = [setTo(data, "once, or not at all")];
    await losing.guard(tx, resource, exclusive(500n));
    const lost = async (when: string, step: () => Promise<unknown>): Promise<Error> => {
      const lose = proxy.loseReply({ when });
      await lose.inject();
      const error = await rejection(step());
      expect(lose.struck).toBe(1);
      await lose.heal();
      return error;
    };
    const error = await lost("once, or", () => losing.commit(tx));
    expect(error).toBeInstanceOf(StoreUnavailableError);
    expect(error).toMatchObject({ retryable: true, cause: { executed: "unknown" } });
    expect(error.message).toMatch(/^the fence can't commit: .*may have been executed/);
    expect(await get(data)).toEqual(["once, or not at all", 1]);
    const reset = await lost("1:222", () => losing.reset(undefined, resource, 222n));
    expect(reset.message).toMatch(/can't reset: .*may have been executed/);
    expect(await get(node)).toEqual(["1:222", 1]);
  });

  test("resets by itself over any value, and in a transaction only if nobody enters meanwhile", async () => {
    const { fence, resource, data } = await fresh();
    await fence.reset(undefined, resource, 50n);
    await fence.reset(undefined, resource, 40n);
    expect(await fence.highest(undefined, resource)).toBe(40n);
    const step = async (): Promise<ZooKeeperTx> => {
      const tx = [setTo(data, "moved")];
      await fence.reset(tx, resource, 3n);
      return tx;
    };
    const late = await step();
    await fence.enter(undefined, resource, exclusive(60n));
    expect(await rejection(fence.commit(late))).toMatchObject({ code: "BAD_VERSION", part: 1 });
    expect(await fence.highest(undefined, resource)).toBe(60n);
    const tx = await step();
    const after = await rejection(fence.guard(tx, resource, exclusive(60n)));
    expect(after.message).toMatch(/call guard before reset/);
    await fence.commit(tx);
    expect(await fence.highest(undefined, resource)).toBe(3n);
    expect(await get(data)).toEqual(["moved", 1]);
    const unknown = await fresh();
    const first: ZooKeeperTx = [];
    await unknown.fence.reset(first, unknown.resource, 9n);
    await unknown.fence.commit(first);
    expect(await get(unknown.node)).toEqual(["1:9", 0]);
  });

  test("its nodes have the rights that it is given, and a user without them is refused for good", async () => {
    const auth = { user: "app", password: "secret" };
    const servers = [`${server.address}:${server.port}`];
    const app = await ZooKeeperClient.open({ servers, auth });
    onTestFinished(() => app.close());
    const options = { root: "/guarded/fence", acl: [digestAcl(auth)] };
    await zookeeperFence(app, options).enter(undefined, "r", exclusive(1n));
    const stranger = zookeeperFence(client, options);
    for (const step of [
      () => stranger.enter(undefined, "r", exclusive(2n)),
      () => stranger.enter(undefined, "another", exclusive(2n)),
    ]) {
      const error = await rejection(step());
      expect(error).toMatchObject({ code: "STORE_UNAVAILABLE", retryable: false });
      expect(error.message).toMatch(/ACL/);
    }
    expect(await zookeeperFence(app, options).highest(undefined, "r")).toBe(1n);
  });

  test("makes its root again if somebody deleted it", async () => {
    const fence = zookeeperFence(client, { root: "/deleted" });
    await fence.enter(undefined, "a", exclusive(1n));
    await client.delete("/deleted/a");
    await client.delete("/deleted");
    await fence.enter(undefined, "b", exclusive(2n));
    expect(await get("/deleted/b")).toEqual(["1:2", 0]);
  });

  test("is entered by withLock", async () => {
    const { fence, resource } = await fresh();
    const locks = createLocks(memoryStore());
    onTestFinished(() => locks.close());
    await locks.withLock("name", { fence, resource }, async (lease) => {
      expect(await fence.highest(undefined, resource)).toBe(lease.token);
      await fence.guard([], resource, lease, { strict: true });
    });
  });

  test("refuses bad transactions, clients and options", async () => {
    const { fence, resource } = await fresh();
    const refused = async (step: Promise<unknown>, words: RegExp): Promise<void> => {
      const error = await rejection(step);
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
      expect(error.message).toMatch(words);
    };
    for (const bad of [null, {}, { parts: [] }, "tx"]) {
      await refused(fence.guard(bad as never, resource, exclusive(1n)), /the transaction is/);
      await refused(fence.reset(bad as never, resource, 1n), /the transaction is/);
    }
    await refused(fence.commit(undefined as never), /the transaction is/);
    await refused(fence.commit([]), /is not guarded/);
    const tx: ZooKeeperTx = [];
    await fence.guard(tx, resource, exclusive(1n));
    // A copy is not recognised, but carries the check.
    await refused(fence.commit([...tx]), /is not guarded/);
    await refused(fence.commit(Object.assign(tx, { 1: { op: "fly" } })), /op of a part/);
    expect(() => zookeeperFence(client, { root: "fence" })).toThrow(/root/);
    expect(() => zookeeperFence(client, { roots: "/x" } as never)).toThrow(/no option "roots"/);
    expect(() => zookeeperFence({} as never)).toThrow(/ZooKeeperClient\.open/);
  });
});
