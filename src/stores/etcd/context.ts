import type { Clock } from "../../core/clock.js";
import type { LostAnswer } from "../../core/store.js";
import { SessionClaims } from "../shared/sessions/claims.js";
import { Sessions } from "../shared/sessions/sessions.js";
import { ClosedNames } from "./closed-names.js";
import { toStoreError } from "./errors.js";
import { Grants } from "./grants.js";
import type { Keys } from "./keys.js";
import { Operations } from "./operations.js";
import type { EtcdClient } from "./rpc/client.js";
import { SessionMoves } from "./session-moves.js";
import { type EtcdProof, type EtcdSession, EtcdSessionPort } from "./session-port.js";
import { whyLost } from "./snapshot.js";
import { Transactions } from "./transactions.js";
import { EtcdWaiters } from "./waiters.js";

/** etcd counts ttls in seconds. */
const TTL_UNIT_MS = 1_000;

/** The objects that the claims, renewals and releases of one store share. */
export class EtcdContext {
  readonly clock: Clock;
  readonly keys: Keys;
  readonly transactions: Transactions;
  readonly operations: Operations;
  /** The state of every claim of this store. */
  readonly claims: SessionClaims<EtcdSession>;
  readonly sessions: Sessions<bigint, EtcdProof>;
  readonly moves: SessionMoves;
  readonly closedNames: ClosedNames;
  readonly grants: Grants;
  readonly waiters: EtcdWaiters;
  readonly toStoreError = toStoreError;

  constructor(client: EtcdClient, clock: Clock, keys: Keys, clusterMayHaveChanged: () => void) {
    this.clock = clock;
    this.keys = keys;
    this.transactions = new Transactions(client);
    this.operations = new Operations(client, this.transactions, keys);
    const port = new EtcdSessionPort(client, this.transactions, clock, keys, clusterMayHaveChanged);
    this.claims = new SessionClaims(clock, port, (claim) => this.waiters.remove(claim));
    this.sessions = new Sessions(port, clock, this.claims, TTL_UNIT_MS);
    this.moves = new SessionMoves(keys, this.transactions, this.sessions, this.claims);
    this.closedNames = new ClosedNames(client, this.transactions, clock, keys);
    this.grants = new Grants(this.claims, this.closedNames);
    this.waiters = new EtcdWaiters(client, keys, this.transactions, (claim, queue) => {
      const complete = () => this.grants.complete(claim, queue.granted(claim.grantId));
      void this.claims.handOver(claim, complete);
    });
  }
  /** Reads why a claim is neither granted nor waiting. */
  whyLost(name: string, grantId: string): Promise<LostAnswer> {
    return whyLost(this, name, grantId);
  }
}
