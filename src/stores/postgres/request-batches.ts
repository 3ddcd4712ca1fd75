import { append } from "../shared/append.js";
import { slices } from "../shared/slices.js";
import { TurnBatcher } from "../shared/turn-batcher.js";
import { isLockFailure } from "./errors.js";

/** How requests of one kind go in one call of a function of the schema. */
export interface BatchKind<T> {
  /** At most so many in a call. */
  readonly size: number;
  nameOf(request: T): string;
  /**
   * Replies in the order of the requests; null: somebody else has locked the name. With `waits`, the call waits for
   * the locks instead.
   */
  call(
    requests: readonly T[],
    timeoutMs: number,
    waits: boolean,
  ): Promise<readonly (string | null)[]>;
}

interface Sent<T> {
  readonly request: T;
  readonly timeoutMs: number;
  replied(reply: string): void;
  failed(error: unknown): void;
}

/** Sends the requests of one turn of the event loop in one call, unless somebody else has locked their names. */
export class RequestBatches<T> {
  readonly #kind: BatchKind<T>;
  readonly #turn = new TurnBatcher<Sent<T>>((all) => {
    for (const batch of slices(all, this.#kind.size)) this.#send(batch, false);
  });

  constructor(kind: BatchKind<T>) {
    this.#kind = kind;
  }

  send(request: T, timeoutMs: number): Promise<string> {
    return new Promise((replied, failed) =>
      this.#turn.add({ request, timeoutMs, replied, failed }),
    );
  }

  #send(batch: readonly Sent<T>[], waits: boolean): void {
    const timeoutMs = Math.min(...batch.map((sent) => sent.timeoutMs));
    const requests = batch.map(({ request }) => request);
    this.#kind.call(requests, timeoutMs, waits).then(
      (replies) => {
        const locked: Sent<T>[] = [];
        for (const [i, sent] of batch.entries()) {
          const reply = replies[i] ?? null;
          if (reply === null) locked.push(sent);
          else sent.replied(reply);
        }
        this.#sendByName(locked);
      },
      (error: unknown) => {
        // A row that somebody is just making can't be skipped. Nothing of the batch has happened.
        if (!waits && batch.length > 1 && isLockFailure(error)) this.#sendByName(batch);
        else for (const sent of batch) sent.failed(error);
      },
    );
  }

  /** Those of one name in their order, without those of other names: they wait. */
  #sendByName(batch: readonly Sent<T>[]): void {
    const byName = new Map<string, Sent<T>[]>();
    for (const sent of batch) append(byName, this.#kind.nameOf(sent.request), sent);
    for (const some of byName.values()) this.#send(some, true);
  }
}
