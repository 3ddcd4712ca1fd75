import type { Traits } from "../../core/store.js";
import type { EndpointStatus, EtcdClient } from "./rpc/client.js";
import type { ClusterMember } from "./rpc/messages.js";

interface Flaw {
  /** The first patch of each line that is without it; later lines are without it, too. */
  readonly fixed: readonly (readonly [line: string, patch: number])[];
  readonly counts: (voters: number) => boolean;
  readonly what: string;
}

/** By etcd's own change logs; of those that lose or give away a lock, not of all that was ever repaired. */
const FLAWS: readonly Flaw[] = [
  {
    fixed: [["3.5", 3]],
    counts: () => true,
    what: "members that were killed can come back with other data than the rest, so that a name is granted twice",
  },
  {
    fixed: [
      ["3.4", 21],
      ["3.5", 5],
    ],
    counts: (voters) => voters === 1,
    what: "a cluster of one can lose what it has acknowledged when it crashes, and grant a name again",
  },
  {
    fixed: [
      ["3.4", 31],
      ["3.5", 13],
    ],
    counts: (voters) => voters > 1,
    what: "a leader that hung, as on a slow disk, can revoke leases that are alive when it comes back: names are granted again while they are held (etcd issue 15247)",
  },
];

/** The first patches that check the rights of transactions inside a transaction. */
const CONFINING: Flaw["fixed"] = [
  ["3.4", 42],
  ["3.5", 28],
  ["3.6", 9],
];

/** The patch that a version lacks before a role keeps its users to its keys; null if it does. */
export function confinedSince(version: string): string | null {
  const { line, patch } = lineOf(version);
  const fixed = CONFINING.find(([of, since]) => of === line && patch < since);
  return fixed === undefined ? null : `${line}.${fixed[1]}`;
}

/**
 * The faults of a version in a cluster of so many voting members, and the first patch without them.
 * Null voters: the number is not known, and every fault of the version counts.
 */
export function flawsOf(
  version: string,
  voters: number | null,
): { flaws: string[]; since: string } {
  const { line, patch } = lineOf(version);
  const found = FLAWS.filter(
    ({ fixed, counts }) =>
      (voters === null || counts(voters)) &&
      fixed.some(([of, since]) => of === line && patch < since),
  );
  const since = Math.max(...found.map(({ fixed }) => fixed.find(([of]) => of === line)?.[1] ?? 0));
  return { flaws: found.map(({ what }) => what), since: `${line}.${since}` };
}

const MEMBERS_MS = 2_000;
const UNKNOWN_VERSION =
  "a fault of the servers' version, if it has one: no server has told its version yet";
const SEVERAL_CLUSTERS =
  "a change of the connection: the endpoints belong to different clusters of etcd";

/** The members that vote. */
export const votersOf = (members: readonly ClusterMember[]): ClusterMember[] =>
  members.filter(({ isLearner }) => !isLearner);

/** Faults under which this cluster grants a name twice; null if no endpoint has answered. */
export async function faultsOf(
  client: EtcdClient,
  asked: Promise<readonly EndpointStatus[]> = client.status(),
): Promise<readonly string[] | null> {
  // A server may refuse the list to this user.
  const listed = client.memberList({ timeoutMs: MEMBERS_MS }).catch(() => null);
  const [statuses, members] = await Promise.all([asked, listed]);
  const answered = statuses.filter((one) => one.error === undefined);
  if (answered.length === 0) return null;
  const voters = members === null ? null : votersOf(members).length;
  const flaws = answered.flatMap(({ version }) => flawsOf(version, voters).flaws);
  const clusters = new Set(answered.map(({ cluster }) => cluster));
  return [...new Set(clusters.size > 1 ? [SEVERAL_CLUSTERS, ...flaws] : flaws)];
}

/** The traits of the cluster behind a client. Members can be added and exchanged, so it is asked again. */
export class ClusterTraits {
  readonly #client: EtcdClient;
  #current: Traits;
  #asking: Promise<void> | null = null;
  #askAgain = false;

  constructor(client: EtcdClient, base: Traits, faults: readonly string[] = [UNKNOWN_VERSION]) {
    this.#client = client;
    this.#current = { ...base, grantsTwiceAfter: faults };
  }

  get current(): Traits {
    return this.#current;
  }

  /** Asks for the faults; keeps what was known if no endpoint answers. */
  update(): void {
    this.#askAgain = this.#asking !== null;
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = null;
      if (this.#askAgain) this.update();
    });
  }

  async #ask(): Promise<void> {
    const faults = await faultsOf(this.#client);
    if (faults !== null) this.#current = { ...this.#current, grantsTwiceAfter: faults };
  }
}

export function lineOf(version: string): { line: string; patch: number } {
  const [, line = "", patch = ""] = /^(\d+\.\d+)\.(\d+)/.exec(version) ?? [];
  return { line, patch: Number(patch) };
}
