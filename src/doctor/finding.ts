import { reasonOf } from "../core/cause.js";
import { HoldfastError } from "../core/errors.js";
import type { Store } from "../core/store.js";

/** One fact about a store that matters to locks: what can go wrong, and what helps. */
export interface Finding {
  /** The subject of the check, in a word that stays the same. */
  readonly about: string;
  readonly level: Level;
  readonly what: string;
  readonly advice?: string;
  /** The servers that it is about, if it is not about all of several. */
  readonly where?: string;
}

/**
 * `danger`: a name can be granted twice, leases can be lost, or nothing can be locked. `unknown`: it
 * could not be checked. `note`: a lesser risk, or something slow. `ok`: as it should be.
 */
export type Level = "danger" | "unknown" | "note" | "ok";

/** Tries the store out with a name of its own, and closes it. */
export type Trial = (store: Store) => Promise<Finding>;

const builder =
  (level: Level) =>
  (about: string, what: string, advice?: string): Finding => ({
    about,
    level,
    what,
    ...(advice === undefined ? {} : { advice }),
  });

export const danger = builder("danger");
export const unknown = builder("unknown");
export const note = builder("note");
export const ok = builder("ok");

/** The advice for a trial that failed: the cause is mostly found by another check. */
export const SEE_OTHERS = "Another finding here often names the cause.";

/** Names the servers that a finding is about, unless it is about all of them. */
export const at = (
  finding: Finding,
  servers: readonly string[],
  all: readonly unknown[],
): Finding => (servers.length === all.length ? finding : { ...finding, where: servers.join(", ") });

/** Merges the findings of several servers: one that is the same on some of them is reported once. */
export function mergeServers(
  found: readonly (readonly Finding[])[],
  servers: readonly string[],
): readonly Finding[] {
  const places = new Map<string, { finding: Finding; where: string[] }>();
  for (const [i, findings] of found.entries()) {
    for (const finding of findings) {
      const key = JSON.stringify(finding);
      const place = places.get(key) ?? { finding, where: [] };
      place.where.push(servers[i]!);
      places.set(key, place);
    }
  }
  return [...places.values()].map(({ finding, where }) => at(finding, where, servers));
}

type Result = Finding | readonly Finding[];

/**
 * Runs one check. If it throws, its subject is unknown, and the other checks still run. A store that
 * no longer answers is no finding: then the examination as a whole rejects.
 */
export async function check(
  about: string,
  run: () => Result | Promise<Result>,
): Promise<readonly Finding[]> {
  try {
    return [await run()].flat();
  } catch (error) {
    if (HoldfastError.is(error) && error.code === "STORE_UNAVAILABLE") throw error;
    return [unknown(about, `this could not be checked: ${reasonOf(error)}`)];
  }
}
