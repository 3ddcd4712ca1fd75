import type { Clock } from "../../core/clock.js";
import { createdAt } from "./compare.js";
import type { Keys } from "./keys.js";
import { type Claimed, withFormat } from "./queue.js";
import type { EtcdClient } from "./rpc/client.js";
import type { Op } from "./rpc/messages.js";
import { secondsOf } from "./sessions.js";

const LONGEST_TIMER_MS = 2 ** 31 - 1;

interface Closed {
  readonly lease: bigint;
  readonly untilMs: number;
  /** Its lease was released. */
  used: boolean;
  readonly timer: NodeJS.Timeout | undefined;
}

/**
 * What keeps names closed by `atLeast`: keys under leases of their own, which outlive this process.
 * As etcd counts in seconds, they are deleted on time by whoever made them, if it still lives.
 */
export class Closures {
  readonly #client: EtcdClient;
  readonly #clock: Clock;
  readonly #keys: Keys;
  /** By key: until when, and what deletes it then. */
  readonly #closed = new Map<string, Closed>();

  constructor(client: EtcdClient, clock: Clock, keys: Keys) {
    this.#client = client;
    this.#clock = clock;
    this.#keys = keys;
  }

  /** A lease that lasts longer than `atLeast`. */
  async begin(atLeastMs: number): Promise<bigint> {
    return (await this.#client.leaseGrant(secondsOf(atLeastMs) + 1)).id;
  }

  put(name: string, grantId: string, claimed: Claimed, lease: bigint, at?: bigint): Op {
    const key = this.#keys.closure(name, grantId);
    // In one step with the claim, it is created with it.
    const where = at === undefined ? {} : { at: String(at) };
    return { put: { key, value: withFormat({ ...claimed, ...where }), lease } };
  }

  /** It was put with the claim, which was granted. */
  keep(name: string, grantId: string, lease: bigint, atLeastMs: number): void {
    const key = this.#keys.closure(name, grantId);
    clearTimeout(this.#closed.get(key)?.timer);
    const open = (): void => {
      this.#closed.delete(key);
      this.#client.txn({ success: [{ delete: { key } }] }, { again: true }).catch(() => {});
    };
    const timer =
      atLeastMs > LONGEST_TIMER_MS ? undefined : setTimeout(open, Math.ceil(atLeastMs)).unref();
    this.#closed.set(key, {
      lease,
      untilMs: this.#clock.elapsedMs() + atLeastMs,
      used: false,
      timer,
    });
  }

  /** For a claim that has waited. False: it is gone. */
  async shut(name: string, grantId: string, claimed: Claimed, token: bigint): Promise<boolean> {
    const lease = await this.begin(claimed.atLeastMs);
    const { succeeded } = await this.#client.txn(
      {
        compare: [createdAt(this.#keys.claim(name, grantId), token)],
        success: [this.put(name, grantId, claimed, lease, token)],
      },
      { again: true },
    );
    if (succeeded) this.keep(name, grantId, lease, claimed.atLeastMs);
    else this.#client.leaseRevoke(lease).catch(() => {});
    return succeeded;
  }

  /** Something was put under it. */
  uses(lease: bigint): boolean {
    return [...this.#closed.values()].some((one) => one.lease === lease);
  }

  /** Whether a release opens the name. One that was used closes it until its time; and is not unused later. */
  opens(name: string, grantId: string, unused: boolean): boolean {
    const closed = this.#closed.get(this.#keys.closure(name, grantId));
    if (closed === undefined) return unused;
    const opens = unused && !closed.used;
    if (!unused) closed.used = true;
    return opens || this.#clock.elapsedMs() >= closed.untilMs;
  }

  /** The name was opened before its time: its lease goes, unless it closes other names. */
  opened(name: string, grantId: string): void {
    const key = this.#keys.closure(name, grantId);
    const closed = this.#closed.get(key);
    if (closed === undefined) return;
    clearTimeout(closed.timer);
    this.#closed.delete(key);
    if (!this.uses(closed.lease)) this.#client.leaseRevoke(closed.lease).catch(() => {});
  }

  /** They run out by themselves. */
  close(): void {
    for (const { timer } of this.#closed.values()) clearTimeout(timer);
    this.#closed.clear();
  }
}
