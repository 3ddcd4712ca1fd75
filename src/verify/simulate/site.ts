import type { NameInfo, Store } from "../../core/store.js";
import type { Excuse, Verdict } from "../check/check.js";
import type { Event } from "../check/history.js";
import type { SimulatedProcess } from "./process.js";
import type { MessageFault, Schedule, StoreTrouble } from "./schedule.js";
import type { World } from "./world.js";

/** The store of a simulation, and the ways to it. */
export interface Site {
  /** Below each of these rules, the store promises nothing under the faults of the run. */
  readonly excuses: readonly Excuse[];
  /** The store as this client reaches it. */
  storeFor(client: number): Store;
  /** Wraps the store of a client: records the grants that its core receives. */
  observe(client: number, store: Store): Store;
  /** The content of the store, as only the simulator sees it. */
  list(): readonly NameInfo[];
  /** Plans a fault of the store itself. */
  plan(trouble: StoreTrouble): void;
  /** The client's subscription was down and is back. */
  resubscribe(client: number): void;
  /** Verdicts about what no history shows. */
  verdicts(): readonly Verdict[];
}

/** The parts of the simulation that a site uses. */
export interface SiteSurroundings {
  readonly world: World;
  readonly schedule: Schedule;
  /** By client. */
  readonly processes: readonly SimulatedProcess[];
  /** `node`: of a quorum. */
  isActive(fault: MessageFault, client: number, node?: number): boolean;
  /** Stops the client's process in the middle of its turn. */
  stop(client: number): void;
  record(event: Event): void;
  /** Records a fault from its beginning to its end. */
  window(what: string, span: { fromMs: number; toMs: number; sparesStore?: boolean }): void;
}

export const clientName = (number: number): string => `client-${number}`;
