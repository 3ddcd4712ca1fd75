import { Lab } from "../lab/lab.js";
import { missing } from "../lab/requirements.js";
import type { FaultKind } from "../runner/kinds.js";
import type { Target } from "../runner/target.js";
import { type Verification, type VerifyOptions, verify } from "../runner/verify.js";
import { givenTarget } from "./given.js";
import { LAB_TARGETS, type LabName } from "./index.js";

/** The name of a lab, or the URL of a user's store. */
export type Wanted = { readonly lab: LabName } | { readonly store: string };

/** Opens a target, and closes it and its servers afterwards. */
export async function withTarget<T>(
  wanted: Wanted,
  faults: readonly string[] | undefined,
  act: (target: Target) => Promise<T>,
): Promise<T> {
  if ("store" in wanted) return act(limited(await givenTarget(wanted.store), faults));
  const { needs, open } = LAB_TARGETS[wanted.lab];
  const lacking = missing(needs);
  if (lacking !== null) throw new Error(lacking.advice);
  await using lab = await Lab.open();
  await using target = await open(lab, missing(["faketime"]) === null);
  return await act(limited(target, faults));
}

/** Verifies a store that is started for it; `faults` as on the command line. */
export function verifyInLab(
  lab: LabName,
  {
    faults,
    ...options
  }: Partial<VerifyOptions> & { readonly faults?: readonly string[] | undefined },
): Promise<Verification> {
  return withTarget({ lab }, faults, (target) =>
    verify(target, { seed: 1, workers: 4, command: `holdfast verify --lab ${lab}`, ...options }),
  );
}

/** The same target with only these faults: by their names, or by the part that they hit. */
export function limited(target: Target, faults: readonly string[] | undefined): Target {
  if (faults === undefined) return target;
  const kinds = faults.includes("none") ? [] : target.kinds.filter((kind) => isNamed(kind, faults));
  return Object.create(target, { kinds: { value: kinds } }) as Target;
}

const isNamed = ({ name, hits }: FaultKind, faults: readonly string[]): boolean =>
  faults.includes(name) || faults.includes(hits);

/** The faults that the target does not have. */
export const unknownFaults = ({ kinds }: Target, faults: readonly string[]): readonly string[] =>
  faults.filter((one) => one !== "none" && !kinds.some((kind) => isNamed(kind, [one])));
