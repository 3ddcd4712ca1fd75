import type { Store } from "../../src/core/store.js";
import { ZOOKEEPER_TRAITS, zookeeperStore } from "../../src/stores/zookeeper/index.js";
import { conformance } from "../../src/testing.js";
import { describeWith } from "../support/needs.js";
import { OneZooKeeper, TTL_MS } from "../support/zookeeper-store.js";
import {
  casesRefusedBy,
  describeConformance,
  NEEDS_VIRTUAL_TIME,
  realSubject,
} from "./subjects.js";

/** These cases need thousands of tickets. */
const LONG = ["a full queue refuses another claim, which leaves nothing behind"];

/** The cases that take long run with the fault tests; together the two runs have all of them. */
export function describeZooKeeperConformance(which: "short" | "long"): void {
  describeWith(["zookeeper"], "ZooKeeper", () => {
    const zookeeper = OneZooKeeper.forAll();
    describeConformance(
      "one server",
      async () => {
        const root = zookeeper.root();
        const servers = [zookeeper.address];
        return realSubject(async (): Promise<Store> => zookeeperStore({ servers, root }), TTL_MS);
      },
      { ...NEEDS_VIRTUAL_TIME, ...casesRefusedBy(ZOOKEEPER_TRAITS) },
      "1,000 names at once",
      conformance.filter(({ name }) => LONG.includes(name) === (which === "long")),
    );
  });
}
