import { reasonOf } from "../../../core/cause.js";
import { danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import type { StoreUrl } from "../../url.js";
import type { ZooKeeperClient } from "../client/client.js";
import type { ServerStatus } from "./status.js";

/** How many servers vote, and how many only listen. */
export interface Members {
  readonly voters: number;
  readonly observers: number;
}

/** Every server keeps the members here; a single server has none. */
const CONFIG = "/zookeeper/config";

/** The members of the ensemble. A text says why they are unknown. */
export async function readMembers(client: ZooKeeperClient): Promise<Members | string> {
  try {
    return parseMembers((await client.getData(CONFIG)).data.toString());
  } catch (error) {
    return reasonOf(error);
  }
}

/** Reads lines such as `server.1=host:2888:3888:participant;0.0.0.0:2181`. */
export function parseMembers(config: string): Members {
  const lines = config.split("\n").filter((line) => line.startsWith("server."));
  const observers = lines.filter((line) => /:observer\b/.test(line)).length;
  return { voters: Math.max(1, lines.length - observers), observers };
}

/** Findings from what the servers tell about themselves, and about the ensemble. */
export function judgeEnsemble(
  statuses: readonly ServerStatus[],
  members: Members | string,
  url: StoreUrl,
): Finding[] {
  const voters = typeof members === "string" ? null : members.voters;
  return [
    ...judgeVersions(statuses, voters),
    ...judgeServers(statuses, voters ?? url.hosts.length),
    ...(typeof members === "string"
      ? [unknown("ensemble", `how many servers it has (${members})`)]
      : judgeSize(members, url.hosts.length)),
  ];
}

const atServers = (finding: Finding, servers: readonly ServerStatus[]): Finding => ({
  ...finding,
  where: servers.map(({ server }) => server).join(", "),
});

/** Names the servers, unless the finding is about all. */
const atSome = (
  finding: Finding,
  some: readonly ServerStatus[],
  all: readonly ServerStatus[],
): Finding => (some.length === all.length ? finding : atServers(finding, some));

function judgeVersions(statuses: readonly ServerStatus[], voters: number | null): Finding[] {
  const known = statuses.filter(({ version }) => version !== null);
  if (known.length === 0) {
    const advice = "Add srvr to 4lw.commands.whitelist, where it is by default.";
    return [unknown("version", "no server tells its version; 3.6 or later is needed", advice)];
  }
  const versions = [...new Set(known.map(({ version }) => version!))].sort();
  const findings = versions.map((version) => {
    const those = known.filter((one) => one.version === version);
    return atSome(judgeVersion(version, voters), those, statuses);
  });
  if (versions.length > 1) {
    const what = `the servers' versions differ: ${versions.join(", ")}`;
    findings.push(note("version", what, "Finish the upgrade."));
  }
  return findings;
}

const isBefore = (version: string, other: string): boolean =>
  version.localeCompare(other, "en", { numeric: true }) < 0;

function judgeVersion(version: string, voters: number | null): Finding {
  if (isBefore(version, "3.6.0")) {
    const what = `ZooKeeper ${version} is too old: it lacks the recursive watches that Holdfast needs`;
    return danger("version", what, "Upgrade ZooKeeper to 3.6 or later.");
  }
  const isEnsemble = voters !== 1;
  if (isEnsemble && isBefore(version, "3.6.3")) {
    const what = `ZooKeeper ${version}: after a change of leader, servers may disagree about the last transactions (ZOOKEEPER-3911)`;
    return danger("version", what, "Upgrade ZooKeeper to 3.6.3 or later.");
  }
  if (isEnsemble && isBefore(version, "3.9.3")) {
    const what = `ZooKeeper ${version}: the data of a server that loses its leader may differ afterwards (ZOOKEEPER-4712)`;
    return note("version", what, "Upgrade ZooKeeper to 3.9.3 or later.");
  }
  return ok("version", `ZooKeeper ${version}`);
}

function judgeServers(statuses: readonly ServerStatus[], voters: number): Finding[] {
  const away = statuses.filter(({ silent, isIdle }) => silent !== null || isIdle);
  const spare = Math.floor((voters - 1) / 2);
  const findings = away.map((one) => {
    const why = one.isIdle ? "it has no majority, and serves no requests" : one.silent;
    const isTight = away.length >= spare;
    const what = `a server can't be used: ${why}${isTight ? "; if another fails, nothing can be locked" : ""}`;
    return atServers((isTight ? danger : note)("servers", what), [one]);
  });
  const listening = statuses.filter(({ mode }) => mode === "observer");
  if (listening.length > 0) {
    const what = "an observer: it serves clients, and does not vote";
    const advice = "Name voting servers too, so that the loss of observers loses no lock.";
    findings.push(
      listening.length === statuses.length
        ? note("servers", `the URL names observers only`, advice)
        : atSome(ok("servers", what), listening, statuses),
    );
  }
  const readOnly = statuses.filter(({ mode }) => mode === "read-only");
  if (readOnly.length > 0) {
    const what = "it has lost its majority and serves reads only, which Holdfast does not use";
    findings.push(atServers(danger("servers", what), readOnly));
  }
  return findings.length > 0
    ? findings
    : [
        ok(
          "servers",
          statuses.length === 1 ? "the server answers" : `all ${statuses.length} answer`,
        ),
      ];
}

function judgeSize({ voters, observers }: Members, named: number): Finding[] {
  const findings: Finding[] = [];
  const spare = Math.floor((voters - 1) / 2);
  if (spare === 0) {
    const what =
      voters === 1
        ? "one server: while it is down, nothing can be locked"
        : "two voting servers: while either is down, nothing can be locked";
    findings.push(note("ensemble", what, "Run three or five servers."));
  } else if (voters % 2 === 0) {
    const what = `${voters} voting servers do without ${spare}, which ${voters - 1} would do as well`;
    findings.push(note("ensemble", what, "Run an odd number of voting servers."));
  }
  const all = voters + observers;
  if (named < all) {
    const what = `the URL names ${named} of ${all} servers: the loss of ${named === 1 ? "it" : "these"} stops this client`;
    findings.push(note("ensemble", what, "Name all servers in the URL."));
  }
  return findings.length > 0 ? findings : [ok("ensemble", `${voters} voting servers`)];
}
