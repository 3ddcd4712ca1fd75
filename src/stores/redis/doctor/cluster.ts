import type { Finding } from "../../../core/doctor.js";
import type { OneServer } from "../client.js";
import { ask, refusal } from "./ask.js";
import { fieldsOf, type Info, number } from "./facts.js";

export function clusterMode(info: Info, cluster: boolean): Finding[] {
  if (cluster || info.get("cluster_enabled") !== "1") return [];
  return [
    {
      about: "cluster",
      level: "danger",
      what: "a node of a cluster, but the URL does not say so: names that belong to other nodes can't be locked",
      advice: "Add ?cluster to the URL.",
    },
  ];
}

export async function clusterState(server: OneServer, cluster: boolean): Promise<Finding[]> {
  if (!cluster) return [];
  const about = "cluster";
  const answer = await ask(server, "CLUSTER", "INFO");
  if ("refused" in answer) {
    const what = `whether all slots are served (${refusal("CLUSTER", answer)})`;
    return [{ about, level: "unknown", what }];
  }
  const state = fieldsOf(String(answer.reply));
  const served = number(state, "cluster_slots_ok");
  if (state.get("cluster_state") === "ok" && served === 16_384) {
    return [{ about, level: "ok", what: "all slots of the cluster are served" }];
  }
  return [
    {
      about,
      level: "danger",
      what: `${served} of 16384 slots are served: names in the others can't be locked or renewed`,
      advice: "See redis-cli --cluster check.",
    },
  ];
}
