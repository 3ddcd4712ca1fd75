import { Lane } from "./lane.js";
import {
  type Direction,
  type Filter,
  matches,
  type Rule,
  type Struck,
  type Traffic,
} from "./rules.js";

/** How much of a request is kept for filters. */
const REQUEST_BYTES = 64 * 1024;
const NOTHING = Buffer.alloc(0);

/** The part of a proxy that its links share. */
export interface LinkSettings {
  readonly rules: ReadonlySet<Rule>;
  readonly traffic: Readonly<Record<Direction, Traffic>>;
}

/** One connection or stream of a client, and its continuation to the server. */
export abstract class Link implements Struck {
  /** Resolves when both sides are closed. */
  abstract readonly gone: Promise<unknown>;
  /** Undefined until the kind is known; until then, faults that are limited to a kind do not apply. */
  abstract readonly kind: string | undefined;
  readonly traffic: Readonly<Record<Direction, Traffic>>;
  protected readonly toServer = new Lane("to-server", this);
  protected readonly toClient = new Lane("to-client", this);
  readonly #rules: ReadonlySet<Rule>;
  /** Bytes that the client has sent since the server last replied. */
  #request: Buffer = NOTHING;
  #losing: { silent: boolean; rule: Rule; lost: () => void } | null = null;

  constructor({ rules, traffic }: LinkSettings) {
    this.#rules = rules;
    this.traffic = traffic;
  }

  /** Writes bytes to the receiver of this direction; false if it accepts no more until it has drained. */
  abstract write(direction: Direction, bytes: Buffer): boolean;

  /** Makes the sender of this direction wait, or continue. */
  abstract hold(direction: Direction, waits: boolean): void;

  abstract resetAfter(bytes: Buffer): void;

  protected abstract resetSides(): void;

  protected abstract resetServer(): void;

  /** Resets the client's side. The server keeps the effect of all requests. */
  protected abstract resetClient(): void;

  /** The active rules for the link's kind. */
  rules(): Rule[] {
    return [...this.#rules].filter((rule) => this.isOf(rule));
  }

  get isCut(): boolean {
    return this.rules().some((rule) => rule.cuts);
  }

  /** Whether rules with this limit apply to it. */
  isOf({ only }: Rule): boolean {
    return only === undefined || only === this.kind;
  }

  pump(): void {
    this.toServer.pump();
    this.toClient.pump();
  }

  reset(): void {
    this.toServer.drop();
    this.toClient.drop();
    this.resetSides();
  }

  asks(when?: Filter): boolean {
    return matches(this.#request, when);
  }

  breakOff(direction: Direction, bytes: Buffer, rule: Rule): void {
    this.#lane(direction).breakOff(bytes, rule);
  }

  losesReply(silent: boolean, rule: Rule, lost: () => void): void {
    this.#losing ??= { silent, rule, lost };
    // A request is struck at most once: it is not filtered again with the bytes that follow.
    this.#request = NOTHING;
  }

  /** Closes the server's side. The client's side stays open and silent until the rule is healed. */
  leaveHalfOpen(rule: Rule): void {
    this.toServer.hole = rule;
    this.toClient.hole = rule;
    this.toServer.drop();
    this.resetServer();
  }

  /** Called when the rule is healed. */
  closeHole(rule: Rule): void {
    if (this.#losing?.rule === rule) this.#losing = null;
    if (this.toServer.hole === rule || this.toClient.hole === rule) this.reset();
  }

  /** Whether bytes may be delivered as they are. */
  passes(direction: Direction, bytes: Buffer): boolean {
    if (direction === "to-server") return this.#passRequest(bytes);
    return !this.loseReply() && !this.rules().some((rule) => rule.onReply?.(this, bytes));
  }

  /** Called when the server replies; true if the reply is to be lost. */
  protected loseReply(): boolean {
    this.#request = NOTHING;
    if (this.#losing === null) return false;
    const { silent, rule, lost } = this.#losing;
    this.#losing = null;
    lost();
    if (silent) this.toClient.hole = rule;
    else this.resetClient();
    return true;
  }

  #passRequest(bytes: Buffer): boolean {
    const rules = this.rules().filter((rule) => rule.onRequest !== undefined);
    if (rules.length === 0) return true;
    this.#request = Buffer.concat([this.#request, bytes]).subarray(-REQUEST_BYTES);
    return !rules.some((rule) => rule.onRequest!(this, bytes));
  }

  #lane(direction: Direction): Lane {
    return direction === "to-server" ? this.toServer : this.toClient;
  }
}
