import { append } from "../shared/append.js";
import { slices } from "../shared/slices.js";
import { type Batched, TurnBatcher } from "../shared/turn-batcher.js";
import { isLockFailure } from "./errors.js";

/** How requests of one kind are sent in one call of a function of the schema. */
interface BatchKind<T> {
  /** The most requests in one call. */
  readonly size: number;
  nameOf(request: T): string;
  timeoutMsOf(request: T): number;
  /**
   * Replies in the order of the requests. Without `waits`, the call skips names whose rows another transaction has
   * locked, and the replies to their requests are null.
   */
  call(
    requests: readonly T[],
    timeoutMs: number,
    waits: boolean,
  ): Promise<readonly (string | null)[]>;
}

/**
 * Sends the requests of one turn of the event loop in one call. Requests whose names are locked are sent again, in a
 * call for each name that waits for the lock: they do not delay the others.
 */
export function requestBatcher<T>(kind: BatchKind<T>): TurnBatcher<T, string> {
  type Sent = Batched<T, string>;

  const send = (batch: readonly Sent[], waits: boolean): void => {
    const requests = batch.map(({ request }) => request);
    const timeoutMs = Math.min(...requests.map(kind.timeoutMsOf));
    kind.call(requests, timeoutMs, waits).then(
      (replies) => {
        const locked: Sent[] = [];
        for (const [i, sent] of batch.entries()) {
          const reply = replies[i] ?? null;
          if (reply === null) locked.push(sent);
          else sent.resolve(reply);
        }
        // The row of the name was deleted meanwhile, or is hidden from this user. A request alone makes the row, or fails.
        if (waits) for (const one of locked) send([one], true);
        else sendByName(locked);
      },
      (error: unknown) => {
        // The row of a name that another transaction is inserting can't be skipped. The whole call was rolled back.
        if (!waits && batch.length > 1 && isLockFailure(error)) sendByName(batch);
        else for (const { reject } of batch) reject(error);
      },
    );
  };
  const sendByName = (batch: readonly Sent[]): void => {
    const byName = new Map<string, Sent[]>();
    for (const sent of batch) append(byName, kind.nameOf(sent.request), sent);
    for (const some of byName.values()) send(some, true);
  };

  return new TurnBatcher((all) => {
    for (const batch of slices(all, kind.size)) send(batch, false);
  });
}
