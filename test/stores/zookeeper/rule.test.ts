import { afterAll, beforeAll, expect, test } from "vitest";
import { type ZooKeeperStore, zookeeperStore } from "../../../src/stores/zookeeper/index.js";
import { compareWithRule } from "../../../src/testing.js";
import { ruleRuns } from "../../support/chance.js";
import { describeWith } from "../../support/needs.js";
import { OneZooKeeper } from "../../support/zookeeper-store.js";

describeWith(["zookeeper"], "the queue in ZooKeeper", () => {
  const timeout = { timeout: 120_000 };
  const zookeeper = OneZooKeeper.forAll();
  let granted = 0;
  let clients: [ZooKeeperStore, ZooKeeperStore];
  beforeAll(() => {
    const servers = [zookeeper.address];
    clients = [zookeeperStore({ servers }), zookeeperStore({ servers })];
  });
  afterAll(async () => {
    for (const one of clients ?? []) await one.close();
    expect(granted).toBeGreaterThan(2);
  });

  // Concurrent: each mostly waits.
  const parts = [1, 2, 3];
  test.concurrent.for(parts)(
    "replies and pushes like the rule (part %i)",
    timeout,
    async (part) => {
      // No time passes: sessions last seconds at least.
      const { pushed } = await compareWithRule({
        clients,
        ...ruleRuns(4, part, 25),
        // A reply to a claim has the position that the watch knew of; a session outlasts a ttl.
        ignore: ["claim-position", "ttl"],
      });
      granted += pushed.granted;
    },
  );
});
