import { danger, type Finding, ok, unknown } from "../../../doctor/finding.js";
import { compareClocks, latency } from "../../../doctor/measures.js";
import type { OneServer } from "../connection.js";
import { describeRefusal, sendCommand } from "./commands.js";
import { numberOf, parseFields } from "./facts.js";

const SLOTS = 16_384;
const PINGS = 15;
const SLOW_MS = 50;

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

export async function checkLatency(server: OneServer): Promise<Finding> {
  const tookMs: number[] = [];
  for (let i = 0; i < PINGS; i++) {
    const startMs = performance.now();
    // A refusal takes a round trip too.
    await sendCommand(server, "PING");
    tookMs.push(performance.now() - startMs);
  }
  return latency("a round trip", tookMs, {
    fromMs: SLOW_MS,
    because: "acquire, renew and release take one each",
    advice: "Use a server nearby",
  });
}
