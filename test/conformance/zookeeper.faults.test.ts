import { describeZooKeeperConformance } from "./zookeeper-cases.js";

describeZooKeeperConformance("long");
