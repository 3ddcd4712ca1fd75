import type { Store } from "../../src/core/store.js";
import { etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { conformance } from "../../src/testing/index.js";
import { endpointOf, OneEtcd } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import { describeConformance, NEEDS_VIRTUAL_TIME, realSubject } from "./subjects.js";

/** Thousands of tickets, which a client of etcd puts one after the other, and the disk syncs each. */
const LONG = ["a queue has an end: a claim beyond it is refused, and leaves nothing"];

/** The cases that take long run with the fault tests; together the two runs have all of them. */
export function describeEtcdConformance(which: "short" | "long"): void {
  describeWith(["etcd"], "etcd", () => {
    const etcd = OneEtcd.forAll();
    describeConformance(
      "one member",
      async () => {
        const prefix = etcd.prefix();
        const open = async (): Promise<Store> => {
          const client = await openEtcdClient({ endpoints: [endpointOf(etcd.server)] });
          return etcdStore(client, { prefix, closeClient: true });
        };
        return realSubject(open, 2_000);
      },
      NEEDS_VIRTUAL_TIME,
      "1,000 names at once",
      conformance.filter(({ name }) => LONG.includes(name) === (which === "long")),
    );
  });
}
