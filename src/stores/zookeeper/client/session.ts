import { Agenda } from "../../../core/agenda.js";
import type { Clock } from "../../../core/clock.js";
import { Alarm } from "./alarm.js";
import type { ZooKeeperErrorCode } from "./codes.js";
import { Connection, type GrantedSession, type SessionTicket } from "./connection.js";
import { type ConnectionInfo, type Reply, ZooKeeperError } from "./errors.js";
import type { Listeners } from "./events.js";
import { auth, CLOSE, type Operation, PING } from "./operations.js";
import type { SessionSettings } from "./options.js";
import { Outbox } from "./outbox.js";
import { Request, type RequestHandlers } from "./request.js";
import type { Watches } from "./watches.js";

/**
 * `connecting`: there is no session yet. `suspended`: the session has no connection at present.
 * `closed` is final, and so is `lost` after its event.
 */
export type SessionState = "connecting" | "connected" | "suspended" | "lost" | "closed";

/** A connection on which nothing was received for this many intervals of pings is given up … */
const PINGS_UNANSWERED = 3;
/** … but not sooner than this: servers stand still for a moment to collect garbage or to write their log. */
const LEAST_SILENCE_MS = 1_000;
const LEAST_ATTEMPT_MS = 100;
/** A session that can't be ended expires by itself. */
const LONGEST_CLOSE_MS = 1_000;
/**
 * A server that is starting accepts connections and never reads from some of them (seen on 3.8.0), so the first
 * attempts are short. The next ones are longer: a server may need its time when thousands of clients come back.
 */
const FIRST_ATTEMPT_MS = 1_000;
const LONGEST_PAUSE_MS = 500;
const PASSWORD_BYTES = 16;

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
  readonly #ping = new Alarm(() => this.#pingIfIdle());
  readonly #opening = Alarm.afterInput(() => this.#openingIsOver());
  readonly #outbox: Outbox;
  #session: GrantedSession;
  #lastZxid = 0n;
  #state: SessionState = "connecting";
  #connection: Connection | null = null;
  #connections = 0;
  /** Attempts that got no reply since the last connection. A server that is down refuses them, and counts for nothing. */
  #unansweredAttempts = 0;
  /** When the last request that was answered was sent: the server has counted from then, or later. */
  #aliveAtMs = Number.NEGATIVE_INFINITY;
  #lastSentAtMs = Number.NEGATIVE_INFINITY;
  /** When the first request since the last reply was sent. */
  #unansweredSinceMs = Number.POSITIVE_INFINITY;
  /** Since the last connection. */
  #lastFailure: string | null = null;
  #end: ZooKeeperError | null = null;
  #endedAtMs = Number.POSITIVE_INFINITY;
  #opened: ((error: ZooKeeperError | null) => void) | null = null;
  #closing: Promise<void> | null = null;

  constructor(settings: SessionSettings, listeners: Listeners, watches: Watches) {
    this.#settings = settings;
    this.#clock = settings.clock;
    this.#listeners = listeners;
    this.#watches = watches;
    this.#agenda = new Agenda(settings.clock, () => {});
    this.#outbox = new Outbox({
      agenda: this.#agenda,
      clock: settings.clock,
      timeoutMs: settings.requestTimeoutMs,
      filled: () => this.#sendWaiting(),
      answered: () => settings.servers.answered(),
      whyUnsent: () => this.#whyUnsent(),
    });
    const password = Buffer.alloc(PASSWORD_BYTES);
    this.#session = { id: 0n, password, timeoutMs: settings.sessionTimeoutMs };
  }

  /** By the clock, also when no timer has run since the deadline. */
  get state(): SessionState {
    const isAlive = this.#state === "connected" || this.#state === "suspended";
    return isAlive && this.#clock.elapsedMs() >= this.aliveUntilMs ? "lost" : this.#state;
  }

  get connection(): ConnectionInfo | null {
    return this.#state === "connected" ? this.#connection!.info : null;
  }

  /** With the session's password. */
  get ticket(): SessionTicket {
    return { ...this.#session, lastZxid: this.#lastZxid };
  }

  get aliveUntilMs(): number {
    return Math.min(this.#aliveAtMs + this.#session.timeoutMs, this.#endedAtMs);
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
    if (this.#end === null && this.#closing === null) this.#outbox.add(operation, handlers);
    else new Request(operation, 0, handlers).fail(this.#end?.code ?? "CLOSED");
  }

  /** Ends the session on the server if it replies soon; otherwise the server ends it after its timeout at the latest. */
  close(): Promise<void> {
    this.#closing ??= new Promise<void>((resolve) => {
      const finish = (): void => {
        this.#finish("closed", new ZooKeeperError("CLOSED"));
        resolve();
      };
      if (this.#state !== "connected") return finish();
      this.#outbox.add(CLOSE, { succeeded: finish, failed: finish });
      const waitMs = Math.min(this.#session.timeoutMs / 3, LONGEST_CLOSE_MS);
      this.#agenda.set(this.#attempt, this.#clock.elapsedMs() + waitMs);
    });
    return this.#closing;
  }

  /** The state goes by the clock: after the deadline, nothing may revive the session. */
  #sendWaiting(): void {
    if (this.state === "connected") this.#sendNow(this.#outbox.take(this.#connection!.room));
  }

  #whyUnsent(): string {
    return this.#state === "connected"
      ? "the server has not answered earlier requests"
      : `there was no connection (${this.#failure()})`;
  }

  #failure(): string {
    const silent = `${this.#connection?.info.server}: it has not answered`;
    return `last failure: ${this.#lastFailure ?? silent}`;
  }

  #sendNow(requests: readonly Request[]): void {
    if (requests.length === 0) return;
    this.#lastSentAtMs = this.#clock.elapsedMs();
    this.#unansweredSinceMs = Math.min(this.#unansweredSinceMs, this.#lastSentAtMs);
    this.#connection!.send(requests, this.#lastSentAtMs);
  }

  #dial(): void {
    const { servers, tls, clock, maxReplyBytes } = this.#settings;
    const [server, number] = [servers.next(), ++this.#connections];
    const ticket = (): SessionTicket => this.ticket;
    this.#connection = new Connection(
      { server, number, tls, clock, maxReplyBytes, ticket },
      {
        attached: (session) => this.#attach(session),
        replied: (reply, code) => this.#replyRead(reply, code),
        noticed: (event) => this.#watches.notice(event),
        closed: (reason) => this.#disconnected(reason),
      },
    );
    this.#agenda.set(this.#attempt, clock.elapsedMs() + this.#attemptMs());
  }

  /** A third of the timeout is left when silence is noticed: each server can be tried in it. */
  #attemptMs(): number {
    const { servers, connectTimeoutMs } = this.#settings;
    const longestMs =
      this.#session.id === 0n
        ? connectTimeoutMs / (servers.count + 1)
        : Math.max(LEAST_ATTEMPT_MS, this.#session.timeoutMs / 3 / servers.count);
    const rounds = Math.floor(this.#unansweredAttempts / servers.count);
    return Math.min(longestMs, FIRST_ATTEMPT_MS * 2 ** rounds);
  }

  #attemptIsOver(): void {
    if (this.#end !== null) return;
    if (this.#closing !== null) this.#disconnected("it did not answer the end of the session");
    else if (this.#connection === null) this.#dial();
    else if (this.#state !== "connected") {
      this.#unansweredAttempts++;
      this.#disconnected("it did not answer in time");
    }
  }

  /** Ends the connection, if it is still there, and goes on with the next server. */
  #disconnected(reason: string): void {
    const server = this.#connection?.info.server ?? null;
    // While the client closes, it waits for nothing but the reply to the end of the session.
    if (this.#closing !== null) this.#outbox.failAll("CLOSED");
    this.#connection?.destroy(reason);
    this.#connection = null;
    this.#lastFailure = server === null ? reason : `${server}: ${reason}`;
    this.#agenda.remove(this.#ping);
    if (this.#state === "connected") {
      this.#state = "suspended";
      const what = `the connection was lost: ${reason}; another one is tried`;
      const error = new ZooKeeperError("CONNECTION_LOSS", { server, reason: what });
      this.#listeners.emit("suspended", error);
    }
    if (this.#end !== null) return;
    this.#watchSilence();
    if (this.#settings.servers.allTried) this.#pause();
    else this.#dial();
  }

  #pause(): void {
    const longestMs = Math.min(LONGEST_PAUSE_MS, this.#session.timeoutMs / 20);
    const pauseMs = (longestMs * (1 + this.#settings.random())) / 2;
    this.#agenda.set(this.#attempt, this.#clock.elapsedMs() + pauseMs);
  }

  #attach(session: GrantedSession): void {
    const { id } = this.#session;
    const isNew = id === 0n;
    const isGranted = session.timeoutMs > 0 && session.id !== 0n;
    const { connectSentAtMs } = this.#connection!.info;
    // A process that was stopped past a deadline must not go on as if nothing had happened.
    const isOver = this.#clock.elapsedMs() >= connectSentAtMs + session.timeoutMs;
    if (isNew) {
      if (!isGranted) this.#disconnected("it refused a session");
      else if (isOver) this.#disconnected("its session may be over already");
      else this.#connected(session);
    } else if (!isGranted) this.#lose("SESSION_EXPIRED");
    else if (session.id !== id) this.#disconnected("it resumed another session");
    else if (isOver || connectSentAtMs >= this.aliveUntilMs) this.#loseInSilence();
    else this.#connected(session);
  }

  #connected(session: GrantedSession): void {
    const event = this.#session.id === 0n ? "connected" : "reconnected";
    this.#session = session;
    const { info } = this.#connection!;
    this.#aliveAtMs = Math.max(this.#aliveAtMs, info.connectSentAtMs);
    this.#lastSentAtMs = info.connectSentAtMs;
    this.#unansweredSinceMs = Number.POSITIVE_INFINITY;
    this.#state = "connected";
    this.#unansweredAttempts = 0;
    this.#lastFailure = null;
    this.#agenda.remove(this.#attempt);
    this.#sendNow(this.#introduction());
    this.#sendWaiting();
    this.#watchSilence();
    this.#pingIfIdle();
    this.#listeners.emit(event, info);
    this.#opened?.(null);
  }

  /** The first requests on a connection: they must be executed before all others. */
  #introduction(): Request[] {
    const { credentials } = this.#settings;
    const login = credentials === null ? [] : [auth(credentials)];
    return [...login, ...this.#watches.restore(this.#lastZxid)].map((operation) =>
      this.#control(operation),
    );
  }

  /** A request of the session itself. Refused, it would leave a connection that works only in part. */
  #control(operation: Operation<object>, succeeded = () => {}): Request {
    return new Request<object>(operation, Number.POSITIVE_INFINITY, {
      succeeded,
      failed: ({ code, reply }) => {
        if (code === "AUTH_FAILED" || code === "SESSION_EXPIRED") this.#lose(code);
        else if (reply !== null) this.#disconnected(`it refused ${operation.name} (${code})`);
      },
    }) as Request;
  }

  #replyRead(reply: Reply, code: ZooKeeperErrorCode | null): void {
    this.#unansweredSinceMs = Number.POSITIVE_INFINITY;
    if (code !== "SESSION_EXPIRED") this.#aliveAtMs = Math.max(this.#aliveAtMs, reply.sentAtMs);
    if (reply.zxid > this.#lastZxid) this.#lastZxid = reply.zxid;
    this.#listeners.emit("replied", reply);
    // The reply has made room for another request.
    this.#outbox.announce();
    if (code === "SESSION_EXPIRED") this.#lose(code);
    if (code === "SESSION_MOVED") this.#disconnected("the session moved to another connection");
  }

  #pingIfIdle(): void {
    if (this.state !== "connected") return;
    const { servers } = this.#settings;
    const intervalMs = this.#pingIntervalMs;
    if (this.#clock.elapsedMs() >= this.#lastSentAtMs + intervalMs) {
      this.#sendNow([this.#control(PING, () => servers.answered())]);
    }
    this.#agenda.set(this.#ping, this.#lastSentAtMs + intervalMs);
    // The first request that was not answered may have been sent since.
    this.#watchSilence();
  }

  /** Pings come as much more often as the timeout is shorter than the requested one. */
  get #pingIntervalMs(): number {
    const { pingIntervalMs, sessionTimeoutMs } = this.#settings;
    const { timeoutMs } = this.#session;
    return Math.min(pingIntervalMs, timeoutMs * Math.min(pingIntervalMs / sessionTimeoutMs, 1 / 3));
  }

  #watchSilence(): void {
    if (this.#session.id === 0n) return;
    this.#agenda.set(this.#silence, this.#silentAtMs());
  }

  #silentAtMs(): number {
    const { timeoutMs } = this.#session;
    if (this.#state !== "connected") return this.#aliveAtMs + timeoutMs;
    return Math.min(this.#aliveAtMs + (timeoutMs * 2) / 3, this.#silentTooLongAtMs());
  }

  /** Long before two thirds of the timeout if pings are frequent: a lease may end sooner than its session. */
  #silentTooLongAtMs(): number {
    const repliedAtMs = Math.max(this.#unansweredSinceMs, this.#connection!.receivedAtMs);
    return repliedAtMs + Math.max(LEAST_SILENCE_MS, PINGS_UNANSWERED * this.#pingIntervalMs);
  }

  #checkSilence(): void {
    if (this.#end !== null) return;
    const nowMs = this.#clock.elapsedMs();
    if (nowMs >= this.aliveUntilMs) this.#loseInSilence();
    else if (this.#state === "connected" && nowMs >= this.#silentAtMs()) {
      const isSilentTooLong = nowMs >= this.#silentTooLongAtMs();
      const since = isSilentTooLong
        ? "since the last pings"
        : "for two thirds of the session's timeout";
      this.#disconnected(`it has not answered ${since}`);
    } else {
      this.#watchSilence();
      // A stalled process has held these back until now.
      this.#sendWaiting();
      this.#pingIfIdle();
    }
  }

  #loseInSilence(): void {
    const reason =
      `no server has answered for the session's timeout of ${this.#session.timeoutMs} ms ` +
      `(${this.#failure()}), so that it must be treated as expired: open another client`;
    this.#lose("SESSION_EXPIRED", reason);
  }

  #openingIsOver(): void {
    if (this.#opened === null) return;
    const within = `within ${this.#settings.connectTimeoutMs} ms`;
    const reason = `no server gave a session ${within} (${this.#failure()})`;
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
    this.#endedAtMs = this.#clock.elapsedMs();
    this.#state = state;
    this.#outbox.failAll(error.code);
    this.#connection?.destroy("the client ended it");
    this.#connection = null;
    this.#watches.clear();
    this.#agenda.clear();
    const failOpening = this.#opened;
    failOpening?.(error);
    if (state === "lost") this.#listeners.emit("lost", error);
    else if (failOpening === null) this.#listeners.emit("closed");
  }
}
