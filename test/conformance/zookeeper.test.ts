import { afterAll, beforeAll } from "vitest";
import type { Store } from "../../src/core/store.js";
import { ZOOKEEPER_TRAITS, zookeeperStore } from "../../src/stores/zookeeper/index.js";
import { Lab } from "../../src/verify/lab/lab.js";
import type { ZooKeeperServer } from "../../src/verify/lab/zookeeper.js";
import { describeWith } from "../support/needs.js";
import {
  casesRefusedBy,
  describeConformance,
  NEEDS_VIRTUAL_TIME,
  realSubject,
} from "./subjects.js";

describeWith(["zookeeper"], "ZooKeeper", () => {
  let lab: Lab;
  let server: ZooKeeperServer;
  let roots = 0;
  beforeAll(async () => {
    lab = await Lab.open();
    // Cases have leases of many ttls, and a connection for each of them.
    const config = { maxSessionTimeout: "3600000", maxClientCnxns: "0" };
    server = (await lab.zookeeper({ config })).servers[0]!;
  });
  afterAll(() => lab?.close());

  describeConformance(
    "one server",
    async () => {
      const root = `/root-${++roots}`;
      const servers = [`${server.address}:${server.port}`];
      const open = async (): Promise<Store> => zookeeperStore({ servers, root });
      return realSubject(open, 2_000);
    },
    { ...casesRefusedBy(ZOOKEEPER_TRAITS), ...NEEDS_VIRTUAL_TIME },
    "1,000 names at once",
  );
});
