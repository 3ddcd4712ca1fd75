import { danger, type Finding, note, ok, unknown } from "../../../doctor/finding.js";
import { megabytes, percent } from "../../../doctor/measures.js";
import { type Facts, type Info, numberOf, versionOf } from "./facts.js";

const NEARLY_FULL = 0.9;

/** Circumstances that the findings depend on besides the facts. */
interface Circumstances {
  readonly cluster: boolean;
  readonly replicas: number;
  /** Whether the trial passed. */
  readonly works: boolean;
  /** Set if the server is a node of a quorum. */
  readonly voter?: Voter;
}

/** The consequences where the loss of one server's data loses no lease. */
export interface Voter {
  /** `event`: the crash or the like with which the server loses data. */
  losesData(what: string, event: string, advice: string): Finding;
  hasReplicas(count: number): Finding;
}

/** Findings from INFO and CONFIG GET. */
export function judgeFacts(
  { info, config }: Facts,
  { cluster, replicas, works, voter }: Circumstances,
): Finding[] {
  const refusals = [info, config].filter((one) => typeof one === "string");
  const hidden =
    refusals.length === 0
      ? []
      : [
          note(
            "rights",
            `this user may not see everything (${refusals.join("; ")})`,
            "Run the doctor once as a user that may use INFO and CONFIG GET.",
          ),
        ];
  if (typeof info === "string") return [...hidden, ...judgeWithoutInfo(info, works)];
  return [
    ...hidden,
    judgeVersion(info),
    judgeRole(info, voter),
    ...judgeClusterMode(info, cluster, voter),
    judgeEviction(info),
    judgeMemory(info),
    judgePersistence(info, config, voter),
    ...judgeRefusedWrites(info, config),
    judgeReplicas(info, replicas, voter),
  ];
}

const judgeWithoutInfo = (refusal: string, works: boolean): Finding[] => [
  works
    ? ok("version", "6.2 or later: the trial passed")
    : unknown("version", `which version it is; 6.2 or later is needed (${refusal})`),
  unknown("role", `whether it is a primary; a replica must not grant anything (${refusal})`),
  unknown("eviction", `whether Redis may delete locks when its memory is full (${refusal})`),
  unknown("memory", `how much is left; when it is full, leases are lost (${refusal})`),
  unknown("persistence", `which locks are lost when the server is restarted (${refusal})`),
  unknown("replicas", `whether there are any: a failover can lose grants (${refusal})`),
];

function judgeVersion(info: Info): Finding {
  const text = info.get("redis_version") ?? "";
  const [major, minor] = versionOf(info);
  if (Number.isNaN(major) || Number.isNaN(minor)) {
    return unknown("version", "INFO names no redis_version; 6.2 or later is needed");
  }
  if (major > 6 || (major === 6 && minor >= 2)) return ok("version", `Redis ${text}`);
  return danger(
    "version",
    `Redis ${text} is too old: leases need SET with PXAT, so nothing can be locked`,
    "Upgrade to Redis 6.2 or later.",
  );
}

function judgeRole(info: Info, voter?: Voter): Finding {
  const role = info.get("role");
  if (role === "master") return ok("role", "a primary");
  if (role !== "slave") return unknown("role", "INFO does not name the server's role");
  return danger(
    "role",
    info.get("slave_read_only") === "0"
      ? "a replica that accepts writes: its primary knows nothing of grants made here, and grants the same names"
      : "a replica: it refuses every claim, renewal and release",
    `Name the primary in the URL${voter === undefined ? ", or its sentinels with ?sentinel=NAME" : ""}.`,
  );
}

function judgeClusterMode(info: Info, cluster: boolean, voter?: Voter): Finding[] {
  if (cluster || info.get("cluster_enabled") !== "1") return [];
  if (voter !== undefined) {
    const what = "a node of a Redis Cluster: it grants no names that belong to other nodes";
    return [danger("cluster", what, "Name servers that belong to no cluster.")];
  }
  return [
    danger(
      "cluster",
      "a node of a cluster, but the URL does not say so: names that belong to other nodes can't be locked",
      "Add ?cluster to the URL.",
    ),
  ];
}

function judgeEviction(info: Info): Finding {
  const policy = info.get("maxmemory_policy");
  const mostBytes = numberOf(info, "maxmemory");
  const advice = "Set maxmemory-policy to noeviction, or give locks a server of their own.";
  if (policy === undefined || Number.isNaN(mostBytes)) {
    return unknown("eviction", "INFO does not name maxmemory and its policy");
  }
  if (policy === "noeviction") return ok("eviction", "maxmemory-policy noeviction");
  return mostBytes === 0
    ? note(
        "eviction",
        `maxmemory-policy is ${policy}; it has no effect as long as maxmemory is not set`,
        advice,
      )
    : danger(
        "eviction",
        `maxmemory-policy is ${policy}: when memory is full, Redis deletes locks and token counters, and a name that is held is granted again`,
        advice,
      );
}

function judgeMemory(info: Info): Finding {
  const mostBytes = numberOf(info, "maxmemory");
  const uncounted = numberOf(info, "mem_not_counted_for_evict") || 0;
  const usedBytes = numberOf(info, "used_memory") - uncounted;
  if (Number.isNaN(mostBytes) || Number.isNaN(usedBytes)) {
    return unknown("memory", "INFO does not say how much is used");
  }
  if (mostBytes > 0) {
    const what = `${percent(usedBytes, mostBytes)} of maxmemory (${megabytes(mostBytes)}) is used`;
    if (usedBytes < NEARLY_FULL * mostBytes) return ok("memory", what);
    return danger(
      "memory",
      `${what}: when it is full, grants and renewals are refused, and leases are lost`,
      "Raise maxmemory, or give locks a server of their own.",
    );
  }
  const what = `${megabytes(usedBytes)} is used; no maxmemory`;
  // Some servers don't say how much memory the machine has.
  const machineBytes = numberOf(info, "total_system_memory");
  if (!(machineBytes > 0 && usedBytes >= NEARLY_FULL * machineBytes)) return ok("memory", what);
  return danger(
    "memory",
    `${what}, and the machine has ${megabytes(machineBytes)}: the kernel may kill the server`,
    "Set maxmemory, or give the machine more memory.",
  );
}

/** Whether a write is on the disk before its reply, as far as the settings tell. */
export const isDurable = ({ info, config }: Facts): boolean =>
  typeof info !== "string" &&
  typeof config !== "string" &&
  info.get("aof_enabled") === "1" &&
  config.get("appendfsync") === "always" &&
  config.get("no-appendfsync-on-rewrite") !== "yes";

const LOSES =
  "locks are lost while their holders are at work, and granted again (tokens rise as long as the server's clock does: then a fence refuses the late holder)";

function judgePersistence(info: Info, config: Info | string, voter?: Voter): Finding {
  const loss = (
    what: string,
    event: string,
    which: string,
    advice = "Set appendonly yes and appendfsync always",
  ): Finding =>
    voter?.losesData(what, event, `${advice}.`) ??
    danger(
      "persistence",
      `${what}: with ${event} ${which}${LOSES}`,
      `${advice}, and fence what must not be done twice.`,
    );
  const appends = info.get("aof_enabled");
  if (appends === undefined) {
    return unknown("persistence", "INFO does not say whether there is an append-only file");
  }
  const setting = (name: string): string | undefined =>
    typeof config === "string" ? undefined : config.get(name);
  if (appends !== "1") {
    const save = setting("save");
    if (save === "") return loss("nothing is kept", "any restart", "all ");
    const kept = save === undefined ? "no append-only file" : `snapshots only (save ${save})`;
    return loss(kept, "a crash", "all later ");
  }
  switch (setting("appendfsync")) {
    case "everysec":
      return loss("appendfsync everysec", "a crash", "the last second or two of ");
    case "no":
      return loss("appendfsync no", "a power cut", "the last half minute of ");
    case "always":
      return setting("no-appendfsync-on-rewrite") === "yes"
        ? loss(
            "no-appendfsync-on-rewrite yes",
            "a power cut while the log is rewritten",
            "",
            "Set no-appendfsync-on-rewrite to no",
          )
        : ok("persistence", "appendfsync always: a grant is on disk before the server replies");
  }
  const why = typeof config === "string" ? config : "CONFIG GET does not name it";
  if (voter !== undefined) {
    const advice = "Grant +config|get, so that clients can see whether it is always.";
    return voter.losesData(`appendfsync can't be read (${why})`, "any restart", advice);
  }
  return unknown(
    "persistence",
    `there is an append-only file; the loss after a crash depends on appendfsync (${why})`,
    "It must be always: with everysec, the last second or two of locks are lost.",
  );
}

/** By default, a server that could not save refuses all writes. If CONFIG is refused, the trial shows it. */
function judgeRefusedWrites(info: Info, config: Info | string): Finding[] {
  const failed: string[] = [];
  if (info.get("aof_last_write_status") === "err") failed.push("the append-only file");
  const stops =
    typeof config !== "string" &&
    config.get("stop-writes-on-bgsave-error") === "yes" &&
    config.get("save") !== "";
  if (stops && info.get("rdb_last_bgsave_status") === "err") failed.push("the last snapshot");
  if (failed.length === 0) return [];
  return [
    danger(
      "disk",
      `${failed.join(" and ")} could not be written: Redis refuses grants and renewals, and leases are lost`,
      "See the server's log: is the disk full, may the server write in its folder?",
    ),
  ];
}

function judgeReplicas(info: Info, required: number, voter?: Voter): Finding {
  const count = numberOf(info, "connected_slaves");
  if (Number.isNaN(count)) return unknown("replicas", "INFO does not say how many there are");
  const online = [...info]
    .filter(([field]) => /^slave\d+$/.test(field))
    .map(([, text]) => new Map(text.split(",").map((pair) => pair.split("=") as [string, string])))
    .filter((one) => one.get("state") === "online");
  if (required > online.length) {
    return danger(
      "replicas",
      `the URL says replicas=${required}, but ${online.length} are online: no grant counts, and no lease can be renewed`,
      "Start the replicas, or require fewer in the URL.",
    );
  }
  if (count === 0) return ok("replicas", "none: there is no failover to lose a grant");
  if (voter !== undefined) return voter.hasReplicas(count);
  const offset = numberOf(info, "master_repl_offset");
  const behind = Math.max(...online.map((one) => offset - Number(one.get("offset"))), 0);
  const lag = Math.max(...online.map((one) => Number(one.get("lag"))), 0);
  const state = `${online.length} of ${count} online, up to ${behind} bytes behind, last reply up to ${lag} s ago`;
  if (required >= count) {
    return note(
      "replicas",
      `${state}; a grant counts when ${required} have it in memory. A name can still be granted twice: after a failover to a replica that ` +
        "was away then or whose clock is ahead, by an old primary until it is demoted, and after a loss of power",
      "Fence what must not be done twice; set min-replicas-to-write, and keep the clocks of all nodes in step.",
    );
  }
  return danger(
    "replicas",
    `${state}; ${required === 0 ? "a grant does not wait for them" : `a grant waits for ${required} of them`}: ` +
      "a failover to a replica that has not received the grant makes the primary grant the name again",
    `Add replicas=${count} to the URL, and fence what must not be done twice.`,
  );
}
