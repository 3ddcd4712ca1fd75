import { append } from "../shared/append.js";
import { slices } from "../shared/slices.js";
import { type Batched, TurnBatcher } from "../shared/turn-batcher.js";
import { LOCK_WAIT_MS } from "./database.js";
import { isLockFailure } from "./errors.js";

/** How long the first call of a request waits for a locked row, and a later one if many names are locked. */
const SHORTEST_LOCK_WAIT_MS = 20;

/** How requests of one kind are sent in one call of a function of the schema. */
interface BatchKind<T> {
  /** The most requests in one call. */
  readonly size: number;
  nameOf(request: T): string;
  timeoutMsOf(request: T): number;
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
  /**
   * When a request whose name stays locked is given up; set once it was found locked. That is before the core gives it
   * up, which would not know why.
   */
  giveUpAtMs?: number;
}

/**
 * Sends the requests of one turn of the event loop in one call. Requests whose names are locked are sent again together,
 * and name by name in calls that wait for the lock. One such call runs at a time, and not for long: somebody's
 * transaction may keep rows locked for as long as it likes, and other requests need the connections of the pool.
 */
export function requestBatcher<T>(kind: BatchKind<T>): TurnBatcher<T, string> {
  const locked: Sent<T>[] = [];
  let isWaiting = false;

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
      if (!waits) return skipped;
      // The row of the name was deleted meanwhile, or is hidden from this user. A request alone makes the row, or fails.
      return (await Promise.all(skipped.map((one) => send([one], lockWaitMs, true)))).flat();
    } catch (error) {
      // The whole call was rolled back.
      const isLocked = isLockFailure(error);
      return batch.filter((sent) => {
        const nowMs = performance.now();
        sent.giveUpAtMs ??= nowMs + kind.timeoutMsOf(sent.request) / 3;
        // Without `waits`, one name that another transaction is inserting stands for all.
        if (isLocked && (!waits || nowMs < sent.giveUpAtMs)) return true;
        sent.reject(error);
        return false;
      });
    }
  };

  const sendAgain = async (some: readonly Sent<T>[]): Promise<void> => {
    locked.push(...some);
    if (isWaiting) return;
    isWaiting = true;
    while (locked.length > 0) {
      const batch = locked.splice(0, kind.size);
      // Most rows were locked for a moment only.
      const left = batch.length > 1 ? await send(batch, SHORTEST_LOCK_WAIT_MS, false) : batch;
      const [first, ...others] = groupByName(left);
      if (first === undefined) continue;
      const lockWaitMs = Math.max(LOCK_WAIT_MS / (others.length + 1), SHORTEST_LOCK_WAIT_MS);
      const stuck = await send(first, lockWaitMs, true);
      locked.push(...others.flat(), ...stuck);
    }
    isWaiting = false;
  };

  const groupByName = (some: readonly Sent<T>[]): readonly Sent<T>[][] => {
    const byName = new Map<string, Sent<T>[]>();
    for (const sent of some) append(byName, kind.nameOf(sent.request), sent);
    return [...byName.values()];
  };

  return new TurnBatcher((all) => {
    for (const batch of slices(all, kind.size)) {
      void send(batch, SHORTEST_LOCK_WAIT_MS, false).then(sendAgain);
    }
  });
}
