import type { QuorumNode } from "../../../stores/quorum/node.js";
import type { SimulatedServer } from "./server.js";

/** A quorum that leaves out one of its rules. */
export interface QuorumMutant {
  /** The broken rule of a node. */
  readonly server?: typeof SimulatedServer;
  /** Wraps the nodes of one client, so that the client breaks a rule. */
  readonly nodes?: (nodes: readonly QuorumNode[]) => readonly QuorumNode[];
}
