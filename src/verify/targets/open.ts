import { InvalidArgumentError, UnsupportedError } from "../../core/errors.js";
import { Lab } from "../lab/lab.js";
import { missing } from "../lab/requirements.js";
import type { FaultKind } from "../runner/kinds.js";
import type { LeftOut, Target } from "../runner/target.js";
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
  await using lab = await Lab.open();
  const lacking = missing(needs);
  if (lacking !== null) {
    throw new UnsupportedError(
      `the lab ${wanted.lab} starts servers that are not installed here: ${lacking.advice}`,
    );
  }
  const noClock = missing(["faketime"]);
  await using target = await open(lab, noClock === null);
  const possible = noClock === null ? target : withoutClocks(target, noClock.advice);
  return await act(limited(possible, faults));
}

/** The same target without the faults that set a clock. */
export function withoutClocks(target: Target, advice: string): Target {
  const because = `no clock can be set here without libfaketime (${advice})`;
  const clocked = target.kinds.filter(({ needsClock }) => needsClock);
  const leftOut = clocked.map(({ name }): LeftOut => ({ name, because }));
  return changed(target, {
    kinds: target.kinds.filter(({ needsClock }) => !needsClock),
    leftOut: [...(target.leftOut ?? []), ...leftOut],
  });
}

/** A copy would freeze what the target reads anew, such as its URL. */
const changed = (target: Target, parts: Partial<Target>): Target =>
  Object.assign(Object.create(target), parts) as Target;

/**
 * Verifies a store that is started for it; `faults` as on the command line. Rejects with
 * `InvalidArgumentError` if the lab has no such fault here, and with `UnsupportedError` if servers
 * are missing.
 */
export function verifyInLab(
  lab: LabName,
  {
    faults,
    ...options
  }: Partial<VerifyOptions> & { readonly faults?: readonly string[] | undefined },
): Promise<Verification> {
  return withTarget({ lab }, faults, (target) => {
    const refusal = refusalOf(target, faults ?? []);
    if (refusal !== null) {
      throw new InvalidArgumentError(
        `${refusal}; holdfast verify --lab ${lab} --faults list shows the faults`,
      );
    }
    const command = `holdfast verify --lab ${lab}`;
    return verify(target, { seed: 1, workers: 4, command, ...options });
  });
}

/** The same target with only these faults: by their names, or by the part that they hit. */
export function limited(target: Target, faults: readonly string[] | undefined): Target {
  if (faults === undefined) return target;
  if (faults.includes("none")) return changed(target, { kinds: [] });
  return changed(target, {
    kinds: target.kinds.filter((kind) => isNamed(kind, faults)),
    isLimited: faults.length > 0,
  });
}

const isNamed = ({ name, hits }: FaultKind, faults: readonly string[]): boolean =>
  faults.includes(name) || faults.includes(hits);

/** Why these faults can't be injected; null if they can. */
export function refusalOf(target: Target, faults: readonly string[]): string | null {
  if (faults.includes("none") && faults.length > 1) {
    return `"none" can't be combined with other faults`;
  }
  const [unknown] = unknownFaults(target, faults);
  if (unknown === undefined) return null;
  const named = JSON.stringify(unknown);
  const leftOut = target.leftOut?.find(({ name }) => name === unknown);
  return leftOut === undefined
    ? `${target.name} has no fault ${named}`
    : `the fault ${named} can't be made here: ${leftOut.because}`;
}

/** The faults that the target does not have. */
export const unknownFaults = ({ kinds }: Target, faults: readonly string[]): readonly string[] =>
  faults.filter((one) => one !== "none" && !kinds.some((kind) => isNamed(kind, [one])));
