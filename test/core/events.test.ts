import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { inspect } from "node:util";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { StoreUnavailableError } from "../../src/core/errors.js";
import { EVENT_NAMES, type EventName, emit, type Logger } from "../../src/core/events.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { notEntered, stale } from "../../src/fence/fence.js";
import { never, rejection, stage, watch } from "./helpers.js";

type Heard = { event: string; fields: Record<string, unknown> };

/** The fields of each event, as documented: no more, no less. */
const FIELDS: Record<EventName, string[]> = {
  asked: ["holder", "mode", "name", "permits"],
  granted: ["handedOver", "holder", "name", "token", "waitMs"],
  "not-granted": ["holder", "name", "reason", "waitMs"],
  renewed: ["name", "token", "ttlMs"],
  jeopardy: ["cause", "name", "remainingMs", "token"],
  recovered: ["name", "token"],
  lost: ["heldMs", "name", "reason", "token"],
  released: ["heldMs", "name", "outcome", "token"],
  revoked: ["by", "holder", "name", "token", "why"],
  unprotected: ["cause", "holder", "name"],
  "stale-token": ["highest", "resource", "token"],
};

const received: Heard[] = [];
const subscribers = new Map<EventName, (fields: unknown) => void>(
  EVENT_NAMES.map((event) => [
    event,
    (fields) => void received.push({ event, fields: fields as Record<string, unknown> }),
  ]),
);
const names = (): string[] => received.map((one) => one.event);
const last = (event: EventName): unknown => received.findLast((one) => one.event === event)?.fields;

beforeEach(() => {
  received.length = 0;
  for (const [event, onEvent] of subscribers) subscribe(`holdfast:${event}`, onEvent);
});
afterEach(() => {
  for (const [event, onEvent] of subscribers) unsubscribe(`holdfast:${event}`, onEvent);
});

function collecting(): { lines: [string, string, object][]; logger: Logger } {
  const lines: [string, string, object][] = [];
  const at = (level: string) => (message: string, fields: object) => {
    lines.push([level, message, fields]);
  };
  return { lines, logger: { debug: at("debug"), info: at("info"), warn: at("warn") } };
}

/** Makes every event happen. */
async function everything(logger?: Logger): Promise<unknown[]> {
  const on = stage({ ttl: "10s", wait: "5s", holder: "me", ...(logger ? { logger } : {}) });
  const errors: unknown[] = [];
  const first = await on.locks.acquire("a");
  const waiting = on.locks.acquire("a", { mode: "exclusive" });
  await on.locks.tryAcquire("a");
  errors.push(await rejection(on.locks.acquire("a", { wait: 0 })));
  await on.clock.advance(3_400);
  await first.release();
  const second = await waiting;
  errors.push(await rejection(Promise.resolve().then(() => first.assertHeld())));

  const slow = watch(on.locks.acquire("a", { wait: "1s" }));
  await on.clock.advance(1_000);
  errors.push(slow.value);
  const abort = new AbortController();
  const aborted = watch(on.locks.acquire("a", { signal: abort.signal }));
  abort.abort();
  await on.clock.advance(0);
  errors.push(aborted.value);

  on.store.onRenew = () => Promise.reject(new Error("down"));
  await on.clock.advance(3_400);
  on.store.onRenew = (apply) => apply();
  await on.clock.advance(300);
  on.store.onRenew = (): readonly RenewAnswer[] => [{ kind: "lost", reason: "revoked" }];
  errors.push(await rejection(second.renew()));
  on.store.onRelease = () => never();
  const unsure = await on.locks.acquire("b");
  const releasing = unsure.release();
  on.store.onClaim = () => Promise.reject(new Error("down"));
  errors.push(await rejection(on.locks.acquire("c", { wait: 0 })));
  await on.locks.withLock("c", { wait: 0, onUnavailable: "run" }, () => {});
  await on.locks.forceRelease("b", { why: "a test" });
  on.store.onClaim = () => ({ kind: "mismatch", name: "default:name", limit: 3 });
  errors.push(await rejection(on.locks.acquire("c")));
  on.store.onClaim = () => never();
  const closed = watch(on.locks.acquire("c"));
  await on.clock.advance(5_000);
  await releasing;
  on.store.onRelease = (apply) => apply();
  const again = watch(on.locks.acquire("d", { wait: "1h" }));
  const closing = on.locks.close();
  await on.clock.advance(5_000);
  await closing;
  errors.push(closed.value, again.value);
  stale("r", 1n, 2n);
  notEntered("r", 1n, 2n);
  return errors;
}

describe("events", () => {
  it("come in every kind, each with its fixed fields and no others", async () => {
    await everything();
    expect(new Set(names())).toEqual(new Set(EVENT_NAMES));
    for (const { event, fields } of received) {
      expect([event, Object.keys(fields).toSorted()]).toEqual([event, FIELDS[event as EventName]]);
      if ("token" in fields) expect(typeof fields["token"]).toBe("bigint");
    }
    const reasons = received
      .filter((one) => one.event === "not-granted")
      .map((one) => one.fields["reason"]);
    expect(new Set(reasons)).toEqual(
      new Set(["busy", "timeout", "aborted", "unavailable", "refused", "closed"]),
    );
  });

  it("include exactly one outcome for every claim and for every grant", async () => {
    await everything();
    const count = (event: EventName): number => names().filter((one) => one === event).length;
    expect(count("granted") + count("not-granted")).toBe(count("asked"));
    expect(count("released") + count("lost")).toBe(count("granted"));
  });

  it("come in the order in which things happened, with the values", async () => {
    const on = stage({ ttl: "10s", holder: "me" });
    const lease = await on.locks.acquire("a", { note: "n" });
    await on.clock.advance(3_400);
    await lease.release();
    expect(names()).toEqual(["asked", "granted", "renewed", "released"]);
    const { token } = lease;
    expect(last("asked")).toMatchObject({
      name: "a",
      holder: "me (n)",
      mode: "exclusive",
      permits: 1,
    });
    const granted = { name: "a", token, holder: "me (n)", waitMs: 0, handedOver: false };
    expect(last("granted")).toEqual(granted);
    expect(last("renewed")).toEqual({ name: "a", token, ttlMs: 10_000 });
    expect(last("released")).toEqual({ name: "a", token, heldMs: 3_400, outcome: "released" });
  });

  it("a grant by handover says so, and how long the caller waited", async () => {
    const on = stage();
    const first = await on.locks.acquire("a");
    const waiting = on.locks.acquire("a");
    await on.clock.advance(700);
    await first.release();
    const { token } = await waiting;
    expect(last("granted")).toMatchObject({ token, waitMs: 700, handedOver: true });
  });

  it("carry the name that the user gave, without the namespace", async () => {
    const on = stage({ namespace: "secret-space" });
    await (await on.locks.acquire("a")).release();
    await rejection(on.locks.acquire("a").then(() => on.locks.acquire("a", { wait: 0 })));
    expect(inspect(received, { depth: 9 })).not.toContain("secret-space");
  });

  it("a lease that runs out is reported as lost once, with the reason and how long it was held", async () => {
    const on = stage({ ttl: "10s" });
    on.store.onRenew = () => never();
    const { token } = await on.locks.acquire("a");
    await on.clock.advance(60_000);
    expect(names()).toEqual(["asked", "granted", "jeopardy", "lost"]);
    expect(last("lost")).toEqual({ name: "a", token, reason: "expired", heldMs: 8_898 });
    expect(last("jeopardy")).toMatchObject({
      cause: "the memory store gave no reply to the request to renew within 1667 ms",
    });
  });

  it.each(["jeopardy", "recovered"] as const)(
    "a lease that a listener of %s releases emits no event and leaves no timer after that",
    async (event) => {
      const on = stage({ ttl: "10s" });
      const lease = await on.locks.acquire("a");
      lease.on(event, () => void lease.release());
      on.store.onRenew = () => Promise.reject(new Error("down"));
      await on.clock.advance(4_000);
      on.store.onRenew = (apply) => apply();
      await on.clock.advance(300);
      expect(names().slice(-2)).toEqual([event, "released"]);
      expect(on.clock.timers).toBe(0);
    },
  );
});

describe("the logger", () => {
  it("gets every event as it is on the channel, at the event's log level", async () => {
    const { lines, logger } = collecting();
    await everything(logger);
    const onChannel = received.filter((one) => one.event !== "stale-token");
    expect(lines.map(([, message, fields]) => ({ event: message, fields }))).toEqual(
      onChannel.map(({ event, fields }) => ({
        event: `holdfast:${event}`,
        fields: asText(fields),
      })),
    );
    const levels = new Map(lines.map(([level, message]) => [message, level]));
    expect(levels.get("holdfast:lost")).toBe("warn");
    expect(levels.get("holdfast:jeopardy")).toBe("warn");
    expect(levels.get("holdfast:recovered")).toBe("info");
    expect(levels.get("holdfast:granted")).toBe("debug");
  });

  it("is called as a method, so that `this` works", async () => {
    class Mine implements Logger {
      readonly seen: string[] = [];
      debug(message: string): void {
        this.seen.push(message);
      }
      info = this.debug;
      warn = this.debug;
    }
    const logger = new Mine();
    await stage({ logger }).locks.acquire("a");
    expect(logger.seen).toEqual(["holdfast:asked", "holdfast:granted"]);
  });
});

describe("the secret grantId", () => {
  it("is in no event, log line, error or lease", async () => {
    const { lines, logger } = collecting();
    const errors = await everything(logger);
    const on = stage();
    const lease = await on.locks.acquire("a");
    const shown = inspect([received, lines, errors, lease, on.locks], {
      depth: 12,
      showHidden: true,
      maxArrayLength: null,
      maxStringLength: null,
    });
    const text = shown + JSON.stringify(lease) + errors.map((error) => (error as Error).stack);
    expect(text.length).toBeGreaterThan(5_000);
    // The grantIds of this stage all contain this text.
    expect(on.runtime.random.grantId()).toContain("SECRET-grant-id");
    expect(text).not.toContain("SECRET-grant-id");
  });

  it("is removed also from the store's own errors, together with those of others in the same batch", async () => {
    const on = stage({ ttl: "10s", wait: 0, commandTimeout: "1s" });
    const leases = await Promise.all(["a", "b"].map((name) => on.locks.acquire(name)));
    const seen: unknown[] = [];
    for (const lease of leases) lease.on("jeopardy", (cause) => seen.push(cause));
    const leaky = (ids: readonly string[], cause?: Error): Error =>
      Object.assign(new Error(`duplicate key g${ids.join()}`, { cause }), {
        code: "E_DUPLICATE",
        command: { name: "claim", args: ids },
        errors: ids.map((id) => new Error(id)),
      });
    on.store.onRenew = async (_apply, items) => {
      const ids = items.map((item) => item.grantId);
      throw leaky(ids, leaky(ids));
    };
    seen.push(await rejection(leases[0]!.renew()));
    await on.clock.advance(5_000);
    on.store.onClaim = (_apply, claim) => Promise.reject(leaky([claim.grantId]));
    seen.push(await rejection(on.locks.acquire("c")));
    // An error that the store has made itself.
    on.store.onClaim = (_apply, { grantId }) => {
      throw new StoreUnavailableError(`wrong: ${grantId}`, { cause: leaky([grantId]) });
    };
    seen.push(await rejection(on.locks.acquire("d")));
    expect(names()).toContain("jeopardy");
    expect(seen).toHaveLength(5);
    const text = inspect([received, seen], { depth: 20, showHidden: true });
    expect(text).not.toContain("SECRET-grant-id");
    expect(text).toContain("duplicate key g…");
    expect(seen.at(-2)).toMatchObject({ cause: { code: "E_DUPLICATE", name: "Error" } });
  });

  it("an error that can't be read while grantIds are removed ends only its own call", async () => {
    const on = stage({ wait: 0 });
    const hostile = [
      Object.defineProperty(new Error("x"), "message", {
        get() {
          throw new Error("hidden");
        },
      }),
      { toString: () => 1n as unknown as string },
      Object.create(null),
      undefined,
    ];
    for (const cause of hostile) {
      on.store.onClaim = () => Promise.reject(cause);
      expect((await rejection(on.locks.acquire("a"))).code).toBe("STORE_UNAVAILABLE");
    }
  });
});

/** Writes bigints as text, as a logger that writes JSON must. */
const asText = (fields: object): unknown =>
  Object.fromEntries(
    Object.entries(fields).map(([key, value]) => [
      key,
      typeof value === "bigint" ? String(value) : value,
    ]),
  );

describe("an event without a subscriber", () => {
  it("costs nothing: its fields are not built", () => {
    for (const [event, onEvent] of subscribers) unsubscribe(`holdfast:${event}`, onEvent);
    let built = 0;
    const fields = (): { name: string; token: bigint } => {
      built++;
      return { name: "a", token: 1n };
    };
    emit("recovered", undefined, fields);
    expect(built).toBe(0);
    const { logger, lines } = collecting();
    emit("recovered", logger, fields);
    expect([built, lines.length]).toEqual([1, 1]);
    const onEvent = (): void => {};
    subscribe("holdfast:recovered", onEvent);
    emit("recovered", logger, fields);
    unsubscribe("holdfast:recovered", onEvent);
    // Built once for both.
    expect(built).toBe(2);
  });
});
