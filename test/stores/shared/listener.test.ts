import { afterEach, beforeEach, expect, test, vi } from "vitest";
import {
  Listener,
  type ListenerPort,
  type Subscription,
  type SubscriptionEvents,
} from "../../../src/stores/shared/listener.js";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

interface Opened extends Subscription {
  readonly events: SubscriptionEvents;
  isClosed: boolean;
}

/** Connections in this process: subscriptions open at once and reply to pings, unless the test says otherwise. */
class Port implements ListenerPort {
  losses = 0;
  readonly opened: Opened[] = [];
  subscribing: (signal: AbortSignal, events: SubscriptionEvents) => Promise<void> = async () => {};
  pinging: () => Promise<unknown> = async () => {};
  readonly #reconnected = new Set<() => void>();

  onReconnect(reconnected: () => void): () => void {
    this.#reconnected.add(reconnected);
    return () => void this.#reconnected.delete(reconnected);
  }

  reconnect(): void {
    this.losses++;
    for (const reconnected of [...this.#reconnected]) reconnected();
  }

  async subscribe(_: string, events: SubscriptionEvents, signal: AbortSignal): Promise<Opened> {
    await this.subscribing(signal, events);
    const subscription: Opened = {
      events,
      isClosed: false,
      ping: () => this.pinging(),
      close: async () => {
        subscription.isClosed = true;
      },
    };
    this.opened.push(subscription);
    return subscription;
  }

  get open(): number {
    return this.opened.filter(({ isClosed }) => !isClosed).length;
  }
}

function start({ isNeeded = true } = {}) {
  const port = new Port();
  const received: string[] = [];
  const needed = { is: isNeeded };
  const events = {
    message: (text: string) => received.push(text),
    missed: () => received.push("(missed)"),
  };
  const listener = new Listener("channel", port, events, () => needed.is);
  return { port, received, needed, listener };
}

const passMs = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const never = (): Promise<never> => new Promise(() => {});

test("several callers of open share one subscription, which passes its messages on", async () => {
  const { port, received, listener } = start();
  await Promise.all([listener.open(), listener.open()]);
  await listener.open();
  expect(port.opened).toHaveLength(1);
  port.opened[0]!.events.message("text");
  expect(received).toEqual(["text"]);
});

test("a subscription that does not reply to a ping is replaced, and waiters check their tickets", async () => {
  const { port, received, listener } = start();
  await listener.open();
  port.pinging = never;
  await passMs(5_000 + 2_000);
  port.pinging = async () => {};
  await passMs(1_000);
  expect(port.opened.map(({ isClosed }) => isClosed)).toEqual([true, false]);
  expect(received).toEqual(["(missed)"]);
  expect(listener.isOpen).toBe(true);
});

test("a subscription whose ping fails is replaced", async () => {
  const { port, listener } = start();
  await listener.open();
  port.pinging = () => Promise.reject(new Error("gone"));
  await passMs(5_000);
  port.pinging = async () => {};
  await passMs(1_000);
  expect([port.opened.length, port.open, listener.isOpen]).toEqual([2, 1, true]);
});

test("a subscription that has ended is replaced", async () => {
  const { port, received, listener } = start();
  await listener.open();
  port.opened[0]!.events.ended!();
  await passMs(1_000);
  expect([port.opened.length, port.open]).toEqual([2, 1]);
  expect(received).toEqual(["(missed)"]);
});

test("a subscription that has ended before the attempt to open it succeeds is replaced without a ping", async () => {
  const { port, received, listener } = start();
  port.subscribing = async (_, events) => {
    await passMs(1);
    events.ended!();
    await passMs(1);
  };
  const opening = listener.open();
  port.subscribing = async () => {};
  await opening;
  await passMs(1_000);
  expect([port.opened.length, port.open]).toEqual([2, 1]);
  expect(received).toEqual(["(missed)"]);
});

test("waiters check their tickets when a subscription is back by itself", async () => {
  const { port, received, listener } = start();
  await listener.open();
  port.opened[0]!.events.resubscribed!();
  expect(received).toEqual(["(missed)"]);
});

test("when requests go by another connection, the subscription moves too, and the old one listens until then", async () => {
  const { port, received, listener } = start();
  await listener.open();
  let proceed = (): void => {};
  port.subscribing = () => new Promise((resolve) => (proceed = resolve));
  port.reconnect();
  await passMs(1_000);
  expect(port.open).toBe(1);
  expect(listener.isOpen).toBe(true);
  proceed();
  await passMs(0);
  expect(port.opened.map(({ isClosed }) => isClosed)).toEqual([true, false]);
  expect(received).toEqual(["(missed)"]);
});

test("a connection that is lost while it subscribes is subscribed again", async () => {
  const { port, listener } = start();
  port.subscribing = async () => void port.losses++;
  const opening = listener.open();
  await opening;
  port.subscribing = async () => {};
  await passMs(1_000);
  expect([port.opened.length, port.open]).toEqual([2, 1]);
});

test("a failed attempt rejects, is retried once a second, and waiters check their tickets each time", async () => {
  const { port, received, listener } = start();
  port.subscribing = () => Promise.reject(new Error("refused"));
  await expect(listener.open()).rejects.toThrow("refused");
  await passMs(3_000);
  expect(received).toEqual(["(missed)", "(missed)", "(missed)"]);
  port.subscribing = async () => {};
  await passMs(1_000);
  expect(listener.isOpen).toBe(true);
});

test("a server that does not reply to an attempt is given up", async () => {
  const { port, listener } = start();
  const aborted: unknown[] = [];
  port.subscribing = (signal) =>
    new Promise((_, reject) => {
      signal.addEventListener("abort", () => {
        aborted.push(signal.reason);
        reject(signal.reason as Error);
      });
    });
  const opening = expect(listener.open()).rejects.toThrow("no subscription within 5000 ms");
  await passMs(5_000);
  await opening;
  expect(aborted).toHaveLength(1);
});

test("a subscription that no waiter needs is neither pinged nor replaced", async () => {
  const { port, needed, received, listener } = start();
  await listener.open();
  needed.is = false;
  port.pinging = () => Promise.reject(new Error("must not be called"));
  await passMs(20_000);
  port.reconnect();
  await passMs(1_000);
  expect([port.opened.length, port.open, listener.isOpen]).toEqual([1, 0, false]);
  expect(received).toEqual([]);
});

test("close() ends the subscription, an attempt under way and all timers; it can be opened again", async () => {
  const { port, listener } = start();
  await listener.open();
  await listener.close();
  expect([port.open, listener.isOpen, vi.getTimerCount()]).toEqual([0, false, 0]);
  let proceed = (): void => {};
  port.subscribing = () => new Promise((resolve) => (proceed = resolve));
  const opening = expect(listener.open()).rejects.toThrow("closed");
  const closing = listener.close();
  proceed();
  await Promise.all([opening, closing]);
  expect([port.opened.length, port.open, vi.getTimerCount()]).toEqual([2, 0, 0]);
  port.subscribing = async () => {};
  await listener.open();
  expect(port.open).toBe(1);
  await listener.close();
});
