import type { Random } from "../../core/random.js";
import type { Limits } from "../check/verdict.js";
import type { FalseClock } from "../lab/clock.js";
import type { Site } from "../lab/server.js";
import type { Connections } from "../traffic/protocol.js";
import type { FaultKind, Strikable } from "./kinds.js";

/** A store that is verified: servers of a lab, or a user's own store. */
export interface Target extends AsyncDisposable {
  /** As `--lab` names it. */
  readonly name: string;
  /** For people: "one Redis server, appendfsync always". */
  readonly about: string;
  /** False: it is a user's own. Nothing is done to it but taking locks, and nothing is left there. */
  readonly isOurs: boolean;
  /** For the runner's own connection, which no fault of a connection hits. */
  readonly url: string;
  readonly ttlsMs: readonly number[];
  /** What differs from the usual limits. */
  readonly limits: Partial<Limits>;
  readonly kinds: readonly FaultKind[];
  /** How a worker is connected. */
  drawConnections(random: Random): readonly Connections[];
  /** The way of one worker to the store. */
  openWay(client: string): Promise<Way>;
  /** Versions of the servers and client libraries. */
  versions(): Promise<Readonly<Record<string, string>>>;
  /** Commands that the store has run; null if it does not say. */
  commands(): Promise<number | null>;
  /** Brings everything back to health after a run. */
  recover(): Promise<void>;
}

/** The proxies and the clock of one worker. */
export interface Way {
  readonly url: string;
  readonly proxies: readonly Strikable[];
  readonly site?: Site;
  readonly clock?: FalseClock;
  close(): Promise<void>;
}
