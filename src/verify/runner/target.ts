import type { Random } from "../../core/random.js";
import type { Traits } from "../../core/store.js";
import type { Limits } from "../check/verdict.js";
import type { Connections } from "../traffic/protocol.js";
import type { FaultKind } from "./kinds.js";
import type { Way } from "./way.js";

/** A store to verify: servers of a lab, or a user's own store. */
export interface Target extends AsyncDisposable {
  /** The name for `--lab`. */
  readonly name: string;
  /** A description for people: "one Redis server, appendfsync always". */
  readonly about: string;
  /** False for a user's own store: the verifier only takes locks there, and leaves nothing behind. */
  readonly isOurs: boolean;
  /** The URL of the runner's own connection, which no connection fault hits. */
  readonly url: string;
  readonly ttlsMs: readonly number[];
  /** Tolerances that differ from the usual ones. */
  readonly limits: Partial<Limits>;
  /** The time of a handover without faults, where waiters poll. */
  readonly handoverMs?: number;
  /** The operations that the store refuses: workers do not ask for them. Where it is a ttl per lease, each worker draws one for its `Locks`. */
  readonly cannot?: Traits["cannot"];
  /** The longest time for which a renewed lease is held, in ttls, where a record outlasts its ttl. Default 1.5. */
  readonly longestHoldTtls?: number;
  readonly kinds: readonly FaultKind[];
  /** Kinds of faults that can't be made on this machine. */
  readonly leftOut?: readonly LeftOut[];
  /** The kinds were chosen by the user: if none of them strikes, there is no verdict. */
  readonly isLimited?: boolean;
  /** Draws the connections of a worker. */
  drawConnections(random: Random): readonly Connections[];
  /** Opens the proxies between one worker and the store. */
  openWay(client: string): Promise<Way>;
  /** Versions of the servers; none of a user's own store. */
  versions(): Promise<Readonly<Record<string, string>>>;
  /**
   * The keys, rows or nodes of claims on these names, read past Holdfast by the server's own client. All names
   * are of one namespace. Undefined: `inspect` alone is asked.
   */
  leftOf?(names: readonly string[]): Promise<readonly string[]>;
  /** How many commands the store has run; null if it does not count them. */
  commands(): Promise<number | null>;
  /** Restores the servers after a run. */
  recover(): Promise<void>;
}

/** A kind of fault that can't be made here, and the right or tool that is missing. */
export interface LeftOut {
  readonly name: string;
  readonly because: string;
}
