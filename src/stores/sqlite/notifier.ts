import type { DuePush } from "../rule.js";
import { append } from "../shared/append.js";
import { LocalWaiters } from "../shared/local-waiters.js";
import type { SqliteRecord } from "./claims.js";
import { PushSocket, sendPushes } from "./push-socket.js";

/** How often waiters look where no socket can be opened. */
const POLL_INTERVAL_MS = 50;
/** Interval of the attempts to listen again: a descriptor or a place for the socket may have been missing. */
const POLLS_PER_LISTEN_ATTEMPT = 20;

/** Carries pushes to waiters: directly within this process, through sockets to other processes. */
export class Notifier {
  /** The waiters of this process. */
  readonly waiters = new LocalWaiters();
  readonly #file: string;
  readonly #socket: PushSocket;
  readonly #passOn: (unreached: readonly DuePush[]) => Promise<boolean>;
  /** Settles when the pushes of the last step are sent. */
  sent: Promise<unknown> = Promise.resolve();
  /** Runs while no socket can be opened. */
  #polling: NodeJS.Timeout | null = null;

  /** `passOn` takes back handovers to a process that is gone, in a step of its own. */
  constructor(file: string, passOn: (unreached: readonly DuePush[]) => Promise<boolean>) {
    this.#file = file;
    this.#passOn = passOn;
    this.#socket = new PushSocket(file, ({ grantId, push }) => this.waiters.push(grantId, push));
  }

  get socketName(): string {
    return this.#socket.name;
  }

  /** Opens the socket, or lets the waiters poll where there can be none. */
  listen(): void {
    if (this.#polling !== null || this.#socket.open()) return;
    let polls = 0;
    this.#polling = setInterval(() => {
      const mayListen = ++polls % POLLS_PER_LISTEN_ATTEMPT === 0 && this.waiters.size > 0;
      if (mayListen && this.#socket.open()) this.#stopPolling();
      // Waiters also look when the process has just begun to listen: earlier pushes have reached nobody.
      this.waiters.pushLookToAll();
      if (this.waiters.size === 0) this.#stopPolling();
    }, POLL_INTERVAL_MS).unref();
  }

  send(pushes: readonly DuePush[]): void {
    const bySocket = new Map<string, DuePush[]>();
    for (const one of pushes) append(bySocket, (one.record as SqliteRecord).socketName, one);
    this.sent = Promise.all([...bySocket].map(([name, some]) => this.#sendTo(name, some)));
  }

  close(): void {
    this.#socket.close();
    this.#stopPolling();
  }

  async #sendTo(socketName: string, pushes: readonly DuePush[]): Promise<void> {
    const messages = pushes.map(({ record, push }) => ({ grantId: record.grantId, push }));
    if (socketName === this.#socket.name) {
      for (const { grantId, push } of messages) this.waiters.push(grantId, push);
      return;
    }
    const outcome = await sendPushes(this.#file, socketName, messages);
    if (outcome !== "refused" || pushes.every(({ push }) => push.kind === "look")) return;
    const passedOn = await this.#passOn(pushes).catch(() => false);
    // That step has pushes of its own. If it failed, `sent` is still the promise that waits here.
    if (passedOn) await this.sent;
  }

  #stopPolling(): void {
    if (this.#polling !== null) clearInterval(this.#polling);
    this.#polling = null;
  }
}
