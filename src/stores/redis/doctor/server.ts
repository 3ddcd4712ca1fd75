import { danger, type Finding, ok, unknown } from "../../../doctor/finding.js";
import { compareClocks, measureRoundTrips } from "../../../doctor/measures.js";
import type { OneServer } from "../connection.js";
import { describeRefusal, sendCommand } from "./commands.js";
import { numberOf, parseFields } from "./facts.js";

const SLOTS = 16_384;

export async function checkSlots(server: OneServer): Promise<Finding> {
  const sent = await sendCommand(server, "CLUSTER", "INFO");
  if ("refused" in sent) {
    const refusal = describeRefusal("CLUSTER", sent.refused);
    return unknown("cluster", `whether all slots are served (${refusal})`);
  }
  const state = parseFields(String(sent.reply));
  const served = numberOf(state, "cluster_slots_ok");
  if (state.get("cluster_state") === "ok" && served === SLOTS) {
    return ok("cluster", "all slots of the cluster are served");
  }
  return danger(
    "cluster",
    `${served} of ${SLOTS} slots are served: names in the others can't be locked or renewed`,
    "See redis-cli --cluster check.",
  );
}

export const checkClock = (server: OneServer): Promise<Finding> =>
  compareClocks(() => readTimeMs(server));

/** The server's clock in ms; a text says why there is none. */
export async function readTimeMs(server: OneServer): Promise<number | string> {
  const sent = await sendCommand(server, "TIME");
  if ("refused" in sent) return describeRefusal("TIME", sent.refused);
  const [seconds, micros] = sent.reply as [string, string];
  return Number(seconds) * 1_000 + Number(micros) / 1_000;
}

/** A refused PING takes a round trip, too. */
export const checkLatency = (server: OneServer): Promise<Finding> =>
  measureRoundTrips(() => sendCommand(server, "PING"));
