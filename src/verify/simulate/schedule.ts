import type { Traits } from "../../core/store.js";
import type { Pause } from "./process.js";

/** One acquire of one client, and what it does with the lease. */
export interface Task {
  readonly client: number;
  readonly name: number;
  /** Further names of a multi-lock, in the order of the call. */
  readonly also?: readonly number[];
  readonly atMs: number;
  readonly shared: boolean;
  /** How many permits of a semaphore the task claims. */
  readonly permits?: number;
  /** The number of permits that the program assumes, if it differs from the real one. */
  readonly limit?: number;
  /** The task is a candidate for at most this many terms: it waits for ever, and campaigns again after a loss. */
  readonly terms?: number;
  readonly ttlMs: number;
  readonly waitMs: number;
  readonly holdMs: number;
  /** How long after the request the caller's signal aborts. */
  readonly abortAfterMs?: number;
  readonly maxHoldMs?: number;
  readonly atLeastMs?: number;
  /** `false`: the watchdog does not renew the lease. */
  readonly renew?: false;
  /** The other ttl of a `lease.renew` halfway through. */
  readonly renewToMs?: number;
}

/** Faults of the messages between a client and the store. Each message is affected with a chance of one half. */
export type MessageFault =
  | "requests are lost"
  | "replies are lost"
  | "pushes are lost"
  | "pushes are late"
  /** Pushes reach nobody, and the store knows that; commands work. */
  | "subscription is down"
  | "messages arrive twice"
  | "messages are late"
  | "refused"
  /** A reply to a batch answers the first requests only; the others were carried out, or not. */
  | "answers are missing"
  /** A reply to a batch has more answers than the batch had requests. */
  | "answers are doubled"
  /** The process stops in the middle of sending. */
  | "stops between statements";

export type Trouble = { readonly fromMs: number } & (
  | { readonly kind: MessageFault; readonly client: number; readonly toMs: number }
  | {
      readonly kind: Pause;
      readonly client: number;
      readonly toMs: number;
    }
  | { readonly kind: "killed"; readonly client: number }
  /** The program closes its locks while it holds leases and waits for others; work has this grace to end. */
  | { readonly kind: "closed"; readonly client: number; readonly graceMs?: number }
  | { readonly kind: "forces a release"; readonly client: number; readonly name: number }
  /** From then on, all programs use the new number of permits. */
  | {
      readonly kind: "resizes a semaphore";
      readonly client: number;
      readonly name: number;
      readonly limit: number;
    }
  | { readonly kind: "wall clock jumps"; readonly client: number; readonly byMs: number }
  /** The client's first request opens its store; until `toMs`, that fails or hangs. */
  | { readonly kind: "store opens late"; readonly client: number; readonly toMs: number }
  | OfStore
  | OfNode
);

/** A fault of the store itself. */
export type StoreTrouble = { readonly fromMs: number } & (OfStore | OfNode);

type OfStore =
  | { readonly kind: "store's wall clock jumps"; readonly byMs: number }
  | { readonly kind: "store hangs"; readonly toMs: number };

/** A fault of one node of a quorum. */
type OfNode = { readonly node: number } /** Messages of one client with this node. */ & (
  | { readonly kind: MessageFault; readonly client: number; readonly toMs: number }
  | { readonly kind: "node hangs"; readonly toMs: number }
  /** It comes back with the data of `oldMs` before it went down; without any, if that is missing. */
  | { readonly kind: "node restarts"; readonly toMs: number; readonly oldMs?: number }
  /** FLUSHALL: the server loses all data and does not restart. */
  | { readonly kind: "node is flushed" }
  | { readonly kind: "node forgets a record"; readonly name: number }
  | { readonly kind: "node's clock jumps"; readonly byMs: number }
);

/** The nodes of a quorum. */
export interface Nodes {
  readonly maxTtlMs: number;
  /** For each node, how far its clock is ahead of the first one's at the start, and its speed. */
  readonly clocks: readonly { readonly aheadMs: number; readonly rate: number }[];
  /** For each node, whether a write is on its disk before the reply. */
  readonly syncs: readonly boolean[];
  /** Nobody has used the nodes before. */
  readonly areNew?: true;
}

/**
 * The place of the store. `network`: each client is a process of its own and reaches the store by
 * messages. `skipping`: the same, and the store skips a waiter that its push does not reach, as
 * Redis does. `process`: all clients are in one process with the store, which replies at once.
 * `polled`: as `network`, and the store keeps tickets but pushes nothing. `ticketless`: as
 * `polled`, and the store keeps no tickets: a claim that is not granted is busy. `quorum`: each client is a
 * process of its own with the real quorum store, whose nodes it reaches by messages.
 */
export type Place = "network" | "skipping" | "process" | "polled" | "ticketless" | "quorum";

/** The whole course of a run, except for the chance of each message, which depends on the seed. */
export interface Schedule {
  /** The seed of the schedule, and of the chance of each message. */
  readonly seed: number;
  /** Where the store is. */
  readonly place: Place;
  /** The speed of each client's clock relative to the store's. */
  readonly rates: readonly number[];
  /** How many names there are. */
  readonly names: number;
  /** The number of permits of each name; 0 for a lock. */
  readonly semaphores: readonly number[];
  /** Whether leases end before the deadline, by `abortBefore`. */
  readonly abortBefore: boolean;
  /** Traits of the store that change what the core does. */
  readonly traits?: Pick<Traits, "liveness" | "namesAtOnce">;
  /** The nodes, if the store is a quorum. */
  readonly nodes?: Nodes;
  /** The acquires of the clients. */
  readonly tasks: readonly Task[];
  /** The faults of the run. */
  readonly troubles: readonly Trouble[];
}
