import { randomUUID } from "node:crypto";
import {
  type Finding,
  isLoopback,
  megabytes,
  percent,
  reasonOf,
  tryOut,
} from "../../core/doctor.js";
import type { StoreUrl } from "../../core/url.js";
import { PREFIX } from "./keys.js";
import { OURS, openEtcdClientOf, openEtcdStore, reach, why } from "./open.js";
import type { EndpointStatus, EtcdClient } from "./rpc/client.js";
import { Code, EtcdError } from "./rpc/errors.js";
import type { ClusterMember } from "./rpc/messages.js";
import { confinedSince, flawsOf, lineOf, votersOf } from "./versions.js";

const ANSWER_MS = 2_000;
const PUTS = 7;
const SLOW_MS = 100;
/** What is left behind by a doctor that dies goes with it. */
const PROBE_TTL_S = 10;
/** Twice does no harm, and a change of leader is another finding. */
const AGAIN = { again: true };
const NEARLY_FULL = 0.9;
const DEFAULT_QUOTA = 2 * 2 ** 30;

type Answered = Extract<EndpointStatus, { error?: undefined }>;

/** What endpoints tell about themselves and their cluster, at the beginning and at the end. */
export interface Looks {
  readonly first: readonly EndpointStatus[];
  readonly last: readonly EndpointStatus[];
  /** A text instead: why it is not told. */
  readonly members: readonly ClusterMember[] | string;
}

/** What endangers locks on a cluster of etcd. */
export async function examineEtcd(url: StoreUrl): Promise<readonly Finding[]> {
  const client = await openEtcdClientOf(url);
  try {
    const unusable = await whyUnusable(client, url);
    const first = await client.status();
    const members = await client
      .memberList({ timeoutMs: ANSWER_MS })
      .catch((error: EtcdError) => why(error, url));
    const probed = unusable === null || isDenied(unusable) ? await probe(client, url) : [];
    const trial =
      unusable === null ? await openEtcdStore(url).then(tryOut, lockless) : lockless(unusable);
    const looks = { first, last: await client.status(), members };
    return [...judge(looks, url), ...probed, trial, ...(await accessOf(url, members))];
  } finally {
    await client.close();
  }
}

/** Null if it can be used. Rejects where there is nothing to look at. */
async function whyUnusable(client: EtcdClient, url: StoreUrl): Promise<Error | null> {
  try {
    await reach(client, url);
    return null;
  } catch (error) {
    const { cause } = error as Error;
    const isAlive = async (): Promise<boolean> =>
      (await client.status()).some((one) => one.error === undefined);
    if (cause instanceof EtcdError && (isDenied(cause) || (cause.moves && (await isAlive())))) {
      return error as Error;
    }
    throw error;
  }
}

const isDenied = (error: Error): boolean =>
  (error instanceof EtcdError ? error : (error.cause as EtcdError)).grpcCode ===
  Code.PERMISSION_DENIED;

const lockless = (error: Error): Finding => ({
  about: "trial",
  level: "danger",
  what: `nothing can be locked: ${error.message}`,
  advice: "What stands in the way is often another finding here.",
});

/** What follows from what the endpoints tell. */
export function judge({ first, last, members }: Looks, url: StoreUrl): Finding[] {
  const answered = last.filter((one): one is Answered => one.error === undefined);
  const voters = typeof members === "string" ? null : votersOf(members);
  const most = voters?.length ?? url.hosts.length;
  // They all went while they were looked at.
  if (answered.length === 0) return endpoints(last, most, url);
  return [
    ...versions(answered, voters?.length ?? null),
    ...roles(answered, url),
    ...endpoints(last, most, url),
    ...leaders(answered),
    elections(first, answered),
    ...(voters === null
      ? [unknownMembers(members as string)]
      : membership(voters, answered, url.hosts.length)),
    ...space(answered),
  ];
}

function versions(answered: readonly Answered[], voters: number | null): Finding[] {
  const about = "version";
  const distinct = [...new Set(answered.map(({ version }) => version))];
  const findings = distinct.map((version): Finding => {
    const where = placesOf(
      answered,
      answered.filter((one) => one.version === version),
    );
    return { ...versionOf(version, voters), ...where };
  });
  if (distinct.length > 1) {
    findings.push({
      about,
      level: "note",
      what: `the members' versions differ: ${distinct.sort().join(", ")}`,
      advice: "Finish the upgrade: until then the cluster works as its oldest member does.",
    });
  }
  return findings;
}

function versionOf(version: string, voters: number | null): Finding {
  const about = "version";
  const { line } = lineOf(version);
  if (line === "") {
    return { about, level: "unknown", what: `"${version}" is none; 3.4 or later is needed` };
  }
  const [major, minor] = line.split(".").map(Number) as [number, number];
  if (major < 3 || (major === 3 && minor < 4)) {
    return {
      about,
      level: "danger",
      what: `etcd ${version} is too old: Holdfast is made for 3.4 or later`,
      advice: "Upgrade etcd.",
    };
  }
  const { flaws, since } = flawsOf(version, voters);
  if (flaws.length === 0) return { about, level: "ok", what: `etcd ${version}` };
  return {
    about,
    level: "danger",
    what: `etcd ${version}: ${flaws.join("; ")}`,
    advice: `Upgrade etcd to ${since} or later.`,
  };
}

/** Only where there are users: without them, anyone may do everything. */
function roles(answered: readonly Answered[], { user, options }: StoreUrl): Finding[] {
  if (user === "" && !options.has("cert")) return [];
  const since = answered.map(({ version }) => confinedSince(version)).find((one) => one !== null);
  if (since === undefined) return [];
  return [
    {
      about: "roles",
      level: "note",
      what: "they keep nobody from other keys: on this version any user can read and write all keys by a transaction inside a transaction (GHSA-rfx7-8w68-q57q)",
      advice: `Upgrade etcd to ${since} or later, or keep data that others must not touch in another cluster.`,
    },
  ];
}

/** Said only where it is not so of all. */
const placesOf = (all: readonly unknown[], some: readonly { endpoint: string }[]) =>
  some.length === all.length ? {} : { where: some.map(({ endpoint }) => endpoint).join(", ") };

function endpoints(all: readonly EndpointStatus[], members: number, url: StoreUrl): Finding[] {
  const about = "endpoints";
  const silent = all.flatMap(({ endpoint, error }) =>
    error === undefined ? [] : [{ endpoint, error }],
  );
  if (silent.length === 0) {
    return [{ about, level: "ok", what: all.length === 1 ? "it answers" : "all answer" }];
  }
  const spare = Math.floor((members - 1) / 2) - silent.length;
  const then =
    spare > 0
      ? "the others are a majority, and can do without another"
      : "if another goes, nothing can be locked or renewed, and leases are lost";
  return silent.map(({ endpoint, error }) => ({
    about,
    level: spare > 0 ? "note" : "danger",
    what: `it does not answer (${why(error, url)}); ${then}`,
    advice: "Start it, or name the right endpoints in the URL.",
    where: endpoint,
  }));
}

function leaders(answered: readonly Answered[]): Finding[] {
  const about = "leader";
  const findings: Finding[] = [];
  const without = answered.filter(({ leader }) => leader === 0n);
  const led = new Set(answered.flatMap(({ leader }) => (leader === 0n ? [] : [leader])));
  if (without.length > 0) {
    findings.push({
      about,
      level: "danger",
      what:
        without.length === answered.length
          ? "there is none: nothing can be locked or renewed, and leases are lost"
          : "it has none: it is cut off from the others, and refuses everything",
      advice: "Start the other members, or mend the network between them: a majority is needed.",
      ...placesOf(answered, without),
    });
  }
  if (led.size > 1) {
    findings.push({
      about,
      level: "danger",
      what: "the members do not agree who leads: one of them is cut off or hangs",
      advice: "See the members' logs, and the network between them.",
    });
  }
  const learners = answered.filter(({ isLearner }) => isLearner);
  if (learners.length > 0) {
    findings.push({
      about,
      level: "note",
      what: "a learner: it refuses what locks need, until it is promoted",
      advice: "Leave it out of the URL.",
      ...placesOf(answered, learners),
    });
  }
  if (findings.length > 0) return findings;
  return [{ about, level: "ok", what: "the cluster has one" }];
}

function elections(first: readonly EndpointStatus[], last: readonly Answered[]): Finding {
  const about = "elections";
  const terms = (all: readonly EndpointStatus[]): bigint =>
    all.reduce((most, one) => (one.error === undefined && one.term > most ? one.term : most), 0n);
  const [before, after] = [terms(first), terms(last)];
  if (before === after) {
    return { about, level: "ok", what: `none while it was looked at (term ${after})` };
  }
  return {
    about,
    level: "danger",
    what: `the leader changed or was sought while it was looked at (term ${before}, then ${after}): if that goes on, renewals come late and leases are lost`,
    advice:
      "See the members' logs: a slow disk, a slow network, or an --election-timeout that is too short for them.",
  };
}

const unknownMembers = (reason: string): Finding => ({
  about: "members",
  level: "unknown",
  what: `how many the cluster has (${reason})`,
});

function membership(
  voters: readonly ClusterMember[],
  answered: readonly Answered[],
  named: number,
): Finding[] {
  const about = "members";
  const findings: Finding[] = [];
  const note = (what: string, advice: string): void => {
    findings.push({ about, level: "note", what, advice });
  };
  const count = voters.length;
  if (count === 1) {
    note(
      "a cluster of one: while it is away nothing can be locked or renewed, and leases are lost",
      "Three members do without any one of them.",
    );
  } else if (count % 2 === 0) {
    note(
      `a cluster of ${count}: it can do without ${count / 2 - 1}, as one of ${count - 1} could, and more can go wrong`,
      "Have an odd number of members.",
    );
  }
  const unstarted = voters.filter(({ name }) => name === "").length;
  if (unstarted > 0) {
    note(
      `${unstarted} of ${count} were added and have never been started: they count for the majority all the same`,
      "Start them, or remove them: etcdctl member list.",
    );
  }
  if (named === 1 && count > 1) {
    const all = voters.flatMap(({ clientUrls }) => clientUrls.slice(0, 1)).map(hostOf);
    note(
      `the URL names one endpoint of a cluster of ${count}: when that is away, so are the locks, unless something behind it chooses among all`,
      `Name all of them: ${all.join(",")}`,
    );
  }
  const ids = answered.map(({ member }) => member);
  const again = answered.filter(({ member }, at) => ids.indexOf(member) !== at);
  if (again.length > 0) {
    findings.push({
      about,
      level: "note",
      what: "another endpoint of the URL names the same member. If they are different servers, each is a cluster by itself that calls itself by the default address, and names are granted twice",
      advice: "Name each member once; give servers their own --initial-advertise-peer-urls.",
      where: again.map(({ endpoint }) => endpoint).join(", "),
    });
  }
  return findings.length > 0 ? findings : [{ about, level: "ok", what: `${count}` }];
}

const hostOf = (clientUrl: string): string => clientUrl.replace(/^\w+:\/\//, "");

function space(answered: readonly Answered[]): Finding[] {
  const about = "space";
  const alarms = [
    ...new Set(answered.flatMap(({ errors }) => errors.flatMap((text) => alarmOf(text) ?? []))),
  ];
  const findings = alarms.map((alarm): Finding => {
    if (alarm === "NOSPACE") {
      return {
        about,
        level: "danger",
        what: "its quota is used up (alarm NOSPACE): grants are refused, and nothing can be locked until the alarm is disarmed",
        advice: "Compact, defragment and disarm: etcdctl compact, defrag, alarm disarm.",
      };
    }
    return {
      about: "alarm",
      level: "danger",
      what: `the cluster has raised the alarm ${alarm}: members may differ in what they keep, so that a name is granted twice`,
      advice: "See etcdctl alarm list, and etcd's guide on data corruption.",
    };
  });
  if (alarms.includes("NOSPACE")) return findings;
  const sizes = answered.map((one) => sizeOf(one, answered));
  const full = sizes.filter(({ level }) => level !== "ok");
  if (full.length > 0) return [...findings, ...full];
  const sized = answered.map(({ dbSize }) => Number(dbSize));
  const { where: _, ...largest } = sizes[sized.indexOf(Math.max(...sized))]!;
  return [...findings, largest];
}

/** Such as `memberID:123 alarm:NOSPACE`. */
const alarmOf = (text: string): string | undefined => /alarm:\s*(\w+)/.exec(text)?.[1];

function sizeOf(
  { endpoint, dbSize, dbSizeQuota }: Answered,
  { length }: readonly Answered[],
): Finding {
  const about = "space";
  const where = length > 1 ? { where: endpoint } : {};
  const used = Number(dbSize);
  if (dbSizeQuota < 0n) {
    return { about, level: "ok", what: `${megabytes(used)} are used; there is no quota`, ...where };
  }
  const told = dbSizeQuota > 0n;
  const quota = told ? Number(dbSizeQuota) : DEFAULT_QUOTA;
  const which = told
    ? `of its quota (${megabytes(quota)})`
    : `of the default quota (${megabytes(quota)}; versions before 3.6 do not tell whether theirs is another)`;
  const what = `${megabytes(used)}, ${percent(used, quota)} ${which}, are used`;
  if (used < NEARLY_FULL * quota) return { about, level: "ok", what, ...where };
  return {
    about,
    level: told ? "danger" : "note",
    what: `${what}: when it is used up, grants are refused, and nothing can be locked`,
    advice: "Compact and defragment, or raise --quota-backend-bytes.",
    ...where,
  };
}

/** Rights and latency, by writes to a key of its own under our prefix. */
async function probe(client: EtcdClient, url: StoreUrl): Promise<Finding[]> {
  const key = `${PREFIX}doctor/${randomUUID()}`;
  const lacking = new Map<string, string>();
  const tried = async <T>(what: string, asked: Promise<T>): Promise<T | null> => {
    try {
      return await asked;
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error;
      lacking.set(what, why(error, url));
      return null;
    }
  };
  await tried("read", client.range({ ...OURS, countOnly: true }));
  const lease = await tried("grant leases", client.leaseGrant(PROBE_TTL_S));
  const trips: number[] = [];
  try {
    for (let i = 0; i < PUTS && lacking.size === 0; i++) {
      const from = performance.now();
      const put = { key, value: "", lease: lease!.id };
      await tried("write", client.txn({ success: [{ put }] }, AGAIN));
      trips.push(performance.now() - from);
    }
    if (lease !== null && lacking.size === 0) {
      await tried("renew leases", client.leaseKeepAlive(lease.id));
      await tried("delete", client.txn({ success: [{ delete: { key } }] }, AGAIN));
    }
  } finally {
    if (lease !== null) await tried("revoke leases", client.leaseRevoke(lease.id));
  }
  return lacking.size > 0 ? [rights(lacking, url)] : [rights(lacking, url), latency(trips)];
}

function rights(lacking: ReadonlyMap<string, string>, { user }: StoreUrl): Finding {
  const about = "rights";
  if (lacking.size === 0) {
    return { about, level: "ok", what: `keys under ${PREFIX} can be read, written and deleted` };
  }
  const what = [...lacking].map(([right, reason]) => `${right} (${reason})`).join("; ");
  const denied = [...lacking.values()].some((reason) => /permission denied/.test(reason));
  return {
    about: denied ? about : "writes",
    level: "danger",
    what: `${user === "" ? "it was" : `the user "${user}" was`} not able to ${what}`,
    ...(denied && {
      advice: `etcdctl role grant-permission ROLE --prefix=true readwrite ${PREFIX}`,
    }),
  };
}

function latency(trips: number[]): Finding {
  const about = "latency";
  trips.sort((a, b) => a - b);
  const median = trips[trips.length >> 1]!;
  const what = `a write takes ${median.toFixed(1)} ms (the slowest of ${trips.length} took ${trips.at(-1)!.toFixed(1)} ms)`;
  if (median < SLOW_MS) return { about, level: "ok", what };
  return {
    about,
    level: "note",
    what: `${what}: on a slow disk or network, members lose their leader and leases their renewals`,
    advice: `Give etcd a fast disk of its own, and leases a ttl of ${Math.ceil((100 * median) / 1_000)} s or more.`,
  };
}

/** Who can reach it without being known, and who can listen. */
async function accessOf(
  url: StoreUrl,
  members: readonly ClusterMember[] | string,
): Promise<Finding[]> {
  const about = "access";
  const named = url.hosts.every(({ host }) => isLoopback(host));
  const advertised = typeof members === "string" ? [] : members.flatMap((one) => one.clientUrls);
  const beyond = advertised.filter((text) => !isLoopback(hostOf(text).replace(/:\d+\/?$/, "")));
  const open = await letsAnyoneIn(url);
  const findings: Finding[] = [];
  if (typeof open === "string") {
    findings.push({ about, level: "unknown", what: `whether anyone gets in (${open})` });
  } else if (!open) {
    findings.push({ about, level: "ok", what: "nobody gets in without a user or a certificate" });
  } else if (named && beyond.length === 0) {
    const what = "anyone gets in, but it tells clients to come from this machine alone";
    findings.push({ about, level: "ok", what });
  } else {
    const where = named ? ` (at ${beyond.map(hostOf).join(", ")})` : "";
    const unchecked =
      url.user === "" ? "" : `; the user in the URL, "${url.user}", is not checked at all`;
    findings.push({
      about,
      level: "danger",
      what: `authentication is off: anybody who reaches it${where} can take, free and delete locks${unchecked}`,
      advice: "Make users and roles and etcdctl auth enable, or ask for certificates of clients.",
    });
  }
  if (!named && !url.options.has("tls")) {
    findings.push({
      about: "transport",
      level: "note",
      what: "the connection is not encrypted: anybody on the network path can read passwords, and the grantIds that prove ownership of leases",
      advice: "Use tls=1 unless the network is your own.",
    });
  }
  return findings;
}

/** A text: it can't be told, and why. */
async function letsAnyoneIn(url: StoreUrl): Promise<boolean | string> {
  const known = ["cert", "key"];
  const options = new Map([...url.options].filter(([name]) => !known.includes(name)));
  const nobody = await openEtcdClientOf({ ...url, user: "", password: "", options });
  try {
    await nobody.range({ ...OURS, countOnly: true }, { timeoutMs: ANSWER_MS });
    return true;
  } catch (error) {
    if (!(error instanceof EtcdError)) throw error;
    const isRefused = /user name is empty|permission denied/.test(error.message);
    // With ours it was connected to, without it is not.
    if (isRefused || (url.options.has("cert") && error.executed === "no")) return false;
    return reasonOf(error);
  } finally {
    await nobody.close();
  }
}
