import type { MutantName } from "../../../src/testing.js";
import type { LabName } from "../../../src/verify/targets/index.js";

/** A fault that is planted by edits to a copy of the built code, or by a mutant. */
interface Planted {
  readonly name: string;
  readonly lab: LabName;
  readonly isSearched?: boolean;
  readonly faults?: string;
  readonly edits?: readonly (readonly [file: string, text: string, replacement: string])[];
  readonly mutant?: MutantName;
}

interface Plot {
  /** The module of a worker's process, in the copy. */
  readonly module: string;
  remove(): void;
}

const SCRIPT = new URL("../../../scripts/planted-faults.mjs", import.meta.url).href;

/** The table of scripts/, which has no types. */
export const { PLANTED, plant, commandOf } = (await import(/* @vite-ignore */ SCRIPT)) as {
  readonly PLANTED: readonly Planted[];
  commandOf(planted: Pick<Planted, "lab" | "faults">): string;
  plant(edits: NonNullable<Planted["edits"]>): Plot;
};
