import { at, danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import { megabytes, percent } from "../../../doctor/measures.js";
import type { StoreUrl } from "../../url.js";
import { explainError } from "../open.js";
import { type EndpointStatus, type RepliedStatus, repliedOf } from "../rpc/client.js";
import type { ClusterMember } from "../rpc/messages.js";
import { flawsOf, lineOf, votersOf } from "../versions.js";
import { hostOf } from "./access.js";

const NEARLY_FULL = 0.9;
const DEFAULT_QUOTA = 2 * 2 ** 30;

/** The status of all endpoints at the beginning and at the end, and the members of the cluster. */
export interface Statuses {
  readonly first: readonly EndpointStatus[];
  readonly last: readonly EndpointStatus[];
  /** A text says why the members are unknown. */
  readonly members: readonly ClusterMember[] | string;
}

/** Findings from the statuses of the endpoints. */
export function judgeStatuses({ first, last, members }: Statuses, url: StoreUrl): Finding[] {
  const answered = repliedOf(last);
  const voters = typeof members === "string" ? null : votersOf(members);
  const endpoints = judgeEndpoints(last, voters?.length ?? url.hosts.length, url);
  // All members failed during the examination.
  if (answered.length === 0) return endpoints;
  return [
    ...judgeVersions(answered, voters?.length ?? null),
    ...judgeRoles(answered, url),
    ...endpoints,
    ...judgeLeaders(answered),
    judgeElections(first, answered),
    ...(voters === null
      ? [unknown("members", `how many the cluster has (${members as string})`)]
      : judgeMembers(voters, answered, url.hosts.length)),
    ...judgeAlarms(answered),
    ...judgeSpace(answered),
  ];
}

/** Names the endpoints, unless the finding is about all that answered. */
const atSome = (
  finding: Finding,
  some: readonly RepliedStatus[],
  all: readonly RepliedStatus[],
): Finding =>
  at(
    finding,
    some.map(({ endpoint }) => endpoint),
    all,
  );

function judgeVersions(answered: readonly RepliedStatus[], voters: number | null): Finding[] {
  const versions = [...new Set(answered.map(({ version }) => version))];
  const findings = versions.map((version) => {
    const those = answered.filter((one) => one.version === version);
    return atSome(judgeVersion(version, voters), those, answered);
  });
  if (versions.length > 1) {
    findings.push(
      note(
        "version",
        `the members' versions differ: ${versions.sort().join(", ")}`,
        "Finish the upgrade: until then the cluster works as its oldest member does.",
      ),
    );
  }
  return findings;
}

function judgeVersion(version: string, voters: number | null): Finding {
  const { line } = lineOf(version);
  if (line === "") {
    return unknown("version", `"${version}" is not a version; 3.4 or later is needed`);
  }
  const [major, minor] = line.split(".").map(Number) as [number, number];
  if (major < 3 || (major === 3 && minor < 4)) {
    const what = `etcd ${version} is too old: Holdfast needs 3.4 or later`;
    return danger("version", what, "Upgrade etcd.");
  }
  const { flaws, since } = flawsOf(version, voters);
  if (flaws.length === 0) return ok("version", `etcd ${version}`);
  const advice = `Upgrade etcd to ${since} or later.`;
  return danger("version", `etcd ${version}: ${flaws.join("; ")}`, advice);
}

/** The first patches that check the rights for transactions inside a transaction. */
const CONFINING: readonly (readonly [line: string, patch: number])[] = [
  ["3.4", 42],
  ["3.5", 28],
  ["3.6", 9],
];

/** The first patch of the line in which a role keeps its users to its keys; null if the version is as late. */
function confinedSince(version: string): string | null {
  const { line, patch } = lineOf(version);
  const fixed = CONFINING.find(([of, since]) => of === line && patch < since);
  return fixed === undefined ? null : `${line}.${fixed[1]}`;
}

/** Only for a cluster with users: without them, anyone may do everything. */
function judgeRoles(answered: readonly RepliedStatus[], { user, options }: StoreUrl): Finding[] {
  if (user === "" && !options.has("cert")) return [];
  const since = answered.map(({ version }) => confinedSince(version)).find((one) => one !== null);
  if (since === undefined) return [];
  return [
    note(
      "roles",
      "they keep no user from other keys: on this version any user can read and write all keys by a transaction inside a transaction (GHSA-rfx7-8w68-q57q)",
      `Upgrade etcd to ${since} or later, or keep data that others must not touch in another cluster.`,
    ),
  ];
}

function judgeEndpoints(all: readonly EndpointStatus[], members: number, url: StoreUrl): Finding[] {
  const silent = all.flatMap(({ endpoint, error }) =>
    error === undefined ? [] : [{ endpoint, error }],
  );
  if (silent.length === 0) {
    return [ok("endpoints", all.length === 1 ? "the endpoint answers" : "all endpoints answer")];
  }
  const spare = Math.floor((members - 1) / 2) - silent.length;
  const [level, consequence] =
    spare > 0
      ? [note, "the others are a majority, even if one more fails"]
      : [danger, "if another fails, nothing can be locked or renewed, and leases are lost"];
  return silent.map(({ endpoint, error }) => ({
    ...level(
      "endpoints",
      `the endpoint does not answer (${explainError(error, url)}); ${consequence}`,
      "Start it, or name the right endpoints in the URL.",
    ),
    where: endpoint,
  }));
}

function judgeLeaders(answered: readonly RepliedStatus[]): Finding[] {
  const findings: Finding[] = [];
  const without = answered.filter(({ leader }) => leader === 0n);
  const leaders = new Set(answered.flatMap(({ leader }) => (leader === 0n ? [] : [leader])));
  if (without.length > 0) {
    const what =
      without.length === answered.length
        ? "there is none: nothing can be locked or renewed, and leases are lost"
        : "it has none: it is cut off from the others, and refuses everything";
    const advice =
      "Start the other members, or repair the network between them: a majority is needed.";
    findings.push(atSome(danger("leader", what, advice), without, answered));
  }
  if (leaders.size > 1) {
    findings.push(
      danger(
        "leader",
        "the members do not agree which of them leads: one of them is cut off or hangs",
        "See the members' logs, and the network between them.",
      ),
    );
  }
  const learners = answered.filter(({ isLearner }) => isLearner);
  if (learners.length > 0) {
    const what = "a learner: it refuses the requests that locks need, until it is promoted";
    findings.push(atSome(note("leader", what, "Leave it out of the URL."), learners, answered));
  }
  return findings.length > 0 ? findings : [ok("leader", "the cluster has one")];
}

function judgeElections(first: readonly EndpointStatus[], last: readonly RepliedStatus[]): Finding {
  const highestTerm = (all: readonly EndpointStatus[]): bigint =>
    all.reduce((most, one) => (one.error === undefined && one.term > most ? one.term : most), 0n);
  const [before, after] = [highestTerm(first), highestTerm(last)];
  if (before === after) {
    return ok("elections", `none during the examination (term ${after})`);
  }
  return danger(
    "elections",
    `there was an election during the examination (term ${before}, then ${after}): if that goes on, renewals come late and leases are lost`,
    "See the members' logs: a slow disk, a slow network, or an --election-timeout that is too short for them.",
  );
}

function judgeMembers(
  voters: readonly ClusterMember[],
  answered: readonly RepliedStatus[],
  named: number,
): Finding[] {
  const findings: Finding[] = [];
  const add = (what: string, advice: string): void => {
    findings.push(note("members", what, advice));
  };
  const count = voters.length;
  if (count === 1) {
    add(
      "a cluster of one: while it is away nothing can be locked or renewed, and leases are lost",
      "A cluster of three works without any one of its members.",
    );
  } else if (count % 2 === 0) {
    add(
      `a cluster of ${count}: it can do without ${count / 2 - 1}, as a cluster of ${count - 1} could, and has one more member that can fail`,
      "Have an odd number of members.",
    );
  }
  const unstarted = voters.filter(({ name }) => name === "").length;
  if (unstarted > 0) {
    add(
      `${unstarted} of ${count} were added and have never been started: they count for the majority all the same`,
      "Start them, or remove them: etcdctl member list.",
    );
  }
  if (named === 1 && count > 1) {
    const all = voters.flatMap(({ clientUrls }) => clientUrls.slice(0, 1)).map(hostOf);
    add(
      `the URL names one endpoint of a cluster of ${count}: while that is away, nothing can be locked, unless a proxy behind it chooses among all`,
      `Name all of them: ${all.join(",")}`,
    );
  }
  const ids = answered.map(({ member }) => member);
  const again = answered.filter(({ member }, i) => ids.indexOf(member) !== i);
  if (again.length > 0) {
    findings.push({
      ...note(
        "members",
        "another endpoint of the URL names the same member. If they are different servers, each is a cluster by itself that advertises the default address, and names are granted twice",
        "Name each member once; give servers their own --initial-advertise-peer-urls.",
      ),
      where: again.map(({ endpoint }) => endpoint).join(", "),
    });
  }
  return findings.length > 0 ? findings : [ok("members", `${count}`)];
}

/** The alarms that are raised, from texts such as `memberID:123 alarm:NOSPACE`. */
const alarmsOf = (answered: readonly RepliedStatus[]): ReadonlySet<string> =>
  new Set(
    answered.flatMap(({ errors }) =>
      errors.flatMap((text) => /alarm:\s*(\w+)/.exec(text)?.[1] ?? []),
    ),
  );

const judgeAlarms = (answered: readonly RepliedStatus[]): Finding[] =>
  [...alarmsOf(answered)].map((alarm) =>
    alarm === "NOSPACE"
      ? danger(
          "space",
          "its quota is used up (alarm NOSPACE): grants are refused, and nothing can be locked until the alarm is disarmed",
          "Compact, defragment and disarm: etcdctl compact, defrag, alarm disarm.",
        )
      : danger(
          "alarm",
          `the cluster has raised the alarm ${alarm}: the data of its members may differ, so that a name is granted twice`,
          "See etcdctl alarm list, and etcd's guide on data corruption.",
        ),
  );

/** Every member that is nearly full; if there is none, the largest. */
function judgeSpace(answered: readonly RepliedStatus[]): Finding[] {
  if (alarmsOf(answered).has("NOSPACE")) return [];
  const full = answered.flatMap((one) => {
    const finding = judgeSize(one);
    return finding.level === "ok" ? [] : [atSome(finding, [one], answered)];
  });
  if (full.length > 0) return full;
  return [judgeSize(answered.reduce((most, one) => (one.dbSize > most.dbSize ? one : most)))];
}

function judgeSize({ dbSize, dbSizeQuota }: RepliedStatus): Finding {
  const usedBytes = Number(dbSize);
  if (dbSizeQuota < 0n) {
    return ok("space", `${megabytes(usedBytes)} are used; there is no quota`);
  }
  const isKnown = dbSizeQuota > 0n;
  const quota = isKnown ? Number(dbSizeQuota) : DEFAULT_QUOTA;
  const which = isKnown
    ? `of its quota (${megabytes(quota)})`
    : `of the default quota (${megabytes(quota)}; versions before 3.6 do not tell their own)`;
  const what = `${megabytes(usedBytes)}, ${percent(usedBytes, quota)} ${which}, are used`;
  if (usedBytes < NEARLY_FULL * quota) return ok("space", what);
  return (isKnown ? danger : note)(
    "space",
    `${what}: when it is used up, grants are refused, and nothing can be locked`,
    "Compact and defragment, or raise --quota-backend-bytes.",
  );
}
