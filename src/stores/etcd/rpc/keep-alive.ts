import { type Caller, closedError } from "./caller.js";
import type { EtcdError } from "./errors.js";
import type { Login } from "./login.js";
import { type KeepAliveReply, METHODS } from "./messages.js";
import { movedError, Stream } from "./streams.js";

interface PendingKeepAlive {
  readonly id: bigint;
  readonly resolve: (reply: KeepAliveReply) => void;
  readonly reject: (error: EtcdError) => void;
  readonly timer: NodeJS.Timeout;
}

/** All keepalives of a client, on one stream, which the first one opens. */
export class KeepAlives {
  readonly #caller: Caller;
  readonly #login: Login;
  #stream: Stream<{ id: bigint }, KeepAliveReply> | null = null;
  /** In the order in which they were sent: the replies for one lease come in that order. */
  readonly #pending = new Set<PendingKeepAlive>();
  #closed = false;

  constructor(caller: Caller, login: Login) {
    this.#caller = caller;
    this.#login = login;
  }

  async keepAlive(id: bigint, timeoutMs: number): Promise<KeepAliveReply> {
    const fromMs = performance.now();
    const metadata = this.#login.metadata ?? (await this.#login.ready());
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(closedError());
      this.#stream ??= new Stream(this.#caller, this.#login, metadata, METHODS.leaseKeepAlive, {
        received: (reply) => this.#received(reply),
        broken: (error) => this.#end(error),
      });
      const stream = this.#stream;
      const sentAtMs = performance.now();
      const leftMs = Math.max(0, fromMs + timeoutMs - sentAtMs);
      const timer = setTimeout(() => stream.timedOut(sentAtMs), leftMs);
      this.#pending.add({ id, resolve, reject, timer });
      this.#caller.addPending();
      stream.send({ id });
    });
  }

  /** The client uses another endpoint now. */
  moved(): void {
    this.#drop(movedError());
  }

  close(): void {
    this.#closed = true;
    this.#drop(closedError("unknown"));
  }

  #drop(error: EtcdError): void {
    this.#stream?.close();
    this.#end(error);
  }

  #received(reply: KeepAliveReply): void {
    for (const one of this.#pending) {
      if (one.id !== reply.id) continue;
      this.#settle(one);
      one.resolve(reply);
      return;
    }
  }

  #end(error: EtcdError): void {
    this.#stream = null;
    for (const one of [...this.#pending]) {
      this.#settle(one);
      one.reject(error);
    }
  }

  #settle(one: PendingKeepAlive): void {
    clearTimeout(one.timer);
    this.#pending.delete(one);
    this.#caller.removePending();
  }
}
