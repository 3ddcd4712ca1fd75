import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../../core/random.js";
import type { RuleId } from "../check/verdict.js";
import { type Fault, fault } from "../fault.js";
import type { Direction, ProxyFault } from "../faults/rules.js";
import type { Worker } from "../traffic/worker.js";
import type { Member } from "./crew.js";
import type { Hits } from "./result.js";
import type { Strikable } from "./way.js";

/** A kind of fault for a target. */
export interface FaultKind {
  /** The name for `--faults`. */
  readonly name: string;
  readonly hits: Hits;
  /** How often the kind is drawn, relative to the others. Default 1. */
  readonly weight?: number;
  /** How long the fault is active, relative to the shortest ttl. */
  readonly lasts: { readonly min: number; readonly max: number };
  /** Sets the clock by which the store ends leases: what was granted meanwhile may outlast its ttl. */
  readonly setsClock?: boolean;
  /** The fault sets a clock of the lab, so it needs libfaketime. */
  readonly needsClock?: boolean;
  /** The fault affects messages and clients only; the store keeps its data and its clock. */
  readonly sparesStore?: boolean;
  /** The fault also affects the runner's own connection, so the operator does nothing meanwhile. */
  readonly hitsRunner?: boolean;
  /**
   * Rules that the store does not promise under this fault: violations count as expected until some
   * time after it is healed.
   */
  readonly breaks?: readonly RuleId[];
  /** The reason why the rules are not promised, for people. */
  readonly because?: string;
  /** Workers must be restarted before they can use the store again, so there is no roll call. */
  readonly locksOut?: boolean;
  /** Kinds that are not drawn in the same run, because together they break more. */
  readonly excludes?: readonly string[];
  /** Makes a fault that is active for `forMs`; null if that is impossible at the moment. */
  make(member: Member, random: Random, forMs: number): StoreFault | null;
}

export interface StoreFault extends Fault {
  /** By how much the fault sets the store's wall clock. */
  readonly clockByMs?: number;
  /** How often a fault that waits for messages has struck; undefined if the fault strikes whatever is sent. */
  readonly struck?: number | undefined;
}

/** The rules that break when the store loses data and grants a name again. */
export const EXCLUSION: readonly RuleId[] = ["S1", "S4", "S8", "S9", "L4"];

const SHORT = { min: 0.02, max: 0.6 };
const PAST_THE_TTL = { min: 0.2, max: 2.2 };
/** From a connection that is replaced at once to one that is lost while leases expire. */
const ANY_TIME = { min: 0.02, max: 2.2 };

/** A worker that has held a lease for this long mostly holds it for much longer. */
const LONG_HOLD_MS = 45;
/** A client that has been queued for this long mostly waits for a long lease, or for one that has to expire. */
const LONG_WAIT_MS = 150;

/** Waits until the worker holds a lease, in most cases: the fault can do more harm then. */
export const mostlyHolding = (member: Member, random: Random): Promise<void> =>
  mostlyWhen(member, random, ({ heldForMs }) => heldForMs >= LONG_HOLD_MS);

/** Waits until the worker has a ticket in a queue, in most cases: no other client needs a notification. */
const mostlyWaiting = (member: Member, random: Random): Promise<void> =>
  mostlyWhen(member, random, ({ queuedForMs }) => queuedForMs >= LONG_WAIT_MS);

async function mostlyWhen(
  member: Member,
  random: Random,
  isSo: (worker: Worker) => boolean,
): Promise<void> {
  const tries = random.unit() < 0.7 ? 250 : 0;
  for (let i = 0; i < tries && member.isRunning && !isSo(member.worker); i++) await sleep(2);
}

export const WORKER_KINDS: readonly FaultKind[] = [
  {
    name: "worker paused",
    hits: "worker",
    weight: 2,
    lasts: PAST_THE_TTL,
    make: (member, random) =>
      fault(
        `${member.client} paused`,
        async () => {
          await mostlyHolding(member, random);
          member.worker.pause();
        },
        () => member.worker.resume(),
      ),
  },
  {
    name: "worker killed",
    hits: "worker",
    lasts: SHORT,
    make: (member, random) =>
      fault(
        `${member.client} killed`,
        async () => {
          await mostlyHolding(member, random);
          await member.kill();
        },
        // The restart is not awaited: the store may be down.
        () => void member.start(),
      ),
  },
  {
    name: "worker busy",
    hits: "worker",
    lasts: { min: 0.05, max: 1.5 },
    make: (member, _random, forMs) =>
      // The call is not awaited: a blocked worker does not reply to anything.
      fault(`${member.client} busy`, () => void member.worker.block(forMs).catch(() => {})),
  },
  {
    name: "worker clock jumps",
    hits: "worker",
    needsClock: true,
    lasts: PAST_THE_TTL,
    make: (member, random) => {
      const jump = member.way.clock?.jump(jumpMs(random));
      if (jump === undefined) return null;
      return fault(
        jump.name,
        async () => {
          await mostlyHolding(member, random);
          await jump.inject();
        },
        () => jump.heal(),
      );
    },
  },
];

/** Draws a jump of seconds to minutes, ahead or back. */
export const jumpMs = (random: Random): number => {
  const byMs = Math.round(1_000 * 10 ** (random.unit() * 2));
  return random.unit() < 0.5 ? byMs : -byMs;
};

/** The name prefix of faults that affect all connections of a worker. */
const ALL = "connection";
/** Redis counts the subscribers of a channel, so it matters which side knows that a subscription has ended. */
const SUBSCRIPTION = "subscription";
/** Waiters are notified by these connections. */
const NOTIFY_WAITERS: readonly string[] = [SUBSCRIPTION, "watch"];

/** The faults of one kind of a worker's connections, while its others work; `"connection"`: of all its connections. */
export function connectionKinds(
  only: string,
  more: Pick<FaultKind, "breaks" | "because"> = {},
): readonly FaultKind[] {
  const kind = (
    what: string,
    lasts: FaultKind["lasts"],
    make: (proxy: Strikable, random: Random) => Fault | ProxyFault,
  ): FaultKind => ({
    name: `${only} ${what}`,
    hits: "connection",
    lasts,
    sparesStore: true,
    ...more,
    make: (member, random) => {
      const { proxies } = member.way;
      if (proxies.length === 0) return null;
      // Mostly all connections, as when a worker's network fails; otherwise the one to a single
      // server.
      const one = proxies[Math.floor(random.unit() * proxies.length)]!;
      const all = (random.unit() < 0.6 ? proxies : [one]).map((proxy) => make(proxy, random));
      const whole = fault(
        `${member.client}: ${only} ${what}`,
        async () => {
          if (NOTIFY_WAITERS.includes(only)) await mostlyWaiting(member, random);
          await Promise.all(all.map((one) => one.inject()));
        },
        () => Promise.all(all.map((one) => one.heal())),
      );
      return {
        ...whole,
        get struck() {
          const counts = all.flatMap((one) => ("struck" in one ? [one.struck] : []));
          return counts.length === 0 ? undefined : counts.reduce((sum, count) => sum + count, 0);
        },
      };
    },
  });
  const limit = only === ALL ? {} : { only };
  const direction = (random: Random): Direction =>
    random.unit() < 0.5 ? "to-server" : "to-client";
  return [
    kind("cut", ANY_TIME, (proxy) => proxy.cut(limit)),
    ...(only === SUBSCRIPTION
      ? [kind("half open", PAST_THE_TTL, (proxy) => proxy.leaveHalfOpen(limit))]
      : []),
    kind("delayed", PAST_THE_TTL, (proxy, random) =>
      proxy.delay(Math.round(10 + random.unit() ** 2 * 600), undefined, limit),
    ),
    kind("silent", PAST_THE_TTL, (proxy, random) => proxy.swallow(direction(random), limit)),
    kind("stalled", PAST_THE_TTL, (proxy, random) => proxy.stall(direction(random), limit)),
    kind("reply lost", SHORT, (proxy, random) => {
      const times = 1 + Math.floor(random.unit() * 3);
      return proxy.loseReply({ ...limit, times, silent: random.unit() < 0.5 });
    }),
    kind("half a message", SHORT, (proxy, random) => proxy.truncate(direction(random), limit)),
  ];
}
