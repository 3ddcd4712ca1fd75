import { Agenda, AgendaEntry } from "../../../core/agenda.js";
import type { Clock } from "../../../core/clock.js";
import { TurnBatcher } from "../../shared/turn-batcher.js";
import type { ZooKeeperErrorCode } from "./codes.js";
import { Connection, type GrantedSession, type SessionTicket } from "./connection.js";
import { type ConnectionInfo, type Reply, ZooKeeperError } from "./errors.js";
import type { Listeners } from "./events.js";
import { auth, CLOSE, type Operation, PING } from "./operations.js";
import type { SessionSettings } from "./options.js";
import { Request, type RequestHandlers } from "./request.js";
import type { Watches } from "./watches.js";

/**
 * `connecting`: there is no session yet. `suspended`: the session has no connection at present.
 * `lost` and `closed` are final.
 */
export type SessionState = "connecting" | "connected" | "suspended" | "lost" | "closed";

const LEAST_ATTEMPT_MS = 100;
const LONGEST_PAUSE_MS = 500;
const PASSWORD_BYTES = 16;

class Alarm extends AgendaEntry {
  readonly #ring: () => void;

  constructor(ring: () => void) {
    super();
    this.#ring = ring;
  }

  wake(): void {
    this.#ring();
  }

  /** Rings after what has arrived is read: a stalled process must not take its own silence for the server's. */
  static afterInput(ring: () => void): Alarm {
    return new Alarm(() => setImmediate(ring));
  }
}

/**
 * A session over one connection after another. It ends when a server says so, and by its own clock when
 * no request was answered for the whole timeout. All of its times count from the sending of requests.
 */
export class Session {
  readonly #settings: SessionSettings;
  readonly #clock: Clock;
  readonly #listeners: Listeners;
  readonly #watches: Watches;
  readonly #agenda: Agenda;
  readonly #attempt = Alarm.afterInput(() => this.#attemptIsOver());
  readonly #silence = Alarm.afterInput(() => this.#checkSilence());
  readonly #timeouts = Alarm.afterInput(() => this.#expireRequests());
  readonly #ping = new Alarm(() => this.#pingIfIdle());
  readonly #opening = Alarm.afterInput(() => this.#openingIsOver());
  readonly #batcher = new TurnBatcher<Request>((requests) => this.#sendLater(requests));
  /** Requests whose promise is pending, oldest first: all have the same timeout. */
  readonly #open = new Set<Request>();
  #unsent: Request[] = [];
  #ticket: SessionTicket;
  #state: SessionState = "connecting";
  #connection: Connection | null = null;
  #connections = 0;
  /** When the last request that was answered was sent: the server has counted from then, or later. */
  #aliveAtMs = Number.NEGATIVE_INFINITY;
  #lastSentAtMs = Number.NEGATIVE_INFINITY;
  #lastFailure = "no server was tried";
  #end: ZooKeeperError | null = null;
  #opened: ((error: ZooKeeperError | null) => void) | null = null;
  #closing: Promise<void> | null = null;

  constructor(settings: SessionSettings, listeners: Listeners, watches: Watches) {
    this.#settings = settings;
    this.#clock = settings.clock;
    this.#listeners = listeners;
    this.#watches = watches;
    this.#agenda = new Agenda(settings.clock, () => {});
    const password = Buffer.alloc(PASSWORD_BYTES);
    this.#ticket = { id: 0n, password, timeoutMs: settings.sessionTimeoutMs, lastZxid: 0n };
  }

  /** By the clock, also when no timer has run since the deadline. */
  get state(): SessionState {
    const isAlive = this.#state === "connected" || this.#state === "suspended";
    return isAlive && this.#clock.elapsedMs() >= this.aliveUntilMs ? "lost" : this.#state;
  }

  get connection(): ConnectionInfo | null {
    return this.#state === "connected" ? this.#connection!.info : null;
  }

  get ticket(): SessionTicket {
    return this.#ticket;
  }

  get aliveUntilMs(): number {
    return this.#aliveAtMs + this.#ticket.timeoutMs;
  }

  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#agenda.addPending(1);
      this.#opened = (error) => {
        this.#opened = null;
        this.#agenda.addPending(-1);
        this.#agenda.remove(this.#opening);
        if (error === null) resolve();
        else reject(error);
      };
      this.#agenda.set(this.#opening, this.#clock.elapsedMs() + this.#settings.connectTimeoutMs);
      this.#dial();
    });
  }

  /** Sends the request as soon as there is a connection. Throws `InvalidArgumentError`. */
  send<T>(operation: Operation<T>, handlers: RequestHandlers<T>): void {
    if (this.#end === null && this.#closing === null) this.#submit(operation, handlers);
    else new Request(operation, 0, handlers).fail(this.#end?.code ?? "CLOSED");
  }

  /** Ends the session on the server if it can be reached; otherwise the server ends it after its timeout. */
  close(): Promise<void> {
    this.#closing ??= new Promise<void>((resolve) => {
      const finish = (): void => {
        this.#finish("closed", new ZooKeeperError("CLOSED"));
        resolve();
      };
      if (this.#state !== "connected") return finish();
      this.#submit(CLOSE, { succeeded: finish, failed: finish });
      this.#agenda.set(this.#attempt, this.#clock.elapsedMs() + this.#ticket.timeoutMs / 3);
    });
    return this.#closing;
  }

  #submit<T>(operation: Operation<T>, handlers: RequestHandlers<T>): void {
    const deadlineMs = this.#clock.elapsedMs() + this.#settings.requestTimeoutMs;
    const request: Request<T> = new Request(operation, deadlineMs, {
      succeeded: (value, reply) => {
        this.#settled(request as Request, reply);
        handlers.succeeded(value, reply);
      },
      failed: (error) => {
        this.#settled(request as Request, error.reply);
        handlers.failed(error);
      },
    });
    this.#open.add(request as Request);
    if (this.#open.size === 1) {
      this.#agenda.addPending(1);
      this.#agenda.set(this.#timeouts, deadlineMs);
    }
    this.#batcher.add(request as Request);
  }

  #settled(request: Request, reply: Reply | null): void {
    if (reply !== null) this.#settings.servers.answered();
    if (this.#open.delete(request) && this.#open.size === 0) {
      this.#agenda.addPending(-1);
      this.#agenda.remove(this.#timeouts);
    }
  }

  #sendLater(requests: readonly Request[]): void {
    for (const request of requests) this.#unsent.push(request);
    this.#sendUnsent();
  }

  #sendUnsent(): void {
    if (this.#state !== "connected") return;
    const requests = this.#unsent.filter(({ settled }) => !settled);
    this.#unsent = [];
    this.#sendNow(requests);
  }

  #sendNow(requests: readonly Request[]): void {
    if (requests.length === 0) return;
    this.#lastSentAtMs = this.#clock.elapsedMs();
    this.#connection!.send(requests, this.#lastSentAtMs);
  }

  #dial(): void {
    const { servers, tls, clock, maxReplyBytes } = this.#settings;
    const [server, number] = [servers.next(), ++this.#connections];
    const ticket = (): SessionTicket => this.#ticket;
    this.#connection = new Connection(
      { server, number, tls, clock, maxReplyBytes, ticket },
      {
        attached: (session) => this.#attach(session),
        replied: (reply, code) => this.#heard(reply, code),
        noticed: (event) => this.#watches.notice(event),
        closed: (reason) => this.#disconnected(reason),
      },
    );
    // A third of the timeout is left when silence is noticed: each server can be tried in it.
    const attemptMs = Math.max(LEAST_ATTEMPT_MS, this.#ticket.timeoutMs / 3 / servers.count);
    this.#agenda.set(this.#attempt, clock.elapsedMs() + attemptMs);
  }

  #attemptIsOver(): void {
    if (this.#end !== null) return;
    if (this.#closing !== null) this.#disconnected("it did not answer the end of the session");
    else if (this.#connection === null) this.#dial();
    else if (this.#state !== "connected") this.#disconnected("it did not answer in time");
  }

  /** Ends the connection, if it is still there, and goes on with the next server. */
  #disconnected(reason: string): void {
    const server = this.#connection?.info.server ?? null;
    // Ends the session, which was all that was waited for.
    if (this.#closing !== null) this.#failAll("CLOSED");
    this.#connection?.destroy(reason);
    this.#connection = null;
    this.#lastFailure = server === null ? reason : `${server}: ${reason}`;
    this.#agenda.remove(this.#ping);
    if (this.#state === "connected") {
      this.#state = "suspended";
      this.#listeners.emit("suspended", new ZooKeeperError("CONNECTION_LOSS", { server, reason }));
    }
    if (this.#end !== null) return;
    this.#watchSilence();
    if (this.#settings.servers.allTried) this.#pause();
    else this.#dial();
  }

  #pause(): void {
    const longestMs = Math.min(LONGEST_PAUSE_MS, this.#ticket.timeoutMs / 20);
    const pauseMs = (longestMs * (1 + this.#settings.random())) / 2;
    this.#agenda.set(this.#attempt, this.#clock.elapsedMs() + pauseMs);
  }

  #attach(session: GrantedSession): void {
    const { id } = this.#ticket;
    const isGranted = session.timeoutMs > 0 && session.id !== 0n;
    if (!isGranted && id !== 0n) this.#lose("SESSION_EXPIRED");
    else if (!isGranted) this.#disconnected("it refused a session");
    else if (id !== 0n && session.id !== id) this.#disconnected("it resumed another session");
    else this.#connected(session);
  }

  #connected(session: GrantedSession): void {
    const event = this.#ticket.id === 0n ? "connected" : "reconnected";
    this.#ticket = { ...session, lastZxid: this.#ticket.lastZxid };
    const { info } = this.#connection!;
    this.#aliveAtMs = Math.max(this.#aliveAtMs, info.connectSentAtMs);
    this.#lastSentAtMs = info.connectSentAtMs;
    this.#state = "connected";
    this.#agenda.remove(this.#attempt);
    this.#sendNow(this.#introduction());
    this.#sendUnsent();
    this.#watchSilence();
    this.#pingIfIdle();
    this.#listeners.emit(event, info);
    this.#opened?.(null);
  }

  /** The first requests on a connection: they must be executed before all others. */
  #introduction(): Request[] {
    const { credentials } = this.#settings;
    const login = credentials === null ? [] : [auth(credentials)];
    return [...login, ...this.#watches.restore(this.#ticket.lastZxid)].map((operation) =>
      this.#control(operation),
    );
  }

  /** A request of the session itself. Refused, it would leave a connection that works only in part. */
  #control(operation: Operation<object>, succeeded = () => {}): Request {
    return new Request<object>(operation, Number.POSITIVE_INFINITY, {
      succeeded,
      failed: ({ code, reply }) => {
        if (code === "AUTH_FAILED") this.#lose(code);
        else if (reply !== null) this.#disconnected(`it refused ${operation.name} (${code})`);
      },
    }) as Request;
  }

  #heard({ sentAtMs, zxid, ...rest }: Reply, code: ZooKeeperErrorCode | null): void {
    if (this.#end !== null) return;
    this.#aliveAtMs = Math.max(this.#aliveAtMs, sentAtMs);
    if (zxid > this.#ticket.lastZxid) this.#ticket = { ...this.#ticket, lastZxid: zxid };
    this.#listeners.emit("replied", { sentAtMs, zxid, ...rest });
    if (code === "SESSION_EXPIRED") this.#lose(code);
    if (code === "SESSION_MOVED") this.#disconnected("the session moved to another connection");
  }

  #pingIfIdle(): void {
    if (this.#state !== "connected") return;
    const { servers, pingIntervalMs } = this.#settings;
    const intervalMs = Math.min(pingIntervalMs, this.#ticket.timeoutMs / 3);
    if (this.#clock.elapsedMs() >= this.#lastSentAtMs + intervalMs) {
      this.#sendNow([this.#control(PING, () => servers.answered())]);
    }
    this.#agenda.set(this.#ping, this.#lastSentAtMs + intervalMs);
  }

  #watchSilence(): void {
    if (this.#ticket.id === 0n) return;
    this.#agenda.set(this.#silence, this.#silentAtMs());
  }

  #silentAtMs(): number {
    const { timeoutMs } = this.#ticket;
    return this.#aliveAtMs + (this.#state === "connected" ? (timeoutMs * 2) / 3 : timeoutMs);
  }

  #checkSilence(): void {
    if (this.#end !== null) return;
    const nowMs = this.#clock.elapsedMs();
    if (nowMs >= this.aliveUntilMs) this.#lose("SESSION_EXPIRED", this.#silenceText());
    else if (this.#state === "connected" && nowMs >= this.#silentAtMs()) {
      this.#disconnected("it has not answered for two thirds of the session's timeout");
    } else this.#watchSilence();
  }

  #silenceText(): string {
    return (
      `no server has answered for the session's timeout of ${this.#ticket.timeoutMs} ms ` +
      `(last failure: ${this.#lastFailure}), so that it must be treated as expired: open another client`
    );
  }

  #expireRequests(): void {
    const nowMs = this.#clock.elapsedMs();
    for (const request of this.#open) {
      if (request.deadlineMs > nowMs) {
        this.#agenda.set(this.#timeouts, request.deadlineMs);
        return;
      }
      request.fail("OPERATION_TIMEOUT", this.#timeoutOf(request));
    }
  }

  #timeoutOf({ sentAtMs }: Request): { reason: string; server: string | null } {
    const { requestTimeoutMs } = this.#settings;
    const reason =
      sentAtMs === null
        ? `there was no connection for ${requestTimeoutMs} ms (last failure: ${this.#lastFailure})`
        : `no reply came within ${requestTimeoutMs} ms`;
    return { reason, server: this.connection?.server ?? null };
  }

  #openingIsOver(): void {
    if (this.#opened === null) return;
    const within = `within ${this.#settings.connectTimeoutMs} ms`;
    const reason = `no server gave a session ${within} (last failure: ${this.#lastFailure})`;
    this.#finish("closed", new ZooKeeperError("CONNECTION_LOSS", { reason }));
  }

  #lose(code: ZooKeeperErrorCode, reason?: string): void {
    const server = this.#connection?.info.server ?? null;
    this.#finish("lost", new ZooKeeperError(code, reason === undefined ? { server } : { reason }));
  }

  /** Nothing of the session is left: no timer, no socket, no pending promise. */
  #finish(state: "lost" | "closed", error: ZooKeeperError): void {
    if (this.#end !== null) return;
    this.#end = error;
    this.#state = state;
    this.#failAll(error.code);
    this.#connection?.destroy("the client ended it");
    this.#connection = null;
    this.#unsent = [];
    this.#watches.clear();
    this.#agenda.clear();
    const failOpening = this.#opened;
    failOpening?.(error);
    if (state === "lost") this.#listeners.emit("lost", error);
    else if (failOpening === null) this.#listeners.emit("closed");
  }

  #failAll(code: ZooKeeperErrorCode): void {
    for (const request of [...this.#open]) request.fail(code);
  }
}
