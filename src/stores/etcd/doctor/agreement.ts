import { setTimeout as sleep } from "node:timers/promises";
import { danger, type Finding, ok } from "../../../doctor/finding.js";
import { type EndpointStatus, type RepliedStatus, repliedOf } from "../rpc/client.js";

const READINGS = 5;
const PAUSE_MS = 50;

/**
 * Whether the members have the same revision after the same entry of their log. A member that applies
 * entries meanwhile tells nothing: no finding if that goes on.
 */
export async function checkAgreement(
  read: () => Promise<readonly EndpointStatus[]>,
): Promise<readonly Finding[]> {
  let earlier = repliedOf(await read());
  for (let i = 1; i < READINGS; i++) {
    await sleep(PAUSE_MS);
    const later = repliedOf(await read());
    const idle = later.filter((one) => earlier.some((other) => isUnchanged(one, other)));
    const differing = firstDifference(idle);
    if (differing !== null) return [describe(differing)];
    const entries = new Set(idle.map(({ raftAppliedIndex }) => raftAppliedIndex));
    if (idle.length === later.length && entries.size === 1)
      return [ok("data", "the members that answer are at the same revision")];
    earlier = later;
  }
  return [];
}

const isUnchanged = (one: RepliedStatus, other: RepliedStatus): boolean =>
  one.member === other.member &&
  one.raftAppliedIndex === other.raftAppliedIndex &&
  one.revision === other.revision;

type Pair = readonly [RepliedStatus, RepliedStatus];

function firstDifference(idle: readonly RepliedStatus[]): Pair | null {
  for (const one of idle) {
    const other = idle.find(
      ({ cluster, raftAppliedIndex, revision }) =>
        cluster === one.cluster &&
        raftAppliedIndex === one.raftAppliedIndex &&
        revision !== one.revision,
    );
    if (other !== undefined) return [one, other];
  }
  return null;
}

function describe([one, other]: Pair): Finding {
  const [low, high] = one.revision < other.revision ? [one, other] : [other, one];
  return {
    ...danger(
      "data",
      `the members have different data: after the same entry of the log (${low.raftAppliedIndex}), ${low.endpoint} is at revision ${low.revision} and ${high.endpoint} at ${high.revision}. Tokens differ from member to member, and names are granted twice`,
      "Stop all holders, remove the member whose data are wrong (etcdctl member remove), and let it join again without its data. Upgrade etcd to 3.5.13 or later.",
    ),
    where: `${low.endpoint}, ${high.endpoint}`,
  };
}
