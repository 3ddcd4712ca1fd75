import { once } from "node:events";
import { afterAll, beforeAll, onTestFinished } from "vitest";
import { TcpProxy } from "../../../src/verify/faults/proxy.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import type { RedisServer } from "../../../src/verify/lab/redis.js";
import { until } from "../../support/worker.js";
import { Client } from "./client.js";

/** A Redis server for all tests of a block, and proxies in front of it. */
export class OneRedis {
  server!: RedisServer;

  static forAll(): OneRedis {
    const one = new OneRedis();
    let lab: Lab | undefined;
    beforeAll(async () => {
      lab = await Lab.open();
      one.server = await lab.redis();
    });
    afterAll(() => lab?.close());
    return one;
  }

  /** A proxy that is closed with the test. */
  async inFront(target: { address: string; port: number } = this.server): Promise<TcpProxy> {
    const proxy = await TcpProxy.open(target);
    onTestFinished(() => proxy.close());
    return proxy;
  }

  /** Waits for the effect of a command, as the server itself reports it. */
  valueBecomes(key: string, value: string): Promise<void> {
    return until(`${key} is ${value}`, async () => (await this.server.cli("get", key)) === value);
  }

  /** Long enough for anything on loopback to arrive: both ends have replied to something since. */
  async settle(): Promise<void> {
    const other = await Client.open(this.server);
    for (let i = 0; i < 20; i++) {
      await other.request("ping");
      await new Promise((resolve) => setImmediate(resolve));
    }
    // This socket would be counted among those that are left.
    const closed = once(other.socket, "close");
    other.socket.destroy();
    await closed;
  }
}
