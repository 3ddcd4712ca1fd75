import { afterAll, beforeAll, onTestFinished } from "vitest";
import { createLocks, type Locks } from "../../src/index.js";
import { type ZooKeeperStore, zookeeperStore } from "../../src/stores/zookeeper/index.js";
import { Layout } from "../../src/stores/zookeeper/layout.js";
import { TcpProxy } from "../../src/verify/faults/proxy.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../src/verify/lab/zookeeper.js";
import { ZooKeeperClient } from "../../src/zookeeper/index.js";

export const TTL_MS = 2_000;

/** A server for the tests of a file; each test has a root of its own on it. */
export class OneZooKeeper {
  #lab: Lab | undefined;
  #server: ZooKeeperServer | undefined;
  #admin: ZooKeeperClient | undefined;
  #roots = 0;

  static forAll(): OneZooKeeper {
    const one = new OneZooKeeper();
    beforeAll(async () => {
      one.#lab = await Lab.open();
      // Leases of many ttls have sessions of their own, each with a connection.
      const config = { maxSessionTimeout: "3600000", maxClientCnxns: "0" };
      one.#server = (await one.#lab.zookeeper({ config })).servers[0]!;
      one.#admin = await ZooKeeperClient.open({ servers: [one.address] });
    });
    afterAll(async () => {
      await one.#admin?.close();
      await one.#lab?.close();
    });
    return one;
  }

  get server(): ZooKeeperServer {
    return this.#server!;
  }

  get address(): string {
    return `${this.server.address}:${this.server.port}`;
  }

  /** A client that bypasses the store. */
  get admin(): ZooKeeperClient {
    return this.#admin!;
  }

  root(): string {
    return `/root-${++this.#roots}`;
  }

  /** Locks on a store of their own, closed with the test. */
  open(
    root: string,
    through: { readonly port: number } = this.server,
  ): { store: ZooKeeperStore; locks: Locks } {
    const store = zookeeperStore({ servers: [`${this.server.address}:${through.port}`], root });
    const locks = createLocks(store, { ttl: TTL_MS, wait: 20_000 });
    onTestFinished(() => locks.close().catch(() => {}));
    return { store, locks };
  }

  async proxy(): Promise<TcpProxy> {
    const opened = await TcpProxy.open(this.server);
    onTestFinished(() => opened.close());
    return opened;
  }

  /** The nodes of a name, as the store has it: with its namespace. */
  async nodesOf(root: string, storeName: string): Promise<string[]> {
    return (await this.admin.getChildren(new Layout(root).name(storeName))).children;
  }
}
