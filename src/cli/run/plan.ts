import type { AcquireOptions, LocksOptions } from "../../core/options.js";
import { defaultTtlMs, TTL_MIN_MS } from "../../core/settings.js";
import { LOCK_LIMIT } from "../../core/store.js";
import { checkName } from "../../core/validate.js";
import type { Locks } from "../../locks.js";
import { slackOf } from "../../primitives/once.js";
import { usage } from "../exit.js";
import { holderLabel } from "../holder.js";
import {
  choiceOption,
  durationOption,
  numberOption,
  type OptionName,
  type Options,
} from "../options.js";
import { chooseStore, namespaceOf, type StoreChoice } from "../store.js";

/** The options of `run` or `elect`, checked before anything is opened. */
export interface Plan {
  readonly name: string;
  readonly store: StoreChoice;
  readonly holder: string;
  /** The value of --ttl. */
  readonly ttlMs: number | undefined;
  readonly waitMs: number;
  readonly locksOptions: LocksOptions;
  readonly acquireOptions: Omit<AcquireOptions, "mode" | "abortBefore">;
  readonly mode: "exclusive" | "shared";
  /** The number of permits of the semaphore to use instead of a lock. */
  readonly atMost: number | undefined;
  /** The beginning of the message when the name is not acquired, and its end after a single attempt. */
  readonly failed: { readonly what: string; readonly triedOnce: string };
  /** The value of --once-per. */
  readonly oncePer: string | undefined;
  readonly quiet: boolean;
  readonly verbose: boolean;
}

export interface RunPlan extends Plan {
  readonly ifUnavailable: "fail" | "run";
}

export function readRunPlan(name: string, options: Options, command: readonly string[]): RunPlan {
  const waitMs = durationOption(options, "wait", { min: 0, infinite: true }) ?? 0;
  const oncePer = options["once-per"];
  const oncePerMs = durationOption(options, "once-per", { min: 1 });
  refuseContradictions(options, waitMs);
  const atLeast =
    oncePerMs === undefined
      ? durationOption(options, "at-least", { min: 0 })
      : oncePerMs - slackOf(oncePerMs);
  const triedOnce = oncePer === undefined ? "tried once, see --wait" : `once per ${oncePer}`;
  const plan = readPlan("run", name, options, command, waitMs);
  return {
    ...plan,
    acquireOptions: { ...plan.acquireOptions, ...(atLeast === undefined ? {} : { atLeast }) },
    mode: options.shared ? "shared" : "exclusive",
    atMost: numberOption(options, "at-most", { min: 1, max: LOCK_LIMIT - 1 }),
    failed: { what: "not run", triedOnce },
    oncePer,
    ifUnavailable: choiceOption(options, "if-unavailable", ["fail", "run"]),
  };
}

/** Waits forever by default: a candidate stands by. */
export function readElectPlan(name: string, options: Options, command: readonly string[]): Plan {
  const waitMs = durationOption(options, "wait", { min: 0, infinite: true });
  return readPlan("elect", name, options, command, waitMs ?? Number.POSITIVE_INFINITY);
}

/** The ttl of the leases: without --ttl, that of the store. */
export const ttlOf = ({ ttlMs }: Plan, { traits }: Locks): number => ttlMs ?? defaultTtlMs(traits);

function readPlan(
  of: "run" | "elect",
  name: string,
  options: Options,
  command: readonly string[],
  waitMs: number,
): Plan {
  checkName(name);
  if (command.length === 0) {
    throw usage(`${of} needs a command after --, as in: holdfast ${of} NAME -- CMD ARG`);
  }
  const ttlMs = durationOption(options, "ttl", { min: TTL_MIN_MS });
  const maxHold = durationOption(options, "max-hold", { min: 1 });
  // Chosen before there is a lease, to find this process among the waiters.
  const holder = holderLabel(options.note, "--note");
  return {
    name,
    store: chooseStore(options),
    holder,
    ttlMs,
    waitMs,
    // Not an option of the call: ZooKeeper refuses a ttl that differs from that of its `Locks`.
    locksOptions: { holder, ttl: ttlMs, ...namespaceOf(options) },
    acquireOptions: {
      wait: waitMs,
      ...(maxHold === undefined ? {} : { maxHold }),
    },
    mode: "exclusive",
    atMost: undefined,
    failed: { what: "not elected", triedOnce: "tried once, see --wait" },
    oncePer: undefined,
    quiet: options.quiet ?? false,
    verbose: options.verbose ?? false,
  };
}

const CONTRADICTIONS: readonly (readonly [OptionName, OptionName, string])[] = [
  [
    "once-per",
    "wait",
    "a run that waits would run CMD a second time in the period; --once-per tries once",
  ],
  ["once-per", "at-least", "the period settles how long the name stays closed"],
  ["once-per", "shared", "all runs that share the name would run CMD"],
  ["once-per", "at-most", "several would run CMD in one period"],
  ["at-most", "shared", "runs that share a name are not counted"],
];

function refuseContradictions(options: Options, waitMs: number): void {
  for (const [one, other, why] of CONTRADICTIONS) {
    if (options[one] === undefined || options[other] === undefined) continue;
    // --once-per tries once anyway.
    if (other === "wait" && waitMs === 0) continue;
    throw usage(`--${one} and --${other} contradict each other: ${why}`);
  }
}
