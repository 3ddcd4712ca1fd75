import { type Clock, LONGEST_TIMER_MS } from "../../core/clock.js";
import type { Keys } from "./keys.js";
import { type ClaimValue, encodeClaim, type GrantedClaim } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import { createdAt } from "./rpc/compare.js";
import type { Op } from "./rpc/messages.js";
import type { Transactions } from "./transactions.js";

interface ClosedName {
  readonly lease: bigint;
  readonly untilMs: number;
  /** Whether somebody has worked under the grant. */
  wasUsed: boolean;
  readonly timer: NodeJS.Timeout | undefined;
}

/**
 * Names that grants of this process keep closed by `atLeast`: keys under leases of their own, which
 * outlive this process. etcd counts in seconds, so this process deletes them on time if it still runs.
 */
export class ClosedNames {
  readonly #client: EtcdClient;
  readonly #transactions: Transactions;
  readonly #clock: Clock;
  readonly #keys: Keys;
  /** By their keys. */
  readonly #closed = new Map<string, ClosedName>();

  constructor(client: EtcdClient, transactions: Transactions, clock: Clock, keys: Keys) {
    this.#client = client;
    this.#transactions = transactions;
    this.#clock = clock;
    this.#keys = keys;
  }

  /** A lease that lasts longer than `atLeast`. */
  async grantLease(atLeastMs: number): Promise<bigint> {
    return (await this.#client.leaseGrant(Math.ceil(atLeastMs / 1_000) + 1)).id;
  }

  /** Ends a lease from `grantLease` that closes no name. */
  revokeIfUnused(lease: bigint): void {
    const isUsed = [...this.#closed.values()].some((one) => one.lease === lease);
    if (!isUsed) this.#client.leaseRevoke(lease).catch(() => {});
  }

  /** Closes a name. `token`: of a claim that was created in an earlier step. */
  put(name: string, grantId: string, value: ClaimValue, lease: bigint, token?: bigint): Op {
    const key = this.#keys.atLeast(name, grantId);
    return { put: { key, value: encodeClaim(value, token), lease } };
  }

  /** The name was closed in the step that granted the claim. */
  add(name: string, grantId: string, lease: bigint, atLeastMs: number): void {
    const key = this.#keys.atLeast(name, grantId);
    clearTimeout(this.#closed.get(key)?.timer);
    const open = (): void => {
      this.#closed.delete(key);
      this.#transactions.delete([key]).catch(() => {});
    };
    const timer =
      atLeastMs > LONGEST_TIMER_MS ? undefined : setTimeout(open, Math.ceil(atLeastMs)).unref();
    const untilMs = this.#clock.elapsedMs() + atLeastMs;
    this.#closed.set(key, { lease, untilMs, wasUsed: false, timer });
  }

  /** Closes the name for a claim that has waited. False: the claim is gone. */
  async close(name: string, grantId: string, granted: GrantedClaim): Promise<boolean> {
    const { token, atLeastMs } = granted;
    const lease = await this.grantLease(atLeastMs);
    const { succeeded } = await this.#transactions.send({
      compare: [createdAt(this.#keys.claim(name, grantId), token)],
      success: [this.put(name, grantId, granted, lease, token)],
    });
    if (succeeded) this.add(name, grantId, lease, atLeastMs);
    else this.revokeIfUnused(lease);
    return succeeded;
  }

  /** Whether a release opens the name. A grant that was used once keeps it closed until its time. */
  opensOnRelease(name: string, grantId: string, isUnused: boolean): boolean {
    const closed = this.#closed.get(this.#keys.atLeast(name, grantId));
    if (closed === undefined) return isUnused;
    if (!isUnused) closed.wasUsed = true;
    return !closed.wasUsed || this.#clock.elapsedMs() >= closed.untilMs;
  }

  /** Ends the lease of a name that was opened, unless it closes other names. */
  opened(name: string, grantId: string): void {
    const key = this.#keys.atLeast(name, grantId);
    const closed = this.#closed.get(key);
    if (closed === undefined) return;
    clearTimeout(closed.timer);
    this.#closed.delete(key);
    this.revokeIfUnused(closed.lease);
  }

  /** Stops the timers: the leases run out by themselves. */
  stop(): void {
    for (const { timer } of this.#closed.values()) clearTimeout(timer);
    this.#closed.clear();
  }
}
