import type { FaultyProxy } from "../faults/faulty-proxy.js";
import type { FalseClock } from "../lab/clock.js";
import type { Site } from "../lab/server.js";

/** A proxy whose faults can be limited to one kind of connection. */
export type Strikable = Pick<
  FaultyProxy,
  "cut" | "leaveHalfOpen" | "delay" | "swallow" | "stall" | "loseReply" | "truncate"
>;

/** The proxies and the clock of one worker. */
export interface Way {
  readonly url: string;
  readonly proxies: readonly Strikable[];
  readonly site?: Site;
  readonly clock?: FalseClock;
  close(): Promise<void>;
}
