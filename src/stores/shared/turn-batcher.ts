/** A request in a batch, with the promise of its reply. */
export interface Batched<Request, Reply> {
  readonly request: Request;
  resolve(reply: Reply): void;
  reject(error: unknown): void;
}

/** Collects the requests of one turn of the event loop and sends them together. */
export class TurnBatcher<Request, Reply> {
  readonly #send: (batch: readonly Batched<Request, Reply>[]) => void;
  #batch: Batched<Request, Reply>[] = [];

  /** `send` settles every request of the batch. */
  constructor(send: (batch: readonly Batched<Request, Reply>[]) => void) {
    this.#send = send;
  }

  send(request: Request): Promise<Reply> {
    return new Promise((resolve, reject) => {
      this.#batch.push({ request, resolve, reject });
      // nextTick comes after everything that the present replies set off, and before new input is read.
      if (this.#batch.length === 1) process.nextTick(() => this.#flush());
    });
  }

  #flush(): void {
    const batch = this.#batch;
    this.#batch = [];
    this.#send(batch);
  }
}

/** How the requests of a batch that was sent as one are settled. */
interface Settlement<Reply, Result> {
  /** Reads the reply to one request off the result of the batch. If it throws, that request alone rejects. */
  replyTo(result: Result, at: number): Reply;
  /** Converts the error with which all requests reject. Default: no conversion. */
  toError?(error: unknown): unknown;
}

export function settleBatch<Request, Reply, Result>(
  batch: readonly Batched<Request, Reply>[],
  sent: Promise<Result>,
  { replyTo, toError = (error) => error }: Settlement<Reply, Result>,
): void {
  sent.then(
    (result) => {
      for (let at = 0; at < batch.length; at++) {
        try {
          batch[at]!.resolve(replyTo(result, at));
        } catch (error) {
          batch[at]!.reject(error);
        }
      }
    },
    (cause: unknown) => {
      const error = toError(cause);
      for (const { reject } of batch) reject(error);
    },
  );
}
