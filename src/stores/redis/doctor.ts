import { randomUUID } from "node:crypto";
import { type Finding, megabytes, percent, reasonOf, tryOut } from "../../core/doctor.js";
import { HoldfastError, StoreUnavailableError } from "../../core/errors.js";
import type { StoreUrl } from "../../core/url.js";
import { type Connection, connectionOf, type OneServer } from "./client.js";
import { counterOf, keyOf, nameOfKey, PREFIX } from "./keys.js";
import { openRedisClient, openRedisStore } from "./open.js";
import { SCRIPTS } from "./scripts.js";

const ANSWER_MS = 3_000;
/** Longer than a client library takes to give up by itself. */
const OPEN_MS = 6_000;
const PINGS = 15;
const SLOW_MS = 50;
/** Clocks that are kept in step differ by milliseconds. */
const CLOCK_MS = 1_000;
const NEARLY_FULL = 0.9;
/** Others' keys may be many: no more time than this is spent on finding ours. */
const SCAN_MS = 3_000;
const SCAN_COUNT = "1000";
const MOST_NAMES = 1_000;
const NAMES_AT_ONCE = 100;
const MOST_SHOWN = 3;
/** Beyond it, Lua's numbers have gaps. */
const HIGHEST_TOKEN = 2 ** 53;

/** What a command was answered with, or the server's words for why not. */
type Answer = { readonly reply: unknown } | { readonly refused: string };

/** What a server tells about itself. A text instead: why it does not. */
export interface Facts {
  readonly info: ReadonlyMap<string, string> | string;
  readonly config: ReadonlyMap<string, string> | string;
}

const SETTINGS = [
  "appendfsync",
  "save",
  "no-appendfsync-on-rewrite",
  "stop-writes-on-bgsave-error",
  "bind",
  "protected-mode",
];

/**
 * Everything that scripts and store send, in a form that changes nothing: rights are checked before
 * the server sees what is wrong with it. The test holds the list to the scripts.
 */
export const TRIED: Record<string, (own: string) => readonly string[]> = {
  TIME: () => [],
  PING: () => [],
  EVAL: () => ["return 1", "0"],
  EVALSHA: () => ["0".repeat(40), "0"],
  GET: (own) => [own],
  SET: (own) => [own, "1", "PX", "0"],
  DEL: (own) => [own],
  HSET: (own) => [own, "a", "1", "b"],
  HGET: (own) => [own, "a"],
  HDEL: (own) => [own, "a"],
  PEXPIREAT: (own) => [own, "never"],
  SCAN: () => ["0", "MATCH", `${PREFIX}*`, "COUNT", "1"],
  PUBLISH: () => [`${PREFIX}wake:doctor`, ""],
};

/** What endangers locks on a server, or on the primaries of a cluster. */
export async function examineRedis(url: StoreUrl): Promise<readonly Finding[]> {
  const connection = connectionOf(await inTime("a new connection", openRedisClient(url), OPEN_MS));
  try {
    const servers = await connection.servers();
    const trial = await tryOut(await openRedisStore(url));
    const works = trial.level !== "danger";
    const all: Finding[][] = [];
    let first: Facts | undefined;
    for (const server of servers) {
      const facts = await factsOf(server);
      first ??= facts;
      all.push([
        ...judge(facts, { cluster: connection.cluster, replicas: replicasOf(url), works }),
        ...(await clusterState(server, connection.cluster)),
        await clockOf(server),
        await latencyOf(server),
        await rightsOf(server, connection, url),
      ]);
    }
    return [
      ...merged(all, servers),
      trial,
      ...(await keysOf(connection, servers)),
      ...(await accessOf(url, first!)),
    ];
  } catch (error) {
    if (HoldfastError.is(error)) throw error;
    throw new StoreUnavailableError(`the Redis server is gone: ${reasonOf(error)}`, {
      cause: error,
    });
  } finally {
    // It may have died in the meantime.
    await inTime("QUIT", connection.close()).catch(() => {});
  }
}

const replicasOf = (url: StoreUrl): number => Number(url.options.get("replicas") ?? 0);

/** What is the same on all servers is said once. */
function merged(all: readonly Finding[][], servers: readonly OneServer[]): Finding[] {
  if (servers.length === 1) return all[0]!;
  const places = new Map<string, { finding: Finding; where: string[] }>();
  for (const [i, findings] of all.entries()) {
    for (const finding of findings) {
      const key = JSON.stringify(finding);
      const place = places.get(key) ?? { finding, where: [] };
      place.where.push(servers[i]!.where);
      places.set(key, place);
    }
  }
  return [...places.values()].map(({ finding, where }) =>
    where.length === servers.length ? finding : { ...finding, where: where.join(", ") },
  );
}

async function factsOf(server: OneServer): Promise<Facts> {
  const info = await ask(server, "INFO");
  const config = new Map<string, string>();
  // Several in one command are possible only since version 7.
  const answers = await Promise.all(SETTINGS.map((name) => ask(server, "CONFIG", "GET", name)));
  let refused: string | undefined;
  for (const answer of answers) {
    if ("refused" in answer) refused = `CONFIG is refused: ${codeOf(answer.refused)}`;
    else for (const [key, value] of pairsOf(answer.reply)) config.set(key, value);
  }
  return {
    info:
      "refused" in info ? `INFO is refused: ${codeOf(info.refused)}` : fieldsOf(String(info.reply)),
    config: refused ?? config,
  };
}

/** Such as NOPERM. */
const codeOf = (refused: string): string => refused.split(" ", 1)[0]!;

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

type Info = ReadonlyMap<string, string>;
const number = (info: Info, field: string): number => Number(info.get(field) ?? Number.NaN);

function version(info: Info): Finding {
  const text = info.get("redis_version") ?? "";
  const [major, minor] = versionOf(info);
  const about = "version";
  if (Number.isNaN(major) || Number.isNaN(minor)) {
    return { about, level: "unknown", what: "INFO names no redis_version; 6.2 or later is needed" };
  }
  if (major > 6 || (major === 6 && minor >= 2))
    return { about, level: "ok", what: `Redis ${text}` };
  return {
    about,
    level: "danger",
    what: `Redis ${text} is too old: leases need SET with PXAT, so nothing can be locked`,
    advice: "Upgrade to Redis 6.2 or later.",
  };
}

const versionOf = (info: Info): [number, number] => {
  const [major, minor] = (info.get("redis_version") ?? "").split(".").map(Number);
  return [major ?? Number.NaN, minor ?? Number.NaN];
};

function role(info: Info): Finding {
  const about = "role";
  const is = info.get("role");
  if (is === "master") return { about, level: "ok", what: "a primary" };
  if (is !== "slave") return { about, level: "unknown", what: "INFO does not tell" };
  return {
    about,
    level: "danger",
    what:
      info.get("slave_read_only") === "0"
        ? "a replica that takes writes: what is granted here, its primary knows nothing of and grants again"
        : "a replica: it refuses every claim, renewal and release",
    advice: "Name the primary in the URL, or its sentinels with ?sentinel=NAME.",
  };
}

function clusterMode(info: Info, cluster: boolean): Finding[] {
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

async function clusterState(server: OneServer, cluster: boolean): Promise<Finding[]> {
  if (!cluster) return [];
  const about = "cluster";
  const answer = await ask(server, "CLUSTER", "INFO");
  if ("refused" in answer) {
    const what = `whether all slots are served (CLUSTER is refused: ${codeOf(answer.refused)})`;
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

function eviction(info: Info): Finding {
  const about = "eviction";
  const policy = info.get("maxmemory_policy");
  const most = number(info, "maxmemory");
  const advice = "Set maxmemory-policy to noeviction, or give locks a server of their own.";
  if (policy === undefined || Number.isNaN(most)) {
    return { about, level: "unknown", what: "INFO does not tell maxmemory and its policy" };
  }
  if (policy === "noeviction") return { about, level: "ok", what: "maxmemory-policy noeviction" };
  if (most === 0) {
    return {
      about,
      level: "note",
      what: `maxmemory-policy is ${policy}; it has no effect as long as maxmemory is not set`,
      advice,
    };
  }
  return {
    about,
    level: "danger",
    what: `maxmemory-policy is ${policy}: when memory is full, Redis deletes locks and token counters, and a name that is held is granted again`,
    advice,
  };
}

function memory(info: Info): Finding {
  const about = "memory";
  const most = number(info, "maxmemory");
  const used = number(info, "used_memory") - (number(info, "mem_not_counted_for_evict") || 0);
  if (Number.isNaN(most) || Number.isNaN(used)) {
    return { about, level: "unknown", what: "INFO does not tell how much is used" };
  }
  if (most > 0) {
    const what = `${percent(used, most)} of maxmemory (${megabytes(most)}) is used`;
    if (used < NEARLY_FULL * most) return { about, level: "ok", what };
    return {
      about,
      level: "danger",
      what: `${what}: when it is full, grants and renewals are refused, and leases are lost`,
      advice: "Raise maxmemory, or give locks a server of their own.",
    };
  }
  const machine = number(info, "total_system_memory");
  const what = `${megabytes(used)} is used; no maxmemory`;
  // Some do not tell what the machine has.
  if (!(machine > 0 && used >= NEARLY_FULL * machine)) return { about, level: "ok", what };
  return {
    about,
    level: "danger",
    what: `${what}, and the machine has ${megabytes(machine)}: the kernel may kill the server`,
    advice: "Set maxmemory, or give the machine more memory.",
  };
}

const LOSES =
  "locks are lost while their holders are at work, and granted again (their tokens still rise: a fence refuses the late holder)";

function persistence(info: Info, config: Info | string): Finding {
  const about = "persistence";
  const advice =
    "Set appendonly yes and appendfsync always, and fence what must not be done twice.";
  const danger = (what: string): Finding => ({ about, level: "danger", what, advice });
  const appends = info.get("aof_enabled");
  if (appends === undefined) {
    return { about, level: "unknown", what: "INFO does not tell whether there is a log" };
  }
  const setting = (name: string): string | undefined =>
    typeof config === "string" ? undefined : config.get(name);
  if (appends !== "1") {
    const save = setting("save");
    if (save === "") return danger(`nothing is kept: with any restart all ${LOSES}`);
    const which = save === undefined ? "no append-only file" : `snapshots only (save ${save})`;
    return danger(`${which}: with a crash all later ${LOSES}`);
  }
  const [sync, pauses] = [setting("appendfsync"), setting("no-appendfsync-on-rewrite")];
  switch (sync) {
    case "everysec":
      return danger(`appendfsync everysec: with a crash the last second or two of ${LOSES}`);
    case "no":
      return danger(`appendfsync no: with a power cut the last half minute of ${LOSES}`);
    case "always":
      if (pauses !== "yes") {
        return { about, level: "ok", what: "appendfsync always: a grant is on the disk when told" };
      }
      return {
        ...danger(
          `no-appendfsync-on-rewrite yes: with a power cut while the log is rewritten ${LOSES}`,
        ),
        advice: "Set no-appendfsync-on-rewrite to no.",
      };
  }
  const why = typeof config === "string" ? config : "CONFIG GET does not tell";
  return {
    about,
    level: "unknown",
    what: `there is an append-only file; what a crash loses depends on appendfsync (${why})`,
    advice: "It must be always: with everysec, the last second or two of locks are lost.",
  };
}

/** By default a server that could not save refuses all writes. Where it can't be told, the trial tells. */
function refusedWrites(info: Info, config: Info | string): Finding[] {
  const failed: string[] = [];
  if (info.get("aof_last_write_status") === "err") failed.push("the append-only file");
  const stops =
    typeof config !== "string" &&
    config.get("stop-writes-on-bgsave-error") === "yes" &&
    config.get("save") !== "";
  if (stops && info.get("rdb_last_bgsave_status") === "err") failed.push("the last snapshot");
  if (failed.length === 0) return [];
  return [
    {
      about: "disk",
      level: "danger",
      what: `${failed.join(" and ")} could not be written: Redis refuses grants and renewals, and leases are lost`,
      advice: "See the server's log: is the disk full, may it write in its folder?",
    },
  ];
}

function replication(info: Info, asked: number): Finding {
  const about = "replicas";
  const count = number(info, "connected_slaves");
  if (Number.isNaN(count)) return { about, level: "unknown", what: "INFO does not tell" };
  const replicas = [...info]
    .filter(([field]) => /^slave\d+$/.test(field))
    .map(([, text]) => new Map(text.split(",").map((pair) => pair.split("=") as [string, string])));
  const online = replicas.filter((one) => one.get("state") === "online");
  const behind = Math.max(
    ...online.map((one) => number(info, "master_repl_offset") - Number(one.get("offset"))),
    0,
  );
  const heard = Math.max(...online.map((one) => Number(one.get("lag"))), 0);
  const there = `${online.length} of ${count} online, up to ${behind} bytes behind, heard of ${heard} s ago`;
  if (asked > online.length) {
    return {
      about,
      level: "danger",
      what: `the URL says replicas=${asked}, but ${online.length} are online: no grant counts, and no lease can be renewed`,
      advice: "Start the replicas, or ask for fewer.",
    };
  }
  if (count === 0)
    return { about, level: "ok", what: "none: there is no failover to lose a grant" };
  if (asked >= count) {
    return {
      about,
      level: "note",
      what: `${there}; a grant counts when ${asked} have it. A failover to one that was away then can still lose it`,
      advice: "Fence what must not be done twice.",
    };
  }
  return {
    about,
    level: "danger",
    what:
      `${there}; ${asked === 0 ? "a grant does not wait for them" : `a grant waits for ${asked} of them`}: ` +
      "a failover to one that has not heard of it grants the name again",
    advice: `Add replicas=${count} to the URL, and fence what must not be done twice.`,
  };
}

/** The server's clock decides when leases end: it must not have to be set. */
async function clockOf(server: OneServer): Promise<Finding> {
  const about = "clock";
  let best: { offMs: number; tripMs: number } | undefined;
  for (let i = 0; i < 5; i++) {
    const [sentAt, from] = [Date.now(), performance.now()];
    const answer = await ask(server, "TIME");
    if ("refused" in answer) {
      const what = `how far the server's clock is from ours (TIME is refused: ${codeOf(answer.refused)})`;
      return { about, level: "unknown", what };
    }
    const tripMs = performance.now() - from;
    const [seconds, micros] = answer.reply as [string, string];
    const offMs = Number(seconds) * 1_000 + Number(micros) / 1_000 - (sentAt + tripMs / 2);
    if (best === undefined || tripMs < best.tripMs) best = { offMs, tripMs };
  }
  const { offMs, tripMs } = best!;
  // Ours counts whole milliseconds, and the way there may take longer than the way back.
  const unsureMs = tripMs / 2 + 1;
  if (Math.abs(offMs) - unsureMs <= CLOCK_MS) {
    const [off, unsure] = [Math.round(offMs), Math.ceil(unsureMs)];
    return {
      about,
      level: "ok",
      what: `the server's clock minus ours: ${off} ms (± ${unsure} ms)`,
    };
  }
  return {
    about,
    level: "danger",
    what:
      `the server's clock is ${(Math.abs(offMs) / 1_000).toFixed(1)} s ${offMs > 0 ? "ahead of" : "behind"} ours. ` +
      "If it is the server's that is wrong: when it is set forward, leases end early and names are granted again; when it is set back, they last longer",
    advice: "Keep both clocks in step (NTP), by slewing, not by jumps.",
  };
}

async function latencyOf(server: OneServer): Promise<Finding> {
  const about = "latency";
  const trips: number[] = [];
  for (let i = 0; i < PINGS; i++) {
    const from = performance.now();
    // Refused or not, it took its time.
    await ask(server, "PING");
    trips.push(performance.now() - from);
  }
  trips.sort((a, b) => a - b);
  const median = trips[PINGS >> 1]!;
  const what = `a round trip takes ${median.toFixed(1)} ms (the slowest of ${PINGS} took ${trips.at(-1)!.toFixed(1)} ms)`;
  if (median < SLOW_MS) return { about, level: "ok", what };
  return {
    about,
    level: "note",
    what: `${what}: acquire, renew and release take one each`,
    advice: `Take a server nearby, and a ttl of ${Math.ceil((100 * median) / 1_000)} s or more.`,
  };
}

/** Everything is tried: that takes no right but those that are in question. */
export async function rightsOf(
  server: OneServer,
  connection: Pick<Connection, "subscribe">,
  url: StoreUrl,
): Promise<Finding> {
  const about = "rights";
  const own = keyOf(`holdfast-doctor:${randomUUID()}`);
  const tries = Object.entries(TRIED).map(([command, argsOf]) => [command, ...argsOf(own)]);
  if (replicasOf(url) > 0) tries.push(["WAIT", "0", "1"]);
  const lacking = new Map<string, string>();
  const answers = await Promise.all(tries.map((command) => ask(server, ...command)));
  for (const [i, answer] of answers.entries()) {
    const why = "refused" in answer ? lackOf(answer.refused) : null;
    if (why !== null) lacking.set(tries[i]![0]!, why);
  }
  try {
    const hear = { message: () => {}, back: () => {} };
    const listening = connection.subscribe(`${PREFIX}wake:doctor`, hear);
    (await inTime("SUBSCRIBE", listening)).close();
  } catch (error) {
    const why = lackOf(reasonOf(error));
    if (why === null) throw error;
    lacking.set("SUBSCRIBE", why);
  }
  if (lacking.size === 0) {
    return { about, level: "ok", what: "all commands that locks need are allowed" };
  }
  const user = url.user === "" ? "default" : url.user;
  const reasons = [...new Set(lacking.values())].map((why) => {
    const commands = [...lacking].filter(([, one]) => one === why).map(([command]) => command);
    return `${commands.join(", ")} (${why})`;
  });
  const grants = [...lacking].map(([command]) => `+${command.toLowerCase()}`).join(" ");
  return {
    about,
    level: "danger",
    what: `the user "${user}" may not use ${reasons.join("; ")}: steps fail, at once or halfway when somebody waits`,
    advice: [...lacking.values()].includes(NO_COMMAND)
      ? "Holdfast needs a server with all of them, and nothing in between that filters."
      : `ACL SETUSER ${user} ~${PREFIX}* &${PREFIX}* ${grants}`,
  };
}

const NO_COMMAND = "the server has no such command";

/** Null when it was not for want of a right: other findings are about that. */
function lackOf(refused: string): string | null {
  if (/unknown command/i.test(refused)) return NO_COMMAND;
  if (!/NOPERM/.test(refused)) return null;
  if (/channel/.test(refused)) return `not on channels ${PREFIX}*`;
  if (/keys/.test(refused)) return `not on keys ${PREFIX}*`;
  return "not at all";
}

/** What lies under our prefix: names in use, and what is not ours or can't be read. */
async function keysOf(
  connection: Connection,
  servers: readonly OneServer[],
): Promise<readonly Finding[]> {
  const about = "keys";
  const strangers: string[] = [];
  const broken: string[] = [];
  const names = new Set<string>();
  let complete = true;
  for (const server of servers) {
    const { keys, end } = await scan(server);
    if (typeof end === "string") {
      const what = `what lies under ${PREFIX}* (SCAN is refused: ${codeOf(end)})`;
      return [{ about, level: "unknown", what }];
    }
    complete &&= end;
    for (const key of keys) {
      const name = nameOfKey(key);
      if (key.includes("}n:") && keyOf(name) === key) names.add(name);
      else if (!/^holdfast:\{\d+\}last$/.test(key)) strangers.push(key);
      else if (!(await isCounter(server, key))) broken.push(key);
    }
  }
  const looked = [...names].slice(0, MOST_NAMES);
  for (let i = 0; i < looked.length; i += NAMES_AT_ONCE) {
    const some = looked.slice(i, i + NAMES_AT_ONCE);
    const readable = await Promise.all(some.map((name) => isReadable(connection, name)));
    broken.push(...some.filter((_, at) => !readable[at]));
  }
  const most = complete ? "" : ", of those found in time";
  const checked = names.size > MOST_NAMES ? `, ${MOST_NAMES} of them looked at` : "";
  const findings: Finding[] = [
    { about, level: "ok", what: `names in use: ${names.size}${checked}${most}` },
  ];
  if (broken.length > 0) {
    findings.unshift({
      about,
      level: "danger",
      what: `kept in another format or type, so that they can't be locked: ${listed(broken)}`,
      advice: "Use the version of Holdfast that wrote them; if it was none, delete them.",
    });
  }
  if (strangers.length > 0) {
    findings.push({
      about,
      level: "note",
      what: `keys under ${PREFIX}* that are not Holdfast's: ${listed(strangers)}`,
      advice: "Whoever wrote them may also write over locks: use another prefix there.",
    });
  }
  return findings;
}

/** `end`: whether it came to it; a text: why not at all. */
async function scan(
  server: OneServer,
): Promise<{ keys: ReadonlySet<string>; end: boolean | string }> {
  const keys = new Set<string>();
  const until = performance.now() + SCAN_MS;
  let cursor = "0";
  do {
    const answer = await ask(server, "SCAN", cursor, "MATCH", `${PREFIX}*`, "COUNT", SCAN_COUNT);
    if ("refused" in answer) return { keys, end: answer.refused };
    const [next, page] = answer.reply as [string, string[]];
    for (const key of page) keys.add(key);
    cursor = String(next);
  } while (cursor !== "0" && performance.now() < until);
  return { keys, end: cursor === "0" };
}

const listed = (keys: readonly string[]): string => {
  const shown = keys.slice(0, MOST_SHOWN).map((key) => JSON.stringify(key));
  const more = keys.length - shown.length;
  return `${shown.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
};

/** By the store's own script. What it may not do is another finding. */
async function isReadable(connection: Connection, name: string): Promise<boolean> {
  const keys = [keyOf(name), counterOf(name)];
  const answer = await answerOf("EVALSHA", connection.run(SCRIPTS.inspect, keys, ["0"]));
  if (!("refused" in answer)) return true;
  const { refused } = answer;
  return !/user_script|WRONGTYPE/.test(refused) || /user executing the script/.test(refused);
}

/** A number within what Lua can count. */
async function isCounter(server: OneServer, key: string): Promise<boolean> {
  const answer = await ask(server, "GET", key);
  if ("refused" in answer) return !/WRONGTYPE/.test(answer.refused);
  // It may have run out by now.
  const text = answer.reply;
  return text === null || (/^\d+$/.test(String(text)) && Number(text) < HIGHEST_TOKEN);
}

/** Who can reach it without a password, and who can listen. */
async function accessOf(url: StoreUrl, { info, config }: Facts): Promise<Finding[]> {
  const about = "access";
  const local = url.hosts.every(({ host }) => isLoopback(host));
  const findings: Finding[] = [];
  const open = await letsAnyoneIn(url);
  const advice = "Set a password or ACL users, and let only the machines that need it connect.";
  const everybody = "whoever reaches the server can take, free and delete locks";
  if (open === false) {
    findings.push({ about, level: "ok", what: "nobody gets in without a password" });
  } else if (open !== true) {
    const what = `whether one gets in without a password (${open})`;
    findings.push({ about, level: "unknown", what });
  } else if (!local) {
    const what = `no password is needed: ${everybody}`;
    findings.push({ about, level: "danger", what, advice });
  } else if (typeof config === "string") {
    const what = `no password is needed from this machine; whether it is from others (${config})`;
    findings.push({ about, level: "unknown", what, advice });
  } else {
    const shut = isShutToOthers(info, config);
    findings.push(
      shut
        ? { about, level: "ok", what: "no password is needed, but only this machine can connect" }
        : {
            about,
            level: "danger",
            what: `no password is needed, and others than this machine can connect (bind ${config.get("bind") || "*"}): ${everybody}`,
            advice,
          },
    );
  }
  if (!local && url.scheme === "redis") {
    findings.push({
      about: "transport",
      level: "note",
      what: "the connection is not encrypted: who listens on the way learns passwords, and what proves ownership of leases",
      advice: "Use rediss: unless the network is your own.",
    });
  }
  return findings;
}

/** Before version 7, protected mode counted only where no address was named. */
function isShutToOthers(info: Info | string, config: Info): boolean {
  const addresses = (config.get("bind") ?? "").split(" ").filter((one) => one !== "");
  if (addresses.length > 0 && addresses.every((one) => isLoopback(one.replace(/^-/, ""))))
    return true;
  const [major] = typeof info === "string" ? [Number.NaN] : versionOf(info);
  return config.get("protected-mode") === "yes" && (major >= 7 || addresses.length === 0);
}

const isLoopback = (host: string): boolean => /^(localhost|127(\.\d+){3}|::1)$/i.test(host);

/** A text: it can't be told, and why. */
async function letsAnyoneIn(url: StoreUrl): Promise<boolean | string> {
  if (url.user === "" && url.password === "") return true;
  try {
    const anybody = openRedisClient({ ...url, user: "", password: "" });
    const nobody = connectionOf(await inTime("a new connection", anybody, OPEN_MS));
    try {
      const [server] = await nobody.servers();
      const answer = await ask(server!, "PING");
      return !("refused" in answer && /NOAUTH/.test(answer.refused));
    } finally {
      await nobody.close().catch(() => {});
    }
  } catch (error) {
    return /NOAUTH/.test(reasonOf(error)) ? false : reasonOf(error);
  }
}

/** Rejects if the server does not answer; that it says no is an answer. */
const ask = (server: OneServer, ...command: readonly string[]): Promise<Answer> =>
  answerOf(command[0]!, server.command(...command));

async function answerOf(what: string, answering: Promise<unknown>): Promise<Answer> {
  try {
    return { reply: await inTime(what, answering) };
  } catch (error) {
    // The server's own words begin with a code; a client's do not.
    const text = reasonOf(error);
    if (HoldfastError.is(error) || !/^-?[A-Z]+ /.test(text)) throw error;
    return { refused: text };
  }
}

async function inTime<T>(what: string, answering: Promise<T>, ms = ANSWER_MS): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      const text = `the Redis server accepts connections, but gave no answer to ${what} within ${ms} ms`;
      reject(new StoreUnavailableError(text));
    }, ms);
  });
  try {
    return await Promise.race([answering, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Lines such as `role:master`. */
function fieldsOf(text: string): Map<string, string> {
  const lines = text.split(/\r?\n/).filter((line) => /^\w+:/.test(line));
  return new Map(lines.map((line) => /^(\w+):(.*)$/.exec(line)!.slice(1) as [string, string]));
}

/** A list in turns, or an object, as the client has it. */
function pairsOf(reply: unknown): [string, string][] {
  if (!Array.isArray(reply)) {
    const entries = reply instanceof Map ? [...reply] : Object.entries(reply as object);
    return entries.map(([key, value]) => [String(key), String(value)]);
  }
  return reply.flatMap((key, i): [string, string][] =>
    i % 2 === 0 ? [[String(key), String(reply[i + 1])]] : [],
  );
}
