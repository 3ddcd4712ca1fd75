interface Flaw {
  /** The first of each line that is without it; later lines are. */
  readonly fixed: readonly (readonly [line: string, patch: number])[];
  readonly counts: (members: number) => boolean;
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
    counts: (members) => members === 1,
    what: "a cluster of one can lose what it has acknowledged when it crashes, and grant a name again",
  },
  {
    fixed: [
      ["3.4", 31],
      ["3.5", 13],
    ],
    counts: (members) => members > 1,
    what: "a leader that hung, as on a slow disk, can revoke leases that are alive when it comes back: names are granted again while they are held (etcd issue 15247)",
  },
];

/** Of a version in a cluster of so many members: what is wrong with it, and which version has it no more. */
export function flawsOf(version: string, members: number): { flaws: string[]; since: string } {
  const { line, patch } = lineOf(version);
  const found = FLAWS.filter(
    ({ fixed, counts }) =>
      counts(members) && fixed.some(([of, since]) => of === line && patch < since),
  );
  const since = Math.max(...found.map(({ fixed }) => fixed.find(([of]) => of === line)?.[1] ?? 0));
  return { flaws: found.map(({ what }) => what), since: `${line}.${since}` };
}

export function lineOf(version: string): { line: string; patch: number } {
  const [, line = "", patch = ""] = /^(\d+\.\d+)\.(\d+)/.exec(version) ?? [];
  return { line, patch: Number(patch) };
}
