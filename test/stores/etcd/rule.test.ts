import { afterAll, beforeAll, expect, test } from "vitest";
import { type EtcdStore, etcdStore, openEtcdClient } from "../../../src/stores/etcd/index.js";
import { compareWithRule } from "../../../src/testing.js";
import { Lab } from "../../../src/verify/lab/lab.js";
import { ruleRuns } from "../../support/chance.js";
import { endpointOf } from "../../support/etcd.js";
import { describeWith } from "../../support/needs.js";

describeWith(["etcd"], "the queue in etcd", () => {
  let lab: Lab;
  let clients: [EtcdStore, EtcdStore];
  beforeAll(async () => {
    lab = await Lab.open();
    const [server] = (await lab.etcd({ timing: "fast" })).servers;
    const open = async (): Promise<EtcdStore> =>
      etcdStore(await openEtcdClient({ endpoints: [endpointOf(server!)] }), { closeClient: true });
    clients = [await open(), await open()];
  });
  afterAll(async () => {
    for (const one of clients ?? []) await one.close();
    await lab.close();
  });

  // Concurrent: each mostly waits for the disk, and their transactions are sent as one.
  const parts = [1, 2, 3, 4, 5];
  const timeout = { timeout: 240_000 };
  test.concurrent.for(parts)(
    "replies and pushes like the rule (part %i)",
    timeout,
    async (part) => {
      // No time passes: an etcd lease lasts seconds at least.
      const { pushed } = await compareWithRule({
        clients,
        ...ruleRuns(15, part),
        // A reply to a claim has the position that the watch knew of; a session outlasts a ttl.
        ignore: ["claim-position", "ttl"],
      });
      expect(pushed.granted).toBeGreaterThan(2);
    },
  );
});
