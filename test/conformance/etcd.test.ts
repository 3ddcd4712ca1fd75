import { afterAll, beforeAll } from "vitest";
import type { Store } from "../../src/core/store.js";
import { etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import { describeWith } from "../support/needs.js";
import { describeConformance, NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

describeWith(["etcd"], "etcd", () => {
  let lab: Lab;
  let endpoint: string;
  // Each case has a prefix of its own.
  let subjects = 0;

  beforeAll(async () => {
    lab = await Lab.open();
    const { servers } = await lab.etcd({ timing: "fast" });
    endpoint = `${servers[0]!.address}:${servers[0]!.port}`;
  });
  afterAll(() => lab.close());

  describeConformance(
    "one member",
    async () => {
      const prefix = `test-${++subjects}/`;
      const open = async (): Promise<Store> =>
        etcdStore(await openEtcdClient({ endpoints: [endpoint] }), { prefix, closeClient: true });
      return realSubject(open, 2_000);
    },
    NEEDS_VIRTUAL_TIME,
  );
});
