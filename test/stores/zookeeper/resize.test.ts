import { expect, onTestFinished, test } from "vitest";
import { systemRuntime } from "../../../src/core/runtime.js";
import { ZooKeeperContext } from "../../../src/stores/zookeeper/context.js";
import { Layout } from "../../../src/stores/zookeeper/layout.js";
import { Operations } from "../../../src/stores/zookeeper/operations.js";
import type { ZooKeeperClient } from "../../../src/zookeeper/index.js";
import { describeWith } from "../../support/needs.js";
import { until } from "../../support/worker.js";
import { openClient } from "../../support/zookeeper.js";
import { OneZooKeeper } from "../../support/zookeeper-store.js";

/** "name" in the store. */
const NAME = "default:name";

describeWith(["zookeeper"], "a resize in ZooKeeper", () => {
  const zookeeper = OneZooKeeper.forAll();

  /** Resizes, and calls `meanwhile` when the name was read and the first step is about to be sent. */
  async function resize(root: string, limit: number, meanwhile: () => Promise<void>) {
    let isFirst = true;
    const hold = (client: ZooKeeperClient): ZooKeeperClient => {
      const multi = client.multi.bind(client);
      client.multi = async (parts) => {
        if (isFirst) {
          isFirst = false;
          await meanwhile();
        }
        return multi(parts);
      };
      return client;
    };
    const layout = new Layout(root);
    const { clock } = systemRuntime();
    const open = (session: object) => openClient({ servers: [zookeeper.address], ...session });
    const context = new ZooKeeperContext((session) => open(session).then(hold), clock, layout);
    onTestFinished(() => context.links.close());
    await new Operations(context.links, layout).resize(NAME, limit);
    expect(isFirst).toBe(false);
  }

  const nodes = (root: string) => zookeeper.nodesOf(root, NAME);

  test("keeps a claim that another resize had barred, and that is granted during this one", async () => {
    const root = zookeeper.root();
    const [one, two] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const holder = await one.semaphore("name", { permits: 5 }).acquire();
    // As left by a client that died, or whose step has failed.
    const other = await openClient({ servers: [zookeeper.address] });
    await other.create(new Layout(root).barrier(NAME), { mode: "ephemeral-sequential" });
    const acquired = two.semaphore("name", { permits: 5 }).acquire({ permits: 3 });
    await until("the claim is made", async () => (await nodes(root)).length === 3);
    await resize(root, 2, async () => {
      await other.close();
      await acquired;
    });
    const lease = await acquired;
    expect((await one.inspect("name"))?.holders).toMatchObject([{ permits: 1 }, { permits: 3 }]);
    await holder.release();
    expect(await one.semaphore("name", { permits: 2 }).tryAcquire()).toBeNull();
    expect(await lease.release()).toBe("released");
  });

  test("refuses a claim with the former limit that is made during it, also one that may wait", async () => {
    const root = zookeeper.root();
    const [one, two] = [zookeeper.open(root).locks, zookeeper.open(root).locks];
    const holder = await one.semaphore("name", { permits: 5 }).acquire();
    let outcome: Promise<unknown> = Promise.resolve();
    await resize(root, 2, async () => {
      const acquired = two.semaphore("name", { permits: 5 }).acquire({ permits: 3 });
      outcome = acquired.catch((error: unknown) => error);
      await until("the claim is made", async () => (await nodes(root)).length === 3);
    });
    expect(await outcome).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect((await one.inspect("name"))?.holders).toHaveLength(1);
    const next = await two.semaphore("name", { permits: 2 }).acquire({ wait: 0 });
    await Promise.all([holder.release(), next.release()]);
  });
});
