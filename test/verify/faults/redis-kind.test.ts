import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { redisConnectionKind } from "../../../src/verify/faults/redis-kind.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { describeWith } from "../../support/needs.js";
import { quiet } from "../../support/redis.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";

const command = (...words: readonly string[]): string =>
  `*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join("")}`;

describe("the kind of a Redis connection", () => {
  const kindAfter = (...pieces: readonly string[]): string | undefined => {
    const read = redisConnectionKind();
    return pieces.map((piece) => read(Buffer.from(piece))).at(-1);
  };
  const setUp = command("hello", "3") + command("client", "setinfo", "x", "y") + command("info");

  test("is unknown while a client sets up its connection", () => {
    expect(kindAfter(setUp)).toBeUndefined();
    expect(kindAfter("")).toBeUndefined();
  });

  test.each(["SUBSCRIBE", "ssubscribe", "PSubscribe"])("is a subscription after %s", (name) => {
    expect(kindAfter(setUp, command(name, "channel"))).toBe("subscription");
    expect(kindAfter(command("get", "a") + command(name, "channel"))).toBe("subscription");
    expect(kindAfter(command(name, "channel"), command("get", "a"))).toBe("subscription");
    expect(kindAfter(`${name} channel\r\n`)).toBe("subscription");
  });

  test("is commands after any other command, whatever its arguments contain", () => {
    const decoy = command("subscribe", "channel");
    expect(kindAfter(setUp, command("set", "subscribe", decoy), command("info"))).toBe("commands");
    expect(kindAfter(command("set", "a", ""), command("get", "a"))).toBe("commands");
    expect(kindAfter("get a\r\n")).toBe("commands");
  });

  test("does not depend on how the bytes are split", () => {
    const decoy = "\r\n*1\r\n$9\r\nSUBSCRIBE\r\n";
    const before = setUp + command("set", "key", decoy);
    const text = before + command("subscribe", "channel");
    const shown = before.length + "*2\r\n$9\r\nsubscribe\r\n".length;
    for (let size = 1; size <= text.length; size++) {
      const read = redisConnectionKind();
      for (let at = 0; at < text.length; at += size) {
        const end = Math.min(at + size, text.length);
        const kind = read(Buffer.from(text.slice(at, end)));
        expect(kind === "subscription", `${size} bytes at ${at}`).toBe(end >= shown);
      }
    }
  });
});

describeWith(["redis"], "a fault of one kind of connection", () => {
  let lab: Lab;
  let redis: RedisServer;
  beforeAll(async () => {
    lab = await Lab.open();
    redis = await lab.redis();
  });
  afterAll(() => lab?.close());

  let keys = 0;

  /** A client that sends commands and one that subscribes, through one proxy. */
  async function scene() {
    const proxy = await TcpProxy.open(redis, { kindOf: redisConnectionKind });
    onTestFinished(() => proxy.close());
    const key = `key-${++keys}`;
    const client = (): Redis => {
      const one = quiet(new Redis(proxy.url, { retryStrategy: () => 20 }));
      onTestFinished(() => one.disconnect());
      return one;
    };
    const [commands, subscriber] = [client(), client()];
    const received: string[] = [];
    subscriber.on("message", (_channel, text) => received.push(text));
    await subscriber.subscribe(key);
    await commands.set(key, "0");
    /** Sends directly to the server. */
    const publish = (text: string) => redis.cli("publish", key, text);
    const receives = async (text: string): Promise<void> => {
      await until(`a subscription receives ${text}`, async () => (await publish(text)) === "1");
      await until(`${text} has arrived`, () => received.includes(text));
    };
    await receives("first");
    return { proxy, key, client, commands, subscriber, received, publish, receives };
  }

  const endsOf = (client: Redis): { count: number } => {
    const ends = { count: 0 };
    client.on("close", () => ends.count++);
    return ends;
  };

  test("cuts subscriptions, also a new one before the server sees it; commands go on", async () => {
    const { proxy, key, client, commands, subscriber, received, publish, receives } = await scene();
    const commandEnds = endsOf(commands);
    const subscriberEnds = endsOf(subscriber);
    const cut = proxy.cut({ only: "subscription" });
    expect(cut.name).toBe(`${redis.name} (subscription) cut off`);
    await cut.inject();
    // Each end after the first is that of a new connection, which was reset when it subscribed.
    await until("it tries again and again", () => subscriberEnds.count >= 3);
    const late = client();
    const lateEnds = endsOf(late);
    late.subscribe(key).catch(() => {});
    await until("a first subscription is reset too", () => lateEnds.count >= 1);
    expect(await publish("unheard")).toBe("0");
    expect(await commands.incr(key)).toBe(1);
    expect(commandEnds.count).toBe(0);

    late.disconnect();
    await cut.heal();
    await receives("after");
    expect(received).not.toContain("unheard");
    expect(commandEnds.count).toBe(0);
  });

  test("cuts commands; subscriptions live on, and new ones can be made", async () => {
    const { proxy, key, client, commands, subscriber, receives } = await scene();
    const subscriberEnds = endsOf(subscriber);
    const commandEnds = endsOf(commands);
    const cut = proxy.cut({ only: "commands" });
    await cut.inject();
    await until("commands are reset", () => commandEnds.count === 1);
    const late = commands.incr(key);
    await until("and reset again", () => commandEnds.count >= 3);
    expect(await redis.cli("get", key)).toBe("0");
    await receives("during");
    const another = client();
    await another.subscribe(key);
    another.disconnect();
    await cut.heal();
    expect(await late).toBe(1);
    expect(subscriberEnds.count).toBe(0);
  });

  test("cuts a connection for commands at the moment when it becomes a subscription", async () => {
    const { proxy, key, publish } = await scene();
    const client = await Client.open(proxy);
    const cut = proxy.cut({ only: "subscription" });
    await cut.inject();
    expect(await client.request("incr", key)).toBe(":1");
    client.socket.cork();
    client.send("incr", key);
    client.send("subscribe", key);
    client.socket.uncork();
    await expect(client.reply()).rejects.toThrow("ECONNRESET");
    expect(await redis.cli("get", key)).toBe("1");
    expect(await publish("unheard")).toBe("0");
  });

  test("leaves a subscription half open: the server has closed it, and its client notices when it is healed", async () => {
    const { proxy, key, client, commands, subscriber, received, publish, receives } = await scene();
    const commandEnds = endsOf(commands);
    const subscriberEnds = endsOf(subscriber);
    const halfOpen = proxy.leaveHalfOpen({ only: "subscription" });
    expect(halfOpen.name).toBe(`${redis.name} (subscription) half open`);
    await halfOpen.inject();
    await until("the server has noticed", async () => (await publish("unheard")) === "0");
    const ping = subscriber.ping();
    for (let i = 1; i <= 20; i++) expect(await commands.incr(key)).toBe(i);
    const late = client();
    await late.subscribe(key);
    expect(await publish("to the new one")).toBe("1");
    late.disconnect();
    // A fault that comes later makes nothing half open again.
    const delay = proxy.delay(1);
    await delay.inject();
    await delay.heal();
    expect(await Promise.race([ping, commands.get(key)])).toBe("20");
    expect(subscriberEnds.count).toBe(0);

    await halfOpen.heal();
    await receives("after");
    expect(received).toEqual(["first", "after"]);
    expect(subscriberEnds.count).toBe(1);
    expect(commandEnds.count).toBe(0);
  });

  test("swallows messages while commands get replies; healing resets only subscriptions", async () => {
    const { proxy, key, commands, subscriber, received, publish, receives } = await scene();
    const commandEnds = endsOf(commands);
    const subscriberEnds = endsOf(subscriber);
    const hole = proxy.swallow("to-client", { only: "subscription" });
    await hole.inject();
    expect(await publish("lost")).toBe("1");
    for (let i = 1; i <= 20; i++) expect(await commands.incr(key)).toBe(i);
    expect(received).toEqual(["first"]);
    expect(subscriberEnds.count).toBe(0);
    await hole.heal();
    await receives("after");
    expect(received).not.toContain("lost");
    expect(subscriberEnds.count).toBe(1);
    expect(commandEnds.count).toBe(0);
  });

  test("delays messages, which stay in order; commands are not delayed", async () => {
    const { proxy, key, commands, received, publish } = await scene();
    const stall = proxy.stall("to-client", { only: "subscription" });
    await stall.inject();
    expect(await publish("1")).toBe("1");
    expect(await publish("2")).toBe("1");
    expect(await commands.incr(key)).toBe(1);
    expect(received).toEqual(["first"]);
    const late = proxy.delay(60_000, "to-client", { only: "subscription" });
    await late.inject();
    await stall.heal();
    expect(await publish("3")).toBe("1");
    expect(await commands.incr(key)).toBe(2);
    expect(received).toEqual(["first"]);
    await late.heal();
    await until("all has arrived", () => received.length === 4);
    expect(received).toEqual(["first", "1", "2", "3"]);
  });

  test("stalls a new subscription from the bytes that show it", async () => {
    const { proxy, key, publish } = await scene();
    const stall = proxy.stall("to-server", { only: "subscription" });
    await stall.inject();
    const client = await Client.open(proxy);
    expect(await client.request("ping")).toBe("+PONG");
    client.send("subscribe", key);
    const other = await Client.open(proxy);
    for (let i = 1; i <= 20; i++) expect(await other.request("incr", key)).toBe(`:${i}`);
    expect(await publish("before")).toBe("1");
    await stall.heal();
    expect(await client.reply()).toContain("subscribe");
    expect(await publish("after")).toBe("2");
  });

  test("truncates a message of a subscription; then there is silence until healed", async () => {
    const { proxy, key, commands, received, publish, receives } = await scene();
    const fault = proxy.truncate("to-client", { only: "subscription" });
    await fault.inject();
    expect(await commands.incr(key)).toBe(1);
    expect(fault.struck).toBe(0);
    expect(await publish("half")).toBe("1");
    await until("the fault has struck", () => fault.struck === 1);
    expect(await publish("rest")).toBe("1");
    expect(await commands.incr(key)).toBe(2);
    expect(received).toEqual(["first"]);
    await fault.heal();
    await receives("after");
    expect(received).not.toContain("half");
  });

  test("loses replies and tears commands only of this kind", async () => {
    const { proxy, key, commands, subscriber } = await scene();
    const commandEnds = endsOf(commands);
    const times = Number.POSITIVE_INFINITY;
    const lose = proxy.loseReply({ only: "subscription", times });
    await lose.inject();
    expect(await commands.incr(key)).toBe(1);
    expect(lose.struck).toBe(0);
    await Promise.race([subscriber.subscribe("another"), until("struck", () => lose.struck > 0)]);
    expect(lose.struck).toBeGreaterThan(0);
    await lose.heal();

    const tear = proxy.resetMidCommand({ only: "subscription", times });
    await tear.inject();
    subscriber.subscribe("a third").catch(() => {});
    expect(await commands.incr(key)).toBe(2);
    await until("struck", () => tear.struck > 0);
    expect(await commands.incr(key)).toBe(3);
    expect(commandEnds.count).toBe(0);
  });

  test("needs a proxy that knows kinds", async () => {
    const proxy = await TcpProxy.open(redis);
    onTestFinished(() => proxy.close());
    expect(() => proxy.cut({ only: "subscription" })).toThrow("open it with kindOf");
  });
});
