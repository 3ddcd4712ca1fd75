import { append } from "../shared/append.js";
import { slices } from "../shared/slices.js";
import { type Batched, TurnBatcher } from "../shared/turn-batcher.js";
import { LOCK_WAIT_MS, SHORTEST_LOCK_WAIT_MS } from "./database.js";
import { isLockFailure } from "./errors.js";

/** A request for a locked name is given up by then, because the core waits 2 s for some claims. */
const LONGEST_LOCKED_MS = 1_500;

/** How requests of one kind are sent in one call of a function of the schema. */
interface BatchKind<T> {
  /** The most requests in one call. */
  readonly size: number;
  nameOf(request: T): string;
  timeoutMsOf(request: T): number;
  /** Whether the request stays behind earlier ones of its name while that is locked. */
  isOrdered(request: T): boolean;
  /** Whether requests for locked names are sent again. */
  isOpen(): boolean;
  /** Why a request for a locked name is given up, if the server has given no reason. */
  lockedError(): unknown;
  /**
   * Replies in the order of the requests. Without `waits`, a call with several requests skips names whose rows another
   * transaction has locked, and the replies to their requests are null.
   */
  call(
    requests: readonly T[],
    timeoutMs: number,
    lockWaitMs: number,
    waits: boolean,
  ): Promise<readonly (string | null)[]>;
}

interface Sent<T> extends Batched<T, string> {
  /** Its place in the order of arrival. */
  readonly number: number;
  /**
   * When a request whose name stays locked is given up; set once the name was found locked. That is before the core
   * gives it up, which would not know why.
   */
  giveUpAtMs?: number;
  /** The server's latest reason not to serve it. */
  failure?: unknown;
}

/**
 * Sends the requests of one turn of the event loop in one call. Requests whose names are locked are sent again together,
 * and name by name in calls that wait for the lock. One such call runs at a time, and not for long: somebody's
 * transaction may keep rows locked for as long as it likes, and other requests need the connections of the pool. The
 * requests for one locked name keep their order, and later ones join their end.
 */
export function requestBatcher<T>(kind: BatchKind<T>): TurnBatcher<T, string> {
  /** The requests for each locked name in order, also while they are sent again. */
  const locked = new Map<string, Sent<T>[]>();
  let arrived = 0;
  let isSendingAgain = false;

  /** Settles the requests but those whose names are locked, to which it resolves. */
  const send = async (
    batch: readonly Sent<T>[],
    lockWaitMs: number,
    waits: boolean,
  ): Promise<readonly Sent<T>[]> => {
    const requests = batch.map(({ request }) => request);
    const timeoutMs = Math.min(...requests.map(kind.timeoutMsOf));
    try {
      const replies = await kind.call(requests, timeoutMs, lockWaitMs, waits);
      const skipped = batch.filter((sent, i) => {
        const reply = replies[i] ?? null;
        if (reply !== null) sent.resolve(reply);
        return reply === null;
      });
      const [first, ...others] = skipped;
      if (!waits || first === undefined || !kind.isOpen()) return skipped;
      // The row of the name was deleted meanwhile, or is hidden from this user. A request alone makes the row, or fails.
      return [...(await send([first], lockWaitMs, true)), ...others];
    } catch (error) {
      // The whole call was rolled back. Without `waits`, one name that another transaction is inserting stands for all.
      const isLocked = isLockFailure(error);
      for (const sent of batch) {
        if (isLocked) sent.failure = error;
        else sent.reject(error);
      }
      return isLocked ? batch : [];
    }
  };

  /** Puts a request for a locked name into its place. */
  const enqueue = (sent: Sent<T>): void => {
    const lockedMs = Math.min(kind.timeoutMsOf(sent.request) / 3, LONGEST_LOCKED_MS);
    sent.giveUpAtMs ??= performance.now() + lockedMs;
    const queue = locked.get(kind.nameOf(sent.request));
    if (queue === undefined) append(locked, kind.nameOf(sent.request), sent);
    else queue.splice(queue.findLastIndex(({ number }) => number < sent.number) + 1, 0, sent);
  };

  /** Removes requests that are settled. Their names go to the end: next time, others have their turn. */
  const dequeue = (settled: ReadonlySet<Sent<T>>, names: Iterable<string>): void => {
    for (const name of names) {
      const left = locked.get(name)!.filter((sent) => !settled.has(sent));
      locked.delete(name);
      if (left.length > 0) locked.set(name, left);
    }
  };

  const giveUpOverdue = (): void => {
    const nowMs = kind.isOpen() ? performance.now() : Number.POSITIVE_INFINITY;
    const overdue = [...locked.values()].flat().filter(({ giveUpAtMs }) => giveUpAtMs! <= nowMs);
    if (overdue.length === 0) return;
    for (const { reject, failure } of overdue) reject(failure ?? kind.lockedError());
    dequeue(new Set(overdue), namesOf(overdue));
  };

  const resend = async (
    batch: readonly Sent<T>[],
    lockWaitMs: number,
    waits: boolean,
  ): Promise<readonly Sent<T>[]> => {
    const left = await send(batch, lockWaitMs, waits);
    const settled = new Set(batch);
    for (const sent of left) settled.delete(sent);
    dequeue(settled, namesOf(batch));
    return left;
  };

  const sendAgain = async (some: readonly Sent<T>[]): Promise<void> => {
    some.forEach(enqueue);
    if (isSendingAgain) return;
    isSendingAgain = true;
    for (;;) {
      giveUpOverdue();
      if (locked.size === 0) break;
      const batch = [...locked.values()].flat().slice(0, kind.size);
      // Most rows were locked for a moment only.
      const left = locked.size > 1 ? await resend(batch, SHORTEST_LOCK_WAIT_MS, false) : batch;
      const [name, ...others] = namesOf(left);
      if (name === undefined || !kind.isOpen()) continue;
      const lockWaitMs = Math.max(LOCK_WAIT_MS / (others.length + 1), SHORTEST_LOCK_WAIT_MS);
      await resend(locked.get(name)!.slice(0, kind.size), lockWaitMs, true);
    }
    isSendingAgain = false;
  };

  const namesOf = (some: readonly Sent<T>[]): ReadonlySet<string> =>
    new Set(some.map(({ request }) => kind.nameOf(request)));

  return new TurnBatcher((all) => {
    const unlocked: Sent<T>[] = [];
    for (const one of all) {
      const sent = { ...one, number: arrived++ };
      const waits = kind.isOrdered(one.request) && locked.has(kind.nameOf(one.request));
      if (waits) enqueue(sent);
      else unlocked.push(sent);
    }
    for (const batch of slices(unlocked, kind.size)) {
      void send(batch, SHORTEST_LOCK_WAIT_MS, false).then(sendAgain);
    }
  });
}
