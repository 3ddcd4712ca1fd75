import { describeEtcdConformance } from "./etcd-cases.js";

describeEtcdConformance("long");
