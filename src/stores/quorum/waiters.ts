import type { Clock } from "../../core/clock.js";
import { majorityOf } from "./ballot.js";
import { LocalQueue } from "./local-queue.js";
import type { Member } from "./member.js";

/** While somebody waits, nodes that are not listened to are tried again after this time. */
const LISTEN_EVERY_MS = 1_000;

/** The waiters of this process. While there are some, it listens to the nodes. */
export class Waiters {
  readonly #members: readonly Member[];
  readonly #clock: Clock;
  /** By name. */
  readonly #queues = new Map<string, LocalQueue>();
  #listenedAtMs = Number.NEGATIVE_INFINITY;

  constructor(members: readonly Member[], clock: Clock) {
    this.#members = members;
    this.#clock = clock;
  }

  get count(): number {
    let count = 0;
    for (const queue of this.#queues.values()) count += queue.size;
    return count;
  }

  find(name: string): LocalQueue | undefined {
    return this.#queues.get(name);
  }

  /** The queue for a name, to be joined. */
  queueOf(name: string): LocalQueue {
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = new LocalQueue(name, this.#clock);
      this.#queues.set(name, queue);
    }
    return queue;
  }

  /** The waiter has the name. */
  granted(queue: LocalQueue, grantId: string): void {
    queue.leave(grantId);
    this.#dropIfEmpty(queue);
  }

  /** The waiter gives up, and the next one claims. Returns why the nodes could not be asked, if that is so. */
  leave(name: string, grantId: string): unknown {
    const queue = this.#queues.get(name);
    if (queue === undefined) return null;
    const place = queue.aheadOf(grantId);
    queue.leave(grantId);
    if (place === 0) queue.look();
    // The next waiter claims also if this one's ticket has expired and nobody else waits.
    this.#dropIfEmpty(queue);
    return place === -1 ? null : queue.failure;
  }

  /** Any node's messages will do. Waiters also poll, so a node that can't be listened to is no error. */
  listen(): void {
    const nowMs = this.#clock.elapsedMs();
    if (nowMs - this.#listenedAtMs < LISTEN_EVERY_MS) return;
    this.#listenedAtMs = nowMs;
    for (const [i, { node }] of this.#members.entries()) {
      const listening = node.listen({
        freed: (name) => this.#freed(name, i),
        missed: () => {
          for (const queue of this.#queues.values()) queue.look();
        },
        isNeeded: () => this.count > 0,
      });
      listening.catch(() => {});
    }
  }

  close(): void {
    this.#listenedAtMs = Number.NEGATIVE_INFINITY;
    for (const queue of this.#queues.values()) queue.close();
  }

  #freed(name: string, index: number): void {
    const queue = this.#queues.get(name);
    if (queue?.first !== undefined) queue.notified(index, majorityOf(this.#members.length));
    else this.#members[index]!.node.pass(name).catch(() => {});
  }

  #dropIfEmpty(queue: LocalQueue): void {
    if (queue.size > 0) return;
    queue.close();
    // A waiter that came after this queue was dropped has another one.
    if (this.#queues.get(queue.name) === queue) this.#queues.delete(queue.name);
  }
}
