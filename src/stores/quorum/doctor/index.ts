import { reasonOf } from "../../../core/cause.js";
import { HoldfastError } from "../../../core/errors.js";
import {
  danger,
  type Finding,
  mergeServers,
  note,
  ok,
  SEE_OTHERS,
  type Trial,
  unknown,
} from "../../../doctor/finding.js";
import type { Connection } from "../../redis/connection.js";
import { openConnection, withTimeout } from "../../redis/doctor/commands.js";
import { judgeFacts } from "../../redis/doctor/settings.js";
import type { StoreUrl } from "../../url.js";
import { majorityOf } from "../ballot.js";
import { unavailable } from "../errors.js";
import { openQuorumStore } from "../open.js";
import { maxTtlOf, type NodeTarget, nodesOf } from "../url.js";
import { judgeClocks } from "./clocks.js";
import { examineNode, type NodeReport, voterFor } from "./node.js";

/** Reports what endangers locks on a quorum. Rejects with StoreUnavailableError if a majority of the nodes is down. */
export async function examineQuorum(url: StoreUrl, trial: Trial): Promise<readonly Finding[]> {
  const targets = nodesOf(url);
  const maxTtlMs = maxTtlOf(url);
  const { reports, failures } = await examineNodes(targets, maxTtlMs);
  if (reports.length < majorityOf(targets.length)) throw unavailable(targets.length, failures);
  const servers = judgeServers(reports);
  // The trial puts nodes into service that nobody has used yet, so their state is read before it.
  const tried = servers.level === "danger" ? [] : [await tryQuorum(url, trial)];
  const works = tried.every(({ level }) => level !== "danger");
  const voter = voterFor(maxTtlMs);
  const found = reports.map(({ facts, findings }) => [
    ...judgeFacts(facts, { cluster: false, replicas: 0, works, voter }),
    ...findings,
  ]);
  return [
    judgeVotes(reports, failures),
    servers,
    judgeClocks(reports, maxTtlMs),
    ...mergeServers(
      found,
      reports.map(({ where }) => where),
    ),
    ...tried,
  ];
}

/** A node that no longer answers is one that is down: the others decide. */
async function examineNodes(
  targets: readonly NodeTarget[],
  maxTtlMs: number,
): Promise<{ reports: NodeReport[]; failures: Error[] }> {
  const reports: NodeReport[] = [];
  const failures: Error[] = [];
  const opening = await Promise.allSettled(targets.map((one) => openConnection(one.url, one)));
  const connections: Connection[] = [];
  for (const [i, opened] of opening.entries()) {
    if (opened.status === "rejected") {
      failures.push(named(opened.reason, targets[i]!));
      continue;
    }
    connections.push(opened.value);
    try {
      reports.push(await examineNode(opened.value, targets[i]!, maxTtlMs));
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      failures.push(named(error, targets[i]!));
    }
  }
  await Promise.all(connections.map((one) => withTimeout("QUIT", one.close()).catch(() => {})));
  return { reports, failures };
}

const isUnavailable = (error: unknown): boolean =>
  HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE";

/** The error names its node. */
function named(error: unknown, { address }: NodeTarget): Error {
  const reason = reasonOf(error);
  if (error instanceof Error && reason.includes(address)) return error;
  return new Error(`${address}: ${reason}`, { cause: error });
}

async function tryQuorum(url: StoreUrl, trial: Trial): Promise<Finding> {
  try {
    return await trial(await openQuorumStore(url));
  } catch (error) {
    return danger("trial", `the store can't be opened: ${reasonOf(error)}`, SEE_OTHERS);
  }
}

/** Judges how many more nodes may fail. */
function judgeVotes(reports: readonly NodeReport[], failures: readonly Error[]): Finding {
  const count = reports.length + failures.length;
  const majority = majorityOf(count);
  if (reports.length === count && reports.every(({ state }) => state.kind === "new")) {
    return note(
      "nodes",
      `none of the ${count} has any data of a quorum: it is new, or all have lost everything, and this trial or the next client puts them into service`,
      "If it is not new, names can be granted while they are held: wait for maxTtl before you use it.",
    );
  }
  const reasons = [
    ...failures.map(({ message }) => message),
    ...reports.flatMap(({ where, state }) => {
      if (state.kind === "recovering") {
        const forS = Math.ceil(state.forMs / 1_000);
        return [`${where} has lost data, and votes again in ${forS} s`];
      }
      if (state.kind === "new")
        return [`${where} is new or has lost all data, and votes after maxTtl`];
      return state.kind === "unreadable" ? [`${where} has a marker of another format`] : [];
    }),
  ];
  const unsure = reports.flatMap(({ where, state }) =>
    state.kind === "unknown" ? [`whether ${where} votes is unknown`] : [],
  );
  const doubts = [...reasons, ...unsure];
  if (doubts.length === 0) return ok("nodes", `all ${count} answer and vote`);
  const voting = count - reasons.length;
  const atMost = unsure.length > 0 ? "at most " : "";
  const text = `${atMost}${voting} of ${count} vote (${doubts.join("; ")})`;
  if (voting < majority) {
    return danger("nodes", `${text}: ${majority} are needed, so nothing can be locked`);
  }
  if (voting === majority) {
    return danger(
      "nodes",
      `${text}: if one more fails, nothing can be locked, and leases are lost`,
      "Bring the other nodes back.",
    );
  }
  if (unsure.length > 0) return unknown("nodes", text);
  return note("nodes", `${text}: ${voting - majority} more may fail`, "Bring the others back.");
}

/** A server that is named twice would vote twice. */
function judgeServers(reports: readonly NodeReport[]): Finding {
  const known = reports.filter(({ runId }) => runId !== null);
  for (const { where, runId } of known) {
    const same = known.filter((other) => other.runId === runId).map((other) => other.where);
    if (same.length === 1) continue;
    return danger(
      "servers",
      `${same.join(" and ")} are the same Redis server (by its run id), which would vote twice: connect() refuses the URL`,
      `Name each server once; ${where} is one address of it.`,
    );
  }
  const ids = known.map(({ where, runId }) => `${where} ${runId}`).join(", ");
  const missing = reports.filter(({ runId }) => runId === null).map(({ where }) => where);
  if (missing.length > 0) {
    const others = ids === "" ? "" : ` (run ids: ${ids})`;
    return unknown("servers", `whether ${missing.join(" and ")} lead to other servers${others}`);
  }
  return ok("servers", `${known.length} different servers, by their run ids: ${ids}`);
}
