import { setTimeout as sleep } from "node:timers/promises";
import type { Random } from "../../core/random.js";
import type { RuleId } from "../check/verdict.js";
import { type Fault, fault } from "../faults/fault.js";
import type { FaultyProxy } from "../faults/faulty-proxy.js";
import type { Direction } from "../faults/rules.js";
import type { Member } from "./crew.js";
import type { Hits } from "./result.js";

/** A kind of fault that a target can be struck by. */
export interface FaultKind {
  /** As `--faults` names it. */
  readonly name: string;
  readonly hits: Hits;
  /** How often it is drawn, against 1 for the usual. Default 1. */
  readonly weight?: number;
  /** How long it is in force, as a share of the shortest ttl. */
  readonly lasts: { readonly min: number; readonly max: number };
  /** The store keeps what it has, and its clock: only messages and clients are hit. */
  readonly sparesStore?: boolean;
  /** What the store does not promise under it; counted as expected until a while after it is healed. */
  readonly breaks?: readonly RuleId[];
  /** Why it is not promised, for people. */
  readonly because?: string;
  /** Workers have to be started anew before they can use the store again: there is no roll call. */
  readonly locksOut?: boolean;
  /** Kinds that are not drawn in the same run: together they break more. */
  readonly excludes?: readonly string[];
  /** Null: it can't be made just now. `forMs`: how long it will be in force. */
  make(member: Member, random: Random, forMs: number): StoreFault | null;
}

/** A fault that may set the store's wall clock. */
export interface StoreFault extends Fault {
  readonly clockByMs?: number;
}

/** What every promise that rests on the store's data breaks with: the name is granted again. */
export const EXCLUSION: readonly RuleId[] = ["S1", "S4", "S8", "S9", "L4"];

const SHORT = { min: 0.02, max: 0.6 };
const PAST_THE_TTL = { min: 0.2, max: 2.2 };

/** A lease that is held for so long is mostly held for much longer. */
const LONG_HOLD_MS = 45;

/** A worker that holds a lease has more to lose: it is mostly struck then. */
async function mostlyHolding({ worker }: Member, random: Random): Promise<void> {
  const tries = random.unit() < 0.7 ? 250 : 0;
  for (let i = 0; i < tries && worker.heldForMs < LONG_HOLD_MS && worker.ended === null; i++) {
    await sleep(2);
  }
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
        // Not waited for: the store may be down.
        () => void member.start(),
      ),
  },
  {
    name: "worker busy",
    hits: "worker",
    lasts: { min: 0.05, max: 1.5 },
    make: (member, _random, forMs) =>
      // Not waited for: nothing else of it answers meanwhile.
      fault(`${member.client} busy`, () => void member.worker.block(forMs).catch(() => {})),
  },
  {
    name: "worker clock jumps",
    hits: "worker",
    lasts: PAST_THE_TTL,
    make: ({ way }, random) => way.clock?.jump(jumpMs(random)) ?? null,
  },
];

/** Seconds to minutes, ahead or back. */
export const jumpMs = (random: Random): number => {
  const byMs = Math.round(1_000 * 10 ** (random.unit() * 2));
  return random.unit() < 0.5 ? byMs : -byMs;
};

/** A proxy whose faults can be limited to one kind of connection. */
export type Strikable = Pick<
  FaultyProxy,
  "cut" | "delay" | "swallow" | "stall" | "loseReply" | "truncate"
>;

/** All of them, whatever their kind. */
const ALL = "connection";

/** The faults of one kind of a worker's connections, while its others work; "connection": of all. */
export function connectionKinds(
  only: string,
  more: Pick<FaultKind, "breaks" | "because"> = {},
): readonly FaultKind[] {
  const kind = (
    what: string,
    lasts: FaultKind["lasts"],
    make: (proxy: Strikable, random: Random) => Fault,
  ): FaultKind => ({
    name: `${only} ${what}`,
    hits: "connection",
    lasts,
    sparesStore: true,
    ...more,
    make: ({ client, way }, random) => {
      const { proxies } = way;
      if (proxies.length === 0) return null;
      // Mostly all of them, as when a worker's network fails; otherwise the one to one server.
      const one = proxies[Math.floor(random.unit() * proxies.length)]!;
      const all = (random.unit() < 0.6 ? proxies : [one]).map((proxy) => make(proxy, random));
      return fault(
        `${client}: ${only} ${what}`,
        () => Promise.all(all.map((one) => one.inject())),
        () => Promise.all(all.map((one) => one.heal())),
      );
    },
  });
  const limit = only === ALL ? {} : { only };
  const direction = (random: Random): Direction =>
    random.unit() < 0.5 ? "to-server" : "to-client";
  return [
    kind("cut", SHORT, (proxy) => proxy.cut(limit)),
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
