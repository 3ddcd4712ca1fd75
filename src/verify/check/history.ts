/**
 * The observations of one run, in order of time. Real processes and the simulator use this one
 * format, and the checks read nothing else. All `atMs` are on one time line: the machine's
 * monotonic clock, or the simulated one.
 */
export type History = readonly Event[];

/** One observation and its time. */
export type Event = At &
  (Asking | Holding | AtResource | InStore | ByForce | OfClients | OfFaults | Counted | Left);

export type EventOf<Kind extends Event["kind"]> = Event & { readonly kind: Kind };

interface At {
  readonly atMs: number;
}

/** The id of one acquire and of its lease; part of the holder's label in the store. */
export type OpId = string;

/** A multi-lock has one op for each of its names. */
export const opFor = (op: OpId, name: string): OpId => `${op}.${name}`;

/** One acquire, from the request to its end. */
type Asking =
  | {
      readonly kind: "asked";
      readonly op: OpId;
      readonly client: string;
      readonly name: string;
      readonly permits: number;
      readonly limit: number;
      readonly ttlMs: number;
      /** The longest ttl to which the lease will be renewed, if it differs from `ttlMs`. */
      readonly longestTtlMs?: number;
      readonly maxHoldMs?: number;
      /** How long the name stays closed after the grant, by the store's wall clock. */
      readonly atLeastMs?: number;
      /** `false`: the watchdog does not renew the lease. */
      readonly renew?: boolean;
      readonly waitMs: number;
      /** Re-entry: the op whose lease this one shares. */
      readonly within?: OpId;
      /** The same text in all ops of one multi-lock: they are granted, lost and released together. */
      readonly together?: string;
    }
  /**
   * The ticket is in the store: every claim from now on comes after it. `sentAtMs`: the store has
   * replied so to a request sent then, and so keeps the ticket for one ttl from that moment at
   * least; each renewal of the ticket is reported.
   */
  | { readonly kind: "queued"; readonly op: OpId; readonly sentAtMs?: number }
  /** The caller's signal aborts the wait. */
  | { readonly kind: "aborting"; readonly op: OpId }
  /** The acquire ended without a lease. `unknown`: the store did not reply, and may have granted. */
  | {
      readonly kind: "not-granted";
      readonly op: OpId;
      readonly outcome: "busy" | "timeout" | "aborted" | "unknown" | "refused";
    };

/** A client's belief about its lease: held from `granted` until `releasing`, `lost`, its own deadline, or its death. */
type Holding =
  /** `untilMs`: the client's deadline at this moment; `renewed` moves it. */
  | {
      readonly kind: "granted";
      readonly op: OpId;
      readonly token: bigint;
      readonly floor: bigint;
      readonly untilMs: number;
    }
  | { readonly kind: "renewed"; readonly op: OpId; readonly untilMs: number }
  /**
   * The store made the grant at this moment, with this token. Only where the store is observed.
   * `limit`: the number of permits after a resize, if there was one.
   */
  | {
      readonly kind: "made";
      readonly op: OpId;
      readonly token: bigint;
      readonly limit?: number;
    }
  /**
   * From now on the store keeps the grant until `untilMs`, or has dropped it. Only where the store
   * is observed. `token` distinguishes the grants of one op: a late copy of its claim may have made
   * another grant.
   */
  | {
      readonly kind: "kept";
      readonly op: OpId;
      readonly untilMs: number;
      readonly token?: bigint;
    }
  /** The client checked its lease with `assertHeld`, not before `atMs`. */
  | { readonly kind: "looked"; readonly op: OpId; readonly held: boolean }
  /**
   * The client was notified of the loss: the signal aborted. Reason `together`: the lease was lost
   * with another name of its multi-lock.
   */
  | { readonly kind: "lost"; readonly op: OpId; readonly reason: string }
  | { readonly kind: "releasing"; readonly op: OpId }
  | {
      readonly kind: "released";
      readonly op: OpId;
      readonly result: "released" | "lost" | "unknown";
    };

/**
 * An access to a resource behind a fence. `step` counts the accesses in the resource's own order:
 * 1, 2, 3 … A missing number is a record that was lost with its process.
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
  /** A read-modify-write that had read `read` and tried to write `value`. */
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
  /** A read-modify-write without a fence. It replaced `found`: an update is lost if `found` differs from `read`. */
  | {
      readonly kind: "wrote-unfenced";
      readonly op: OpId;
      readonly resource: string;
      readonly read: number;
      readonly found: number;
      readonly value: number;
    };

/** The content of the store for one name, read at some moment from `sinceMs` to `atMs`. */
type InStore = {
  readonly kind: "seen";
  readonly sinceMs: number;
  readonly name: string;
  readonly holders: readonly { readonly op: OpId; readonly token: bigint }[];
  readonly waiters: readonly OpId[];
  /** Ops whose leases have ended, but whose `atLeast` keeps the name closed. */
  readonly closed?: readonly OpId[];
};

/** An operator's change to a name, at some moment from `sinceMs` to `atMs`. */
type ByForce =
  /** A forced release of the grant with this token: others may get the name before its holder knows. */
  | {
      readonly kind: "revoked";
      readonly sinceMs: number;
      readonly op: OpId;
      readonly token: bigint;
    }
  /** The semaphore has `limit` permits now; holders of more keep theirs. */
  | {
      readonly kind: "resized";
      readonly sinceMs: number;
      readonly name: string;
      readonly limit: number;
    };

type OfClients =
  /** `frozen`: all clocks of the machine but the wall clock stood still as well. */
  | {
      readonly kind: "paused";
      readonly client: string;
      readonly frozen?: boolean;
      /** The process itself noticed that it stood still. This may overlap with a pause that the runner caused. */
      readonly stalled?: boolean;
    }
  | { readonly kind: "resumed"; readonly client: string; readonly stalled?: boolean }
  | { readonly kind: "killed"; readonly client: string };

type OfFaults =
  | {
      readonly kind: "injected";
      readonly fault: string;
      /** The fault affects messages and clients only; the store keeps its data and its clock. */
      readonly sparesStore?: boolean;
      /** The store may have lost claims of this name, and of no other. */
      readonly name?: string;
    }
  | { readonly kind: "healed"; readonly fault: string }
  /** The store's wall clock was set ahead, or back if negative. */
  | { readonly kind: "clock-set"; readonly byMs: number };

/** Commands that the server counted for some handovers of a name with so many waiters. */
type Counted = {
  readonly kind: "counted";
  readonly waiters: number;
  readonly handovers: number;
  readonly commands: number;
};

/** The resources that a client still had after it had closed. */
type Left = {
  readonly kind: "left";
  readonly client: string;
  readonly waiters: number;
  readonly timers: number;
  readonly sockets: number;
};
