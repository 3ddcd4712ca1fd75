import type { Store } from "../../src/core/store.js";
import { ETCD_TRAITS, etcdStore, openEtcdClient } from "../../src/stores/etcd/index.js";
import { conformance } from "../../src/testing.js";
import { endpointOf, OneEtcd } from "../support/etcd.js";
import { describeWith } from "../support/needs.js";
import {
  casesRefusedBy,
  describeConformance,
  NEEDS_VIRTUAL_TIME,
  realSubject,
} from "./subjects.js";

/** These cases need thousands of tickets, which etcd's client puts one by one, each with a disk sync. */
const LONG = ["a full queue refuses another claim, which leaves nothing behind"];

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
      { ...NEEDS_VIRTUAL_TIME, ...casesRefusedBy(ETCD_TRAITS) },
      "1,000 names at once",
      conformance.filter(({ name }) => LONG.includes(name) === (which === "long")),
    );
  });
}
