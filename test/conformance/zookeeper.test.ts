import { describeZooKeeperConformance } from "./zookeeper-cases.js";

describeZooKeeperConformance("short");
