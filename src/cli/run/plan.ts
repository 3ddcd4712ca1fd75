import { hostname } from "node:os";
import type { AcquireOptions, LocksOptions } from "../../core/options.js";
import { checkName, checkText } from "../../core/validate.js";
import { choiceOption, durationOption } from "../arguments.js";
import type { Options } from "../commands.js";
import { usage } from "../exit.js";
import { chooseStore, namespaceOf, type StoreChoice } from "../store.js";

/** The shortest that the stores take. */
const TTL_MIN_MS = 20;
const HOLDER_BYTES = 255;

/** What `holdfast run` was asked to do, checked before anything is touched. */
export interface Plan {
  readonly name: string;
  readonly command: readonly string[];
  readonly store: StoreChoice;
  readonly holder: string;
  readonly ttlMs: number;
  readonly waitMs: number;
  readonly locksOptions: LocksOptions;
  readonly acquireOptions: AcquireOptions;
  readonly ifUnavailable: "fail" | "run";
  readonly quiet: boolean;
  readonly verbose: boolean;
}

export function readPlan(name: string, options: Options, command: readonly string[]): Plan {
  checkName(name);
  if (command.length === 0) {
    throw usage("run needs a command after --, as in: holdfast run NAME -- CMD ARG");
  }
  const ttlMs = durationOption(options, "ttl", { min: TTL_MIN_MS }) ?? 30_000;
  const waitMs = durationOption(options, "wait", { min: 0, infinite: true }) ?? 0;
  const atLeast = durationOption(options, "at-least", { min: 0 });
  const maxHold = durationOption(options, "max-hold", { min: 1 });
  const holder = holderLabel(options.note);
  return {
    name,
    command,
    store: chooseStore(options),
    holder,
    ttlMs,
    waitMs,
    locksOptions: { holder, ...namespaceOf(options) },
    acquireOptions: {
      ttl: ttlMs,
      wait: waitMs,
      mode: options.shared ? "shared" : "exclusive",
      ...(atLeast === undefined ? {} : { atLeast }),
      ...(maxHold === undefined ? {} : { maxHold }),
    },
    ifUnavailable: choiceOption(options, "if-unavailable", ["fail", "run"]),
    quiet: options.quiet ?? false,
    verbose: options.verbose ?? false,
  };
}

/** Needed before there is a lease, to find ourselves among those who wait. */
function holderLabel(note: string | undefined): string {
  const label = `${hostname()}:${process.pid}`;
  if (note === undefined) return label;
  const roomBytes = HOLDER_BYTES - Buffer.byteLength(`${label} ()`);
  return `${label} (${checkText(note, "--note", 1, roomBytes)})`;
}
