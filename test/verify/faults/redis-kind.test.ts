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

  test.each(["SUBSCRIBE", "ssubscribe", "PSubscribe"])("%s makes it a subscription", (name) => {
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

  test("does not depend on where the bytes are divided", () => {
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
    const heard: string[] = [];
    subscriber.on("message", (_channel, text) => heard.push(text));
    await subscriber.subscribe(key);
    await commands.set(key, "0");
    /** Sends past the proxy. */
    const publish = (text: string) => redis.cli("publish", key, text);
    const hears = async (text: string): Promise<void> => {
      await until(`a subscription hears ${text}`, async () => (await publish(text)) === "1");
      await until(`${text} is heard`, () => heard.includes(text));
    };
    await hears("first");
    return { proxy, key, client, commands, subscriber, heard, publish, hears };
  }

  const endsOf = (client: Redis): { count: number } => {
    const ends = { count: 0 };
    client.on("close", () => ends.count++);
    return ends;
  };

  test("cut: subscriptions are reset, also a new one, before the server sees it; commands go on", async () => {
    const { proxy, key, client, commands, subscriber, heard, publish, hears } = await scene();
    const commandEnds = endsOf(commands);
    const subscriberEnds = endsOf(subscriber);
    const cut = proxy.cut({ only: "subscription" });
    expect(cut.name).toBe(`${redis.name} (subscription) cut off`);
    await cut.inject();
    // Each end after the first is that of a new connection, reset when it subscribed.
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
    await hears("after");
    expect(heard).not.toContain("unheard");
    expect(commandEnds.count).toBe(0);
  });

  test("cut: commands are reset, subscriptions live on, and new ones can be made", async () => {
    const { proxy, key, client, commands, subscriber, hears } = await scene();
    const subscriberEnds = endsOf(subscriber);
    const commandEnds = endsOf(commands);
    const cut = proxy.cut({ only: "commands" });
    await cut.inject();
    await until("commands are reset", () => commandEnds.count === 1);
    const late = commands.incr(key);
    await until("and reset again", () => commandEnds.count >= 3);
    expect(await redis.cli("get", key)).toBe("0");
    await hears("during");
    const another = client();
    await another.subscribe(key);
    another.disconnect();
    await cut.heal();
    expect(await late).toBe(1);
    expect(subscriberEnds.count).toBe(0);
  });

  test("cut: a connection for commands that turns into a subscription is reset at that moment", async () => {
    const { proxy, key, publish } = await scene();
    const client = await Client.open(proxy);
    const cut = proxy.cut({ only: "subscription" });
    await cut.inject();
    expect(await client.ask("incr", key)).toBe(":1");
    client.socket.cork();
    client.send("incr", key);
    client.send("subscribe", key);
    client.socket.uncork();
    await expect(client.reply()).rejects.toThrow("ECONNRESET");
    expect(await redis.cli("get", key)).toBe("1");
    expect(await publish("unheard")).toBe("0");
  });

  test("swallow: messages vanish and commands are answered; healing resets only subscriptions", async () => {
    const { proxy, key, commands, subscriber, heard, publish, hears } = await scene();
    const commandEnds = endsOf(commands);
    const subscriberEnds = endsOf(subscriber);
    const hole = proxy.swallow("to-client", { only: "subscription" });
    await hole.inject();
    expect(await publish("lost")).toBe("1");
    for (let i = 1; i <= 20; i++) expect(await commands.incr(key)).toBe(i);
    expect(heard).toEqual(["first"]);
    expect(subscriberEnds.count).toBe(0);
    await hole.heal();
    await hears("after");
    expect(heard).not.toContain("lost");
    expect(subscriberEnds.count).toBe(1);
    expect(commandEnds.count).toBe(0);
  });

  test("stall and delay: messages come late, in order; commands are not held up", async () => {
    const { proxy, key, commands, heard, publish } = await scene();
    const stall = proxy.stall("to-client", { only: "subscription" });
    await stall.inject();
    expect(await publish("1")).toBe("1");
    expect(await publish("2")).toBe("1");
    expect(await commands.incr(key)).toBe(1);
    expect(heard).toEqual(["first"]);
    const late = proxy.delay(60_000, "to-client", { only: "subscription" });
    await late.inject();
    await stall.heal();
    expect(await publish("3")).toBe("1");
    expect(await commands.incr(key)).toBe(2);
    expect(heard).toEqual(["first"]);
    await late.heal();
    await until("all is heard", () => heard.length === 4);
    expect(heard).toEqual(["first", "1", "2", "3"]);
  });

  test("stall: a new subscription is held from the bytes that show it", async () => {
    const { proxy, key, publish } = await scene();
    const stall = proxy.stall("to-server", { only: "subscription" });
    await stall.inject();
    const client = await Client.open(proxy);
    expect(await client.ask("ping")).toBe("+PONG");
    client.send("subscribe", key);
    const other = await Client.open(proxy);
    for (let i = 1; i <= 20; i++) expect(await other.ask("incr", key)).toBe(`:${i}`);
    expect(await publish("before")).toBe("1");
    await stall.heal();
    expect(await client.reply()).toContain("subscribe");
    expect(await publish("after")).toBe("2");
  });

  test("truncate: half a message of a subscription arrives, then silence until healed", async () => {
    const { proxy, key, commands, heard, publish, hears } = await scene();
    const fault = proxy.truncate("to-client", { only: "subscription" });
    await fault.inject();
    expect(await commands.incr(key)).toBe(1);
    expect(fault.struck).toBe(0);
    expect(await publish("half")).toBe("1");
    await until("the fault has struck", () => fault.struck === 1);
    expect(await publish("rest")).toBe("1");
    expect(await commands.incr(key)).toBe(2);
    expect(heard).toEqual(["first"]);
    await fault.heal();
    await hears("after");
    expect(heard).not.toContain("half");
  });

  test("lost replies and torn commands: only those of the kind", async () => {
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

  test("needs a proxy that tells kinds", async () => {
    const proxy = await TcpProxy.open(redis);
    onTestFinished(() => proxy.close());
    expect(() => proxy.cut({ only: "subscription" })).toThrow("open it with kindOf");
  });
});
