import { describe, expect, test } from "vitest";
import { together } from "../../../src/verify/fault.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";
import { OneRedis } from "./one-redis.js";

describeWith(["redis"], "a TCP proxy", () => {
  const redis = OneRedis.forAll();

  test("passes everything on in both directions, and counts it", async () => {
    const proxy = await redis.inFront();
    const client = await Client.open(proxy);
    expect(await client.request("set", "plain", "1")).toBe("+OK");
    expect(await client.request("incr", "plain")).toBe(":2");
    expect(proxy.connections).toBe(1);
    expect(proxy.openConnections).toBe(1);
    expect(proxy.traffic["to-client"]).toEqual({ chunks: 2, bytes: "+OK\r\n:2\r\n".length });
    expect(proxy.traffic["to-server"].chunks).toBe(2);
    expect(proxy.url).toBe(`redis://127.0.0.1:${proxy.port}`);
  });

  describe("with a cut", () => {
    test("resets connections and refuses new ones, until healed, on the same port", async () => {
      const proxy = await redis.inFront();
      const { port } = proxy;
      const client = await Client.open(proxy);
      await client.request("ping");
      const cut = proxy.cut();

      await cut.inject();
      await until("the client has noticed", () => client.ended !== null);
      expect(client.ended).toBe("ECONNRESET");
      await expect(Client.open(proxy)).rejects.toMatchObject({ code: "ECONNREFUSED" });
      expect(proxy.openConnections).toBe(0);

      await cut.heal();
      expect(proxy.port).toBe(port);
      expect(await (await Client.open(proxy)).request("ping")).toBe("+PONG");
    });

    test("is cut until both of two cuts are healed", async () => {
      const proxy = await redis.inFront();
      const [one, other] = [proxy.cut(), proxy.cut()];
      await one.inject();
      await other.inject();
      await one.heal();
      await expect(Client.open(proxy)).rejects.toMatchObject({ code: "ECONNREFUSED" });
      await other.heal();
      expect(await (await Client.open(proxy)).request("ping")).toBe("+PONG");
    });
  });

  test("delays by the given time, in order, in the given direction, until healed", async () => {
    const proxy = await redis.inFront();
    const client = await Client.open(proxy);
    const timed = async (): Promise<number> => {
      const startMs = performance.now();
      await client.request("ping");
      return performance.now() - startMs;
    };
    await timed();
    const both = proxy.delay(60);
    const oneWay = proxy.delay(60, "to-client");

    await both.inject();
    expect(await timed()).toBeGreaterThanOrEqual(119);
    await both.heal();
    await oneWay.inject();
    const oneWayMs = await timed();
    expect(oneWayMs).toBeGreaterThanOrEqual(59);

    // Healing delivers delayed data at once.
    const startMs = performance.now();
    const long = proxy.delay(60_000);
    await long.inject();
    client.send("rpush", "order", "1");
    client.send("rpush", "order", "2");
    await long.heal();
    await oneWay.heal();
    while ((await redis.server.cli("llen", "order")) !== "2") await client.reply();
    expect(await redis.server.cli("lrange", "order", "0", "-1")).toBe("1\n2");
    expect(performance.now() - startMs).toBeLessThan(10_000);
  });

  describe("that swallows", () => {
    test("requests: no effect, no error; healed, the connection with the gap is reset", async () => {
      const proxy = await redis.inFront();
      const client = await Client.open(proxy);
      await client.request("set", "hole", "1");
      const hole = proxy.swallow("to-server");
      await hole.inject();
      client.send("incr", "hole");
      await redis.settle();
      expect(client.ended).toBeNull();
      expect(client.received).toBe(0);

      await hole.heal();
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
      expect(await redis.server.cli("get", "hole")).toBe("1");
      expect(await (await Client.open(proxy)).request("incr", "hole")).toBe(":2");
    });

    test("replies: the effect is there, and the reply never comes", async () => {
      const proxy = await redis.inFront();
      const client = await Client.open(proxy);
      await client.request("set", "mute", "1");
      const hole = proxy.swallow("to-client");
      await hole.inject();
      client.send("incr", "mute");
      await redis.valueBecomes("mute", "2");
      await redis.settle();
      expect(client.ended).toBeNull();
      expect(client.received).toBe(0);
      await hole.heal();
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
    });

    test("leaves a connection alone that lost nothing", async () => {
      const proxy = await redis.inFront();
      const client = await Client.open(proxy);
      await client.request("ping");
      const hole = proxy.swallow("to-server");
      await hole.inject();
      await hole.heal();
      expect(await client.request("ping")).toBe("+PONG");
    });
  });

  describe("with a stall", () => {
    test("holds data back, and delivers it late, in order", async () => {
      const proxy = await redis.inFront();
      const client = await Client.open(proxy);
      await client.request("ping");
      const stall = proxy.stall();
      await stall.inject();
      client.send("rpush", "late", "1");
      client.send("rpush", "late", "2");
      await redis.settle();
      expect(await redis.server.cli("exists", "late")).toBe("0");

      await stall.heal();
      await until(
        "both have arrived",
        async () => (await redis.server.cli("llen", "late")) === "2",
      );
      expect(await redis.server.cli("lrange", "late", "0", "-1")).toBe("1\n2");
      expect(await client.reply()).toMatch(/^:1/);
    });

    test.each(["end", "resetAndDestroy"] as const)(
      "lets a command take effect after its client has gone (%s)",
      async (leave) => {
        const proxy = await redis.inFront();
        const key = `orphan-${leave}`;
        const client = await Client.open(proxy);
        await client.request("ping");
        const stall = proxy.stall("to-server");
        await stall.inject();
        client.send("set", key, "1");
        // The command has left the client's machine.
        await until(
          "sent",
          () => client.socket.bytesWritten > 20 && client.socket.writableLength === 0,
        );
        await redis.settle();
        client.socket[leave]();
        await redis.settle();
        expect(await redis.server.cli("exists", key)).toBe("0");
        await stall.heal();
        await redis.valueBecomes(key, "1");
        await until("nothing is left of it", () => proxy.openConnections === 0);
      },
    );
  });

  describe("with a reset in mid-command", () => {
    test("causes no effect, resets both sides, and lets the next through", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.resetMidCommand({ when: "incr" });
      await fault.inject();
      const client = await Client.open(proxy);
      expect(await client.request("set", "torn", "1")).toBe("+OK");
      expect(fault.struck).toBe(0);
      await expect(client.request("incr", "torn")).rejects.toThrow("ECONNRESET");
      expect(fault.struck).toBe(1);
      await redis.settle();
      expect(await redis.server.cli("get", "torn")).toBe("1");
      expect(await (await Client.open(proxy)).request("incr", "torn")).toBe(":2");
    });

    test("tears every command until healed, also one sent together with another", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.resetMidCommand({ when: "incr", times: Number.POSITIVE_INFINITY });
      await fault.inject();
      for (let i = 0; i < 3; i++) {
        const client = await Client.open(proxy);
        client.socket.cork();
        client.send("set", "breath", String(i));
        client.send("incr", "breath");
        client.socket.uncork();
        await until("it is reset", () => client.ended !== null);
      }
      expect(fault.struck).toBe(3);
      await redis.settle();
      expect(await redis.server.cli("get", "breath")).not.toBe("3");
      await fault.heal();
      const client = await Client.open(proxy);
      await client.request("set", "breath", "7");
      expect(await client.request("incr", "breath")).toBe(":8");
    });
  });

  describe("with a lost reply", () => {
    test("lets the effect happen, and the client sees a reset", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.loseReply({ when: "incr" });
      await fault.inject();
      const client = await Client.open(proxy);
      expect(await client.request("set", "lost", "1")).toBe("+OK");
      await expect(client.request("incr", "lost")).rejects.toThrow("ECONNRESET");
      await redis.valueBecomes("lost", "2");
      expect(fault.struck).toBe(1);
      expect(await (await Client.open(proxy)).request("incr", "lost")).toBe(":3");
      await until("the server let go", () => proxy.openConnections <= 1);
    });

    test("or with silence instead: nothing more arrives, until healing resets the connection", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.loseReply({
        when: (request) => /incr/i.test(String(request)),
        silent: true,
      });
      await fault.inject();
      const client = await Client.open(proxy);
      await client.request("set", "silence", "1");
      client.send("incr", "silence");
      await redis.valueBecomes("silence", "2");
      client.send("get", "silence");
      await redis.settle();
      expect(client.received).toBe(0);
      expect(client.ended).toBeNull();
      expect(await (await Client.open(proxy)).request("incr", "silence")).toBe(":3");
      await fault.heal();
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
    });

    test("recognises a request in two pieces, and hits it once", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.loseReply({ when: "incr\r\n$5\r\nsplit", times: 2 });
      await fault.inject();
      const client = await Client.open(proxy);
      const text = "*2\r\n$4\r\nincr\r\n$5\r\nsplit\r\n";
      client.socket.write(text.slice(0, 11));
      await until("the first piece is there", () => proxy.traffic["to-server"].bytes === 11);
      client.socket.write(text.slice(11));
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
      expect(fault.struck).toBe(1);
      expect(await redis.server.cli("get", "split")).toBe("1");
    });
  });

  describe("with a truncated message", () => {
    test("to the server: no effect, then silence, until healing resets the connection", async () => {
      const proxy = await redis.inFront();
      const fault = proxy.truncate("to-server", { when: "incr" });
      await fault.inject();
      const client = await Client.open(proxy);
      await client.request("set", "half", "1");
      client.send("incr", "half");
      await until("the fault has struck", () => fault.struck === 1);
      client.send("incr", "half");
      await redis.settle();
      expect(client.received).toBe(0);
      expect(client.ended).toBeNull();
      expect(await (await Client.open(proxy)).request("get", "half")).toMatch(/1$/);
      await fault.heal();
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
      expect(await redis.server.cli("get", "half")).toBe("1");
    });

    test("to the client: half of the reply arrives after the effect, then nothing", async () => {
      const proxy = await redis.inFront();
      const client = await Client.open(proxy);
      await client.request("set", "reply", "abcdefgh");
      const fault = proxy.truncate("to-client", { when: "abcdefgh" });
      await fault.inject();
      expect(await client.request("append", "reply", "i")).toBe(":9");
      expect(await client.request("get", "reply")).toBe("$9\r\nabcd");
      client.send("append", "reply", "j");
      await redis.valueBecomes("reply", "abcdefghij");
      await redis.settle();
      expect(client.received).toBe(0);
      expect(client.ended).toBeNull();
      expect(fault.struck).toBe(1);
      await fault.heal();
      await expect(client.reply()).rejects.toThrow("ECONNRESET");
    });
  });

  test("combines faults: late and lost", async () => {
    const proxy = await redis.inFront();
    const client = await Client.open(proxy);
    await client.request("set", "both", "1");
    const faults = together(proxy.delay(50, "to-server"), proxy.swallow("to-client"));
    await faults.inject();
    const startMs = performance.now();
    client.send("incr", "both");
    await redis.valueBecomes("both", "2");
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(49);
    expect(client.received).toBe(0);
    await faults.heal();
    await expect(client.reply()).rejects.toThrow("ECONNRESET");
  });
});
