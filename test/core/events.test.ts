import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { readFileSync } from "node:fs";
import { inspect } from "node:util";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { connect } from "../../src/connect.js";
import { StoreUnavailableError } from "../../src/core/errors.js";
import { COMMANDS } from "../../src/core/event-fields.js";
import {
  EVENT_NAMES,
  type EventName,
  type Events,
  emit,
  type Logger,
} from "../../src/core/events.js";
import { LAST_REPLY_MS } from "../../src/core/reply-timeout.js";
import type { RenewAnswer } from "../../src/core/store.js";
import { notEntered, stale } from "../../src/fence/fence.js";
import { idempotent } from "../../src/lockfree/idempotent.js";
import { rateLimiter } from "../../src/lockfree/rate-limiter.js";
import { never, rejection, stage, watch } from "./helpers.js";

type Heard = { event: string; fields: Record<string, unknown> };

/** The fields of each event, as documented: no more, no less. */
const ACQUIRE = ["id", "mode", "name", "store"];
const LEASE = [...ACQUIRE, "token"];
const FIELDS: Record<EventName, string[]> = {
  asked: [...ACQUIRE, "holder", "permits"],
  granted: [...LEASE, "handedOver", "holder", "waitMs"],
  "not-granted": [...ACQUIRE, "holder", "reason", "waitMs"],
  renewed: [...LEASE, "remainingShare", "ttlMs"],
  "renewal-failed": [...LEASE, "cause", "remainingMs"],
  jeopardy: [...LEASE, "cause", "remainingMs"],
  recovered: LEASE,
  lost: [...LEASE, "heldMs", "reason"],
  released: [...LEASE, "heldMs", "outcome"],
  revoked: ["by", "holder", "mode", "name", "store", "token", "why"],
  unprotected: ["cause", "holder", "mode", "name", "store"],
  "stale-token": ["highest", "resource", "token"],
  request: ["command", "ms", "outcome", "store"],
  stalled: ["lateMs"],
};
/** These have no logger. */
const UNLOGGED = ["stale-token", "request", "stalled"];
const PAGE = readFileSync(new URL("../../docs/events.md", import.meta.url), "utf8");

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
  on.clock.stall(400);
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
      expect([event, Object.keys(fields).toSorted()]).toEqual([
        event,
        FIELDS[event as EventName].toSorted(),
      ]);
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
    expect(names().filter((event) => event !== "request")).toEqual([
      "asked",
      "granted",
      "renewed",
      "released",
    ]);
    const { token } = lease;
    const { id } = last("asked") as { id: number };
    const acquire = { id, store: "memory", name: "a", mode: "exclusive" };
    expect(last("asked")).toEqual({ ...acquire, holder: "me (n)", permits: 1 });
    const granted = { ...acquire, token, holder: "me (n)", waitMs: 0, handedOver: false };
    expect(last("granted")).toEqual(granted);
    // Renewed at a third of the ttl or a little earlier; a tenth and the drift are no usable time.
    const remainingShare = expect.closeTo(0.64, 1);
    expect(last("renewed")).toEqual({ ...acquire, token, ttlMs: 10_000, remainingShare });
    expect(last("released")).toEqual({ ...acquire, token, heldMs: 3_400, outcome: "released" });
  });

  it("have one number for an acquire and its lease, and another for each name of acquireAll", async () => {
    const on = stage();
    await (await on.locks.acquireAll(["a", "b"])).release();
    await (await on.locks.acquire("a")).release();
    const ids = (event: EventName): unknown[] =>
      received.filter((one) => one.event === event).map(({ fields }) => fields["id"]);
    const asked = ids("asked") as number[];
    expect(asked).toEqual([asked[0], asked[0]! + 1, asked[0]! + 2]);
    expect(ids("granted")).toEqual(asked);
    expect(new Set(ids("released"))).toEqual(new Set(asked));
  });

  it("of a renewal say how much of the lease was left, by the ttl that it had before", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await on.clock.advance(1_000);
    const renewing = lease.renew("100s");
    await on.clock.advance(0);
    await renewing;
    // 1 s of the 8.9 s that drift and abortBefore leave of the ttl has passed.
    const remainingShare = expect.closeTo(7_898 / 8_898);
    expect(last("renewed")).toMatchObject({ ttlMs: 100_000, remainingShare });
  });

  it.each(["0s", "1s", "4s", "5s"] as const)(
    "of a renewal on time tell of no hurry with an abortBefore of %s and a ttl of 10 s",
    async (abortBefore) => {
      const on = stage({ ttl: "10s", abortBefore });
      await on.locks.acquire("a");
      await on.clock.advance(3_400);
      // Below this, the alert HoldfastRenewalsLate fires.
      expect((last("renewed") as Events["renewed"]).remainingShare).toBeGreaterThan(0.3);
    },
  );

  it("of requests name every command, and docs/events.md lists them", async () => {
    const locks = await connect("memory:");
    await (await locks.acquire("a")).renew();
    await locks.inspect("a");
    await locks.list();
    await locks.forceRelease("a", { why: "a test" });
    const semaphore = locks.semaphore("s", { permits: 2 });
    await (await semaphore.acquire()).release();
    await semaphore.resize(3);
    await idempotent(locks, "charge", { keep: "1m" }, () => 1);
    await rateLimiter(locks, "mail", { limit: 1, per: "1m" }).take();
    await locks.close();
    const published = received
      .filter(({ event }) => event === "request")
      .map(({ fields }) => fields["command"] as string);
    expect([...new Set(published)].toSorted()).toEqual([...COMMANDS].toSorted());
    const [, listed] = /`command` is (.*)/.exec(PAGE)!;
    expect(listed!.match(/`\w+`/g)!.map((one) => one.slice(1, -1))).toEqual([...COMMANDS]);
  });

  it("time each request by the store's own reply, and say which failed", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = (apply) =>
      new Promise((resolve) => on.clock.after(70, () => resolve(apply())));
    const renewing = lease.renew();
    await on.clock.advance(70);
    await renewing;
    on.store.onRelease = () => Promise.reject(new Error("down"));
    await Promise.all([lease.release(), on.clock.advance(0)]);
    const requests = received.filter(({ event }) => event === "request").map((one) => one.fields);
    expect(requests.slice(0, 3)).toEqual([
      { store: "memory", command: "claim", ms: 0, outcome: "replied" },
      { store: "memory", command: "renew", ms: 70, outcome: "replied" },
      { store: "memory", command: "release", ms: 0, outcome: "failed" },
    ]);
  });

  it("time a request out that a silent store never answers, once", async () => {
    const on = stage({ ttl: "12s", commandTimeout: "5s" });
    const lease = await on.locks.acquire("a");
    received.length = 0;
    let reply = (): void => {};
    on.store.onClaim = (apply) =>
      new Promise((resolve) => {
        reply = () => resolve(apply());
      });
    watch(on.locks.acquire("b", { wait: 0 }));
    await on.clock.advance(2_000);
    reply();
    on.store.onRenew = () => never();
    watch(lease.renew());
    await on.clock.advance(2_000);
    on.store.onRelease = () => never();
    watch(lease.release());
    await on.clock.advance(5_000);
    const of = (command: string): unknown[] =>
      received.map(({ fields }) => fields).filter((fields) => fields["command"] === command);
    const timeout = { store: "memory", outcome: "timeout" };
    expect(of("claim")).toEqual([{ ...timeout, command: "claim", ms: 2_000 }]);
    expect(of("renew")[0]).toEqual({ ...timeout, command: "renew", ms: 2_000 });
    expect(of("release")).toContainEqual({ ...timeout, command: "release", ms: 5_000 });
  });

  it("count a request as failed that close() no longer waits for, and leave no timer", async () => {
    const on = stage();
    on.store.onClaim = () => never();
    watch(on.locks.acquire("a"));
    await on.clock.advance(100);
    await Promise.all([on.locks.close(), on.clock.advance(LAST_REPLY_MS)]);
    const claims = received.filter(({ event }) => event === "request").map((one) => one.fields);
    expect(claims).toContainEqual({
      store: "memory",
      command: "claim",
      ms: 100 + LAST_REPLY_MS,
      outcome: "failed",
    });
    expect(on.clock.timers).toBe(0);
  });

  it("report a blocked event loop by the timer of the leases", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    await on.clock.advance(3_000);
    expect(names()).not.toContain("stalled");
    on.clock.stall(600);
    await on.clock.advance(0);
    // The timer wakes every 250 ms, so it was due before the block or in it.
    expect((last("stalled") as { lateMs: number }).lateMs).toBeGreaterThan(300);
    await lease.release();
  });

  it("count every renewal that fails, and jeopardy once", async () => {
    const on = stage({ ttl: "10s" });
    on.store.onRenew = () => Promise.reject(new Error("down"));
    await on.locks.acquire("a");
    await on.clock.advance(5_000);
    const count = (event: EventName): number => names().filter((one) => one === event).length;
    expect(count("jeopardy")).toBe(1);
    expect(count("renewal-failed")).toBeGreaterThan(3);
    expect(last("renewal-failed")).toMatchObject({ name: "a", cause: "down" });
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
    const once = ["request", "renewal-failed"];
    expect(names().filter((event) => !once.includes(event))).toEqual([
      "asked",
      "granted",
      "jeopardy",
      "lost",
    ]);
    const lost = { name: "a", token, reason: "expired", heldMs: 8_898 };
    expect(last("lost")).toMatchObject(lost);
    expect(last("jeopardy")).toMatchObject({
      cause: "the store (memory) gave no reply to the request to renew within 1667 ms",
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
      expect(
        names()
          .filter((one) => one !== "request")
          .slice(-2),
      ).toEqual([event, "released"]);
      expect(on.clock.timers).toBe(0);
    },
  );
});

describe("the logger", () => {
  it("gets every event as it is on the channel, at the event's log level", async () => {
    const { lines, logger } = collecting();
    await everything(logger);
    const onChannel = received.filter((one) => !UNLOGGED.includes(one.event));
    expect(lines.map(([, , fields]) => fields)).toEqual(
      onChannel.map(({ event, fields }) => ({ event, ...(asText(fields) as object) })),
    );
  });

  it("gets one line that a person understands", async () => {
    const { lines, logger } = collecting();
    await everything(logger);
    const line = (event: EventName): string =>
      lines.find(([, , fields]) => eventOf(fields) === event)![1];
    expect(line("asked")).toBe('me asks for "a" (exclusive)');
    expect(line("granted")).toMatch(/^"a" was granted to me after 0 ms, with token \d+$/);
    expect(line("not-granted")).toBe('me did not get "a" within 0 ms: it is held by another');
    expect(line("jeopardy")).toMatch(
      /^the lease on "a" can't be renewed, and is lost in \d+ ms if that goes on: down$/,
    );
    expect(line("lost")).toMatch(
      /^the lease on "a" \(token \d+\) was lost after \d+ ms: it was released by force$/,
    );
    expect(line("unprotected")).toMatch(/^me runs WITHOUT the lock on "c": /);
    for (const [, message] of lines) expect(message).not.toMatch(/\n|undefined|NaN|object Object/);
  });

  it("gets no control characters in a line, whoever chose the text", async () => {
    const { lines, logger } = collecting();
    const on = stage({ logger });
    on.store.onClaim = () => Promise.reject(new Error("down\n\u001b[2J"));
    await on.locks.withLock("\u202e", { wait: 0, onUnavailable: "run" }, () => {});
    const [, line] = lines.find(([level]) => level === "warn")!;
    expect(line).toMatch(/^\S+ .*"\?": .*down\?\?\[2J$/);
  });

  it("gets no warning at a normal close() with leases, waiters and an election", async () => {
    const { lines, logger } = collecting();
    const on = stage({ logger, wait: "1h" });
    await on.locks.acquire("a");
    const waiting = watch(on.locks.acquire("a"));
    const campaign = watch(on.locks.election("a").campaign());
    await Promise.all([on.locks.close(), on.clock.advance(10)]);
    expect([waiting.value, campaign.value]).toMatchObject([{ code: "CLOSED" }, { code: "CLOSED" }]);
    expect(lines.map(([, , fields]) => eventOf(fields))).toContain("lost");
    expect(lines.filter(([level]) => level !== "debug")).toEqual([]);
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
    expect(logger.seen).toHaveLength(2);
  });
});

describe("docs/events.md", () => {
  const cells = (row: string): string[] => row.split("|").map((cell) => cell.trim());

  it("says the fields and the log level of each event", async () => {
    const { lines, logger } = collecting();
    await everything(logger);
    const closing = stage({ logger });
    await closing.locks.acquire("a");
    await Promise.all([closing.locks.close(), closing.clock.advance(10)]);
    for (const event of EVENT_NAMES) {
      const row = PAGE.split("\n").find((line) => line.startsWith(`| \`${event}\` |`))!;
      const [, , fields, , level] = cells(row);
      // After the colon are the values of the last field.
      const [listed] = fields!.split(":");
      const own = [...listed!.matchAll(/`(\w+)`/g)].map(([, field]) => field!);
      const common = /\*(acquire|lease)\*/.exec(listed!)?.[1];
      const shared = common === "lease" ? LEASE : common === "acquire" ? ACQUIRE : [];
      expect([event, [...shared, ...own].toSorted()]).toEqual([event, FIELDS[event].toSorted()]);
      const logged = lines.filter(([, , one]) => eventOf(one) === event).map(([one]) => one);
      const documented = level!.match(/\b(debug|info|warn)\b/g) ?? [];
      expect([event, new Set(documented)]).toEqual([event, new Set(logged)]);
      expect(level!.startsWith("none")).toBe(UNLOGGED.includes(event));
    }
  });

  it("explains every warning, and no other line", async () => {
    const { lines, logger } = collecting();
    await everything(logger);
    const warnings = lines.filter(([level]) => level === "warn").map(([, line]) => line);
    const table = PAGE.slice(PAGE.indexOf("| warning |"), PAGE.indexOf("## All events"));
    const explained = table
      .split("\n")
      .filter((row) => row.startsWith("| …"))
      .map((row) => cells(row)[1]!.replaceAll("`", "").split("…"));
    const isOf = (line: string, parts: string[]): boolean =>
      parts.every((part) => line.includes(part.trim()));
    for (const line of warnings) {
      expect(
        explained.filter((parts) => isOf(line, parts)),
        line,
      ).toHaveLength(1);
    }
    for (const parts of explained) expect(warnings.some((line) => isOf(line, parts))).toBe(true);
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

  it("is no more shown than the password of a URL, in events that say why a renewal failed", async () => {
    const on = stage({ ttl: "10s" });
    const lease = await on.locks.acquire("a");
    on.store.onRenew = () => Promise.reject(new Error("lost redis://me:pass:word@db:1/0"));
    const failure = await rejection(lease.renew());
    expect(last("jeopardy")).toMatchObject({ cause: "lost redis://***@db:1/0" });
    expect(inspect([failure, received], { depth: 9 })).not.toContain("word");
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

const eventOf = (fields: object): string => (fields as { event: string }).event;

/** Bigints as text, as a logger that writes JSON must; times as whole milliseconds. */
const asText = (fields: object): unknown =>
  Object.fromEntries(
    Object.entries(fields).map(([key, value]) => [
      key,
      typeof value === "bigint" ? String(value) : key.endsWith("Ms") ? Math.round(value) : value,
    ]),
  );

describe("an event without a subscriber", () => {
  it("costs nothing: its fields are not built", () => {
    for (const [event, onEvent] of subscribers) unsubscribe(`holdfast:${event}`, onEvent);
    let built = 0;
    const fields = (): Events["recovered"] => {
      built++;
      return { id: 1, store: "memory", name: "a", mode: "exclusive", token: 1n };
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
