import type { Finding } from "../../../core/doctor.js";
import { clusterMode } from "./cluster.js";
import type { Facts } from "./facts.js";
import { eviction, memory } from "./memory.js";
import { persistence, refusedWrites } from "./persistence.js";
import { replication } from "./replication.js";
import { role, version } from "./server.js";

/** What follows from what the server tells. */
export function judge(
  { info, config }: Facts,
  { cluster, replicas, works }: { cluster: boolean; replicas: number; works: boolean },
): Finding[] {
  const blind = [info, config].filter((one) => typeof one === "string");
  const findings: Finding[] = [];
  if (blind.length > 0) {
    findings.push({
      about: "rights",
      level: "note",
      what: `this user may not look at everything (${blind.join("; ")})`,
      advice: "Run the doctor once as a user that may use INFO and CONFIG GET.",
    });
  }
  if (typeof info === "string") {
    const unknown = (about: string, what: string): Finding => ({
      about,
      level: "unknown",
      what: `${what} (${info})`,
    });
    return [
      ...findings,
      works
        ? { about: "version", level: "ok", what: "6.2 or later: the trial went well" }
        : unknown("version", "which one it is; 6.2 or later is needed"),
      unknown("role", "whether it is a primary; a replica must not grant anything"),
      unknown("eviction", "whether Redis may delete locks when its memory is full"),
      unknown("memory", "how much is left; when it is full, leases are lost"),
      unknown("persistence", "which locks are lost when the server is restarted"),
      unknown("replicas", "whether there are any: a failover can lose grants"),
    ];
  }
  return [
    ...findings,
    version(info),
    role(info),
    ...clusterMode(info, cluster),
    eviction(info),
    memory(info),
    persistence(info, config),
    ...refusedWrites(info, config),
    replication(info, replicas),
  ];
}
