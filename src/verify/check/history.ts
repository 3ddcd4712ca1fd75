/**
 * What was seen of a run, in order of time: the one record format of real processes and of the
 * simulator, and all that the checks read. `atMs` is on one time line for all: the machine's
 * monotonic clock, or the simulation's.
 */
export type History = readonly Event[];

export type Event = At &
  (Asking | Holding | AtResource | InStore | ByForce | OfClients | OfFaults | Counted | Left);

export type EventOf<Kind extends Event["kind"]> = Event & { readonly kind: Kind };

interface At {
  readonly atMs: number;
}

/** `op` names one acquire and the lease that came of it; it is part of the holder's label in the store. */
export type OpId = string;

/** Of several names that are asked for as one, each has an op of its own. */
export const opFor = (op: OpId, name: string): OpId => `${op}.${name}`;

/** The way of one acquire to its end. */
type Asking =
  | {
      readonly kind: "asked";
      readonly op: OpId;
      readonly client: string;
      readonly name: string;
      readonly permits: number;
      readonly limit: number;
      readonly ttlMs: number;
      /** Where it will be renewed to another: the longest. */
      readonly longestTtlMs?: number;
      readonly maxHoldMs?: number;
      /** The name stays closed until the grant + this, by the store's wall clock. */
      readonly atLeastMs?: number;
      /** `false`: nobody renews it. */
      readonly renew?: boolean;
      readonly waitMs: number;
      /** Re-entry: the op whose lease this one shares. */
      readonly within?: OpId;
      /** All names or none: the same for the ops of one ask. They are granted, lost and given back together. */
      readonly together?: string;
    }
  /** Its ticket stands in the store: whoever asks from now on comes after it. */
  | { readonly kind: "queued"; readonly op: OpId }
  /** The caller's signal aborts the wait. */
  | { readonly kind: "aborting"; readonly op: OpId }
  /** No lease came of it. `unknown`: the store gave no answer, and may have granted. */
  | {
      readonly kind: "not-granted";
      readonly op: OpId;
      readonly outcome: "busy" | "timeout" | "aborted" | "unknown" | "refused";
    };

/** What a client believes of its lease. It holds from `granted` to `releasing`, `lost`, its own deadline, or its death. */
type Holding =
  /** `untilMs`: its deadline as it knows it then; moved by `renewed`. */
  | {
      readonly kind: "granted";
      readonly op: OpId;
      readonly token: bigint;
      readonly floor: bigint;
      readonly untilMs: number;
    }
  | { readonly kind: "renewed"; readonly op: OpId; readonly untilMs: number }
  /**
   * The store made the grant at this moment, and told the client this token: known where the store
   * is looked into. `limit`: what the name had been resized to by then.
   */
  | {
      readonly kind: "made";
      readonly op: OpId;
      readonly token: bigint;
      readonly limit?: number;
    }
  /**
   * From now on the store keeps its grant until then, or has let it go. Known likewise. `token` tells
   * the grants of one op apart: a late copy of its ask may have made another.
   */
  | {
      readonly kind: "kept";
      readonly op: OpId;
      readonly untilMs: number;
      readonly token?: bigint;
    }
  /** It asked whether it holds: `assertHeld`, and not before `atMs`. */
  | { readonly kind: "looked"; readonly op: OpId; readonly held: boolean }
  /** It was told of the loss: the signal aborted. Of several names, `together` for those that were lost with another. */
  | { readonly kind: "lost"; readonly op: OpId; readonly reason: string }
  | { readonly kind: "releasing"; readonly op: OpId }
  | {
      readonly kind: "released";
      readonly op: OpId;
      readonly result: "released" | "lost" | "unknown";
    };

/**
 * At a resource behind a fence. `step` counts what the resource did, in its own order: 1, 2, 3 …
 * A number that is missing is a record that was lost with its process.
 */
type AtResource =
  | {
      readonly kind: "entered";
      readonly op: OpId;
      readonly resource: string;
      readonly step: number;
      readonly token: bigint;
      readonly floor: bigint;
      readonly accepted: boolean;
    }
  /** A read-modify-write: it had read `read` and wanted to write `value`. */
  | {
      readonly kind: "wrote";
      readonly op: OpId;
      readonly resource: string;
      readonly step: number;
      readonly token: bigint;
      readonly floor: bigint;
      readonly accepted: boolean;
      readonly read: number;
      readonly value: number;
    }
  /** A read-modify-write without a fence, which replaced `found`: if that is not what it had read, an update is lost. */
  | {
      readonly kind: "wrote-unfenced";
      readonly op: OpId;
      readonly resource: string;
      readonly read: number;
      readonly found: number;
      readonly value: number;
    };

/** What the store itself showed when it was looked at, at some moment from `sinceMs` to `atMs`. */
type InStore = {
  readonly kind: "seen";
  readonly sinceMs: number;
  readonly name: string;
  readonly holders: readonly { readonly op: OpId; readonly token: bigint }[];
  readonly waiters: readonly OpId[];
  /** Whose leases have ended, and whose `atLeast` closes the name. */
  readonly closed?: readonly OpId[];
};

/** What somebody did to a name, at some moment from `sinceMs` to `atMs`. */
type ByForce =
  /** The name was taken from the grant with this token: others may have it before its holder knows. */
  | {
      readonly kind: "revoked";
      readonly sinceMs: number;
      readonly op: OpId;
      readonly token: bigint;
    }
  /** The semaphore has so many permits now; who holds more keeps them. */
  | {
      readonly kind: "resized";
      readonly sinceMs: number;
      readonly name: string;
      readonly limit: number;
    };

type OfClients =
  /** `frozen`: its clocks stood still as well, but for the wall clock. */
  | {
      readonly kind: "paused";
      readonly client: string;
      readonly frozen?: boolean;
      /** It noticed by itself that it stood still, which may overlap with being paused. */
      readonly stalled?: boolean;
    }
  | { readonly kind: "resumed"; readonly client: string; readonly stalled?: boolean }
  | { readonly kind: "killed"; readonly client: string };

type OfFaults =
  | {
      readonly kind: "injected";
      readonly fault: string;
      /** It reaches messages and clients only: the store keeps what it has, and its clock. */
      readonly sparesStore?: boolean;
    }
  | { readonly kind: "healed"; readonly fault: string }
  /** The store's wall clock was set ahead by so much, or back. */
  | { readonly kind: "clock-set"; readonly byMs: number };

/** So many handovers of a name with so many waiting cost so many commands, counted at the server. */
type Counted = {
  readonly kind: "counted";
  readonly waiters: number;
  readonly handovers: number;
  readonly commands: number;
};

/** What a client still had after it had closed. */
type Left = {
  readonly kind: "left";
  readonly client: string;
  readonly waiters: number;
  readonly timers: number;
  readonly sockets: number;
};
