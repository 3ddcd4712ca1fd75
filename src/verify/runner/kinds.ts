import type { Random } from "../../core/random.js";
import type { RuleId } from "../check/verdict.js";
import { type Fault, fault } from "../faults/fault.js";
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
  /** Null: it can't be made just now. `forMs`: how long it will be in force. */
  make(member: Member, random: Random, forMs: number): Fault | null;
}

/** What every promise that rests on the store's data breaks with: the name is granted again. */
export const EXCLUSION: readonly RuleId[] = ["S1", "S4", "S8", "S9", "L4"];

const SHORT = { min: 0.02, max: 0.6 };
const PAST_THE_TTL = { min: 0.2, max: 2.2 };

export const WORKER_KINDS: readonly FaultKind[] = [
  {
    name: "worker paused",
    hits: "worker",
    weight: 2,
    lasts: PAST_THE_TTL,
    make: (member) =>
      fault(
        `${member.client} paused`,
        () => member.worker.pause(),
        () => member.worker.resume(),
      ),
  },
  {
    name: "worker killed",
    hits: "worker",
    lasts: SHORT,
    make: (member) =>
      fault(
        `${member.client} killed`,
        () => member.kill(),
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

/** What a proxy in front of a server can do to the connections of one kind. */
export interface Wire {
  cut(only: string): Fault;
  delay(ms: number, direction: Direction | undefined, only: string): Fault;
  swallow(direction: Direction, only: string): Fault;
  stall(direction: Direction | undefined, only: string): Fault;
  loseReply(only: string, silent: boolean): Fault;
  /** Half a message arrives, and nothing more. */
  half(only: string): Fault;
}

type Direction = "to-server" | "to-client";

/** The faults of one kind of a worker's connections, while its others work. */
export function connectionKinds(
  only: string,
  more: Pick<FaultKind, "breaks" | "because"> = {},
): readonly FaultKind[] {
  const kind = (
    what: string,
    lasts: FaultKind["lasts"],
    make: (wire: Wire, random: Random) => Fault,
  ): FaultKind => ({
    name: `${only} ${what}`,
    hits: "connection",
    lasts,
    sparesStore: true,
    ...more,
    make: ({ client, way }, random) => {
      const { wires } = way;
      if (wires.length === 0) return null;
      // Mostly all of them, as when a worker's network fails; otherwise the one to one server.
      const struck =
        random.unit() < 0.6 ? wires : [wires[Math.floor(random.unit() * wires.length)]!];
      const all = struck.map((wire) => make(wire, random));
      return fault(
        `${client}: ${only} ${what}`,
        () => Promise.all(all.map((one) => one.inject())),
        () => Promise.all(all.map((one) => one.heal())),
      );
    },
  });
  const direction = (random: Random): Direction =>
    random.unit() < 0.5 ? "to-server" : "to-client";
  return [
    kind("cut", SHORT, (wire) => wire.cut(only)),
    kind("delayed", PAST_THE_TTL, (wire, random) =>
      wire.delay(Math.round(10 + random.unit() ** 2 * 600), undefined, only),
    ),
    kind("silent", PAST_THE_TTL, (wire, random) => wire.swallow(direction(random), only)),
    kind("stalled", PAST_THE_TTL, (wire, random) => wire.stall(direction(random), only)),
    kind("reply lost", SHORT, (wire, random) => wire.loseReply(only, random.unit() < 0.5)),
    kind("half a message", SHORT, (wire) => wire.half(only)),
  ];
}
