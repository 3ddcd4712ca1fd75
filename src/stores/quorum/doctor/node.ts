import { check, danger, type Finding, note, unknown } from "../../../doctor/finding.js";
import { type ClockDifference, readClock } from "../../../doctor/measures.js";
import type { Connection, OneServer } from "../../redis/connection.js";
import { checkAccess } from "../../redis/doctor/access.js";
import { describeRefusal, sendCommand } from "../../redis/doctor/commands.js";
import { type Facts, readFacts } from "../../redis/doctor/facts.js";
import { checkRights } from "../../redis/doctor/rights.js";
import { checkLatency, readTimeMs } from "../../redis/doctor/server.js";
import { isDurable, type Voter } from "../../redis/doctor/settings.js";
import { ALL_COUNTERS, MARKER } from "../keys.js";
import { type Marker, parseMarker } from "../marker.js";
import { FORMAT } from "../scripts.js";
import type { NodeTarget } from "../url.js";
import { NODE_RIGHTS } from "./rights.js";

/** A node that answers. */
export interface NodeReport {
  readonly where: string;
  readonly facts: Facts;
  readonly runId: string | null;
  readonly state: NodeState;
  readonly clock: ClockDifference | string;
  readonly findings: readonly Finding[];
}

/** Whether the node votes. `new`: nobody has used it, or it has lost all its data. */
type NodeState =
  | { readonly kind: "votes" | "new" | "unreadable" | "unknown" }
  | { readonly kind: "recovering"; readonly forMs: number };

/** One check after the other: the times that are measured must not count each other's commands. */
export async function examineNode(
  connection: Connection,
  target: NodeTarget,
  maxTtlMs: number,
): Promise<NodeReport> {
  const { where } = connection;
  const [server] = await connection.servers();
  const facts = await readFacts(server!);
  const runId = typeof facts.info === "string" ? null : (facts.info.get("run_id") ?? null);
  const timeMs = await readTimeMs(server!);
  const { state, findings } = await readState(server!, { facts, runId, timeMs, maxTtlMs });
  return {
    where,
    facts,
    runId,
    state,
    clock: await readClock(() => readTimeMs(server!)),
    findings: [
      ...findings,
      ...(await check("latency", () => checkLatency(server!))),
      ...(await check("rights", () => checkRights(server!, connection, target.url, NODE_RIGHTS))),
      ...(await check("access", () => checkAccess(target.url, facts, target))),
    ],
  };
}

interface MarkerVerdict {
  readonly state: NodeState;
  readonly findings: readonly Finding[];
}

const unread = (why: string): MarkerVerdict => ({
  state: { kind: "unknown" },
  findings: [unknown("marker", `whether the node has all its data (${why})`)],
});

interface Examined {
  readonly facts: Facts;
  readonly runId: string | null;
  readonly timeMs: number | string;
  readonly maxTtlMs: number;
}

/** The state that the next client will find, as lua/marker.lua does. */
async function readState(server: OneServer, node: Examined): Promise<MarkerVerdict> {
  const stored = await sendCommand(server, "GET", MARKER);
  if ("refused" in stored) return unread(describeRefusal("GET", stored.refused));
  if (stored.reply !== null) return judgeMarker(String(stored.reply), node);
  const counters = await sendCommand(server, "MGET", ...ALL_COUNTERS);
  if ("refused" in counters) return unread(describeRefusal("MGET", counters.refused));
  // Renewals write counters, and no marker, on a node that has lost everything.
  const isUsed = (counters.reply as unknown[]).some((counter) => counter !== null);
  const state: NodeState = isUsed ? { kind: "recovering", forMs: node.maxTtlMs } : { kind: "new" };
  return { state, findings: [] };
}

function judgeMarker(stored: string, node: Examined): MarkerVerdict {
  const marker = parseMarker(stored);
  if (marker === null || marker.format !== FORMAT)
    return { state: UNREADABLE, findings: [FOREIGN] };
  const findings = [...judgeMaxTtl(marker, node.maxTtlMs), ...judgeFsync(marker, node.facts)];
  if (node.runId === null || typeof node.timeMs === "string") {
    const { state, findings: why } = unread("it may not be asked for its run id and its time");
    return { state, findings: [...why, ...findings] };
  }
  const longestMs = Math.max(marker.maxTtlMs, node.maxTtlMs);
  const hasRestarted = marker.runId !== node.runId;
  const isIntact =
    marker.sinceMicros === 0 &&
    (!hasRestarted || (marker.fsync === "always" && hasAllData(node.facts)));
  const sinceMs = hasRestarted ? node.timeMs : marker.sinceMicros / 1_000;
  const forMs = isIntact ? 0 : sinceMs + longestMs - node.timeMs;
  if (forMs <= 0) return { state: { kind: "votes" }, findings };
  if (marker.isNew && !hasRestarted) return { state: { kind: "new" }, findings };
  return { state: { kind: "recovering", forMs }, findings };
}

/** Whether a server that has restarted has all its data: it synced each write, and is no replica that was promoted. */
const hasAllData = (facts: Facts): boolean =>
  isDurable(facts) &&
  typeof facts.info !== "string" &&
  facts.info.get("second_repl_offset") === "-1";

const UNREADABLE: NodeState = { kind: "unreadable" };
const FOREIGN = danger(
  "marker",
  `the key ${MARKER} has another format, so the node does not vote`,
  "Use the version of Holdfast that wrote it; if Holdfast did not write it, delete it.",
);

const judgeMaxTtl = (marker: Marker, maxTtlMs: number): Finding[] =>
  marker.maxTtlMs === maxTtlMs
    ? []
    : [
        note(
          "maxTtl",
          `the URL says ${maxTtlMs / 1_000} s, and the longest that any client has used with the node is ${marker.maxTtlMs / 1_000} s: ` +
            "a node that has lost its data may vote again while a longer lease is held",
          "Use the same maxTtl in all processes. The node keeps the longest until its data are deleted.",
        ),
      ];

/** A client that connected before the setting was changed believes that nothing is lost. */
const judgeFsync = (marker: Marker, facts: Facts): Finding[] =>
  marker.fsync !== "always" || typeof facts.config === "string" || isDurable(facts)
    ? []
    : [
        danger(
          "marker",
          "the node was in service with appendfsync always, and has another setting now: after a crash it may vote without the data that it has lost",
          "Set appendfsync always again, or restart the clients.",
        ),
      ];

/** The loss of one node's data loses no lease: the node stays out of the vote until all leases that it knew have ended. */
export const voterFor = (maxTtlMs: number): Voter => {
  const away = `the node stays out of the vote for maxTtl (${maxTtlMs / 1_000} s)`;
  return {
    losesData: (what, event, advice) =>
      note("persistence", `${what}: after ${event} ${away}`, advice),
    hasReplicas: (count) =>
      note(
        "replicas",
        `${count}: a quorum does not use them, and after a failover to one of them ${away}`,
        "Let nodes fail instead of failing over; more nodes tolerate more failures.",
      ),
  };
};
