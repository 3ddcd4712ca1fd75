import type { Traits } from "../../core/store.js";
import { type EndpointStatus, type EtcdClient, repliedOf } from "./rpc/client.js";
import type { ClusterMember } from "./rpc/messages.js";

/** Flaws that depend on a fault of a cluster. */
export type FlawName = "revokes living leases" | "brings back refused claims";

interface Flaw {
  readonly name?: FlawName;
  /** For each release line with the flaw, the first version without it; other lines do not have it. */
  readonly fixed: Readonly<Record<string, Version>>;
  /** Whether a cluster with this many voting members has it. */
  readonly appliesTo: (voters: number) => boolean;
  readonly what: string;
}

type Version = `${number}.${number}.${number}`;

/**
 * Only flaws that lose a lock or grant it twice: from etcd's own change logs, and one that
 * test/stores/etcd/refused-claims.faults.test.ts shows on real servers.
 */
const FLAWS: readonly Flaw[] = [
  {
    fixed: { "3.5": "3.5.3" },
    appliesTo: () => true,
    what: "members that were killed can come back with other data than the rest, so that a name is granted twice",
  },
  {
    fixed: { "3.4": "3.4.21", "3.5": "3.5.5" },
    appliesTo: (voters) => voters === 1,
    what: "a cluster of one can lose what it has acknowledged when it crashes, and grant a name again",
  },
  {
    name: "revokes living leases",
    fixed: { "3.4": "3.4.31", "3.5": "3.5.13" },
    appliesTo: (voters) => voters > 1,
    what: "a leader that hung, as on a slow disk, can revoke leases that are alive when it comes back: names are granted again while they are held (etcd issue 15247)",
  },
  {
    name: "brings back refused claims",
    fixed: { "3.4": "3.5.13" },
    appliesTo: (voters) => voters > 1,
    what: "a member that is killed after the alarm NOSPACE was disarmed can come back with claims that the other members refused: tokens differ from member to member, and names are granted twice",
  },
];

/**
 * The flaws of a version in a cluster with this many voting members, and the first version without them.
 * Null voters: their number is not known, and every flaw of the version counts.
 */
export function flawsOf(
  version: string,
  voters: number | null,
): { flaws: string[]; since: string; names: FlawName[] } {
  const { line } = lineOf(version);
  const found = FLAWS.flatMap(({ fixed, appliesTo, what, name }) => {
    const since = fixed[line];
    const isFlawed = since !== undefined && isBefore(version, since);
    return isFlawed && (voters === null || appliesTo(voters)) ? [{ since, what, name }] : [];
  });
  const since = found.map((one) => one.since).reduce((a, b) => (isBefore(a, b) ? b : a), "0.0.0");
  const names = found.flatMap(({ name }) => (name === undefined ? [] : [name]));
  return { flaws: found.map(({ what }) => what), since, names };
}

function isBefore(version: string, other: string): boolean {
  const [one, two] = [lineOf(version), lineOf(other)];
  return one.line === two.line
    ? one.patch < two.patch
    : Number(one.line.slice(2)) < Number(two.line.slice(2));
}

const MEMBERS_MS = 2_000;
const UNKNOWN_VERSION =
  "a fault of the servers' version, if it has one: no server has told its version yet";
const SEVERAL_CLUSTERS =
  "a change of the connection: the endpoints belong to different clusters of etcd";

/** The members that vote. */
export const votersOf = (members: readonly ClusterMember[]): ClusterMember[] =>
  members.filter(({ isLearner }) => !isLearner);

/** Faults under which this cluster grants a name twice; null if no endpoint replied. */
export async function faultsOf(
  client: EtcdClient,
  reading: Promise<readonly EndpointStatus[]> = client.status(),
): Promise<readonly string[] | null> {
  // A server may refuse the list of members to this user.
  const listed = client.memberList({ timeoutMs: MEMBERS_MS }).catch(() => null);
  const [statuses, members] = await Promise.all([reading, listed]);
  const answered = repliedOf(statuses);
  if (answered.length === 0) return null;
  const voters = members === null ? null : votersOf(members).length;
  const flaws = answered.flatMap(({ version }) => flawsOf(version, voters).flaws);
  const clusters = new Set(answered.map(({ cluster }) => cluster));
  return [...new Set(clusters.size > 1 ? [SEVERAL_CLUSTERS, ...flaws] : flaws)];
}

/** The traits of the cluster behind a client. Members can be added and replaced, so they are read again. */
export class ClusterTraits {
  readonly #client: EtcdClient;
  #current: Traits;
  #reading: Promise<void> | null = null;
  #readAgain = false;

  constructor(client: EtcdClient, base: Traits, faults: readonly string[] = [UNKNOWN_VERSION]) {
    this.#client = client;
    this.#current = { ...base, grantsTwiceAfter: faults };
  }

  get current(): Traits {
    return this.#current;
  }

  /** Reads the cluster's faults; the known ones stay if no endpoint replies. */
  update(): void {
    this.#readAgain = this.#reading !== null;
    this.#reading ??= this.#read().finally(() => {
      this.#reading = null;
      if (this.#readAgain) this.update();
    });
  }

  async #read(): Promise<void> {
    const faults = await faultsOf(this.#client);
    if (faults !== null) this.#current = { ...this.#current, grantsTwiceAfter: faults };
  }
}

export function lineOf(version: string): { line: string; patch: number } {
  const [, line = "", patch = ""] = /^(\d+\.\d+)\.(\d+)/.exec(version) ?? [];
  return { line, patch: Number(patch) };
}
