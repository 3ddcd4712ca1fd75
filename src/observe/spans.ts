import {
  type Attributes,
  type Context,
  context,
  type Span,
  SpanStatusCode,
  type Tracer,
  trace,
} from "@opentelemetry/api";
import type { Events } from "../core/events.js";
import { Listeners } from "./listeners.js";

/** The events of a lease that its span records. */
const MOMENTS = ["jeopardy", "recovered", "lost"] as const;

/** A span around each wait and one around each hold, both below the caller's span. */
export class Spans {
  readonly #tracer: Tracer;
  readonly #listeners = new Listeners();
  /** By the number of the acquire. A grant comes in a turn of the store's: the caller's context is kept. */
  readonly #waits = new Map<number, { span: Span; caller: Context }>();
  readonly #holds = new Map<number, Span>();

  constructor(tracer: Tracer) {
    this.#tracer = tracer;
    this.#listeners.on("asked", (event) => {
      const caller = context.active();
      const attributes = attributesOf(event, ["name", "store", "mode", "holder", "permits"]);
      const span = tracer.startSpan("holdfast.wait", { attributes }, caller);
      this.#waits.set(event.id, { span, caller });
    });
    this.#listeners.on("not-granted", ({ id, reason }) => {
      const span = this.#endWait(id, reason)?.span;
      if (reason === "unavailable")
        span?.setStatus({ code: SpanStatusCode.ERROR, message: reason });
      span?.end();
    });
    this.#listeners.on("granted", (event) => this.#granted(event));
    for (const moment of MOMENTS) {
      this.#listeners.on(moment, (event) => {
        const attributes = attributesOf(event, ["reason", "cause", "remainingMs"]);
        this.#holds.get(event.id)?.addEvent(`holdfast.${moment}`, attributes);
      });
    }
    this.#listeners.on("lost", ({ id, reason }) => this.#endHold(id, "lost", reason));
    this.#listeners.on("released", ({ id, outcome }) => this.#endHold(id, outcome));
    this.#listeners.on("stale-token", (event) => {
      // The fence is called by the code that writes: its span is the active one.
      const attributes = attributesOf(event, ["resource", "token", "highest"]);
      trace.getActiveSpan()?.addEvent("holdfast.stale_token", attributes);
    });
  }

  /** Ends all spans that are open: one that has no end is never exported. */
  stop(): void {
    this.#listeners.stop();
    for (const { span } of this.#waits.values()) span.end();
    for (const span of this.#holds.values()) span.end();
    this.#waits.clear();
    this.#holds.clear();
  }

  #granted(event: Events["granted"]): void {
    const wait = this.#endWait(event.id, "granted");
    // The acquire began before this instrumentation.
    if (wait === undefined) return;
    wait.span.setAttributes(attributesOf(event, ["token", "handedOver"]));
    wait.span.end();
    const attributes = attributesOf(event, ["name", "store", "mode", "holder", "token"]);
    const links = [{ context: wait.span.spanContext() }];
    const span = this.#tracer.startSpan("holdfast.hold", { attributes, links }, wait.caller);
    this.#holds.set(event.id, span);
  }

  #endWait(id: number, outcome: string): { span: Span; caller: Context } | undefined {
    const wait = this.#waits.get(id);
    this.#waits.delete(id);
    wait?.span.setAttribute("holdfast.outcome", outcome);
    return wait;
  }

  #endHold(id: number, outcome: string, lossReason?: Events["lost"]["reason"]): void {
    const span = this.#holds.get(id);
    this.#holds.delete(id);
    span?.setAttribute("holdfast.outcome", outcome);
    // The end of a lease by its own close() is no incident.
    if (lossReason !== undefined && lossReason !== "closed") {
      span?.setStatus({ code: SpanStatusCode.ERROR, message: `lease lost: ${lossReason}` });
    }
    span?.end();
  }
}

/** The fields that the event has; tokens as text, since attributes have no bigint. */
function attributesOf(fields: object, keys: readonly string[]): Attributes {
  const attributes: Attributes = {};
  for (const key of keys) {
    const value = (fields as Record<string, string | number | boolean | bigint | undefined>)[key];
    if (value === undefined) continue;
    attributes[`holdfast.${snakeCase(key)}`] = typeof value === "bigint" ? String(value) : value;
  }
  return attributes;
}

/** OpenTelemetry's names have no capital letters. */
const snakeCase = (key: string): string =>
  key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
