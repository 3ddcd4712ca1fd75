/** The answer of a node to a claim. Numbers are below 2^53; `micros` is the node's clock. */
export type NodeClaimReply =
  /** The node has recorded the ballot under this number. */
  | { readonly kind: "recorded"; readonly number: number; readonly micros: number }
  /** Another ballot, known by its short id, has the name on this node. */
  | {
      readonly kind: "busy";
      readonly id: string;
      readonly holder: string;
      readonly freeInMs: number;
      readonly micros: number;
    }
  /** The node has lost data, and stays out of the vote. */
  | { readonly kind: "recovering"; readonly forMs: number; readonly micros: number };

/** A claim of one ballot. */
export interface NodeClaim {
  readonly name: string;
  /** The id of the ballot: a secret. */
  readonly id: string;
  /** The number that the client proposes. */
  readonly number: number;
  readonly ttlMs: number;
  readonly seq: number;
  readonly atLeastMs: number;
  /** Whether the node notes that this process waits: never, if the name is busy, or always. */
  readonly register: "never" | "if-busy" | "always";
  readonly holder: string;
}

export interface NodeRenewal {
  readonly name: string;
  readonly id: string;
  /** The token of the grant; -1: there is none, and the renewal only finds out whether the node answers. */
  readonly number: number;
  readonly ttlMs: number;
  readonly seq: number;
  /** How long `atLeast` still closes the name. */
  readonly closedForMs: number;
  readonly holder: string;
}

export type NodeRenewReply =
  /** The node has the record; its expiry rests on the renewal with this number. */
  | { readonly kind: "yes"; readonly seq: number; readonly ttlMs: number }
  /** The node had lost the record and has it again: no vote for the token until the next renewal. */
  | { readonly kind: "filled" }
  /** `why`: it was revoked. `isTaken`: another ballot has the name on this node. */
  | { readonly kind: "no"; readonly why?: string; readonly isTaken?: boolean }
  | { readonly kind: "error"; readonly cause: unknown };

export interface NodeRelease {
  readonly name: string;
  readonly id: string;
  /** The token of the grant, which no late renewal may fill in again; -1: there was no grant. */
  readonly number: number;
  /** `atLeast` does not close the name. */
  readonly unused: boolean;
  /** Whether a process that waits is notified; not if the name stays with another ballot. */
  readonly wakes: boolean;
  /** How long the node refuses the claim of the ballot if it arrives after the release; 0: it can't arrive. */
  readonly keptOutMs: number;
}

/** `awaited`: released, and another process was notified. */
export type NodeReleaseReply = "released" | "awaited" | "absent";

/** A name as one node has it. */
export interface NodeNameInfo {
  readonly record: {
    /** The short id of the ballot. */
    readonly id: string;
    readonly number: number;
    readonly holder: string;
    readonly heldMs: number;
    readonly expiresInMs: number;
    readonly closed: boolean;
  } | null;
  readonly revoked: readonly {
    readonly id: string;
    readonly holder: string;
    readonly token: bigint;
    readonly by: string;
    readonly why: string;
    readonly agoMs: number;
  }[];
}

/** The state of a node that a client has joined. */
export interface NodeState {
  /** Names the server process. */
  readonly runId: string;
  /** How long the node still stays out of the vote; 0: it is in service. */
  readonly recoveringForMs: number;
  /** The node has no trace of use: it is new, or all its data are gone. */
  readonly isNew: boolean;
  /** Names this state, for `settle`. */
  readonly marker: string;
  readonly micros: number;
}

export interface NodeRevocation {
  readonly name: string;
  /** The short id of the ballot. */
  readonly id: string;
  readonly number: number;
  readonly holder: string;
  readonly by: string;
  readonly why: string;
}

/**
 * One node of a quorum. Each request is one atomic step on the node. A rejection means that its outcome is
 * unknown; only a HoldfastError with `retryable: false` says for sure that nothing was done.
 */
export interface QuorumNode {
  /** The address, for people. */
  readonly where: string;
  /** Examines the node: whether it has all its data. */
  join(): Promise<NodeState>;
  /** Puts a new node into service, unless it has lost data since it was seen with `marker`. */
  settle(marker: string): Promise<void>;
  claim(claim: NodeClaim): Promise<NodeClaimReply>;
  /** Raises the number of a ballot that the node has recorded. True: the node has it under this number. */
  raise(name: string, id: string, number: number): Promise<boolean>;
  /** One reply for each, in order. */
  renew(renewals: readonly NodeRenewal[]): Promise<readonly NodeRenewReply[]>;
  release(release: NodeRelease): Promise<NodeReleaseReply>;
  /** Called when this process was notified of a free name that it no longer wants: the node notifies another one. */
  pass(name: string): Promise<void>;
  revoke(revocation: NodeRevocation): Promise<void>;
  /** One for each name, in order; an error stands for a name that can't be read. */
  inspect(names: readonly string[]): Promise<readonly (NodeNameInfo | Error)[]>;
  /** The names with this prefix that the node has a record of. */
  names(prefix: string): Promise<readonly string[]>;
  /** Begins to listen, if it does not yet: calls `freed` with a name, `missed` when calls may have been missed. */
  listen(events: NodeEvents): Promise<void>;
  /** Stops listening. */
  stopListening(): Promise<void>;
  close(): Promise<void>;
}

export interface NodeEvents {
  freed(name: string): void;
  missed(): void;
  /** Whether anybody waits. */
  isNeeded(): boolean;
}
